package topic

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
	"penstock/internal/node/events"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/internal/node/names"
	"penstock/internal/node/partition"
	"penstock/internal/node/remote"
	"penstock/replicate/wire"
	"penstock/segment"
)

// Channel is a cursor over a topic: it delivers every message at least once to one of its consumers. Topic.Channel
// returns it; it needs no close. Its methods are safe for concurrent use, and concern the channel in all partitions of
// the topic, on whatever nodes they are led, except Attach and AttachLeader. When the channel was deleted they return
// ErrDeleted or ErrNoChannel; Topic.Channel then makes it anew.
type Channel struct {
	// The fields never change. local is this node's part of the channel; operations on the whole channel ask the leaders
	// of all partitions (ask). Once local is shut it stays so, and Topic.Channel returns a Channel with another one. After
	// a crash, recovery makes the channel from the fold of the control entries in the partitions' logs.

	env       *Shared
	t         *Topic
	name      string
	ephemeral bool
	local     *channel.Channel
}

func newChannel(t *Topic, name string) *Channel {
	return handleOf(t, channel.New(t.env.Channels, channelTopic{t}, name))
}

func handleOf(t *Topic, local *channel.Channel) *Channel {
	return &Channel{env: t.env, t: t, name: local.Name(), ephemeral: names.Ephemeral(local.Name()), local: local}
}

func (c *Channel) Name() string            { return c.name }
func (c *Channel) Local() *channel.Channel { return c.local }
func (c *Channel) Topic() *Topic           { return c.t }

// create writes the channel into the log of every partition that this node leads, and returns when that is committed.
// In each partition the channel begins to follow at the moment its creation is committed, so that it misses no message.
// An ephemeral channel is in no log and begins at once. Local.changing is held.
func (c *Channel) create(ctx context.Context, o origin) error {
	if c.ephemeral {
		for _, pt := range c.t.PartitionList() {
			if !pt.Serves() {
				continue
			}
			pt.FollowUnlogged(c.local, c.name)
		}
		c.local.ApplyPosts()
		return nil
	}
	err := c.t.local.writeControlsOf(ctx,
		func(pt *partition.Partition) ([]fold.Control, error) { return c.creation(pt, o) },
		func(pt *partition.Partition) { pt.Follow(c.local, c.name) })
	c.local.ApplyPosts()
	return err
}

// Pause stops deliveries; messages in flight can still be finished. When Pause returns nil, the pause is durable. It
// returns ErrNoChannel if the channel does not exist any more. After an error the channel may be paused in some
// partitions; Pause can be repeated. This holds for Unpause, Skip and Empty, too.
func (c *Channel) Pause(ctx context.Context) error {
	return c.ask(ctx, wire.Operation{Kind: wire.OpPauseChannel, Flag: true}, nil, nil)
}

// Unpause resumes deliveries. When Unpause returns nil, that is durable.
func (c *Channel) Unpause(ctx context.Context) error {
	return c.ask(ctx, wire.Operation{Kind: wire.OpPauseChannel, Flag: false}, nil, nil)
}

// Skip makes the channel confirm messages instead of delivering them, while on is set. When Skip returns nil, that is
// durable.
func (c *Channel) Skip(ctx context.Context, on bool) error {
	return c.ask(ctx, wire.Operation{Kind: wire.OpSkipChannel, Flag: on}, nil, nil)
}

// Empty confirms all messages that the channel has now: unread, in flight and deferred. When Empty returns nil, that is
// durable.
func (c *Channel) Empty(ctx context.Context) error {
	return c.ask(ctx, wire.Operation{Kind: wire.OpEmptyChannel}, nil, nil)
}

// Finish confirms the messages with these ids, whoever has them in flight, as if their consumers had finished them. Ids
// that the channel does not have, or no longer, change nothing. When Finish returns nil, that is durable.
func (c *Channel) Finish(ctx context.Context, ids ...message.ID) error {
	concerned := func(n uint32) bool {
		return slices.ContainsFunc(ids, func(id message.ID) bool { return id.Partition() == n })
	}
	return c.ask(ctx, wire.Operation{Kind: wire.OpConfirm, IDs: ids}, concerned, nil)
}

// Lags returns what waits in each partition of the channel that this node serves.
func (c *Channel) Lags() []channel.PartitionLag { return c.local.Lags() }

// channelTopic is a Topic as package channel sees it: see channel.Topic.
type channelTopic struct{ t *Topic }

var (
	_ channel.Topic     = channelTopic{}
	_ channel.Partition = (*partition.Partition)(nil)
	_ events.Subscriber = (*channel.Channel)(nil)
)

func (s channelTopic) Name() string                      { return s.t.Name() }
func (s channelTopic) ID() uuid.UUID                     { return s.t.shared.ID }
func (s channelTopic) Count() int                        { return s.t.Partitions() }
func (s channelTopic) Partition(n int) channel.Partition { return s.t.PartitionList()[n] }
func (s channelTopic) ServesAny() bool                   { return s.t.local.servesAny() }
func (s channelTopic) Unwatch(c *channel.Channel, n int) { s.t.PartitionList()[n].Unwatch(c) }

// FenceMs implements channel.Topic. It returns 0 if no delivery of an earlier leader can be on its way any more.
func (s channelTopic) FenceMs(n int, epoch segment.Epoch) int64 {
	if epoch <= 1 || s.t.env.level() < remote.HeldLevel || s.t.PartitionList()[n].FenceEnded(epoch) {
		return 0 // no earlier leader; or the level in force has no deadlines; or all nodes have answered the fence
	}
	return remote.HoldMs
}

func (s channelTopic) Fence(n int, epoch segment.Epoch) {
	pt := s.t.PartitionList()[n]
	s.t.env.Cluster.Consumers.Fence(pt.Identity(), pt, epoch)
}

func (s channelTopic) WriteControls(ctx context.Context, controls []fold.Control) error {
	return s.t.local.writeControls(ctx, controls)
}

func (s channelTopic) OpenDeadLetters(ctx context.Context, name string) (
	publish func(context.Context, []message.Outgoing) []error, err error,
) {
	to, err := s.t.env.deadLetterTopic(ctx, name, s.t.MadeBy())
	if err != nil {
		return nil, err
	}
	return to.publishEach, nil
}

// Unused deletes an ephemeral channel that has lost its last consumer, and an ephemeral topic with its last channel.
func (s channelTopic) Unused(local *channel.Channel) {
	t := s.t
	t.local.mu.Lock()
	if c := t.local.channels[local.Name()]; c != nil && c.local == local {
		delete(t.local.channels, c.name)
	}
	t.local.mu.Unlock()
	local.Shut(errs.ErrDeleted)
	t.local.unused()
}

func (s channelTopic) Reconfigured(local *channel.Channel) {
	s.t.local.reconcileLater(reconcileAfter, handleOf(s.t, local))
}
