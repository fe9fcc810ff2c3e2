package node_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/channel"
)

// carriedWorld stores deferred messages of channel c: three that were published with a delay, and one, "again", that
// was requeued. Then it stores so many other messages that the segments of these are removed.
func carriedWorld(
	t *testing.T, e *node.Engine, topic *node.Topic, ch *node.Channel,
) (s *testClient, ids []node.ID) {
	t.Helper()
	s = subscribe(t, ch, 1)
	for _, body := range []string{"one", "two"} {
		id, err := topic.PublishMessage(ctxBg, node.Outgoing{
			Body: []byte(body), Delay: time.Hour, Headers: headers("kind", body),
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	publish(t, topic, "again")
	again := s.next()
	if err := s.Requeue(again.id, time.Hour); err != nil {
		t.Fatal(err)
	}
	s.Pump()
	id, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("three"), Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ids = append(ids, again.id, id)
	publishFlood(t, topic, s, 150)
	awaitShrink(t, e, topic, s, 600<<10)
	logConfirms(t, ch)
	return s, ids
}

// logConfirms returns when all confirmations and requeues so far are in the log, so that no crash undoes them.
func logConfirms(t *testing.T, ch *node.Channel) {
	t.Helper()
	if err := errors.Join(ch.Pause(ctxBg), ch.Unpause(ctxBg)); err != nil {
		t.Fatal(err)
	}
}

// peekBodies returns the bodies that a peek shows; with from -1, all of them.
func peekBodies(
	t *testing.T, look func(node.PeekOptions) ([]node.PeekedMessage, error), o node.PeekOptions,
) []string {
	t.Helper()
	got, err := look(o)
	if err != nil {
		t.Fatal(err)
	}
	bodies := peeked(got)
	for i := range bodies {
		bodies[i] = bodies[i][:min(len(bodies[i]), 10)]
	}
	return bodies
}

// checkCarried checks the messages that carriedWorld and two further messages, recent, left in the channel.
func checkCarried(t *testing.T, topic *node.Topic, ch *node.Channel, ids, recent []node.ID) {
	t.Helper()
	look := func(o node.PeekOptions) ([]node.PeekedMessage, error) { return ch.Peek(ctxBg, o) }
	inTopic := func(o node.PeekOptions) ([]node.PeekedMessage, error) {
		return topic.Peek(ctxBg, o.Partition, o.From, o.Count)
	}
	for _, c := range []struct {
		o    node.PeekOptions
		want string
	}{
		{node.PeekOptions{}, "[one two again three recent newest]"},
		{node.PeekOptions{Partition: -1, Count: 5}, "[one two again three recent]"},
		{node.PeekOptions{Count: 3}, "[one two again]"},
		{node.PeekOptions{From: ids[1], Count: 2}, "[two again]"},
		{node.PeekOptions{From: ids[2], Count: 3}, "[again three recent]"},
		{node.PeekOptions{From: recent[0]}, "[recent newest]"},
	} {
		if got := fmt.Sprint(peekBodies(t, look, c.o)); got != c.want {
			t.Errorf("%+v: %s, want %s", c.o, got, c.want)
		}
		if c.o.Count > 0 && c.o.Count < 4 && c.o.From == 0 { // the topic's log has other messages behind these
			if got := fmt.Sprint(peekBodies(t, inTopic, c.o)); got != c.want {
				t.Errorf("of the topic, %+v: %s, want %s", c.o, got, c.want)
			}
		}
	}
	got, err := ch.Peek(ctxBg, node.PeekOptions{Count: 4})
	if err != nil || len(got) != 4 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range got {
		m := &got[i]
		deferred := i != 2
		if m.ID != ids[i] || m.BodyBytes != len(m.Body) || time.Since(m.Timestamp) > patience || m.Due.IsZero() == deferred {
			t.Errorf("%+v", m)
		}
		if deferred && m.Due.Sub(m.Timestamp).Round(time.Minute) != time.Hour {
			t.Errorf("published at %v and due at %v", m.Timestamp, m.Due)
		}
	}
	if valueOf(&got[1], "kind") != "two" {
		t.Errorf("headers: %+v", got[1])
	}
}

// Messages of which the log has only carried copies are shown in their original place, unchanged.
//
// B51.
func TestPeekCarried(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	s, ids := carriedWorld(t, e, topic, ch)
	if err := s.Ready(0); err != nil {
		t.Fatal(err)
	}
	later := channelOf(t, topic, "later")
	recent := publish(t, topic, "recent", "newest")
	checkCarried(t, topic, ch, ids, recent)
	if got, err := later.Peek(ctxBg, node.PeekOptions{}); err != nil || fmt.Sprint(peeked(got)) != "[recent newest]" {
		t.Errorf("a channel that is younger: %v, %v", peeked(got), err)
	}
	if st := channelStats(t, ch); st.DeferredCount != 4 {
		t.Errorf("peeking changed the channel: %+v", st)
	}
	e = openOnDisk(t, disk.Crash(7))
	topic, _ = e.Catalog().LookupTopic("t")
	ch, _ = topic.LookupChannel("c")
	checkCarried(t, topic, ch, ids, recent)
	if err := ch.Empty(ctxBg); err != nil {
		t.Fatal(err)
	}
	if got, err := ch.Peek(ctxBg, node.PeekOptions{}); err != nil || len(got) != 0 {
		t.Errorf("after the channel was emptied: %v, %v", peeked(got), err)
	}
}

// More carried messages than one step examines do not hide the messages that a channel has not confirmed.
func TestPeekManyCarried(t *testing.T) {
	t.Parallel()
	o := inDir(t.TempDir())
	o.CommitFileBytes, o.CommitLiveBytes = 1<<20, 3<<20 // a checkpoint names them all, and a segment begins with one
	o.MinSegmentBytes, o.MaxSegmentBytes = 256<<10, 512<<10
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	ch, other := channelOf(t, topic, "c"), channelOf(t, topic, "other")
	deferMany(t, topic, moreThanARound)
	last, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("last"), Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekID, ID: last}); err != nil {
		t.Fatal(err)
	}
	quiet := subscribe(t, other, 1)
	s := subscribe(t, ch, 1)
	gone := func() bool { // the segments in which all of them were published
		got, err := topic.Peek(ctxBg, 0, last+1, 1)
		return err == nil && len(got) == 1 && got[0].ID > last+1
	}
	for end := time.Now().Add(patience); !gone(); {
		publishFlood(t, topic, s, 10)
		for range 10 {
			quiet.finish(quiet.next())
		}
		if time.Now().After(end) {
			t.Fatalf("%d bytes are kept", storedBytes(e))
		}
	}
	got, err := ch.Peek(ctxBg, node.PeekOptions{Count: 3})
	if err != nil || !slices.Equal(peeked(got), []string{"last"}) || got[0].ID != last {
		t.Errorf("%v, %v", peeked(got), err)
	}
	got, err = other.Peek(ctxBg, node.PeekOptions{Count: channel.MaxListCount})
	byID := func(a, b node.PeekedMessage) int { return int(a.ID) - int(b.ID) }
	if err != nil || len(got) != channel.MaxListCount || !slices.IsSortedFunc(got, byID) {
		t.Errorf("the other channel shows %d messages, %v", len(got), err)
	}
}

// Any node shows carried messages, and so does the next leader.
//
// B51, B78.
func TestClusterPeekCarried(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	c := tc.channel("t", "c")
	l := tc.leader("t", 0)
	s, _ := carriedWorld(t, l.e, tc.topic(l, "t"), c)
	s.Close()
	check := func() {
		t.Helper()
		for _, m := range tc.running() {
			ch, err := tc.topic(m, "t").Channel(t.Context(), "c")
			if err != nil {
				t.Fatal(err)
			}
			got, err := ch.Peek(t.Context(), node.PeekOptions{Partition: -1})
			if err != nil || fmt.Sprint(peeked(got)) != "[one two again three]" {
				t.Errorf("%s shows %v, %v", m.name, peeked(got), err)
			}
		}
	}
	check()
	tc.kill(l)
	tc.leader("t", 0)
	check()
}
