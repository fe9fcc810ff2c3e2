package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/engine"
	"penstock/engine/core"
	"penstock/replicate"
)

// An older version is started for a while on a single node's directory, between two starts of the newer one. What it
// does not know it keeps, although it stores much more than the commit log holds; it does not serve that partition, and
// says so; the other topic goes on.
func TestUnknownControlSingleNode(t *testing.T) {
	dir, ctx := t.TempDir(), context.Background()
	e := openWith(t, inDir(dir))
	top := topicOf(t, e, "t")
	c := channelOf(t, top, "c")
	const count = 100
	for i := range count {
		if i == 10 {
			if err := c.Pause(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := top.Publish(ctx, fmt.Appendf(nil, "acked %d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for round := range 2 { // the second start finds no entry of it in the commit log any more
		o := inDir(dir)
		engine.SetUnknownKind(&o, core.ChannelPaused)
		o.RetentionBytes, o.RetentionInterval = 1, 10*time.Millisecond // it removes what it may
		old := openWith(t, o)
		if err := old.Health(); !errors.Is(err, core.ErrNewerControl) &&
			(round == 0 || err == nil || !strings.Contains(err.Error(), "topic t, partition 0")) {
			t.Errorf("health: %v", err)
		}
		if n := old.Info().PartitionsReadOnly; n != 1 {
			t.Errorf("%d partitions are said to be read-only", n)
		}
		if _, err := topicOf(t, old, "t").Publish(ctx, []byte("x")); !errors.Is(err, core.ErrNewerControl) {
			t.Errorf("a publish was answered %v", err)
		}
		u := topicOf(t, old, "u")
		for range 600 {
			if _, err := u.Publish(ctx, bytes.Repeat([]byte{'x'}, 10000)); err != nil {
				t.Fatal(err)
			}
		}
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
	}
	e = openWith(t, inDir(dir))
	top = topicOf(t, e, "t")
	if err := e.Health(); err != nil {
		t.Errorf("health: %v", err)
	}
	all, err := top.Peek(ctx, 0, 0, 2*count)
	if err != nil || len(all) != count {
		t.Errorf("%d of %d acknowledged messages are left: %v", len(all), count, err)
	}
	for i, m := range all {
		if string(m.Body) != fmt.Sprintf("acked %d", i) {
			t.Fatalf("message %d is %q", i, m.Body)
		}
	}
	if s := e.Stats("t", "c"); len(s) != 1 || len(s[0].Channels) != 1 ||
		!s[0].Channels[0].Paused || s[0].Channels[0].Depth != count {
		t.Error("the channel, or that it is paused, was forgotten")
	}
	if _, err := top.Publish(ctx, []byte("more")); err != nil {
		t.Error(err)
	}
}

// publishMore publishes to "t" until n more were acknowledged: a machine that is busy may let some wait too long.
func (tr *trio) publishMore(h *told, what string, n int) {
	tr.t.Helper()
	tries := 0
	for range n {
		tr.eventually("a publish is acknowledged", func() bool {
			tries++
			topic := tr.topic(tr.leader("t", 0), "t")
			return h.publish(context.Background(), topic, fmt.Sprintf("%s, try %d", what, tries)) == nil
		})
	}
}

// A node of an older version follows a partition and restarts: its log has a control entry that it does not know. It is
// never elected, its copy is reported, and it loses nothing; when the newer version is started there, it is whole
// again.
func TestUnknownControlCluster(t *testing.T) {
	old := ""
	tr := prepareTrio(t, 3, func(o *engine.Options) {
		if o.NodeID == old {
			engine.SetUnknownKind(o, core.ChannelPaused)
		}
	})
	tr.startAll()
	tr.create("t", 1)
	tr.create("u", 1)
	ctx := context.Background()
	h := newTold()
	publish := func(what string, n int) { t.Helper(); tr.publishMore(h, what, n) }
	publish("before", 5)
	if err := tr.channel("t", "c").Pause(ctx); err != nil {
		t.Fatal(err)
	}
	publish("after", 10)
	tr.equal("t", 0)
	other := tr.others(tr.leader("t", 0))[0]
	old = other.name
	told := func(topic string) bool {
		row := other.row(topic, 0)
		return row != nil && slices.Contains(row.Damaged, replicate.Member{
			Node: other.e.Node().ID, Store: other.e.Node().Store,
		})
	}
	for _, m := range tr.up() {
		tr.kill(m)
	}
	tr.start(other) // alone, as the only one that could be elected
	tr.eventually("its copy is reported", func() bool { return told("t") })
	if err := other.e.Health(); !errors.Is(err, core.ErrNewerControl) ||
		!strings.Contains(err.Error(), "topic t, partition 0") {
		t.Errorf("health: %v", err)
	}
	tr.startAll()
	publish("with an old follower", 10)
	if l := tr.leader("t", 0); l == other {
		t.Error("the old version leads what it cannot read")
	}
	if tr.leader("u", 0); told("u") {
		t.Error("the other topic's copy is reported")
	}
	// An entry that comes while it follows.
	tr.whole("u")
	if tr.leader("u", 0) == other {
		tr.handTo("u", other, tr.others(other)[0].e)
	}
	if err := tr.channel("u", "c").Pause(ctx); err != nil {
		t.Fatal(err)
	}
	tr.eventually("its other copy is reported", func() bool { return told("u") })
	tr.hold(h, tr.up())
	tr.kill(other)
	tr.start(other)
	tr.hold(h, tr.up())
	if !told("t") || !told("u") {
		t.Error("the reports were taken back by a restart")
	}
	old = ""
	tr.newerAgain(h, other)
}

// newerAgain starts the newer version where the old one ran: the copy is whole, and may lead.
func (tr *trio) newerAgain(h *told, other *member) {
	t := tr.t
	t.Helper()
	tr.kill(other)
	tr.start(other)
	tr.whole("t")
	tr.whole("u")
	if err := other.e.Health(); err != nil {
		t.Errorf("health: %v", err)
	}
	tr.publishMore(h, "all new", 5)
	tr.checkAll(h, "t", 1)
	// And now it may lead: it knows what the channels have.
	tr.whole("t")
	if l := tr.leader("t", 0); l != other {
		tr.handTo("t", l, other.e)
	}
	tr.eventually("the channel is paused at the node that was old", func() bool {
		s := other.e.Stats("t", "c")
		return len(s) == 1 && len(s[0].Channels) == 1 && s[0].Channels[0].Paused
	})
}
