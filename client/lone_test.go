package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
)

// Calls of ProduceSync, each of which may do the lane's work, and messages with done functions: each is told once, and
// those of a goroutine are stored in its order.
func TestSyncBesideAsync(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{})
	const callers, each = 6, 200
	var all, told sync.WaitGroup
	for g := range callers {
		all.Go(func() {
			last := ID(0)
			for i := range each {
				m := &Message{Body: fmt.Appendf(nil, "%d %d", g, i)}
				if g%2 == 1 && i%8 != 0 {
					told.Add(1)
					p.Produce(context.Background(), m, func(_ *Message, _ ID, err error) {
						if err != nil {
							t.Error(err)
						}
						told.Done()
					})
					continue
				}
				id, err := p.ProduceSync(within(t), m)
				if err != nil || i > 0 && id <= last {
					t.Errorf("caller %d, message %d: id %v after %v, %v", g, i, id, last, err)
				}
				last = id
			}
		})
	}
	all.Wait()
	told.Wait()
	next := make([]int, callers)
	for _, body := range cluster.bodies(topic.parts[0]) {
		var g, i int
		if _, err := fmt.Sscanf(body, "%d %d", &g, &i); err != nil || i != next[g] {
			t.Fatalf("%q is stored, and %d was to be next: %v", body, next[g], err)
		}
		next[g]++
	}
	for g, n := range next {
		if n != each {
			t.Errorf("%d messages of caller %d are stored", n, g)
		}
	}
}

// When the context of a lone call ends, the call returns, the lane's goroutine goes on, and later messages are stored
// behind the one that was left.
func TestSyncLeavesEarly(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{})
	if _, err := p.ProduceSync(within(t), &Message{Body: []byte("first")}); err != nil {
		t.Fatal(err)
	}
	cluster.change(func() { topic.parts[0].leader = -1 })
	for i := range 3 {
		ctx, cancel := context.WithCancel(context.Background())
		go cancel()
		if _, err := p.ProduceSync(ctx, &Message{Body: fmt.Append(nil, i)}); !errors.Is(err, ErrUnknown) ||
			!errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	cluster.change(func() { topic.parts[0].leader = 0 })
	if id, err := p.ProduceSync(within(t), &Message{Body: []byte("last")}); err != nil || id != 4 {
		t.Errorf("%v, %v", id, err)
	}
}

// A lone call does the lane's work itself: the lane's goroutine cannot have done it while the call held the turn.
func TestSyncNeedsNoOtherGoroutine(t *testing.T) {
	cluster := newTestCluster(t, 1)
	cluster.create("orders", 1)
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{})
	if _, err := p.ProduceSync(within(t), &Message{Body: []byte("first")}); err != nil {
		t.Fatal(err)
	}
	l := (*p.lanes.Load())[0]
	answered := 0
	for i := range 20 {
		c := syncCalls.Get().(*syncCall)
		c.m = Message{Body: fmt.Append(nil, i)}
		room, err := p.check(&c.m)
		if err != nil || !p.room.TryAcquire(room) {
			t.Fatal(err)
		}
		if !l.produce(within(t), &c.m, c.done, room, c) {
			t.Fatal("the lane has ended")
		}
		answered += len(c.result)
		<-c.result
	}
	if answered < 10 { // a call may find the goroutine at work, as after one that was slow
		t.Errorf("%d of 20 calls had their answer when they gave the turn back", answered)
	}
}
