package topic

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

// View is a Topic as internal/node/fanout and internal/node/remote see it, the packages that talk to other nodes
// about topics. Two views of the same Topic are equal.
type View struct{ t *Topic }

// View returns the topic as other nodes may use it.
func (t *Topic) View() View { return View{t} }

var (
	_ fanout.Topic     = View{}
	_ remote.Topic     = View{}
	_ remote.Partition = (*partition.Partition)(nil)
)

func (v View) ID() uuid.UUID   { return v.t.shared.ID }
func (v View) Name() string    { return v.t.Name() }
func (v View) Partitions() int { return v.t.Partitions() }
func (v View) Deleted() bool   { return v.t.shared.Deleted.Load() }

func (v View) Leader(n uint32) replicate.NodeID {
	return v.t.PartitionList()[n].Target()
}

func (v View) Leaders() []replicate.NodeID {
	parts := v.t.PartitionList()
	leaders := make([]replicate.NodeID, len(parts))
	for n, pt := range parts {
		leaders[n] = pt.Target()
	}
	return leaders
}

func (v View) NewestEpoch(n uint32) segment.Epoch {
	return v.t.PartitionList()[n].Replica().NewestEpoch()
}

func (v View) Execute(ctx context.Context, op wire.Operation) ([]byte, error) {
	return v.t.local.Execute(ctx, op)
}

func (v View) CreateAtLeaders(ctx context.Context, channel string) error {
	return v.t.createAtLeaders(ctx, channel, origin{})
}

// Recall implements remote.Topic.
func (v View) Recall(partition uint32) bool {
	none := true
	for _, c := range v.t.Channels() {
		none = c.local.Recall(partition) && none
	}
	return none && !v.t.env.Channels.MayBegin(v.t.shared.ID) // of a channel that is not listed any more
}

func (v View) DropUnused(channel string) { v.t.local.dropUnused(channel) }
