package node_test

import (
	"context"
	"errors"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// Only the leader serves a consumer of one partition: a node that leads no partition refuses it, instead of fetching
// the messages of all partitions for it.
func TestRemoteOnePartition(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	p, _ := tc.nodeWithoutLeadership()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := tc.topic(p, "t").Channel(ctx, "c")
	if err != nil {
		t.Fatal(err)
	}
	one := uint32(1)
	g := &remoteTestClient{testClient: &testClient{t: t, came: make(chan struct{}, 1)}}
	k, err := c.SubscribeClient(ctx, node.ConsumerOptions{Partition: &one}, g)
	if errors.Is(err, errs.ErrNoLeader) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	g.Consumer = k
	_ = k.Ready(50)
	k.Pump()
	publish(t, tc.topic(p, "t"), numbered("m", 40, 0)...)
	from := map[uint32]int{}
	for range 40 {
		from[g.next().id.Partition()]++
	}
	t.Errorf("a consumer of partition 1 is taken by a node that leads nothing, and got %v", from)
}
