package node

import (
	"context"

	"github.com/google/uuid"

	"penstock/internal/node/fanout"
	"penstock/internal/node/partition"
	"penstock/internal/node/remote"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// topicView is a Topic as internal/node/fanout and internal/node/remote see it, the packages that talk to other nodes
// about topics. Two views of the same Topic are equal.
type topicView struct{ t *Topic }

var (
	_ fanout.Topic     = topicView{}
	_ remote.Topic     = topicView{}
	_ remote.Partition = (*partition.Partition)(nil)
)

func (v topicView) ID() uuid.UUID   { return v.t.shared.ID }
func (v topicView) Name() string    { return v.t.Name() }
func (v topicView) Partitions() int { return v.t.Partitions() }
func (v topicView) Deleted() bool   { return v.t.shared.Deleted.Load() }

func (v topicView) Leader(n uint32) replicate.NodeID {
	return v.t.partitions()[n].Target()
}

func (v topicView) Leaders() []replicate.NodeID {
	parts := v.t.partitions()
	leaders := make([]replicate.NodeID, len(parts))
	for n, pt := range parts {
		leaders[n] = pt.Target()
	}
	return leaders
}

func (v topicView) NewestEpoch(n uint32) segment.Epoch {
	return v.t.partitions()[n].Replica().NewestEpoch()
}

func (v topicView) Execute(ctx context.Context, op wire.Operation) ([]byte, error) {
	return v.t.locally(ctx, op)
}

func (v topicView) CreateAtLeaders(ctx context.Context, channel string) error {
	return v.t.e.cluster.createChannel(ctx, v.t, channel, origin{})
}

func (v topicView) DropUnused(channel string) { v.t.dropUnused(channel) }
