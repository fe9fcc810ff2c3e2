package node_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
)

// A program that consumes at one node goes on, and gets every message, while its own node gains and loses leaderships,
// a leader is killed and comes back, and the topic gets more partitions.
func TestConsumeThroughFaults(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 2)
	h := newAckLog()
	here, publisher, victim := tc.nodes[0], tc.nodes[1], tc.nodes[2]
	tc.channel("t", "c")
	p := tc.startProgram(here, "t", "c", node.ConsumeOptions{Workers: 2, RequeueDelay: -1})
	stop := tc.startProducers(h, []*testNode{here, publisher}, "t", "r", func(err error) bool {
		return errors.Is(err, errs.ErrUnknown) || errors.Is(err, errs.ErrNoLeader) ||
			errors.Is(err, errs.ErrNoQuorum) || errors.Is(err, errs.ErrDeadline)
	})
	defer stop()
	p.awaitMore(50)
	for _, m := range []*testNode{here, publisher, here} {
		tc.drainNode(m, "t")
		p.awaitMore(50)
	}
	tc.kill(victim)
	p.awaitMore(50)
	tc.start(victim)
	tc.awaitInSync("t")
	configure(t, tc.topic(here, "t"), func(s *meta.TopicSettings) { s.Partitions = 5 })
	for n := range 5 { // a message of each of the new partitions comes
		tc.leader("t", n)
		tc.eventually("a message of the partition comes", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			for id := range p.times {
				if id.Partition() == uint32(n) {
					return true
				}
			}
			return false
		})
	}
	tc.drainNode(publisher, "t")
	p.awaitMore(50)
	stop()
	t.Logf("%d of %d messages came more than once", p.awaitAll(h), p.count())
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

// A program that pulls, and holds several messages, gets every message while leaderships move, and again only those
// whose delivery was cut. Then Close ends a Next that waits.
func TestPullThroughMoves(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	h := newAckLog()
	here := tc.nodes[0]
	c, err := tc.topic(here, "t").Channel(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	const inFlight = 10
	// The timeout is longer than the test waits: messages of a lost leader must not take the room of another leader's.
	s := openMessages(t, c, node.ConsumeOptions{MaxInFlight: inFlight, MsgTimeout: 2 * patience})
	for _, m := range tc.nodes {
		tc.publishMany(h, m, "t", m.name, 100, 30)
	}
	got, times, moves := map[string]node.ID{}, 0, 0
	var held []*node.Message
	for len(got) < len(h.acked) {
		if times++; times%100 == 50 {
			tc.drainNode(tc.leader("t", moves%3), "t")
			moves++
		}
		m := take(t, s)
		got[string(m.Body)] = m.ID
		if held = append(held, m); len(held) < 4 {
			continue
		}
		for _, i := range []int{2, 0, 3, 1} {
			if err := held[i].Finish(); err != nil && !errors.Is(err, errs.ErrNotInFlight) {
				t.Error(err)
			}
		}
		held = held[:0]
	}
	for body, id := range h.acked {
		if got[body] != id {
			t.Errorf("%.40q came as %v, it is %v", body, got[body], id)
		}
	}
	// A node may lead up to three partitions when it is drained, so that each move cuts three times at most. What waits
	// in memory then, and what was delivered for the second time, may come twice.
	if again := times - len(got); again > 2*3*inFlight*moves {
		t.Errorf("%d messages came again after %d moves, with %d in flight", again, moves, inFlight)
	}
	ended := make(chan error, 1)
	go func() {
		var m node.Message
		for {
			if err := s.Next(context.Background(), &m); err != nil {
				ended <- err
				return
			}
			_ = m.Finish() // again one whose delivery was cut
		}
	}()
	s.Close()
	select {
	case err := <-ended:
		if !errors.Is(err, errs.ErrClosed) {
			t.Errorf("Next returned %v", err)
		}
	case <-time.After(patience):
		t.Error("Next still waits after Close")
	}
}

// A consumer of one partition follows it from node to node, and gets nothing of the others.
func TestConsumePartitionMoves(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	topic := tc.topic(tc.nodes[0], "t")
	c, err := topic.Channel(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	one := uint32(1)
	s := openMessages(t, c, node.ConsumeOptions{Partition: &one})
	for round := range 3 {
		for n := range 3 {
			tc.eventually("it is stored", func() bool {
				done := make(chan error, 1)
				put := node.Put{
					Messages: [][]byte{fmt.Appendf(nil, "%d.%d", round, n)}, Done: func(p *node.Put) { done <- p.Err },
				}
				return topic.SubmitTo(n, &put) == nil && <-done == nil
			})
		}
		m := take(t, s)
		for string(m.Body) != fmt.Sprintf("%d.1", round) { // the last round's again: its FIN was lost with the leader
			if m.ID.Partition() != one {
				t.Fatalf("%s of partition %d came", m.Body, m.ID.Partition())
			}
			_ = m.Finish()
			m = take(t, s)
		}
		if err := m.Finish(); err != nil {
			t.Error(err)
		}
		tc.drainNode(tc.leader("t", 1), "t")
	}
	zero := uint32(0)
	other := openMessages(t, c, node.ConsumeOptions{Partition: &zero})
	if m := take(t, other); string(m.Body) != "0.0" {
		t.Errorf("%s of partition %d came", m.Body, m.ID.Partition())
	}
}

// Messages of an ordered channel come in order to a program at another node, while the leadership moves.
func TestPullOrdered(t *testing.T) {
	t.Parallel()
	tc, leader, other, _ := newOrderedCluster(t, fold.OrderPartition)
	c, err := tc.topic(other, "t").Channel(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	s := openMessages(t, c, node.ConsumeOptions{})
	want := numbered("m", 60, 0)
	publish(t, tc.topic(leader, "t"), want...)
	for i, body := range want {
		if i == 30 {
			tc.drainNode(tc.leader("t", 0), "t")
		}
		m := take(t, s)
		for i == 30 && string(m.Body) == want[i-1] { // again: its FIN was lost with the leader
			_ = m.Finish()
			m = take(t, s)
		}
		if string(m.Body) != body {
			t.Fatalf("%s came, want %s", m.Body, body)
		}
		if err := m.Finish(); err != nil && !errors.Is(err, errs.ErrNotInFlight) {
			t.Error(err)
		}
	}
}
