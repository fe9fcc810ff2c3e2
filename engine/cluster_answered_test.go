package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"penstock/engine"
	"penstock/netproto"
)

// withoutAcks keeps followers' acknowledgements from their leaders: everything else goes on, and nothing more is
// committed.
func (tr *trio) withoutAcks() (heal func()) {
	tr.wires.rules(func(_, _ string, kind netproto.Type) int {
		if kind == netproto.TypePutAck {
			return 0
		}
		return 1
	})
	return func() { tr.wires.rules(nil) }
}

// leadsWithOpenCreation makes x the leader of t/0 in the moment in which another creation of channel c is in its log
// and not committed: x has found the channel there. No acknowledgement comes until heal is called.
func (tr *trio) leadsWithOpenCreation(from, x *member) (heal func()) {
	tr.t.Helper()
	tr.equal("t", 0)
	look := engine.HoldChannels(x.e, "t")
	tr.handTo("t", from, x.e)
	tr.eventually("it leads", func() bool { c, _ := engine.CopyOf(x.e, "t", 0); return c.Serves })
	heal = tr.withoutAcks()
	if err := engine.AppendChannel(x.e, "t", 0, "c"); err != nil {
		tr.t.Fatal(err)
	}
	tr.eventually("the channel is in its log", func() bool { return engine.FoldHas(x.e, "t", 0, "c") })
	look()
	topic := tr.topic(x, "t")
	tr.eventually("it knows its channels", func() bool { _, ok := topic.LookupChannel("c"); return ok })
	return heal
}

// Who subscribes to a channel that somebody else makes is answered when its creation is committed, not when the leader
// has it in its log: a failover would take the channel from him, and messages that were published after the answer with
// it.
//
// B71.
func TestClusterSubscribedToAnOpenCreation(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3, impatient)
	tr.create("t", 1)
	tr.channel("t", "first")
	l := tr.leader("t", 0)
	x := tr.others(l)[0]
	heal := tr.leadsWithOpenCreation(l, x)
	topic := tr.topic(x, "t")
	if _, err := topic.Channel(within(t, patience), "c"); err == nil {
		t.Error("a channel is there whose creation nobody else has acknowledged")
	}
	heal()
	tr.eventually("the channel is there when the others have it", func() bool {
		_, err := tr.topic(tr.leader("t", 0), "t").Channel(within(t, patience), "c")
		return err == nil
	})
	publish(t, tr.topic(tr.leader("t", 0), "t"), "after")
	l = tr.leader("t", 0)
	tr.kill(l)
	if got := readAll(t, tr.at(tr.leader("t", 0), "t", "c")); len(got) != 1 {
		t.Errorf("the channel got %v", got)
	}
}

// The same for a client at a node that leads nothing and remembers a channel of that name, which was deleted meanwhile.
//
// B71.
func TestClusterSubscribedElsewhereToAnOpenCreation(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3, impatient)
	tr.create("t", 1)
	tr.channel("t", "first")
	l := tr.leader("t", 0)
	x, far := tr.others(l)[0], tr.others(l)[1]
	topic := tr.topic(far, "t")
	if _, err := topic.CreateChannel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if err := tr.topic(l, "t").DeleteChannel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if _, ok := topic.LookupChannel("c"); !ok {
		t.Fatal("the node does not remember the channel: the test does not reach what it is for")
	}
	heal := tr.leadsWithOpenCreation(l, x)
	tr.eventually("everybody knows who leads", func() bool { return far.row("t", 0).State.Leader == x.e.Node().ID })
	if _, err := topic.Channel(within(t, patience), "c"); err == nil {
		t.Error("a channel is there whose creation nobody else has acknowledged")
	}
	heal()
	tr.eventually("the channel is there when the others have it", func() bool {
		_, err := topic.Channel(within(t, patience), "c")
		return err == nil
	})
}

// A pause or skip of a channel that is asked for again is answered when the first one is committed, at the latest: the
// channel's machine has it before.
//
// B70.
func TestClusterPauseAskedAgain(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3, impatient)
	tr.create("t", 1)
	c := tr.channel("t", "c")
	changes := map[string]func() error{
		"pause":   func() error { return c.Pause(within(t, 300*time.Millisecond)) },
		"skip":    func() error { return c.Skip(within(t, 300*time.Millisecond), true) },
		"unpause": func() error { return c.Unpause(within(t, 300*time.Millisecond)) },
	}
	for _, what := range []string{"pause", "skip", "unpause"} {
		tr.equal("t", 0)
		heal := tr.withoutAcks()
		for try := range 2 {
			if changes[what]() == nil {
				t.Errorf("%s, try %d: answered, and nobody has acknowledged it", what, try+1)
			}
		}
		heal()
		tr.eventually(what+" is done when the others have it", func() bool { return changes[what]() == nil })
	}
	l := tr.leader("t", 0)
	tr.kill(l)
	st := channelStats(t, tr.at(tr.leader("t", 0), "t", "c"))
	publish(t, tr.topic(tr.leader("t", 0), "t"), "skipped")
	if st.Paused {
		t.Error("the next leader has the channel paused")
	}
	sit(t, tr.at(tr.leader("t", 0), "t", "c"), 10).none("the channel skips")
}

// On a single node the second of two is answered when the first one is on stable storage.
//
// B70.
func TestPauseAskedAgain(t *testing.T) {
	d := newDisk()
	e := onDisk(t, d)
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
