package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"penstock/engine/channel"
	"penstock/engine/core"
	"penstock/replicate/wire"
)

// redriveChannel is the channel of a dead-letter topic from which Redrive sends messages back. deadLetterTopic creates
// it together with the topic. The channel confirms a dead letter when it has been sent back; until then the dead letter
// is kept.
const redriveChannel = RedriveChannel

// RedriveChannel is the name of redriveChannel, for those who must not delete it.
const RedriveChannel = "redrive"

// maxRedriveCount bounds the dead letters that Redrive sends back in one round.
const maxRedriveCount = 64

// Headers that the engine adds. A dead letter has the first five; a message that Redrive sent back has ChannelHeader.
const (
	OriginTopicHeader   = channel.OriginTopicHeader   // the topic from which the dead letter came
	OriginChannelHeader = channel.OriginChannelHeader // the channel that gave the message up
	OriginIDHeader      = channel.OriginIDHeader      // its id there, 16 hex digits; equal ones are duplicates
	AttemptsHeader      = channel.AttemptsHeader      // how often it was delivered, decimal
	HopsHeader          = channel.HopsHeader          // how many dead-letter topics it has come to, decimal
	ChannelHeader       = channel.ChannelHeader       // the one channel that gets the message
)

// TagHeader is the header with a message's tag, which selects its consumers: see ConsumerOptions.Tag.
const TagHeader = channel.TagHeader

// deadLetterTopic returns the dead-letter topic of that name. It creates the topic and its channel redriveChannel if
// they do not exist, and waits until the channel is committed.
func (e *Engine) deadLetterTopic(ctx context.Context, name string) (*Topic, error) {
	t, err := e.CreateTopic(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	if t.hasRedrive.Load() && t.hasChannel(redriveChannel) {
		return t, nil
	}
	// The channel that this node knows may not be committed yet, and a failover could undo its creation.
	if _, err = t.CreateChannel(ctx, redriveChannel); err == nil {
		t.hasRedrive.Store(true)
	}
	return t, err
}

// Redrive sends up to max of the channel's dead letters back: it publishes them to the channel's topic, for this
// channel only, and confirms them in the channel "redrive" of the dead-letter topic. It returns how many it has sent
// back, also together with an error. After a crash or an error between the two steps, a dead letter may be sent back
// twice; its OriginIDHeader identifies it. A dead letter that cannot be published stays where it is.
func (c *Channel) Redrive(ctx context.Context, max int) (moved int, err error) {
	s, err := c.ReadSettings(ctx)
	if err != nil {
		return 0, err
	}
	name := s.DeadLetter
	if name == "" {
		name = c.t.Name() + core.DeadLetterSuffix
	}
	from, ok := c.e.LookupTopic(name)
	if !ok {
		return 0, nil
	}
	store, err := from.CreateChannel(ctx, redriveChannel)
	if err != nil {
		return 0, err
	}
	req := &wire.PeekRequest{OriginTopic: c.t.Name(), OriginChannel: c.name, Next: make([]ID, from.Partitions())}
	for moved < max {
		var dead []PeekedMessage
		req.Count = min(max-moved, maxRedriveCount)
		op := wire.Operation{Kind: wire.OpPeek, Peek: req}
		if err := store.ask(ctx, op, nil, collect(&dead)); err != nil || len(dead) == 0 {
			return moved, err
		}
		dead = dead[:min(len(dead), max-moved)]
		n, err := c.sendBack(ctx, store, dead)
		if moved += n; err != nil {
			return moved, err
		}
		for _, m := range dead {
			if next := m.ID + 1; next > req.Next[m.ID.Partition()] {
				req.Next[m.ID.Partition()] = next
			}
		}
	}
	return moved, nil
}

// sendBack publishes dead letters to the channel's topic, and confirms those that are stored there in store.
func (c *Channel) sendBack(ctx context.Context, store *Channel, dead []PeekedMessage) (moved int, err error) {
	ms := make([]Outgoing, len(dead))
	for i := range dead {
		headers := append(channel.WithoutReserved(dead[i].Headers), channel.NewHeader(ChannelHeader, c.name))
		ms[i] = Outgoing{Body: dead[i].Body, Headers: headers}
	}
	op := wire.Operation{Kind: wire.OpConfirm}
	for i, perr := range c.t.publishEach(ctx, ms) {
		if perr == nil {
			op.IDs = append(op.IDs, dead[i].ID)
		} else {
			err = fmt.Errorf("engine: a dead letter could not be sent back, it stays where it is: %w", perr)
		}
	}
	if len(op.IDs) == 0 {
		return 0, err
	}
	concerned := func(n uint32) bool {
		return slices.ContainsFunc(op.IDs, func(id ID) bool { return id.Partition() == n })
	}
	return len(op.IDs), errors.Join(err, store.ask(ctx, op, concerned, nil))
}
