package node_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// moveLeadership makes to the leader of a partition, and waits until that node serves it. On a busy machine the
// leadership may come back, because the new leader heard nothing of the others for a while: then it is moved again.
func (tc *testCluster) moveLeadership(topic string, n int, to *testNode) {
	tc.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tc.eventually(fmt.Sprintf("%s leads partition %d", to.name, n), func() bool {
		from := tc.leader(topic, n)
		if from == to {
			return true
		}
		id := node.PartitionOf(from.e, topic, n)
		if err := from.store.HandOver(ctx, id, &from.row(topic, n).State, to.e.Node().ID); err != nil {
			tc.t.Logf("%s hands partition %d over to %s: %v", from.name, n, to.name, err)
		}
		return false
	})
}

// publishIn stores a message in a partition.
func (tc *testCluster) publishIn(topic string, n int, body string) {
	tc.t.Helper()
	done := make(chan error, 1)
	p := &node.Put{Messages: [][]byte{[]byte(body)}, Done: func(p *node.Put) { done <- p.Err }}
	if err := tc.topic(tc.leader(topic, n), topic).SubmitTo(n, p); err != nil {
		tc.t.Fatal(err)
	}
	if err := <-done; err != nil {
		tc.t.Fatal(err)
	}
}

// awaitConfirmed waits until the logs of all nodes say that all messages up to one are confirmed. Then the next leader
// knows that, too.
func (tc *testCluster) awaitConfirmed(m *testNode, topic, channel string, upTo node.ID) {
	tc.t.Helper()
	tc.eventually("the confirmation is stored", func() bool {
		return node.ConfirmedBelow(m.e, topic, int(upTo.Partition()), channel) > upTo.MsgID()
	})
	tc.awaitEqualCopies(topic, int(upTo.Partition()))
}

// expectClosed waits until the consumer has been closed.
func (s *testClient) expectClosed(why error) {
	s.t.Helper()
	eventually(s.t, "the consumer is told", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.closes > 0
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closes != 1 || !errors.Is(s.ended, why) {
		s.t.Errorf("told %d times, %v", s.closes, s.ended)
	}
}

func (s *testClient) expectOpen(why string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closes != 0 {
		s.t.Errorf("%s: it was told %v", why, s.ended)
	}
}

// rest finishes n messages of partition 1, of which none was finished before, and returns the id of the last one.
func (s *testClient) rest(n int, finished delivered) (last node.ID) {
	s.t.Helper()
	for range n {
		m := s.next()
		if last = m.id; m.id == finished.id || m.id.Partition() != 1 {
			s.t.Errorf("%s %q comes at the next leader, attempt %d; finished %s %q",
				m.id, m.body, m.attempts, finished.id, finished.body)
		}
		s.finish(m)
	}
	return last
}

// A consumer of one partition stays when its node gives another partition away. Its messages in flight are still its
// own and can be finished; messages that it confirmed do not come again; and new messages come at once. Consumers of
// the whole topic, and of the partition that went, are closed. The partition may come back.
//
// B44, B47 for consumers of one partition.
func TestPartitionConsumerStays(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 2)
	l := tc.leader("t", 0)
	tc.moveLeadership("t", 1, l)
	other := tc.others(l)[0]
	tc.channel("t", "c")
	parts := [2]uint32{0, 1}
	stays := subscribe(t, tc.channelAt(l, "t", "c"), 2, node.ConsumerOptions{Partition: &parts[0]})
	for round := range 3 {
		c := tc.channelAt(l, "t", "c")
		goes := subscribe(t, c, 100, node.ConsumerOptions{Partition: &parts[1]})
		whole := subscribe(t, c, 0)
		for i := range 4 {
			tc.publishIn("t", 0, fmt.Sprint("0 ", round, i))
			tc.publishIn("t", 1, fmt.Sprint("1 ", round, i))
		}
		first, second := stays.next(), stays.next()
		finished := goes.next()
		goes.finish(finished)
		if err := whole.Ready(1); err != nil {
			t.Fatal(err)
		}
		whole.Pump()
		third := whole.next() // of partition 0, since goes has all of the other one
		tc.awaitConfirmed(l, "t", "c", finished.id)

		tc.moveLeadership("t", 1, other)
		goes.expectClosed(errs.ErrMoved)
		whole.expectClosed(errs.ErrMoved)
		stays.expectOpen("another partition went")
		if err := goes.Finish(finished.id); err == nil {
			t.Error("a consumer that was sent away finishes a message")
		}
		stays.finish(first, second)
		again := map[string]uint16{}
		for range 2 {
			m := stays.next()
			again[m.body] = m.attempts
			stays.finish(m)
		}
		if want := map[string]uint16{third.body: 2, fmt.Sprint("0 ", round, 3): 1}; fmt.Sprint(again) != fmt.Sprint(want) {
			t.Errorf("then %v came, want %v", again, want)
		}
		stays.expectNothing("everything of its partition was finished")

		there := subscribe(t, tc.channelAt(other, "t", "c"), 100, node.ConsumerOptions{Partition: &parts[1]})
		tc.awaitConfirmed(other, "t", "c", there.rest(3, finished))
		tc.moveLeadership("t", 1, l)
		there.expectClosed(errs.ErrMoved)
		stays.expectOpen("the partition came back")
	}
	back := subscribe(t, tc.channelAt(l, "t", "c"), 100, node.ConsumerOptions{Partition: &parts[1]})
	back.expectNothing("the next leader's consumers finished everything")
	tc.publishIn("t", 1, "last")
	if got := back.take(1); got[0] != "last" {
		t.Errorf("%v", got)
	}
	tc.moveLeadership("t", 0, other)
	stays.expectClosed(errs.ErrMoved)
	back.expectOpen("the other partition went")
	tc.awaitEqualCopies("t", 0)
	tc.awaitEqualCopies("t", 1)
}
