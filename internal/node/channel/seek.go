package channel

import (
	"context"
	"errors"

	"penstock/batch"
	"penstock/internal/node/clock"
	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/replicate/wire"
	"penstock/segment"
)

// resolveSeek returns the message id that op.Seek stands for, in each partition of op that this node serves. It takes
// Channel.mu.
func (c *Channel) resolveSeek(op wire.Operation) (ids []message.ID, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil, c.closed
	}
	c.syncVisible()
	for i := range c.cursors {
		cur := &c.cursors[i]
		if !cur.assigned || !op.About(cur.number) {
			continue
		}
		id, err := c.resolveSeekIn(cur, op.Seek)
		if err != nil {
			return nil, err
		}
		ids = append(ids, batch.MakeID(cur.number, id))
	}
	return ids, nil
}

// resolveSeekIn returns the message id that to stands for in one partition. The beginning is 0, which no place but the
// beginning is, even if the log has no message: the machine then keeps what waits below the start. mu is held.
func (c *Channel) resolveSeekIn(cur *cursor, to *wire.SeekTo) (segment.MsgID, error) {
	switch to.Kind {
	case wire.SeekBeginning:
		return 0, nil
	case wire.SeekCount:
		_, _, start := cur.part.Log().Start()
		from := int64(c.m.OldestUnconfirmed(cur.number))
		return segment.MsgID(min(max(from+clampCount(to.Count), int64(start)), max(int64(cur.end), int64(start)))), nil
	}
	return Place(cur.part.Log(), to, cur.end)
}

// Place returns the message id that to stands for in a log that readers may read up to end. It returns ErrSeek for a
// count, which only a channel can begin at. It may read the device to find a time.
func Place(log *segment.Log, to *wire.SeekTo, end segment.MsgID) (segment.MsgID, error) {
	switch to.Kind {
	case wire.SeekBeginning:
		_, _, start := log.Start()
		return start, nil
	case wire.SeekEnd:
		return end, nil
	case wire.SeekID:
		return min(to.ID.MsgID(), segment.MaxMsgID), nil
	case wire.SeekTime:
		_, id, err := log.SeekTime(clock.UnixNs(to.Time))
		if errors.Is(err, segment.ErrAtEnd) || errors.Is(err, segment.ErrPastEnd) {
			return end, nil
		}
		return id, err
	}
	return 0, errs.ErrSeek
}

// clampCount bounds a count from a client, so that the sum with a message id cannot overflow.
func clampCount(n int64) int64 { return min(max(n, -int64(segment.MaxMsgID)), int64(segment.MaxMsgID)) }

// seek resets the channel to op.Targets in the partitions that this node serves.
func (c *Channel) seek(ctx context.Context, op wire.Operation) error {
	var evs []delivery.Event
	for _, id := range op.Targets {
		n := id.Partition()
		if !op.About(n) || !c.HasPartition(int(n)) {
			continue
		}
		_, _, start := c.topic.Partition(int(n)).Log().Start()
		evs = append(evs, delivery.Event{Kind: delivery.EvReset, Part: n, Msg: id.MsgID(), Start: start})
	}
	if len(evs) == 0 {
		return c.Err()
	}
	return c.change(ctx, evs...)
}
