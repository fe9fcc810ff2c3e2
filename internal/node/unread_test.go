package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/fold"
	"penstock/replicate"
)

// An older version runs for a while on a single node's directory, between two starts of the newer one. It keeps the
// entries that it does not know, although it stores much more than the commit log holds. It does not serve their
// partition, and says so; the other topic goes on.
func TestUnknownControlSingleNode(t *testing.T) {
	t.Parallel()
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
		if _, err := top.PublishMessage(ctx, node.Outgoing{Body: fmt.Appendf(nil, "acked %d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for round := range 2 { // the second start finds no entry of it in the commit log any more
		o := inDir(dir)
		node.SetUnknownKind(&o, fold.ChannelPaused)
		o.RetentionBytes, o.RetentionInterval = 1, 10*time.Millisecond // remove as much as possible
		old := openWith(t, o)
		if err := old.Health(); !errors.Is(err, fold.ErrNewerControl) &&
			(round == 0 || err == nil || !strings.Contains(err.Error(), "topic t, partition 0")) {
			t.Errorf("health: %v", err)
		}
		if n := old.Info().PartitionsReadOnly; n != 1 {
			t.Errorf("%d partitions are said to be read-only", n)
		}
		if _, err := topicOf(t, old, "t").PublishMessage(ctx, node.Outgoing{
			Body: []byte("x"),
		}); !errors.Is(err, fold.ErrNewerControl) {
			t.Errorf("a publish was answered %v", err)
		}
		u := topicOf(t, old, "u")
		for range 600 {
			if _, err := u.PublishMessage(ctx, node.Outgoing{Body: bytes.Repeat([]byte{'x'}, 10000)}); err != nil {
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
	if _, err := top.PublishMessage(ctx, node.Outgoing{Body: []byte("more")}); err != nil {
		t.Error(err)
	}
}

// publishUntilAcked publishes to "t" until n more messages were acknowledged: on a busy machine some puts may time out.
func (tc *testCluster) publishUntilAcked(h *ackLog, what string, n int) {
	tc.t.Helper()
	tries := 0
	for range n {
		tc.eventually("a publish is acknowledged", func() bool {
			tries++
			topic := tc.topic(tc.leader("t", 0), "t")
			return h.publish(context.Background(), topic, fmt.Sprintf("%s, try %d", what, tries)) == nil
		})
	}
}

// A node of an older version follows a partition and restarts: its log has a control entry that it does not know. The
// node is never elected, its copy is reported, and it loses nothing. When the newer version is started there, the copy
// is whole again.
func TestUnknownControlCluster(t *testing.T) {
	t.Parallel()
	old := ""
	tc := prepareTestCluster(t, 3, func(o *node.Options) {
		if o.NodeID == old {
			node.SetUnknownKind(o, fold.ChannelPaused)
		}
	})
	tc.startAll()
	tc.create("t", 1)
	tc.create("u", 1)
	ctx := context.Background()
	h := newAckLog()
	publish := func(what string, n int) { t.Helper(); tc.publishUntilAcked(h, what, n) }
	publish("before", 5)
	if err := tc.channel("t", "c").Pause(ctx); err != nil {
		t.Fatal(err)
	}
	publish("after", 10)
	tc.awaitEqualCopies("t", 0)
	other := tc.others(tc.leader("t", 0))[0]
	old = other.name
	told := func(topic string) bool {
		row := other.row(topic, 0)
		return row != nil && slices.Contains(row.Damaged, replicate.Member{
			Node: other.e.Node().ID, Store: other.e.Node().Store,
		})
	}
	for _, m := range tc.running() {
		tc.kill(m)
	}
	tc.start(other) // alone, as the only one that could be elected
	tc.eventually("its copy is reported", func() bool { return told("t") })
	if err := other.e.Health(); !errors.Is(err, fold.ErrNewerControl) ||
		!strings.Contains(err.Error(), "topic t, partition 0") {
		t.Errorf("health: %v", err)
	}
	tc.startAll()
	publish("with an old follower", 10)
	if l := tc.leader("t", 0); l == other {
		t.Error("the old version leads what it cannot read")
	}
	if tc.leader("u", 0); told("u") {
		t.Error("the other topic's copy is reported")
	}
	// This entry comes while the node follows.
	tc.awaitInSync("u")
	if tc.leader("u", 0) == other {
		tc.makeLeader("u", other, tc.others(other)[0].e)
	}
	if err := tc.channel("u", "c").Pause(ctx); err != nil {
		t.Fatal(err)
	}
	tc.eventually("its other copy is reported", func() bool { return told("u") })
	tc.awaitHeld(h, tc.running())
	tc.kill(other)
	tc.start(other)
	tc.awaitHeld(h, tc.running())
	if !told("t") || !told("u") {
		t.Error("the reports were taken back by a restart")
	}
	old = ""
	tc.restartNewVersion(h, other)
}

// restartNewVersion starts the newer version where the old one ran: the copy is whole, and may lead.
func (tc *testCluster) restartNewVersion(h *ackLog, other *testNode) {
	t := tc.t
	t.Helper()
	tc.kill(other)
	tc.start(other)
	tc.awaitInSync("t")
	tc.awaitInSync("u")
	if err := other.e.Health(); err != nil {
		t.Errorf("health: %v", err)
	}
	tc.publishUntilAcked(h, "all new", 5)
	tc.checkCopies(h, "t", 1)
	// Now the copy may lead: the node knows the state of the channels.
	tc.awaitInSync("t")
	if l := tc.leader("t", 0); l != other {
		tc.makeLeader("t", l, other.e)
	}
	tc.eventually("the channel is paused at the node that was old", func() bool {
		s := other.e.Stats("t", "c")
		return len(s) == 1 && len(s[0].Channels) == 1 && s[0].Channels[0].Paused
	})
}
