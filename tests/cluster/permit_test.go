//go:build cluster

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/client"
	"penstock/tests/cluster/harness"
)

const (
	orderedTopic = "ordered"
	orderedKeys  = 20
)

// begun is what the consumers of a channel that is ordered by key have begun to handle.
type begun struct {
	t    *testing.T
	mu   sync.Mutex
	high map[string]int // by key
	n    int
}

// note notes that a message is begun. It may be begun again, but not after a later one of its key.
func (b *begun) note(who string, d *client.Delivery) {
	n, err := strconv.Atoi(string(d.Body))
	if err != nil {
		b.t.Error(err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key := string(d.Key)
	if high, ok := b.high[key]; ok && n < high {
		b.t.Errorf("%s begins %d of %s, attempt %d, after %d", who, n, key, d.Attempts, high)
	}
	b.high[key] = max(b.high[key], n)
	b.n++
}

func (b *begun) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// Native clients of an ordered channel take messages in advance, and begin them late. Leaders stand still for longer
// than their lease and go on, leaderships move, and clients stand still: none begins a message after the next one of
// its key was begun.
//
// B57.
func TestNativeKeepsOrder(t *testing.T) {
	s := prepare(t, three, harness.Options{Serve: []string{"--default-partitions", "1"}})
	ctx := s.within(10 * time.Minute)
	s.try(s.c.CreateTopic(ctx, orderedTopic))
	s.healthy()
	c := s.dialNative()
	s.try(harness.Post(ctx, s.c.Nodes[0].HTTP, "/channel/create?topic="+orderedTopic+"&channel=late", nil, nil))
	s.try(harness.Post(ctx, s.c.Nodes[0].HTTP, "/channel/settings?topic="+orderedTopic+"&channel=late",
		map[string]any{"order": "key"}, nil))
	all := &begun{t: t, high: map[string]int{}}
	running, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { all.consume(running, s, "a client", client.Options{Logger: quietLog}) })
	between := &halfway{}
	defer between.end()
	tasks.Go(func() {
		all.consume(running, s, "a client that hears late", client.Options{Logger: quietLog, Dial: between.dial})
	})
	p, err := c.Producer(ctx, orderedTopic, client.ProducerOptions{DeliveryTimeout: time.Minute})
	s.try(err)
	tasks.Go(func() {
		for n := 0; running.Err() == nil; n++ {
			p.Produce(running, &client.Message{Key: fmt.Append(nil, "k", n%orderedKeys), Body: fmt.Append(nil, n)}, nil)
			s.pass(5 * time.Millisecond)
		}
	})
	leader := func() *harness.Node {
		n, err := s.c.Leader(s.within(startTimeout), orderedTopic, 0)
		s.try(err)
		return n
	}
	for range rounds(t, 3) {
		before := all.count()
		for range 3 {
			s.pass(time.Second)
			between.cut()
			s.pass(4 * time.Second)
		}
		n := leader()
		s.try(n.Pause())
		s.pass(lease + time.Second)
		s.try(n.Resume())
		s.healthy()
		s.tool("cluster", "transfer-leader", orderedTopic, "0")
		for end := time.Now().Add(nativePatience); all.count() < before+200; s.pass(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the consumers get nothing any more")
			}
		}
	}
	stop()
	tasks.Wait()
	t.Logf("%d messages were begun", all.count())
}

// consume begins messages, often late, and finishes them.
func (b *begun) consume(ctx context.Context, s *scenario, who string, o client.Options) {
	r := rand.New(rand.NewPCG(1, uint64(len(who))))
	c, err := client.Dial(ctx, s.natives(), o)
	if err != nil {
		b.t.Error(err)
		return
	}
	defer c.Close()
	k, err := c.Consumer(ctx, orderedTopic, "late", client.ConsumerOptions{MaxInFlight: 8})
	for err == nil {
		var d client.Delivery
		if d, err = k.Next(ctx); err != nil {
			break
		}
		b.note(who, &d)
		_ = d.Finish() // it may have come too late: then it is begun again
		if o.Dial != nil {
			s.pass(time.Duration(r.Int64N(int64(400 * time.Millisecond))))
		}
	}
	if ctx.Err() == nil {
		b.t.Error(err)
	}
}

// halfway relays connections to nodes, and can end them so that only the nodes hear of it.
type halfway struct {
	mu   sync.Mutex
	open []*relayed
}

// relayed is a connection: client ─► near ─► far ─► node.
type relayed struct {
	near, far net.Conn
	cut       atomic.Bool
}

// dial is client.Options.Dial.
func (h *halfway) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	far, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, far.Close())
	}
	defer ln.Close()
	own, err := d.DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		return nil, errors.Join(err, far.Close())
	}
	near, err := ln.Accept()
	if err != nil {
		return nil, errors.Join(err, far.Close(), own.Close())
	}
	r := &relayed{near: near, far: far}
	go func() {
		_, _ = io.Copy(far, near)
		_ = far.Close()
	}()
	go func() {
		_, _ = io.Copy(near, far)
		if !r.cut.Load() {
			_ = near.Close()
		}
	}()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = append(h.open, r)
	return own, nil
}

// cut ends all connections at the nodes. The client hears nothing any more.
func (h *halfway) cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.open {
		r.cut.Store(true)
		_ = r.far.Close()
	}
}

// end ends what is left.
func (h *halfway) end() {
	h.cut()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.open {
		_ = r.near.Close()
	}
}
