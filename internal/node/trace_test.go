package node_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/node/fold"
	"penstock/internal/node/trace"
)

func traced(t *testing.T, topic *node.Topic, id node.ID) *node.Trace {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tr, err := topic.Trace(ctx, id)
	if err != nil {
		t.Fatalf("tracing %v: %v", id, err)
	}
	return tr
}

// inChannel returns what a trace says about one channel.
func inChannel(t *testing.T, tr *node.Trace, name string) *node.TraceChannel {
	t.Helper()
	i := slices.IndexFunc(tr.Channels, func(c node.TraceChannel) bool { return c.Channel == name })
	if i < 0 {
		t.Fatalf("channel %s is not in %+v", name, tr)
	}
	return &tr.Channels[i]
}

func kindsOf(tr *node.Trace) (kinds []fold.TraceKind) {
	for i := range tr.Events {
		kinds = append(kinds, tr.Events[i].Kind)
	}
	return kinds
}

// The life of messages on one node with real files: finished, in flight, requeued, deferred, a dead letter, left out by
// a filter, older than a channel. A restart changes nothing of what the log says.
func TestTrace(t *testing.T) {
	dir := inDir(t.TempDir())
	e := openWith(t, dir)
	topic := topicOf(t, e, "t")
	ch, picky := channelOf(t, topic, "c"), channelOf(t, topic, "picky")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts = 2 })
	configureChannel(t, picky, func(s *fold.ChannelSettings) {
		s.Filter.Rules = []fold.Rule{{Header: "kind", Pattern: "x"}}
	})
	began := time.Now()
	ids := append(publish(t, topic, numbered("m", 3, 0)...), publishWith(t, topic, "wanted", "kind", "x"))
	s, p := subscribe(t, ch, 10), subscribe(t, picky, 10)
	p.next() // "wanted" stays in flight
	held := map[node.ID]delivered{}
	for range ids {
		m := s.next()
		held[m.id] = m
	}
	s.finish(held[ids[0]])
	if err := s.Requeue(ids[1], time.Hour); err != nil {
		t.Fatal(err)
	}
	failMessages(t, s, ids[3])
	if err := s.Requeue(ids[3], 0); err != nil {
		t.Fatal(err)
	}
	s.Pump()
	failMessages(t, s, ids[3])
	deadLetters(t, topic, "t.DLQ", 1)
	for _, c := range []*node.Channel{ch, picky} {
		logConfirms(t, c)
	}
	later := channelOf(t, topic, "later")
	logConfirms(t, later)

	check := func(restarted bool) {
		t.Helper()
		first := traced(t, topic, ids[0])
		st := first.Stored
		if st == nil || st.BodyBytes != 2 || st.Index != 0 || st.InBatch != 1 || st.Carried || st.Epoch == 0 ||
			st.Leader != e.Info().NodeID || st.At.Before(began.Add(-time.Minute)) || first.ID != ids[0].String() {
			t.Errorf("stored: %+v of %+v", st, first)
		}
		if c := inChannel(t, first, "c"); c.State != fold.StateConfirmed || c.At.Before(st.At) ||
			c.Leader != e.Info().NodeID || c.OlderThanLog || c.Attempts != nil {
			t.Errorf("finished: %+v", c)
		}
		if c := inChannel(t, first, "picky"); c.State != fold.StateFiltered || c.At.IsZero() {
			t.Errorf("filtered: %+v", c)
		}
		if c := inChannel(t, first, "later"); c.State != fold.StateNotIts {
			t.Errorf("a later channel: %+v", c)
		}
		if !first.Settled {
			t.Errorf("nothing more can be said: %+v", first)
		}
		second := traced(t, topic, ids[1])
		if c := inChannel(t, second, "c"); c.State != fold.StateDeferred || c.Attempts == nil || *c.Attempts != 1 ||
			time.Until(c.Due) < 50*time.Minute || !slices.Contains(kindsOf(second), fold.TraceDeferred) {
			t.Errorf("requeued: %+v, %v", c, kindsOf(second))
		}
		third := inChannel(t, traced(t, topic, ids[2]), "c")
		if !restarted && (third.State != fold.StateInFlight || *third.Attempts != 1 || third.Due.Before(third.At)) {
			t.Errorf("in flight: %+v", third)
		}
		dead := inChannel(t, traced(t, topic, ids[3]), "c")
		if dead.State != fold.StateDead || dead.Attempts == nil || *dead.Attempts != 2 ||
			dead.DeadLetterTopic != "t.DLQ" ||
			dead.DeadLetterAt.Before(dead.At) {
			t.Errorf("dead: %+v", dead)
		}
	}
	check(false)
	for _, id := range []node.ID{ids[3] + 1, ids[3] + 1000} {
		if _, err := topic.Trace(ctxBg, id); !errors.Is(err, trace.ErrNoMessage) {
			t.Errorf("%v was never published: %v", id, err)
		}
	}
	if _, err := topic.Trace(ctxBg, batch.MakeID(7, 0)); !errors.Is(err, trace.ErrNoMessage) ||
		!strings.Contains(err.Error(), "it names partition 7, and topic t has 1") {
		t.Errorf("a partition that is not there: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openWith(t, dir)
	topic = topicOf(t, e, "t")
	check(true)
}

// A trace reads no more than its limits allow, and says which one ended it.
func TestTraceIsBounded(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	done := make(chan node.ID, 1)
	put := &node.Put{
		Messages: [][]byte{[]byte("a"), []byte("b"), []byte("longer")},
		Done:     func(p *node.Put) { done <- p.First + 2 },
	}
	if err := topic.SubmitTo(0, put); err != nil {
		t.Fatal(err)
	}
	id := <-done
	for range 3 {
		if err := ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekBeginning}); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		publish(t, topic, string(make([]byte, 16<<10)))
	}
	whole := traced(t, topic, id)
	if st := whole.Stored; st.Index != 2 || st.InBatch != 3 || st.BodyBytes != len("longer") {
		t.Errorf("the third of a batch: %+v", st)
	}
	if whole.Cut != "" || whole.ReadBytes < 10*16<<10 || len(whole.Events) != 3 {
		t.Errorf("without a limit: %+v", whole)
	}
	for cut, l := range map[fold.TraceCutWhy]trace.Limits{
		fold.CutBytes: {Bytes: 10}, fold.CutEvents: {Events: 2}, fold.CutTime: {Time: 1},
	} {
		tr, err := node.TraceWithin(ctxBg, topic, id, l)
		if err != nil || tr.Cut != cut || tr.ReadBytes >= whole.ReadBytes || len(tr.Events) > 2 {
			t.Errorf("%s: %+v, %v", cut, tr, err)
		}
		if c := inChannel(t, tr, "c"); c.State != fold.StateWaiting {
			t.Errorf("%s: what holds now is known all the same: %+v", cut, c)
		}
	}
}

// Of messages that retention has removed, a trace says what is left: the state, and that its reason is older than the
// log. A deferred message that was carried is still there.
func TestTraceBehindRetention(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	first := publish(t, topic, "first")[0]
	before := subscribe(t, ch, 1)
	before.finish(before.next())
	before.Close()
	_, ids := carriedWorld(t, e, topic, ch)
	tr := traced(t, topic, first)
	if c := inChannel(t, tr, "c"); tr.Stored != nil || c.State != fold.StateConfirmed ||
		!c.OlderThanLog || !c.At.IsZero() {
		t.Errorf("removed: %+v", tr)
	}
	if tr.LogFrom <= first.MsgID() || tr.LogSince.IsZero() {
		t.Errorf("it does not say where the log begins: %+v", tr)
	}
	for i, attempts := range []uint16{0, 0, 1, 0} {
		tr := traced(t, topic, ids[i])
		if c := inChannel(t, tr, "c"); tr.Stored == nil || !tr.Stored.Carried || c.State != fold.StateDeferred ||
			c.Attempts == nil || *c.Attempts != attempts || !slices.Contains(kindsOf(tr), fold.TraceCarried) {
			t.Errorf("carried: %+v, stored %+v", tr, tr.Stored)
		}
	}
}

// Every node answers, and names the leader of the time, also of a node that does not lead any more.
func TestClusterTrace(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	tc.channel("t", "c")
	old := tc.leader("t", 0)
	id := publish(t, tc.topic(old, "t"), "m")[0]
	next := tc.others(old)[0]
	tc.moveLeadership("t", 0, next)
	s := subscribe(t, tc.channelAt(next, "t", "c"), 1)
	s.finish(s.next())
	tc.awaitConfirmed(next, "t", "c", id)
	for _, m := range tc.nodes {
		var tr *node.Trace
		tc.eventually(m.name+" names both leaders", func() bool {
			tr = traced(t, tc.topic(m, "t"), id)
			c := inChannel(t, tr, "c")
			return tr.Stored.Leader == old.name && c.State == fold.StateConfirmed && c.Leader == next.name
		})
		if c := inChannel(t, tr, "c"); tr.Stored.Epoch >= c.Epoch || tr.Events[len(tr.Events)-1].Leader != next.name {
			t.Errorf("%s: %+v", m.name, tr)
		}
		if _, err := tc.topic(m, "t").Trace(ctxBg, id+9); !errors.Is(err, trace.ErrNoMessage) {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
