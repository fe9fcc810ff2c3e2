package node_test

import (
	"testing"
	"time"

	"penstock/internal/node"
)

// timesOutAsListed checks that the one message in flight times out when the list says so, and that a touch moves that.
func timesOutAsListed(t *testing.T, list func() []node.PendingMessage, s *testClient, timeout time.Duration) {
	t.Helper()
	s.next()
	got := list()
	if len(got) != 1 {
		t.Fatalf("in flight: %+v", got)
	}
	first := got[0].Due
	if d := first.Sub(got[0].Since); d != timeout {
		t.Errorf("handed out at %v and timed out at %v: after %v, want %v", got[0].Since, first, d, timeout)
	}
	eventually(t, "a touch moves the time", func() bool {
		if err := s.Touch(got[0].ID); err != nil {
			t.Fatal(err)
		}
		now := list()
		return len(now) == 1 && now[0].Since.Equal(got[0].Since) && now[0].Due.After(first)
	})
}

// The list of messages in flight says when each of them times out, and a touch moves that time.
//
// B44, B48.
func TestPendingSaysWhenItTimesOut(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	publish(t, topic, "m")
	s := subscribe(t, ch, 1, node.ConsumerOptions{MsgTimeout: 30 * time.Second})
	list := func() []node.PendingMessage {
		got, err := ch.Pending(ctxBg, 10)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	timesOutAsListed(t, list, s, 30*time.Second)
	if err := s.Requeue(list()[0].ID, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(0); err != nil {
		t.Fatal(err)
	}
	if got := list(); len(got) != 0 {
		t.Errorf("nothing is in flight any more: %+v", got)
	}
	// The message does time out then.
	fast := subscribe(t, ch, 1, node.ConsumerOptions{MsgTimeout: time.Second})
	fast.next()
	due := list()[0].Due
	if again := fast.next(); again.at.Before(due) || again.attempts != 3 {
		t.Errorf("attempt %d came at %v, the list said %v", again.attempts, again.at, due)
	}
}

// Any node gives this list, also for a consumer that is connected to a node which does not lead the partition.
//
// B44, B48.
func TestClusterPendingSaysWhenItTimesOut(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	tc.channel("t", "c")
	l := tc.leader("t", 0)
	publish(t, tc.topic(l, "t"), "m")
	others := tc.others(l)
	far, err := tc.topic(others[1], "t").Channel(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	g := tc.subscribeAt(others[0], "t", "c", 1, node.ConsumerOptions{MsgTimeout: 30 * time.Second})
	timesOutAsListed(t, func() []node.PendingMessage {
		got, err := far.Pending(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}, g.testClient, 30*time.Second)
}
