package topic

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/replicate/wire"
)

// PeekOptions selects what Peek returns.
type PeekOptions struct {
	Partition int        // -1: all
	From      message.ID // in its partition, the first id to return; the other partitions begin with their oldest message
	// Count is the most messages, of all partitions together; 0: DefaultListCount; never more than MaxListCount.
	Count int
}

// Peek returns messages that the channel has not confirmed, including those in flight and deferred, oldest first. A
// deferred message stands where it was published, even if only a carried copy at a later place is left in the log. Peek
// changes nothing. It returns ErrNoPartition, ErrNoChannel, or the error with which the channel was closed; in a
// cluster also ErrNoLeader.
func (c *Channel) Peek(ctx context.Context, o PeekOptions) ([]wire.PeekedMessage, error) {
	only, err := c.t.onlyPartition(o.Partition)
	if err != nil {
		return nil, err
	}
	if err := c.local.Err(); err != nil {
		return nil, err
	}
	var all []wire.PeekedMessage
	req := &wire.PeekRequest{From: o.From, Count: channel.ListCount(o.Count)}
	if err := c.ask(ctx, wire.Operation{Kind: wire.OpPeek, Peek: req}, only, collect(&all)); err != nil {
		return nil, err
	}
	return channel.FirstPeeked(all, req.Count), nil
}

// Peek returns up to count stored messages of a partition (-1: of all together), oldest first, whatever channels exist.
// from and count are those of PeekOptions. Peek returns ErrNoPartition or ErrClosed, and in a cluster ErrNoLeader.
func (t *Topic) Peek(ctx context.Context, partition int, from message.ID, count int) ([]wire.PeekedMessage, error) {
	return t.PeekSince(ctx, partition, from, count, time.Time{})
}

// PeekSince is Peek that begins, in each partition, not before the batches of a time. It may return older messages,
// too: a batch has messages of several times, and nodes of older versions ignore since.
func (t *Topic) PeekSince(
	ctx context.Context, partition int, from message.ID, count int, since time.Time,
) ([]wire.PeekedMessage, error) {
	only, err := t.onlyPartition(partition)
	if err != nil {
		return nil, err
	}
	if t.env.Closed() {
		return nil, errs.ErrClosed
	}
	var all []wire.PeekedMessage
	req := &wire.PeekRequest{From: from, Count: channel.ListCount(count), Since: since}
	if err := t.onLeaders(ctx, wire.Operation{Kind: wire.OpPeek, Peek: req}, only, collect(&all)); err != nil {
		return nil, err
	}
	return channel.FirstPeeked(all, req.Count), nil
}

// onlyPartition returns a function that selects partition n; nil if n is -1, for all partitions.
func (t *Topic) onlyPartition(n int) (only func(partition uint32) bool, err error) {
	switch {
	case n < -1 || n >= t.Partitions():
		return nil, fmt.Errorf("%w: topic %s has %d, counted from 0, and no %d",
			errs.ErrNoPartition, t.Name(), t.Partitions(), n)
	case n == -1:
		return nil, nil
	}
	return func(partition uint32) bool { return int(partition) == n }, nil
}

// collect returns a function that appends the lists which nodes return to all.
func collect[T any](all *[]T) func([]byte) error {
	return func(result []byte) error {
		var some []T
		err := wire.DecodeResult(result, &some)
		*all = append(*all, some...)
		return err
	}
}

// Pending returns messages that consumers have in flight, the oldest delivery first, at most max (0: DefaultListCount;
// never more than MaxListCount). Its errors are those of Peek.
func (c *Channel) Pending(ctx context.Context, max int) ([]wire.PendingMessage, error) {
	return c.list(ctx, wire.OpPending, max, func(a, b wire.PendingMessage) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
	})
}

// DeferredMessages returns deferred messages, the next due first, at most max (0: DefaultListCount; never more than
// MaxListCount). Its errors are those of Peek.
func (c *Channel) DeferredMessages(ctx context.Context, max int) ([]wire.PendingMessage, error) {
	return c.list(ctx, wire.OpDeferred, max, func(a, b wire.PendingMessage) int {
		return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.ID, b.ID))
	})
}

// list asks all leaders for the list that an operation of this kind returns, merges the lists by order, and returns the
// first max items.
func (c *Channel) list(
	ctx context.Context, kind wire.OperationKind, max int, order func(a, b wire.PendingMessage) int,
) ([]wire.PendingMessage, error) {
	if err := c.local.Err(); err != nil {
		return nil, err
	}
	var all []wire.PendingMessage
	n := channel.ListCount(max)
	if err := c.ask(ctx, wire.Operation{Kind: kind, Count: n}, nil, collect(&all)); err != nil {
		return nil, err
	}
	slices.SortFunc(all, order)
	return all[:min(len(all), n)], nil
}
