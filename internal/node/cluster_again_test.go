package node_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// within returns a context that ends so soon that no request under it can be answered.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// A channel whose creation was not committed is not treated as existing when it is requested again, although the
// leader's log has it: a leader that lost its lease and has one again begins with what is committed. Otherwise a
// failover could lose the channel, together with messages that were published after the answer.
//
// B71.
func TestClusterChannelAskedAgainAfterTheLease(t *testing.T) {
	t.Parallel()
	tc := prepareTestCluster(t, 3, impatient)
	tc.store.LeaseTTL = time.Second
	tc.startAll()
	tc.create("t", 1)
	tc.channel("t", "first")
	l := tc.leader("t", 0)
	tc.network.isolate(l.name, true)
	topic := tc.topic(l, "t")
	if _, err := topic.CreateChannel(within(t, patience), "c"); err == nil {
		t.Fatal("a channel was made without a quorum")
	}
	if !node.FoldHas(l.e, "t", 0, "c") {
		t.Fatal("the leader has not appended the channel: the test does not reach what it is for")
	}
	for _, m := range tc.nodes {
		tc.kv.Cut(m.client) // the others, too: they shall not choose another leader
	}
	tc.eventually("the lease ends", func() bool { return !node.Leased(l.e) })
	tc.eventually("the leader serves no more", func() bool { c, _ := node.StateOf(l.e, "t", 0); return !c.Serves })
	tc.kv.Heal(l.client)
	tc.eventually("the lease lives again", func() bool { return node.Leased(l.e) })
	for range 3 {
		if _, err := topic.CreateChannel(within(t, 300*time.Millisecond), "c"); err == nil {
			t.Fatal("a channel is there whose creation nobody else has heard of")
		}
	}
	tc.network.isolate(l.name, false)
	for _, m := range tc.nodes {
		tc.kv.Heal(m.client)
	}
	tc.awaitInSync("t")
	tc.eventually("the channel is made when the others are back", func() bool {
		_, err := tc.topic(tc.leader("t", 0), "t").CreateChannel(within(t, patience), "c")
		return err == nil
	})
}

// The same for a creation that is appended after the first batch of a new leader was committed, and before the leader
// looked which channels there are.
//
// B71.
func TestClusterChannelAskedAgainAtANewLeader(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, impatient)
	tc.create("t", 1)
	tc.channel("t", "first")
	l := tc.leader("t", 0)
	x := tc.others(l)[0]
	tc.awaitEqualCopies("t", 0)
	look := node.HoldChannels(x.e, "t")
	tc.makeLeader("t", l, x.e)
	tc.eventually("it leads", func() bool { c, _ := node.StateOf(x.e, "t", 0); return c.Serves })
	tc.network.isolate(x.name, true)
	if err := node.AppendChannel(x.e, "t", 0, "c"); err != nil {
		t.Fatal(err)
	}
	tc.eventually("the channel is in its log", func() bool { return node.FoldHas(x.e, "t", 0, "c") })
	look()
	topic := tc.topic(x, "t")
	tc.eventually("it knows its channels", func() bool { _, ok := topic.LookupChannel("c"); return ok })
	if _, err := topic.CreateChannel(within(t, patience), "c"); err == nil {
		t.Error("a channel is there whose creation nobody else has heard of")
	}
	tc.network.isolate(x.name, false)
	tc.eventually("the channel is made when the others hear of it", func() bool {
		_, err := tc.topic(tc.leader("t", 0), "t").CreateChannel(within(t, patience), "c")
		return err == nil
	})
}

// A node that loses a partition while it executes an operation there does not execute it, and does not answer that it
// has.
//
// B70, B71.
func TestClusterAskedWhileALeaderGoes(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	tc.channel("t", "c")
	l := tc.leader("t", 0)
	pause := node.BeginPause(l.e, "t", 0)
	if pause == nil {
		t.Fatal("the leader does not take the operation")
	}
	to := tc.others(l)[0]
	tc.makeLeader("t", l, to.e)
	if tc.leader("t", 0) != to {
		t.Fatal("another leads")
	}
	tc.eventually("the old leader has heard of it", func() bool { return !node.Leads(l.e, "t", 0) })
	if err := pause(within(t, patience)); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("a topic is paused by who does not lead it: %v", err)
	}
	if err := tc.topic(l, "t").Pause(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if s := to.e.Stats("t", ""); len(s) != 1 || !s[0].Paused {
		t.Error("the topic is not paused where it is led")
	}
}

// A channel whose deletion was not committed is not treated as deleted when the deletion is requested again.
//
// B72.
func TestClusterDeletionAskedAgain(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, impatient)
	tc.create("t", 1)
	tc.channel("t", "c")
	l := tc.leader("t", 0)
	topic := tc.topic(l, "t")
	tc.network.isolate(l.name, true)
	for range 2 {
		if err := topic.DeleteChannel(within(t, patience), "c"); err == nil || errors.Is(err, errs.ErrNoChannel) {
			t.Fatalf("a deletion that nobody else has heard of: %v", err)
		}
	}
	tc.network.isolate(l.name, false)
	tc.eventually("the channel is deleted when the others hear of it", func() bool {
		err := tc.topic(tc.leader("t", 0), "t").DeleteChannel(within(t, patience), "c")
		return err == nil || errors.Is(err, errs.ErrNoChannel)
	})
	tc.awaitEqualCopies("t", 0)
	for _, m := range tc.nodes {
		if node.FoldHas(m.e, "t", 0, "c") {
			t.Errorf("%s still has the channel", m.name)
		}
	}
	if err := topic.DeleteChannel(within(t, patience), "never"); !errors.Is(err, errs.ErrNoChannel) {
		t.Errorf("a channel that never was: %v", err)
	}
}
