package engine_test

import (
	"testing"
	"time"

	"penstock/engine"
)

// Retention by confirmation removes what is confirmed for good: a leader that has a deletion of the only channel in its
// log, which nobody else has heard of, keeps what the channel had not confirmed. The next leader knows of no deletion,
// the channel is there as before; and when the old leader, which was cut, leads once more nothing is missing.
//
// B39, B72.
func TestClusterRetentionWaitsForTheCommit(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3, impatient)
	tr.create("t", 1)
	tr.channel("t", "c")
	l := tr.leader("t", 0)
	publish(t, tr.topic(l, "t"), numbered("m", 200, 12<<10)...) // several commit log files, many segments
	tr.equal("t", 0)
	tr.wires.isolate(l.name, true)
	if err := tr.topic(l, "t").DeleteChannel(within(t, 300*time.Millisecond), "c"); err == nil {
		t.Fatal("a channel was deleted without a quorum")
	}
	if engine.FoldHas(l.e, "t", 0, "c") {
		t.Fatal("the deletion is not in the leader's log: the test does not reach what it is for")
	}
	<-time.After(10 * 20 * time.Millisecond) // retention looks ten times
	if c, err := engine.CopyOf(l.e, "t", 0); err != nil || c.Start != 0 {
		t.Errorf("the leader removed what lies below %d, and the deletion that allowed it is not committed (%v)",
			c.Start, err)
	}
	tr.kill(l)
	tr.wires.isolate(l.name, false)
	next := tr.leader("t", 0)
	tr.at(next, "t", "c")
	tr.start(l)
	tr.whole("t")
	tr.equal("t", 0)
	tr.handTo("t", next, l.e)
	tr.eventually("the old leader leads again", func() bool {
		c, err := engine.CopyOf(l.e, "t", 0)
		return err == nil && c.Serves
	})
	if got := readAll(t, tr.at(l, "t", "c")); len(got) != 200 {
		t.Errorf("%d of 200 messages came, and none was confirmed before", len(got))
	}
}

// What is confirmed and committed goes on every copy.
//
// B39.
func TestClusterRetentionFollowsTheCommit(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 1)
	c := tr.channel("t", "c")
	publish(t, c.Topic(), numbered("m", 200, 12<<10)...)
	if got := readAll(t, c); len(got) != 200 {
		t.Fatalf("%d messages came", len(got))
	}
	publish(t, c.Topic(), numbered("n", 100, 12<<10)...) // the commit log lets go of what was before
	for _, m := range tr.nodes {
		tr.eventually(m.name+" removes what is confirmed", func() bool {
			c, err := engine.CopyOf(m.e, "t", 0)
			return err == nil && c.Start > 1<<20
		})
	}
}
