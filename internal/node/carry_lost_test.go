package node_test

import (
	"slices"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
)

// moreThanARound is more messages than one batch carries (fold.MaxCarriedCount).
const moreThanARound = 5000

// deferMany publishes messages with a delay of an hour.
func deferMany(t *testing.T, topic *node.Topic, n int) {
	t.Helper()
	for i := 0; i < n; i += 100 {
		ms := make([]node.Outgoing, 100)
		for j := range ms {
			ms[j] = node.Outgoing{Body: []byte("gone with its segment"), Delay: time.Hour}
		}
		if _, err := topic.PublishMessages(ctxBg, ms); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitShrink finishes messages until the engine stores less than that many bytes. It finishes all that come: a backlog
// that a busy machine has left would otherwise stay, as each message that publishFlood publishes takes the place of the
// one that it finishes.
func awaitShrink(t *testing.T, e *node.Engine, topic *node.Topic, s *testClient, bytes int64) {
	t.Helper()
	for end := time.Now().Add(patience); storedBytes(e) >= bytes; {
		publishFlood(t, topic, s, 2)
		for m, ok := s.poll(0); ok; m, ok = s.poll(0) {
			s.finish(m)
		}
		if time.Now().After(end) {
			t.Fatalf("%d bytes are kept", storedBytes(e))
		}
	}
}

// A deferred message that retention by size has removed is gone for good: it counts as confirmed, and keeps nothing
// else in the log. If there are more such messages than one round of carrying looks at, the other deferred messages are
// carried nevertheless.
//
// B39, B50, B51.
func TestCarryPastRetention(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	s := subscribe(t, ch, 1)
	publish(t, topic, "in flight")
	held := s.next()
	if err := s.Ready(2); err != nil {
		t.Fatal(err)
	}
	deferMany(t, topic, moreThanARound)
	if n := channelStats(t, ch).DeferredCount; n != moreThanARound {
		t.Fatalf("%d messages wait", n)
	}
	configure(t, topic, func(s *meta.TopicSettings) { s.RetentionBytes = 128 << 10 })
	publishFlood(t, topic, s, 100)
	awaitShrink(t, e, topic, s, 500<<10)
	configure(t, topic, func(s *meta.TopicSettings) { s.RetentionBytes = -1 })
	later, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	publishFlood(t, topic, s, 150)
	awaitShrink(t, e, topic, s, 700<<10)
	// A client may finish a message that is gone.
	s.finish(held)
	eventually(t, "what is gone counts as confirmed", func() bool {
		st := channelStats(t, ch)
		return st.DeferredCount == 1 && st.InFlightCount == 0 && st.Depth == 0
	})
	e = openOnDisk(t, disk.Crash(3))
	topic, _ = e.Catalog().LookupTopic("t")
	ch, _ = topic.LookupChannel("c")
	waiting, err := ch.DeferredMessages(ctxBg, 100)
	if err != nil || len(waiting) != 1 || waiting[0].ID != later {
		t.Errorf("after a power cut %v, %v; want %s alone", waiting, err, later)
	}
}

// The next leader takes the same messages for gone as the leader before.
//
// B39, B50, B51.
func TestClusterCarryPastRetention(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	c := tc.channel("t", "c")
	l := tc.leader("t", 0)
	topic := tc.topic(l, "t")
	deferMany(t, topic, moreThanARound)
	configure(t, topic, func(s *meta.TopicSettings) { s.RetentionBytes = 128 << 10 })
	s := subscribe(t, c, 1)
	publishFlood(t, topic, s, 100)
	awaitShrink(t, l.e, topic, s, 500<<10)
	configure(t, topic, func(s *meta.TopicSettings) { s.RetentionBytes = -1 })
	later, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("later"), Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	publishFlood(t, topic, s, 150)
	for _, m := range tc.nodes {
		awaitShrink(t, m.e, topic, s, 700<<10)
	}
	eventually(t, "what is gone counts as confirmed", func() bool {
		st := channelStats(t, c)
		return st.DeferredCount == 1 && st.Depth == 0
	})
	tc.kill(l)
	c = tc.channelAt(tc.leader("t", 0), "t", "c")
	waiting, err := c.DeferredMessages(t.Context(), 100)
	same := func(m node.PendingMessage, id node.ID) bool { return m.ID == id }
	if err != nil || !slices.EqualFunc(waiting, []node.ID{later}, same) {
		t.Errorf("at the next leader %v, %v; want %s alone", waiting, err, later)
	}
}
