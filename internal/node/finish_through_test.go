package node_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"penstock/internal/cluster"
	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// sync waits until all that was finished so far is committed.
func (s *testClient) sync() error {
	s.t.Helper()
	done := make(chan error, 1)
	s.local().Sync(func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		s.t.Fatal("no answer to a Sync")
	}
	panic("unreachable")
}

// FinishThrough finishes a delivery and those before it. What a Sync has answered does not come again after a crash,
// however soon that comes.
func TestFinishThroughAndSync(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk, func(o *node.Options) { o.ConfirmInterval = time.Hour }) // Sync does not wait for it
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	s := subscribe(t, c, 100)
	if err := s.sync(); err != nil {
		t.Fatalf("nothing was finished: %v", err)
	}
	publish(t, topic, numbered("m", 20, 0)...)
	var got []delivered
	for i := range 20 {
		m := s.next()
		if m.number != uint64(i+1) {
			t.Fatalf("delivery %d has the number %d", i+1, m.number)
		}
		got = append(got, m)
	}
	if err := s.local().FinishThrough(got[9].number); err != nil {
		t.Fatal(err)
	}
	if err := s.Finish(got[15].id); err != nil {
		t.Fatal(err)
	}
	if err := s.local().FinishThrough(got[3].number); !errors.Is(err, errs.ErrNotInFlight) {
		t.Errorf("a delivery that was finished before: %v", err)
	}
	if err := s.Requeue(got[19].id, time.Hour/2); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := s.sync(); err != nil {
			t.Fatal(err)
		}
	}
	disk = disk.Crash(1)
	_ = e.Close() // what it writes is lost
	e = openOnDisk(t, disk)
	topic, _ = e.Catalog().LookupTopic("t")
	c, _ = topic.LookupChannel("c")
	s = subscribe(t, c, 100)
	for i, m := range got {
		if i >= 10 && i != 15 && i != 19 {
			if again := s.next(); again.id != m.id {
				t.Errorf("%v came again, want message %d", again.id, i)
			}
		}
	}
	s.expectNothing("the others were finished, or wait")
	if st := channelStats(t, c); st.DeferredCount != 1 {
		t.Errorf("%d messages wait", st.DeferredCount)
	}
}

// A Sync ends with an error when the channel does, and one of an ephemeral channel has nothing to wait for.
func TestSyncOfChannelsThatEnd(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	passing := subscribe(t, channelOf(t, topic, "c#ephemeral"), 10)
	publish(t, topic, "one")
	if err := passing.local().FinishThrough(passing.next().number); err != nil {
		t.Fatal(err)
	}
	if err := passing.sync(); err != nil {
		t.Errorf("of an ephemeral channel: %v", err)
	}
	s := subscribe(t, channelOf(t, topic, "c"), 10)
	if err := topic.DeleteChannel(ctxBg, "c"); err != nil {
		t.Fatal(err)
	}
	if err := s.sync(); !errors.Is(err, errs.ErrDeleted) {
		t.Errorf("of a deleted channel: %v", err)
	}
	if err := s.local().FinishThrough(1); !errors.Is(err, errs.ErrDeleted) {
		t.Errorf("a deleted channel: %v", err)
	}
}

// In a cluster a Sync waits for the commit. Once it is answered, the next leader does not deliver the messages again,
// although the old one crashes at once.
func TestSyncOutlastsTheLeader(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { o.ConfirmInterval = time.Hour })
	tc.create("t", 1)
	c := tc.channel("t", "c")
	leader := tc.leader("t", 0)
	s := subscribe(t, c, 100)
	topic := c.Topic()
	publish(t, topic, numbered("m", 50, 0)...)
	want := map[node.ID]bool{}
	var last delivered
	for i := range 50 {
		if m := s.next(); i < 40 {
			last = m
		} else {
			want[m.id] = true
		}
	}
	if err := s.local().FinishThrough(last.number); err != nil {
		t.Fatal(err)
	}
	if err := s.sync(); err != nil {
		t.Fatal(err)
	}
	tc.crash(leader)
	got := readAll(t, tc.channel("t", "c"))
	if len(got) != len(want) {
		t.Errorf("%d messages came again, want %d", len(got), len(want))
	}
	for id := range got {
		if !want[id] {
			t.Error(fmt.Sprint(id, " came again"))
		}
	}
}

// A consumer of a client that knows the leaders: a node that does not lead refuses it, and when the leadership goes, it
// is told, its messages go to the next leader, and FinishThrough and Sync change nothing any more.
func TestAttachLeader(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) {
		o.Cluster.Replicas, o.Cluster.PreferredLeader = 3, cluster.PreferredLeader
	})
	tc.create("t", 1)
	c := tc.channel("t", "c")
	first := tc.leader("t", 0)
	second := tc.others(first)[0]
	at := func(m *testNode) *node.Channel {
		t.Helper()
		topic, err := m.e.Topic(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		return channelOf(t, topic, "c")
	}
	partition := uint32(0)
	attach := func(c *node.Channel) (*testClient, error) {
		s := &testClient{t: t, came: make(chan struct{}, 1)}
		k, err := c.AttachLeader(node.ConsumerOptions{Partition: &partition}, s)
		if s.Consumer = k; err == nil {
			if err = k.Ready(10); err == nil {
				k.Pump()
			}
		}
		return s, err
	}
	if _, err := attach(at(second)); !errors.Is(err, errs.ErrNoLeader) {
		t.Fatalf("at a node that does not lead: %v", err)
	}
	s, err := attach(c)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, c.Topic(), "one", "two")
	one, two := s.next(), s.next()
	if err := s.local().FinishThrough(one.number); err != nil {
		t.Fatal(err)
	}
	if err := s.sync(); err != nil {
		t.Fatal(err)
	}
	if _, err := first.store.TransferLeader(t.Context(), first.row("t", 0).ID, second.e.Node().ID); err != nil {
		t.Fatal(err)
	}
	tc.eventually("the consumer is told", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return errors.Is(s.ended, errs.ErrMoved)
	})
	if err := s.local().FinishThrough(two.number); !errors.Is(err, errs.ErrMoved) {
		t.Errorf("after the leadership: %v", err)
	}
	if err := s.sync(); !errors.Is(err, errs.ErrMoved) {
		t.Errorf("a Sync after the leadership: %v", err)
	}
	tc.eventually("the new leader serves", func() bool {
		s, err = attach(at(second))
		if err != nil && !errors.Is(err, errs.ErrNoLeader) && !errors.Is(err, errs.ErrMoved) {
			t.Fatal(err)
		}
		return err == nil
	})
	if again := s.next(); again.id != two.id {
		t.Errorf("%v comes again, want %v", again.id, two.id)
	}
	s.expectNothing("the other one was finished")
}
