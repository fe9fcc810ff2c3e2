package node

import (
	"context"
	"errors"
	"fmt"
	"sort"

	"penstock/internal/node/base"
	"penstock/internal/node/fold"
)

// This file has a topic's set of channels: looking them up, creating and deleting them. Channel itself, and what can be
// done with one, is in channel.go; channels that only other nodes have are in channel_elsewhere.go.

// LookupChannel returns the channel of that name if this node has it. It creates nothing. In a cluster, a node that
// leads no partition of the topic may lack a channel that the leaders have: see ReadChannelNames.
func (t *Topic) LookupChannel(name string) (*Channel, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, ok := t.channels[name]
	return c, ok
}

// Channels returns the channels that this node has, sorted by name. The slice belongs to the caller.
func (t *Topic) Channels() []*Channel {
	t.mu.Lock()
	out := make([]*Channel, 0, len(t.channels))
	for _, c := range t.channels {
		out = append(out, c)
	}
	t.mu.Unlock()
	sort.Slice(out, func(i, j int) bool { return out[i].name < out[j].name })
	return out
}

// Channel returns the channel of that name, and creates it if it does not exist. It returns when the creation is on
// stable storage in every partition, so that no failure can make the channel miss a message that is published
// afterwards. Ephemeral channels are not stored. Channel returns ErrChannelName, ErrAutoCreateOff, ErrTooManyChans,
// ErrStateFull, ErrDeleted (the topic was deleted) or ErrClosed. After any other error the channel may exist in some
// partitions; Channel can be called again.
func (t *Topic) Channel(ctx context.Context, name string) (*Channel, error) {
	return t.channelOr(ctx, name, func() (*Channel, error) { return t.CreateChannel(ctx, name) })
}

// ChannelFrom is Channel for a channel that starts at from if it does not exist yet: see CreateChannelFrom.
func (t *Topic) ChannelFrom(ctx context.Context, name string, from SeekTo) (*Channel, error) {
	return t.channelOr(ctx, name, func() (*Channel, error) { return t.CreateChannelFrom(ctx, name, from) })
}

// channelOr returns the channel of that name, or creates it.
func (t *Topic) channelOr(ctx context.Context, name string, create func() (*Channel, error)) (*Channel, error) {
	if c, ok := t.LookupChannel(name); ok {
		return t.committedChannel(ctx, c)
	}
	if !base.ValidChannelName(name) {
		return nil, ErrChannelName
	}
	if t.e.opts.DisableAutoCreate {
		return nil, ErrAutoCreateOff
	}
	return create()
}

// CreateChannel does what Channel does, even if DisableAutoCreate is set.
func (t *Topic) CreateChannel(ctx context.Context, name string) (*Channel, error) {
	return t.createChannel(ctx, name, origin{})
}

// CreateChannelFrom is CreateChannel for a channel that starts at from: at the oldest message that is kept, behind the
// newest one, at a time, or at an id (in the partitions that the id is not in, where other channels start). A channel
// that exists stays where it is. CreateChannelFrom returns ErrSeek for a count and for an ephemeral channel,
// ErrNoPartition for an id in a partition that the topic does not have, and ErrFromLevel.
func (t *Topic) CreateChannelFrom(ctx context.Context, name string, from SeekTo) (*Channel, error) {
	if err := t.checkStart(name, from); err != nil {
		return nil, err
	}
	return t.createChannel(ctx, name, origin{from: &from})
}

// checkStart returns why a new channel of this name cannot start at from, or nil.
func (t *Topic) checkStart(name string, from SeekTo) error {
	switch from.Kind {
	case SeekBeginning, SeekEnd, SeekTime:
	case SeekID:
		if err := t.checkHas(from.ID); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w (a new channel starts at the beginning, the end, an id or a time)", ErrSeek)
	}
	switch {
	case base.Ephemeral(name):
		return fmt.Errorf("%w (an ephemeral channel starts at the end)", ErrSeek)
	case !t.mayStartAnywhere():
		return ErrFromLevel
	}
	return nil
}

// mayStartAnywhere says whether all leaders look where a new channel is to start.
func (t *Topic) mayStartAnywhere() bool { return !t.e.members.others() || t.e.Level() >= fromLevel }

// fromLevel is the feature level of CreateChannelFrom in a cluster: leaders of an older version would not look where
// the channel is to start.
const fromLevel = 3

// createChannel creates a channel that begins as o says, unless it exists.
func (t *Topic) createChannel(ctx context.Context, name string, o origin) (*Channel, error) {
	if !base.ValidChannelName(name) {
		return nil, ErrChannelName
	}
	if !base.Ephemeral(name) {
		if err := t.e.members.createChannel(ctx, t, name, o); err != nil {
			return nil, err
		}
	}
	return t.createChannelLocal(ctx, name, o)
}

// createChannelLocal creates the channel in the partitions that this node leads, and returns when that is committed.
// It takes changing.
func (t *Topic) createChannelLocal(ctx context.Context, name string, o origin) (*Channel, error) {
	if err := t.lockInitialized(ctx); err != nil {
		return nil, err
	}
	defer t.changing.Unlock()
	if c, ok := t.LookupChannel(name); ok {
		return c, nil
	}
	if t.shared.Deleted.Load() {
		return nil, ErrDeleted
	}
	t.mu.Lock()
	n := len(t.channels)
	t.mu.Unlock()
	if n >= t.e.opts.MaxChannels {
		return nil, &LimitError{
			Err: ErrTooManyChans, What: "with this one the number of the topic's channels", Value: n + 1,
			Most: t.e.opts.MaxChannels, Setting: "max-channels",
		}
	}
	if !base.Ephemeral(name) {
		if err := t.stateFull(); err != nil {
			return nil, err
		}
	}
	c := newChannel(t, name)
	if err := c.create(ctx, o); err != nil {
		c.local.Shut(err)
		return nil, err
	}
	t.mu.Lock()
	closed := t.e.isClosed()
	if !closed {
		t.channels[name] = c // Close shuts it from here on
	}
	t.mu.Unlock()
	if closed {
		c.local.Shut(ErrClosed)
		return nil, ErrClosed
	}
	c.local.Start()
	return c, nil
}

// DeleteChannel deletes a channel. Each consumer's Sink.Closed is called with ErrDeleted. When DeleteChannel returns
// nil, the deletion is on stable storage. It returns ErrNoChannel if there is no such channel, as a GoneError if the
// channel was deleted a moment ago. After any other error the deletion may be repeated.
func (t *Topic) DeleteChannel(ctx context.Context, name string) error {
	return t.e.members.deleteChannel(ctx, t, name)
}

// deleteChannelLocal deletes the channel in the partitions that this node leads, and returns when that is committed. It
// takes changing.
func (t *Topic) deleteChannelLocal(ctx context.Context, name string) error {
	if err := t.lockInitialized(ctx); err != nil {
		return err
	}
	defer t.changing.Unlock()
	if c, ok := t.LookupChannel(name); ok {
		return t.deleteChannel(ctx, c)
	}
	// The caller may be repeating a deletion that was refused or is not committed yet. Only another entry, behind it in
	// the log, makes sure that the channel is gone.
	held, open := t.inLogs(name)
	if held || open {
		if err := t.writeDeleted(ctx, name); held || err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.deletedChannels.Missing(name, t.e.now(), ErrNoChannel)
}

// inLogs looks for a channel that this node does not have in the logs of the partitions that this node leads. held says
// that one of these logs has the channel nevertheless; open says that the end of one of them is not committed.
func (t *Topic) inLogs(name string) (held, open bool) {
	for _, pt := range t.partitions() {
		if base.Ephemeral(name) || !pt.Leading.Load() {
			continue
		}
		has, end := pt.FindChannel(name)
		held, open = held || has, open || end
	}
	return held, open
}

// deleteChannel ends the channel and writes its deletion to the logs. changing is held.
func (t *Topic) deleteChannel(ctx context.Context, c *Channel) error {
	c.local.Shut(ErrDeleted)
	_, led := c.local.Settings()
	t.mu.Lock()
	delete(t.channels, c.name)
	if led { // otherwise the channel here only served clients of other leaders, and proves nothing about the deletion
		t.deletedChannels.Add(c.name, t.e.now())
	}
	t.mu.Unlock()
	if c.ephemeral {
		return nil
	}
	return t.writeDeleted(ctx, c.name)
}

// writeDeleted writes the deletion of a channel into the logs of the partitions that this node leads. changing is held.
func (t *Topic) writeDeleted(ctx context.Context, name string) error {
	return t.writeControls(ctx, []fold.Control{{Kind: fold.ChannelDeleted, Channel: name}}, nil)
}

func (t *Topic) startChannels() {
	for _, c := range t.Channels() {
		c.local.Start()
	}
}

// closeChannels shuts the channels that this node has, and ends the remote consumers of the topic unless the partitions
// have only moved (ErrMoved).
func (t *Topic) closeChannels(err error) {
	for _, c := range t.Channels() {
		c.local.Shut(err)
	}
	if !errors.Is(err, ErrMoved) {
		t.e.members.closeTopic(t, err)
	}
}
