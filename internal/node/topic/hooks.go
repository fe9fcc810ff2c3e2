package topic

import (
	"context"

	"penstock/internal/node/errs"
	"penstock/internal/node/route"
	"penstock/replicate/wire"
	"penstock/segment"
)

// Hooks let the tests of package node do with a topic what otherwise only its own goroutines do. No other code uses
// them.
type Hooks struct{ T *Topic }

// Hold holds changing until release is called: this node cannot change the channels of the topic, or give them other
// partitions.
func (h Hooks) Hold() (release func()) {
	h.T.env.Host.Lock(&h.T.local.changing)
	return h.T.local.changing.Unlock
}

// MakeAnew shuts a channel and makes the topic's channels again, as it happens when a leadership ends and begins.
// changing is held. create then writes the channel into partition n on behalf of the old Channel, which was shut.
func (h Hooks) MakeAnew(channel string) (create func(ctx context.Context, n int) error) {
	t := h.T
	old, _ := t.LookupChannel(channel)
	old.local.Shut(errs.ErrMoved)
	t.local.mu.Lock()
	delete(t.local.channels, channel)
	t.local.mu.Unlock()
	t.local.adoption = route.Adoption{}
	t.local.adoption.Revoke(make([]segment.Epoch, t.Partitions()), func(int) bool { return false })
	t.local.assignPartitions()
	t.local.Start()
	return func(ctx context.Context, n int) error {
		return t.local.createIn(ctx, t.PartitionList()[n], old, origin{})
	}
}

// CreateIn writes a channel into partition n, as createLater does.
func (h Hooks) CreateIn(ctx context.Context, c *Channel, n int) error {
	return h.T.local.createIn(ctx, h.T.PartitionList()[n], c, origin{})
}

// Begin does the first half of Execute: it looks up the epochs in which this node serves the partitions of op. goOn
// does the rest; nil: this node does not serve them.
func (h Hooks) Begin(op wire.Operation) (goOn func(context.Context) error) {
	epochs, ok := h.T.local.assignedEpochs(op.Partitions)
	if !ok {
		return nil
	}
	return func(ctx context.Context) error {
		op.Known = h.T.Partitions()
		_, err := h.T.local.performIn(ctx, op, epochs)
		return err
	}
}

// Ask executes op on a channel, at the leaders of the partitions that only selects.
func (h Hooks) Ask(ctx context.Context, c *Channel, op wire.Operation, only func(partition uint32) bool) error {
	return c.ask(ctx, op, only, nil)
}

func (h Hooks) Catalog() Catalog { return h.T.env.Catalog }
