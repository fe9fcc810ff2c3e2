package node_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
)

// stuckSink takes its time when its channel is closed.
type stuckSink struct {
	told    chan struct{}
	release chan struct{}
}

func (s *stuckSink) Deliver(*node.Delivery) bool { return true }
func (s *stuckSink) Flush()                      {}
func (s *stuckSink) Closed(error) {
	close(s.told)
	<-s.release
}

// makeLeader makes to the leader of partition 0 of a topic: the node that leads it hands over.
func (tc *testCluster) makeLeader(topic string, from *testNode, to *node.Engine) {
	tc.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	id := node.PartitionOf(from.e, topic, 0)
	if err := from.store.HandOver(ctx, id, &from.row(topic, 0).State, to.Node().ID); err != nil {
		tc.t.Fatal(err)
	}
}

// A node that closes may begin to lead a partition after its channels were closed. The channels that it makes then are
// closed as well, and Close returns.
//
// B79, B80.
func TestClusterCloseWhileAPartitionComes(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("a", 1)
	tc.create("z", 1) // its channels are ended after those of a
	tc.channel("a", "c")
	tc.channel("z", "c")
	x := tc.leader("z", 0)
	from := tc.others(x)[0]
	if tc.leader("a", 0) == x {
		tc.makeLeader("a", x, from.e)
	}
	from = tc.leader("a", 0)
	topic := tc.topic(x, "a")
	tc.eventually("the node has no channel of a partition that it does not lead", func() bool {
		_, ok := topic.LookupChannel("c")
		return !ok
	})
	sink := &stuckSink{told: make(chan struct{}), release: make(chan struct{})}
	release := sync.OnceFunc(func() { close(sink.release) })
	defer release()
	k, err := tc.channelAt(x, "z", "c").Attach(node.ConsumerOptions{}, sink)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	// The node cannot give its leaderships away, and the other nodes count it as alive.
	tc.kv.Cut(x.client)
	closed := make(chan error, 1)
	e := x.e
	go func() { closed <- e.Close() }()
	<-sink.told
	tc.kv.Heal(x.client)
	tc.makeLeader("a", from, e)
	eventually(t, "the channel begins at the node that closes", func() bool {
		_, ok := topic.LookupChannel("c")
		return ok
	})
	release()
	select {
	case err := <-closed:
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
	case <-time.After(patience):
		t.Fatalf("Close does not return:\n%s", strings.Join(engineGoroutines(), "\n\n"))
	}
	x.e = nil
	tc.network.kill(x.name)
}

// A copy that Close has ended does not begin anew when the store reports its partition meanwhile: it would not know
// what is committed.
//
// B79.
func TestClusterCloseEndsCopiesForGood(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	x := tc.others(tc.leader("t", 0))[0]
	if !node.Present(x.e, "t", 0) {
		t.Fatal("the node has no copy to end")
	}
	node.EndCopy(x.e, "t", 0)
	if node.Present(x.e, "t", 0) {
		t.Error("the copy takes part again, while its node closes")
	}
}
