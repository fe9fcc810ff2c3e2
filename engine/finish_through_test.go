package engine_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"penstock/engine"
)

// sync waits until all that was finished so far is committed.
func (s *testClient) sync() error {
	s.t.Helper()
	done := make(chan error, 1)
	s.Sync(func(err error) { done <- err })
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
	e := openOnDisk(t, disk, func(o *engine.Options) { o.ConfirmInterval = time.Hour }) // Sync does not wait for it
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
	if err := s.FinishThrough(got[9].number); err != nil {
		t.Fatal(err)
	}
	if err := s.Finish(got[15].id); err != nil {
		t.Fatal(err)
	}
	if err := s.FinishThrough(got[3].number); !errors.Is(err, engine.ErrNotInFlight) {
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
	topic, _ = e.LookupTopic("t")
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
	if err := passing.FinishThrough(passing.next().number); err != nil {
		t.Fatal(err)
	}
	if err := passing.sync(); err != nil {
		t.Errorf("of an ephemeral channel: %v", err)
	}
	s := subscribe(t, channelOf(t, topic, "c"), 10)
	if err := topic.DeleteChannel(ctxBg, "c"); err != nil {
		t.Fatal(err)
	}
	if err := s.sync(); !errors.Is(err, engine.ErrDeleted) {
		t.Errorf("of a deleted channel: %v", err)
	}
	if err := s.FinishThrough(1); !errors.Is(err, engine.ErrNotInFlight) {
		t.Errorf("a deleted channel: %v", err)
	}
}

// In a cluster a Sync waits for the commit. Once it is answered, the next leader does not deliver the messages again,
// although the old one crashes at once.
func TestSyncOutlastsTheLeader(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *engine.Options) { o.ConfirmInterval = time.Hour })
	tc.create("t", 1)
	c := tc.channel("t", "c")
	leader := tc.leader("t", 0)
	s := subscribe(t, c, 100)
	topic := c.Topic()
	publish(t, topic, numbered("m", 50, 0)...)
	want := map[engine.ID]bool{}
	var last delivered
	for i := range 50 {
		if m := s.next(); i < 40 {
			last = m
		} else {
			want[m.id] = true
		}
	}
	if err := s.FinishThrough(last.number); err != nil {
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
