package node_test

import (
	"context"
	"fmt"
	"testing"
)

// Any node accepts messages for any topic, all replicas hold the same bytes, and the leader's channel delivers all of
// the messages.
//
// B1, B15, B94.
func TestClusterPublish(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()} // before the cluster, so that they are removed after it
	tc := prepareTestCluster(t, 3)
	for i, m := range tc.nodes {
		m.disk, m.dir = nil, dirs[i]
	}
	tc.startAll()
	tc.create("orders", 1)
	h := newAckLog()
	for _, m := range tc.nodes {
		topic := tc.topic(m, "orders")
		for n := range 100 {
			if err := h.publish(context.Background(), topic, fmt.Sprintf("%s-%d", m.name, n)); err != nil {
				t.Fatalf("%s, message %d: %v", m.name, n, err)
			}
		}
	}
	tc.checkCopies(h, "orders", 1)
	if got := readAll(t, tc.channel("orders", "c")); len(got) != 300 {
		t.Errorf("%d messages came", len(got))
	}
	tc.awaitEqualCopies("orders", 0)
}
