package node_test

import (
	"testing"
	"time"

	"penstock/internal/node"
)

// Retention removes only messages whose confirmation is final. A leader has the deletion of the only channel in its
// log, which no other node has received; it keeps the messages that the channel had not confirmed. The next leader does
// not know of the deletion and has the channel as before. When the old leader, whose log was cut, leads again, no
// message is missing.
//
// B39, B72.
func TestClusterRetentionWaitsForTheCommit(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, neverStranded)
	tc.create("t", 1)
	tc.channel("t", "c")
	l := tc.leader("t", 0)
	publish(t, tc.topic(l, "t"), numbered("m", 200, 12<<10)...) // several commit log files, many segments
	tc.awaitEqualCopies("t", 0)
	tc.network.mute(l.name)
	tc.setPublishTimeout(impatience)
	tc.eventually("the deletion is in the leader's log", func() bool {
		if err := tc.topic(l, "t").DeleteChannel(within(t, 300*time.Millisecond), "c"); err == nil {
			t.Fatal("a channel was deleted without a quorum")
		}
		return !node.FoldHas(l.e, "t", 0, "c")
	})
	<-time.After(10 * 20 * time.Millisecond) // retention looks ten times
	if c, err := node.CopyOf(l.e, "t", 0); err != nil || c.Start != 0 {
		t.Errorf("the leader removed what lies below %d, and the deletion that allowed it is not committed (%v)",
			c.Start, err)
	}
	tc.setPublishTimeout(longLease)
	tc.awaitConnected()
	tc.kill(l)
	tc.network.rules(nil)
	next := tc.leader("t", 0)
	tc.channelAt(next, "t", "c")
	tc.start(l)
	tc.awaitInSync("t")
	tc.awaitEqualCopies("t", 0)
	tc.makeLeader("t", next, l.e)
	tc.eventually("the old leader leads again", func() bool {
		c, err := node.StateOf(l.e, "t", 0)
		return err == nil && c.Serves
	})
	if got := readAll(t, tc.channelAt(l, "t", "c")); len(got) != 200 {
		t.Errorf("%d of 200 messages came, and none was confirmed before", len(got))
	}
}

// Messages whose confirmation is committed are removed from every copy.
//
// B39.
func TestClusterRetentionFollowsTheCommit(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	c := tc.channel("t", "c")
	publish(t, c.Topic(), numbered("m", 200, 12<<10)...)
	if got := readAll(t, c); len(got) != 200 {
		t.Fatalf("%d messages came", len(got))
	}
	publish(t, c.Topic(), numbered("n", 100, 12<<10)...) // so that the commit log releases the earlier batches
	for _, m := range tc.nodes {
		tc.eventually(m.name+" removes what is confirmed", func() bool {
			c, err := node.StateOf(m.e, "t", 0)
			return err == nil && c.Start > 1<<20
		})
	}
}
