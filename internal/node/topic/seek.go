package topic

import (
	"context"
	"errors"
	"fmt"

	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/replicate/wire"
)

// Seek makes the channel continue at another place, backward or forward, in every partition; with SeekID only in that
// of the id. A place before the oldest stored message or behind the newest one is moved to that end. The channel
// forgets its messages in flight: consumers may still hold them, and a later Finish fails with ErrNotInFlight. A seek
// to the beginning keeps the messages that wait for their time and that retention has carried from before it; any other
// seek gives up what waits before its place. When Seek returns nil, the change is durable.
//
// Seek returns ErrSeek for a kind that does not exist, ErrNoPartition for an id in a partition that the topic does not
// have, and ErrNoChannel. After any other error some partitions may have been changed. Seek may then be repeated with
// an id or a time; a count would be applied twice.
func (c *Channel) Seek(ctx context.Context, to wire.SeekTo) error { return c.seek(ctx, to, nil) }

// SeekPartition is Seek in one partition. It returns ErrNoPartition if the topic does not have it, and ErrSeek for an
// id of another partition.
func (c *Channel) SeekPartition(ctx context.Context, partition int, to wire.SeekTo) error {
	only, err := c.t.onlyPartition(partition)
	switch {
	case err != nil:
		return err
	case to.Kind == wire.SeekID && int(to.ID.Partition()) != partition:
		return fmt.Errorf("%w (message %v is in partition %d, not in %d)", errs.ErrSeek, to.ID, to.ID.Partition(), partition)
	}
	return c.seek(ctx, to, only)
}

// seek is Seek in the partitions that only selects (nil: all).
func (c *Channel) seek(ctx context.Context, to wire.SeekTo, only func(partition uint32) bool) error {
	if err := c.local.Err(); err != nil {
		return err // the logs of the partitions are closed as well
	}
	switch to.Kind {
	case wire.SeekBeginning, wire.SeekEnd, wire.SeekTime, wire.SeekCount:
	case wire.SeekID:
		if err := c.t.checkHas(to.ID); err != nil {
			return err
		}
		only = func(n uint32) bool { return n == to.ID.Partition() }
	default:
		return fmt.Errorf("%w (%q)", errs.ErrSeek, to.Kind)
	}
	// The first step resolves the place to message ids, the second one sets them. If an answer to the second step is
	// lost, that step can be repeated with the same ids. A count, or a time while messages arrive, would mean another
	// place by then.
	var targets []message.ID
	err := c.ask(ctx, wire.Operation{Kind: wire.OpResolveSeek, Seek: &to}, only, func(result []byte) error {
		var ids []message.ID
		err := wire.DecodeResult(result, &ids)
		targets = append(targets, ids...)
		return err
	})
	if err != nil || len(targets) == 0 {
		return err
	}
	return c.ask(ctx, wire.Operation{Kind: wire.OpSeek, Targets: targets}, only, nil)
}

// ask executes op on the channel, at the leaders of the partitions that only selects (nil: all), and passes each result
// to take (nil: they are discarded). For an ephemeral channel it executes op on this node, if this node leads any
// partition. ask returns ErrNoChannel if no leader has the channel, even if this node still has a record of it, which
// it then drops.
func (c *Channel) ask(
	ctx context.Context, op wire.Operation, only func(partition uint32) bool, take func([]byte) error,
) error {
	if err := c.local.Err(); errors.Is(err, errs.ErrClosed) || errors.Is(err, errs.ErrDeleted) {
		return err
	}
	op.Channel = c.name
	if !c.ephemeral || !c.t.local.servesAny() {
		concerned := only == nil
		for n := range uint32(c.t.Partitions()) {
			concerned = concerned || only(n)
		}
		heard := false
		err := c.t.onLeaders(ctx, op, only, func(result []byte) error {
			heard = true
			if take == nil {
				return nil
			}
			return take(result)
		})
		if err == nil && concerned && !heard {
			c.t.local.dropUnused(c.name)
			return errs.ErrNoChannel
		}
		return err
	}
	return c.t.performHere(ctx, op, only, take, c.perform)
}
