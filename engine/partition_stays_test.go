package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"penstock/engine"
)

// handPartition makes to the leader of a partition, and waits until it serves.
func (tr *trio) handPartition(topic string, n int, to *member) {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	from := tr.leader(topic, n)
	if from == to {
		return
	}
	id := engine.PartitionOf(from.e, topic, n)
	if err := from.store.HandOver(ctx, id, &from.row(topic, n).State, to.e.Node().ID); err != nil {
		tr.t.Fatal(err)
	}
	tr.eventually(fmt.Sprintf("%s leads partition %d", to.name, n), func() bool { return tr.leader(topic, n) == to })
}

// publishIn stores a message in a partition.
func (tr *trio) publishIn(topic string, n int, body string) {
	tr.t.Helper()
	done := make(chan error, 1)
	p := &engine.Put{Messages: [][]byte{[]byte(body)}, Done: func(p *engine.Put) { done <- p.Err }}
	if err := tr.topic(tr.leader(topic, n), topic).SubmitTo(n, p); err != nil {
		tr.t.Fatal(err)
	}
	if err := <-done; err != nil {
		tr.t.Fatal(err)
	}
}

// stored waits until the log says that everything up to a message is confirmed, on all nodes: whoever leads next knows
// it.
func (tr *trio) stored(m *member, topic, channel string, upTo engine.ID) {
	tr.t.Helper()
	tr.eventually("the confirmation is stored", func() bool {
		return engine.ConfirmedBelow(m.e, topic, int(upTo.Partition()), channel) > upTo.MsgID()
	})
	tr.equal(topic, int(upTo.Partition()))
}

// ends waits until a consumer was told that it is no more.
func (s *seat) ends(why error) {
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

func (s *seat) lives(why string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closes != 0 {
		s.t.Errorf("%s: it was told %v", why, s.ended)
	}
}

// rest finishes n messages of partition 1, of which none is finished, and returns the last one's id.
func (s *seat) rest(n int, finished delivered) (last engine.ID) {
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

// A consumer of one partition stays when its node gives another one away: what it has in flight is still its own and
// can be finished, what it confirmed does not come again, and more comes at once. Consumers of the whole topic and of
// the partition that went are told to go. The partition may come back.
//
// B44, B47 for consumers of one partition.
func TestPartitionConsumerStays(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 2)
	l := tr.leader("t", 0)
	tr.handPartition("t", 1, l)
	other := tr.others(l)[0]
	tr.channel("t", "c")
	parts := [2]uint32{0, 1}
	stays := sit(t, tr.at(l, "t", "c"), 2, engine.ConsumerOptions{Partition: &parts[0]})
	for round := range 3 {
		c := tr.at(l, "t", "c")
		goes := sit(t, c, 100, engine.ConsumerOptions{Partition: &parts[1]})
		whole := sit(t, c, 0)
		for i := range 4 {
			tr.publishIn("t", 0, fmt.Sprint("0 ", round, i))
			tr.publishIn("t", 1, fmt.Sprint("1 ", round, i))
		}
		first, second := stays.next(), stays.next()
		finished := goes.next()
		goes.finish(finished)
		if err := whole.Ready(1); err != nil {
			t.Fatal(err)
		}
		whole.Pump()
		third := whole.next() // of partition 0, since goes has all of the other one
		tr.stored(l, "t", "c", finished.id)

		tr.handPartition("t", 1, other)
		goes.ends(engine.ErrMoved)
		whole.ends(engine.ErrMoved)
		stays.lives("another partition went")
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
		stays.none("everything of its partition was finished")

		there := sit(t, tr.at(other, "t", "c"), 100, engine.ConsumerOptions{Partition: &parts[1]})
		tr.stored(other, "t", "c", there.rest(3, finished))
		tr.handPartition("t", 1, l)
		there.ends(engine.ErrMoved)
		stays.lives("the partition came back")
	}
	back := sit(t, tr.at(l, "t", "c"), 100, engine.ConsumerOptions{Partition: &parts[1]})
	back.none("the next leader's consumers finished everything")
	tr.publishIn("t", 1, "last")
	if got := back.take(1); got[0] != "last" {
		t.Errorf("%v", got)
	}
	tr.handPartition("t", 0, other)
	stays.ends(engine.ErrMoved)
	back.lives("the other partition went")
	tr.equal("t", 0)
	tr.equal("t", 1)
}
