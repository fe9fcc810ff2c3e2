package node

import (
	"context"
	"log/slog"

	"penstock/internal/node/platform"
	"penstock/internal/node/trace"
)

// TraceWithin traces a message with other limits than Topic.Trace.
func TraceWithin(ctx context.Context, t *Topic, id ID, limits trace.Limits) (*Trace, error) {
	env := trace.Env{Topic: t.Name(), Log: slog.Default(), Mono: platform.NewMachine().Mono}
	return trace.Message(ctx, env, t.PartitionList()[id.Partition()], id.MsgID(), limits)
}
