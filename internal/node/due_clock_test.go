package node_test

import (
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
)

// The leader of a partition was started with a clock that is two hours ahead. A message that it stored with a delay
// comes at the next leader when the delay is over: not earlier, and not two hours later. All copies agree about that.
func TestClusterDelaysOfAWrongClock(t *testing.T) {
	t.Parallel()
	const wait = 5 * time.Second // until then another node leads
	skews := map[string]*skew{"n1": {}, "n2": {}, "n3": {}}
	skews["n1"].set(2 * time.Hour)
	tc := newTestCluster(t, 3, func(o *node.Options) { node.SetWallClock(o, skews[o.NodeID].now) })
	tc.create("t", 1)
	const n = 0
	wrong := tc.nodes[0]
	tc.moveLeadership("t", n, wrong) // nobody would elect it: its clock differs
	tc.channel("t", "c")
	k := subscribe(t, tc.channelAt(wrong, "t", "c"), 4)
	began := time.Now()
	if err := node.PutTo(t.Context(), tc.topic(wrong, "t"), n, &node.Put{
		Messages: [][]byte{[]byte("requeued")},
	}); err != nil {
		t.Fatal(err)
	}
	if err := k.Requeue(k.next().id, wait); err != nil {
		t.Fatal(err)
	}
	if err := node.PutTo(t.Context(), tc.topic(wrong, "t"), n, &node.Put{
		Messages: [][]byte{[]byte("published later")}, Defer: wait,
	}); err != nil {
		t.Fatal(err)
	}
	for _, m := range tc.nodes {
		tc.eventually("the delays are in all copies", func() bool { return node.DelaysIn(m.e, "t", n) == 2 })
	}
	for _, m := range tc.others(wrong) {
		if got := m.e.Storage().FromTheFuture; got == 0 {
			t.Errorf("%s does not count the batches of a leader whose clock is two hours ahead", m.name)
		}
		if !slices.ContainsFunc(m.e.Warnings(), func(f node.Fault) bool { return f.Name == "batches_from_the_future" }) {
			t.Errorf("%s does not tell of a leader whose clock is two hours ahead: %+v", m.name, m.e.Warnings())
		}
	}
	tc.crash(wrong)
	l := tc.leader("t", n)
	if got := l.e.Storage().DelaysCorrected; got != 2 {
		t.Errorf("%d delays were corrected, there were two", got)
	}
	tc.awaitEqualCopies("t", n)
	next := subscribe(t, tc.channelAt(l, "t", "c"), 4)
	for range 2 {
		m := next.next()
		if passed := time.Since(began); passed < wait {
			t.Errorf("%q came after %v, its time is after %v", m.body, passed, wait)
		}
		next.finish(m)
	}
}

// A leader whose clock is two hours ahead led for a moment. What the right leader before it had stored with a delay
// does not come hours early at the next one: only what the wrong one stored is corrected.
func TestClusterDelaysBeforeAWrongClock(t *testing.T) {
	t.Parallel()
	skews := map[string]*skew{"n1": {}, "n2": {}, "n3": {}}
	skews["n1"].set(2 * time.Hour)
	tc := newTestCluster(t, 3, func(o *node.Options) { node.SetWallClock(o, skews[o.NodeID].now) })
	tc.create("t", 1)
	const n = 0
	wrong, right := tc.nodes[0], tc.nodes[1]
	tc.moveLeadership("t", n, right)
	tc.channel("t", "c")
	later := func(m *testNode, body string) {
		t.Helper()
		if err := node.PutTo(t.Context(), tc.topic(m, "t"), n, &node.Put{
			Messages: [][]byte{[]byte(body)}, Defer: time.Hour,
		}); err != nil {
			t.Fatal(err)
		}
	}
	later(right, "right")
	stored := time.Now()
	tc.moveLeadership("t", n, wrong)
	later(wrong, "wrong")
	for _, m := range tc.nodes {
		tc.eventually("the delays are in all copies", func() bool { return node.DelaysIn(m.e, "t", n) == 2 })
	}
	tc.crash(wrong)
	l := tc.leader("t", n)
	waiting, err := tc.channelAt(l, "t", "c").DeferredMessages(t.Context(), 10)
	if err != nil || len(waiting) != 2 {
		t.Fatalf("%+v wait: %v", waiting, err)
	}
	for _, m := range waiting {
		if off := m.Due.Sub(stored.Add(time.Hour)); off < -patience || off > patience {
			t.Errorf("message %v is due %v from its time", m.ID, off)
		}
	}
}

// A single node that was started with a clock that is hours ahead restarts with the right clock. Deferred messages come
// when their delay is over, also after one more restart.
func TestDelaysOfAWrongClockAtARestart(t *testing.T) {
	t.Parallel()
	const wait = 2 * time.Second
	var s skew
	s.set(3 * time.Hour)
	o := inDir(t.TempDir())
	node.SetWallClock(&o, s.now)
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	k := subscribe(t, channelOf(t, topic, "c"), 4)
	publish(t, topic, "requeued")
	began := time.Now()
	if err := k.Requeue(k.next().id, wait); err != nil {
		t.Fatal(err)
	}
	if _, err := topic.PublishMessage(t.Context(), node.Outgoing{
		Body: []byte("published later"), Delay: wait,
	}); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	s.set(0)
	for range 2 {
		e = openWith(t, o)
		channelOf(t, topicOf(t, e, "t"), "c")
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	e = openWith(t, o)
	k = subscribe(t, channelOf(t, topicOf(t, e, "t"), "c"), 4)
	for range 2 {
		m := k.next()
		if passed := time.Since(began); passed < wait {
			t.Errorf("%q came after %v, its time is after %v", m.body, passed, wait)
		}
		k.finish(m)
	}
}

// A message was delayed by a clock that was hours ahead, and its delay was corrected. It keeps the corrected time when
// it is carried out of its old segment.
//
// B50, B51.
func TestCarriedDelayOfAWrongClock(t *testing.T) {
	t.Parallel()
	var s skew
	s.set(5 * time.Hour)
	disk := newDisk()
	e := openOnDisk(t, disk, func(o *node.Options) { node.SetWallClock(o, s.now) })
	topic := topicOf(t, e, "t")
	channelOf(t, topic, "c")
	latest := time.Now().Add(time.Hour + patience)
	later, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("later"), Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s.set(0)
	e = openOnDisk(t, disk.Crash(1), func(o *node.Options) { node.SetWallClock(o, s.now) })
	topic = topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	k := subscribe(t, ch, 1)
	publishFlood(t, topic, k, 150)
	awaitShrink(t, e, topic, k, 600<<10)
	waiting, err := ch.DeferredMessages(t.Context(), 10)
	if err != nil || len(waiting) != 1 || waiting[0].ID != later {
		t.Fatalf("%+v wait: %v", waiting, err)
	}
	if due := waiting[0].Due; due.After(latest) {
		t.Errorf("it was carried, and is due %v after its time", due.Sub(latest))
	}
}

// A single node ran for a while with a clock that was hours ahead. What it had stored with a right clock before does
// not come hours early afterwards: only what was stored by the wrong clock is corrected.
func TestDelaysBeforeAWrongClockOfASingleNode(t *testing.T) {
	t.Parallel()
	var s skew
	disk := newDisk()
	stored := time.Now()
	for _, life := range []struct {
		ahead time.Duration
		body  string
	}{{0, "right"}, {3 * time.Hour, "wrong"}, {0, "right again"}} {
		s.set(life.ahead)
		e := openOnDisk(t, disk, func(o *node.Options) { node.SetWallClock(o, s.now) })
		topic := topicOf(t, e, "t")
		channelOf(t, topic, "c")
		if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte(life.body), Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		disk = disk.Kill(1)
	}
	e := openOnDisk(t, disk, func(o *node.Options) { node.SetWallClock(o, s.now) })
	waiting, err := channelOf(t, topicOf(t, e, "t"), "c").DeferredMessages(t.Context(), 10)
	if err != nil || len(waiting) != 3 {
		t.Fatalf("%+v wait: %v", waiting, err)
	}
	for _, m := range waiting {
		if off := m.Due.Sub(stored.Add(time.Hour)); off < -patience || off > patience {
			t.Errorf("message %v is due %v from its time", m.ID, off)
		}
	}
}
