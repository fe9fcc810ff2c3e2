package node_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
)

// program is a program that consumes a channel with Consume. mu guards got, times and n.
type program struct {
	tc     *testCluster
	cancel context.CancelFunc
	ended  chan error

	mu    sync.Mutex
	got   map[string]node.ID
	times map[node.ID]int // how often each message came
	n     int
}

// startProgram starts a program at a node. The end of the test ends it.
func (tc *testCluster) startProgram(m *testNode, topic, channel string, o node.ConsumeOptions) *program {
	tc.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c, err := tc.topic(m, topic).Channel(ctx, channel)
	if err != nil {
		tc.t.Fatal(err)
	}
	p := &program{
		tc: tc, cancel: cancel, ended: make(chan error, 1), got: map[string]node.ID{}, times: map[node.ID]int{},
	}
	go func() { p.ended <- c.Consume(ctx, o, p.handle) }()
	tc.t.Cleanup(func() {
		p.stop()
	})
	return p
}

func (p *program) handle(_ context.Context, m *node.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got[string(m.Body)] = m.ID
	p.times[m.ID]++
	p.n++
	return nil
}

// stop ends the program and returns what Consume returned.
func (p *program) stop() error {
	p.cancel()
	err := <-p.ended
	p.ended <- err
	return err
}

func (p *program) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

// awaitMore waits until n more messages have come.
func (p *program) awaitMore(n int) {
	p.tc.t.Helper()
	from := p.count()
	p.tc.eventually("more messages come", func() bool { return p.count() >= from+n })
}

// awaitAll waits until every acknowledged message has come, and returns how many came more than once.
func (p *program) awaitAll(h *ackLog) (again int) {
	p.tc.t.Helper()
	missing := ""
	all := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		p.mu.Lock()
		defer p.mu.Unlock()
		for body, id := range h.acked {
			if p.got[body] != id {
				missing = body
				return false
			}
		}
		return true
	}
	for end := time.Now().Add(patience); !all(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			p.tc.t.Fatalf("%.40q never came; %d messages came", missing, p.count())
		}
		select {
		case err := <-p.ended:
			p.tc.t.Fatalf("the program has ended: %v; %.40q is missing", err, missing)
		default:
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.times {
		if n > 1 {
			again++
		}
	}
	return again
}

// A program gets the messages of all partitions, although each of the three nodes leads one; while nothing fails each
// once.
func TestConsumeAllPartitions(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	tc.leaders("t")
	p := tc.startProgram(tc.nodes[0], "t", "c", node.ConsumeOptions{Workers: 3})
	h := newAckLog()
	for i, m := range tc.nodes {
		tc.publishMany(h, m, "t", m.name, 500+i, 50)
	}
	if again := p.awaitAll(h); again != 0 {
		t.Errorf("%d messages came more than once", again)
	}
	for _, m := range tc.nodes {
		c := tc.channelAt(m, "t", "c")
		tc.eventually("everything is confirmed", func() bool {
			st := channelStats(t, c)
			return st.Depth == 0 && st.InFlightCount == 0 && len(st.Consumers) == 1
		})
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	for _, m := range tc.nodes {
		c := tc.channelAt(m, "t", "c")
		tc.eventually("it has left", func() bool { return len(channelStats(t, c).Consumers) == 0 })
	}
}
