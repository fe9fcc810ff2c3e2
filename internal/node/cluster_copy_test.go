package node_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
)

// Any node is told by each node where its copy ends, what it knows to be committed, and when it was written last. A
// node whose copies are shortened says so in its verdict, until they are whole.
func TestClusterCopiesAreDescribed(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { node.SetMarkAfter(o, time.Hour) })
	tc.create("t", 1)
	h, begun := newAckLog(), time.Now().Add(-time.Minute)
	topic := tc.topic(tc.leader("t", 0), "t")
	for i := range 5 {
		if err := h.publish(context.Background(), topic, fmt.Sprintf("message %d", i)); err != nil {
			t.Fatal(err)
		}
	}
	same := tc.awaitEqualCopies("t", 0)
	id := node.PartitionOf(tc.nodes[0].e, "t", 0)
	leads := 0
	for _, asks := range tc.nodes {
		for _, m := range tc.nodes {
			a, err := asks.e.CopyOf(t.Context(), id, node.NumberOf(m.e))
			if err != nil {
				t.Fatalf("%s asks %s: %v", asks.name, m.name, err)
			}
			if a.End != same.Next || a.NextID != same.NextID || a.Committed == 0 || a.Committed > a.End || a.Epoch == 0 ||
				a.Written.Before(begun) || a.Damaged || a.Contested || a.Shortened {
				t.Errorf("%s asks %s: %+v, and the copy ends at %d", asks.name, m.name, a, same.Next)
			}
			if a.Leads {
				leads++
			}
		}
	}
	if leads != len(tc.nodes) {
		t.Errorf("the leader is named %d times by %d nodes", leads, len(tc.nodes))
	}

	x := tc.nodes[0]
	tc.killAll()
	file, g, _ := lastGroup(t, x.disk)
	flipBit(t, x.disk, file, g.Offset, 0)
	tc.start(x)
	a, err := x.e.CopyOf(t.Context(), id, node.NumberOf(x.e))
	if err != nil || !a.Shortened {
		t.Errorf("its last group was torn: %+v, %v", a, err)
	}
	if v := x.e.Verdict(); v.Healthy || !strings.Contains(v.Health, "1 copy of this node is shortened, since ") {
		t.Errorf("it says %q", v.Health)
	}
	tc.startAll()
	tc.awaitHeld(h, tc.nodes)
	tc.eventually("it is healthy", func() bool { return x.e.Verdict().Healthy })
	if n := x.e.Storage().Shortened; n != 0 {
		t.Errorf("%d copies are shortened", n)
	}
}
