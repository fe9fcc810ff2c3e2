package node

import (
	"context"

	"penstock/internal/node/partition"
)

// TraceWithin traces a message with other limits than Topic.Trace.
func TraceWithin(ctx context.Context, t *Topic, id ID, limits partition.TraceLimits) (*Trace, error) {
	return t.PartitionList()[id.Partition()].Trace(ctx, id.MsgID(), limits)
}
