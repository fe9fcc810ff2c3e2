package node_test

import (
	"context"
	"fmt"
	"testing"

	"penstock/internal/node"
)

// The first message of a new topic, and its first channel, wait for no retry. A follower that hears of the topic after
// its leader misses the leader's first question; its own message to the leader is answered at once. In this test,
// repetitions would come too late to help.
func TestClusterFreshTopic(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) {
		r := &o.Cluster.Replication
		r.HeartbeatNs, r.RetryNs = 30e9, 600e9
	})
	tc.awaitConnected()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i := range 40 {
		m := tc.nodes[i%len(tc.nodes)]
		topic, err := m.e.CreateTopic(ctx, fmt.Sprint("t", i), 2)
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			_, err = topic.Channel(ctx, "c")
		} else {
			_, err = topic.PublishMessage(ctx, node.Outgoing{Body: []byte("first")})
		}
		if err != nil {
			t.Fatalf("topic %d: %v", i, err)
		}
	}
}
