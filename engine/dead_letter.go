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

// redriveChannel is the channel of a dead-letter topic from which Redrive sends messages back. It exists from the
// topic's beginning. Messages that it has not confirmed were not sent back yet, and are kept.
const redriveChannel = "redrive"

// maxRedriveCount bounds the dead letters that Redrive sends back at once.
const maxRedriveCount = 64

// Headers that the engine adds to a dead letter, and to one that was sent back.
const (
	OriginTopicHeader   = channel.OriginTopicHeader
	OriginChannelHeader = channel.OriginChannelHeader
	OriginIDHeader      = channel.OriginIDHeader // 16 hex digits; two dead letters with the same one are duplicates
	AttemptsHeader      = channel.AttemptsHeader
	ChannelHeader       = channel.ChannelHeader // only this channel gets the message; Redrive sets it
)

// TagHeader is the header that says which consumers get a message: see ConsumerOptions.Tag.
const TagHeader = channel.TagHeader

// deadLetterTopic returns the topic of that name, with the channel that keeps its messages. It creates what is missing.
func (e *Engine) deadLetterTopic(ctx context.Context, name string) (*Topic, error) {
	t, err := e.CreateTopic(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	if t.hasRedrive.Load() && t.hasChannel(redriveChannel) {
		return t, nil
	}
	// The channel that this node knows may not be committed yet, and a failover could undo it.
	if _, err = t.CreateChannel(ctx, redriveChannel); err == nil {
		t.hasRedrive.Store(true)
	}
	return t, err
}

// Redrive sends up to max of the channel's dead letters back: it publishes them to the channel's topic, for this
// channel only, and confirms them in the channel "redrive" of the dead-letter topic. It returns their number. After a
// crash or an error in between, one may be sent back twice; OriginIDHeader of the dead letter identifies it.
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

// sendBack publishes dead letters to their original topic, and confirms those that are stored there.
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
