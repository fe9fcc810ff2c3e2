package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// TestClusterPowerCutAtSegmentEnds cuts the power of the nodes of a cluster at random operations, often again soon
// after the start, while producers and a consumer run. The segments hold one batch each, and retention removes what is
// confirmed at once, so nearly all cuts of logs, resets and checkpoints end where a segment ends. No start may find
// damage, no acknowledged message may be lost, and all copies are equal in the end.
//
// B17, B28, B43, B73, B74.
func TestClusterPowerCutAtSegmentEnds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seedCount(t, "TEST_CLUSTER_CRASH_SEEDS", 3)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p := &powerCuts{rng: rand.New(rand.NewPCG(seed, 11)), h: newAckLog(), handled: map[string]bool{}}
			p.testCluster = newTestCluster(t, 3, func(o *node.Options) {
				o.MinSegmentBytes, o.MaxSegmentBytes, o.RetentionInterval = 4<<10, 4<<10, 2*time.Millisecond
			})
			p.create("t", 1)
			p.channel("t", "c")
			for round := range 4 {
				p.round(round)
			}
			p.check()
		})
	}
}

// powerCuts is a cluster whose nodes lose their power.
type powerCuts struct {
	*testCluster
	rng     *rand.Rand
	h       *ackLog
	mu      sync.Mutex // guards handled
	handled map[string]bool
}

// round cuts the power of one node, or of two, and starts them again, while the others go on.
func (p *powerCuts) round(round int) {
	i := p.rng.IntN(len(p.nodes))
	victims := []*testNode{p.nodes[i]}
	if p.rng.IntN(3) == 0 {
		victims = append(victims, p.nodes[(i+1)%len(p.nodes)])
	}
	stays := p.nodes[(i+2)%len(p.nodes)]
	ctx, cancel := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	for _, m := range p.nodes {
		topic := p.topic(m, "t")
		clients.Go(func() { p.produce(ctx, topic, fmt.Sprint(round, m.name)) })
	}
	at := p.topic(stays, "t")
	clients.Go(func() { p.consume(ctx, at) })
	defer func() { cancel(); clients.Wait() }()
	first := victims[0]
	first.disk.CrashAt(first.disk.Ops() + 20 + p.rng.IntN(600))
	p.eventually("the power is cut", first.disk.Crashed)
	for _, m := range victims {
		p.crash(m)
	}
	if len(victims) == 1 && p.rng.IntN(2) == 0 {
		p.awaitMoreAcks(p.h, 100) // the leader's log begins behind what the node has
	}
	for _, m := range victims {
		p.restart(m)
	}
	p.awaitInSync("t")
}

// restart starts a node, whose power may be cut again while it starts or catches up.
func (p *powerCuts) restart(m *testNode) {
	for again := p.rng.IntN(4); ; again-- {
		if again > 0 {
			m.disk.CrashAt(m.disk.Ops() + 1 + p.rng.IntN(100))
		}
		e, err := p.open(m)
		if err != nil {
			if !m.disk.Crashed() {
				p.t.Fatalf("%s does not start: %v", m.name, err)
			}
			p.network.kill(m.name)
			p.kv.Cut(m.client)
			m.seed++
			m.disk = m.disk.Crash(m.seed)
			continue
		}
		m.e = e
		if found := e.Info().CorruptionsAtRecover; len(found) > 0 {
			p.t.Errorf("%s finds after a power cut: %q", m.name, found)
		}
		if again <= 0 {
			return
		}
		p.eventually("the power is cut again", m.disk.Crashed)
		p.crash(m)
	}
}

// produce publishes messages, each of which fills a segment, until ctx or the engine ends.
func (p *powerCuts) produce(ctx context.Context, topic *node.Topic, prefix string) {
	pad := string(make([]byte, 3000))
	for i := 0; ctx.Err() == nil; i++ {
		if errors.Is(p.h.publish(context.Background(), topic, fmt.Sprint(prefix, ".", i, pad)), errs.ErrClosed) {
			return // other errors may be those of a leader that has lost its power
		}
	}
}

// consume finishes messages until ctx ends.
func (p *powerCuts) consume(ctx context.Context, topic *node.Topic) {
	for ctx.Err() == nil {
		c, err := topic.Channel(ctx, "c")
		if err != nil {
			continue
		}
		_ = c.Consume(ctx, node.ConsumeOptions{MaxInFlight: 50}, func(_ context.Context, m *node.Message) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.handled[string(m.Body)] = true
			return nil
		})
	}
}

// check compares what consumers got with the answers that producers got, and the copies with each other.
func (p *powerCuts) check() {
	p.t.Helper()
	for _, body := range readAll(p.t, p.channelAt(p.leader("t", 0), "t", "c")) {
		p.handled[body] = true
	}
	lost := 0
	for body := range p.h.acked {
		if !p.handled[body] {
			if lost++; lost < 5 {
				p.t.Errorf("%.40q was answered OK, and no consumer got it", body)
			}
		}
	}
	p.t.Logf("%d acknowledged, %d lost", len(p.h.acked), lost)
	p.awaitEqualCopies("t", 0)
}
