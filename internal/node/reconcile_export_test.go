package node

import (
	"context"

	"penstock/internal/node/fold"
	tp "penstock/internal/node/topic"
	"penstock/replicate/wire"
)

// ConfigureOnly puts settings into the log of one partition, as a change does that is lost in all others.
func ConfigureOnly(ctx context.Context, c *Channel, partition uint32, s fold.ChannelSettings) error {
	return tp.Hooks{T: c.Topic()}.Ask(ctx, c, wire.Operation{Kind: wire.OpConfigure, Settings: &s},
		func(n uint32) bool { return n == partition })
}
