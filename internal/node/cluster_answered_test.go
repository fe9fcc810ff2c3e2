package node_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/netproto"
)

// withoutAcks drops the acknowledgements of followers: nothing more is committed, and everything else goes on.
func (tc *testCluster) withoutAcks() (heal func()) {
	tc.network.rules(func(_, _ string, kind netproto.Type) int {
		if kind == netproto.TypePutAck {
			return 0
		}
		return 1
	})
	return func() { tc.network.rules(nil) }
}

// leadsWithOpenCreation makes x the leader of t/0 at a moment when another creation of channel c is in its log and not
// committed, and x has found the channel there. No acknowledgement arrives until heal is called.
func (tc *testCluster) leadsWithOpenCreation(from, x *testNode) (heal func()) {
	tc.t.Helper()
	tc.awaitEqualCopies("t", 0)
	look := node.HoldChannels(x.e, "t")
	tc.makeLeader("t", from, x.e)
	tc.eventually("it leads", func() bool { c, _ := node.StateOf(x.e, "t", 0); return c.Serves })
	heal = tc.withoutAcks()
	if err := node.AppendChannel(x.e, "t", 0, "c"); err != nil {
		tc.t.Fatal(err)
	}
	tc.eventually("the channel is in its log", func() bool { return node.FoldHas(x.e, "t", 0, "c") })
	look()
	topic := tc.topic(x, "t")
	tc.eventually("it knows its channels", func() bool { _, ok := topic.LookupChannel("c"); return ok })
	return heal
}

// A client that subscribes to a channel which another client is creating is answered when the creation is committed,
// and not when the leader's log has it. Otherwise a failover could take the channel away from the client, together with
// messages that were published after the answer.
//
// B71.
func TestClusterSubscribedToAnOpenCreation(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, neverStranded)
	tc.create("t", 1)
	tc.channel("t", "first")
	l := tc.leader("t", 0)
	x := tc.others(l)[0]
	heal := tc.leadsWithOpenCreation(l, x)
	tc.setPublishTimeout(impatience)
	topic := tc.topic(x, "t")
	if _, err := topic.Channel(within(t, patience), "c"); err == nil {
		t.Error("a channel is there whose creation nobody else has acknowledged")
	}
	heal()
	tc.setPublishTimeout(longLease)
	tc.eventually("the channel is there when the others have it", func() bool {
		_, err := tc.topic(tc.leader("t", 0), "t").Channel(within(t, patience), "c")
		return err == nil
	})
	publish(t, tc.topic(tc.leader("t", 0), "t"), "after")
	l = tc.leader("t", 0)
	tc.awaitConnected()
	tc.kill(l)
	if got := readAll(t, tc.channelAt(tc.leader("t", 0), "t", "c")); len(got) != 1 {
		t.Errorf("the channel got %v", got)
	}
}

// The same for a client at a node that leads no partition and has an old record of a channel of that name, which was
// deleted.
//
// B71.
func TestClusterSubscribedElsewhereToAnOpenCreation(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, impatient)
	tc.create("t", 1)
	tc.channel("t", "first")
	l := tc.leader("t", 0)
	x, far := tc.others(l)[0], tc.others(l)[1]
	topic := tc.topic(far, "t")
	if _, err := topic.CreateChannel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if err := tc.topic(l, "t").DeleteChannel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if _, ok := topic.LookupChannel("c"); !ok {
		t.Fatal("the node does not remember the channel: the test does not reach what it is for")
	}
	heal := tc.leadsWithOpenCreation(l, x)
	tc.eventually("everybody knows who leads", func() bool { return far.row("t", 0).State.Leader == x.e.Node().ID })
	if _, err := topic.Channel(within(t, patience), "c"); err == nil {
		t.Error("a channel is there whose creation nobody else has acknowledged")
	}
	heal()
	tc.eventually("the channel is there when the others have it", func() bool {
		_, err := topic.Channel(within(t, patience), "c")
		return err == nil
	})
}

// A second request for the same pause or skip of a channel is not answered before the first one is committed, although
// the channel's machine has the change already.
//
// B70.
func TestClusterPauseAskedAgain(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, impatient)
	tc.create("t", 1)
	c := tc.channel("t", "c")
	changes := map[string]func() error{
		"pause":   func() error { return c.Pause(within(t, 300*time.Millisecond)) },
		"skip":    func() error { return c.Skip(within(t, 300*time.Millisecond), true) },
		"unpause": func() error { return c.Unpause(within(t, 300*time.Millisecond)) },
	}
	for _, what := range []string{"pause", "skip", "unpause"} {
		tc.awaitEqualCopies("t", 0)
		heal := tc.withoutAcks()
		for try := range 2 {
			if changes[what]() == nil {
				t.Errorf("%s, try %d: answered, and nobody has acknowledged it", what, try+1)
			}
		}
		heal()
		tc.eventually(what+" is done when the others have it", func() bool { return changes[what]() == nil })
	}
	l := tc.leader("t", 0)
	tc.kill(l)
	st := channelStats(t, tc.channelAt(tc.leader("t", 0), "t", "c"))
	publish(t, tc.topic(tc.leader("t", 0), "t"), "skipped")
	if st.Paused {
		t.Error("the next leader has the channel paused")
	}
	subscribe(t, tc.channelAt(tc.leader("t", 0), "t", "c"), 10).expectNothing("the channel skips")
}

// On a single node, the second of two equal requests is answered when the first one is on stable storage.
//
// B70.
func TestPauseAskedAgain(t *testing.T) {
	d := newDisk()
	e := openOnDisk(t, d)
	c := channelOf(t, topicOf(t, e, "t"), "c")
	publish(t, c.Topic(), "m")
	begun, release := holdCommits(t, d)
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- c.Pause(context.Background()) }()
	begun()
	go func() { second <- c.Pause(context.Background()) }()
	select {
	case err := <-second:
		t.Errorf("answered before the first one was durable: %v", err)
		second <- err
	case <-time.After(30 * time.Millisecond):
	}
	release()
	if err := errors.Join(<-first, <-second); err != nil {
		t.Error(err)
	}
}
