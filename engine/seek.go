package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/engine/core"
	"penstock/segment"
)

// SeekKind says where a channel goes on reading.
type SeekKind string

// The places that SeekTo can name.
const (
	SeekBeginning SeekKind = "beginning" // with the oldest message that is stored
	SeekEnd       SeekKind = "end"       // with the next message to come
	SeekID        SeekKind = "id"        // with SeekTo.ID, in its partition only
	SeekTime      SeekKind = "time"      // with the first batch stored at or after SeekTo.Time
	SeekCount     SeekKind = "count"     // SeekTo.Count messages from the oldest that is not confirmed, in each partition
)

// SeekTo is a place in a topic. What retention removed or is yet to come is clamped to what is there.
type SeekTo struct {
	Kind  SeekKind  `json:"kind"`
	ID    ID        `json:"id,omitempty"`
	Time  time.Time `json:"time,omitzero"`
	Count int64     `json:"count,omitempty"` // forward if above 0, back if below
}

// ErrSeek says that a SeekTo makes no sense; nothing was changed.
var ErrSeek = errors.New("engine: a channel can go to the beginning, the end, an id, a time or by a count; " +
	"nothing was changed")

// Seek continues reading at a place, backward or forward, in every partition. What is in flight is forgotten: a late
// FIN of it fails with ErrNotInFlight, and consumers may still hold what they were given before. Durable when it
// returns nil. After an error some partitions may have gone there; to call it again with an id or a time does no
// harm.
func (c *Channel) Seek(ctx context.Context, to SeekTo) error { return c.seek(ctx, to, nil) }

// SeekPartition is Seek in one partition.
func (c *Channel) SeekPartition(ctx context.Context, partition int, to SeekTo) error {
	only, err := c.t.onlyPartition(partition)
	switch {
	case err != nil:
		return err
	case to.Kind == SeekID && int(to.ID.Partition()) != partition:
		return fmt.Errorf("%w (message %v is in partition %d, not in %d)", ErrSeek, to.ID, to.ID.Partition(), partition)
	}
	return c.seek(ctx, to, only)
}

func (c *Channel) seek(ctx context.Context, to SeekTo, only func(*partition) bool) error {
	if err := c.closedErr(); err != nil {
		return err // the partitions' logs are closed as well
	}
	switch to.Kind {
	case SeekBeginning, SeekEnd, SeekTime, SeekCount:
	case SeekID:
		if !c.t.has(to.ID) {
			return ErrNoTopic
		}
		only = func(pt *partition) bool { return pt.number == to.ID.Partition() }
	default:
		return fmt.Errorf("%w (%q)", ErrSeek, to.Kind)
	}
	// Where that is, is asked first: a count, and a time while messages come, would lead elsewhere if an answer were
	// lost and asked for again.
	var targets []ID
	err := c.ask(ctx, operation{Kind: opResolveSeek, Seek: &to}, only, func(result json.RawMessage) error {
		var ids []ID
		err := json.Unmarshal(result, &ids)
		targets = append(targets, ids...)
		return err
	})
	if err != nil || len(targets) == 0 {
		return err
	}
	return c.ask(ctx, operation{Kind: opSeek, Targets: targets}, only, nil)
}

// ask does op to the channel wherever its partitions are led; an ephemeral one is this node's, if it leads any.
// ErrNoChannel if no leader has it, whatever this node remembers.
func (c *Channel) ask(
	ctx context.Context, op operation, only func(*partition) bool, take func(json.RawMessage) error,
) error {
	op.Channel = c.name
	if !c.ephemeral || !c.t.servesAny() {
		concerned := only == nil || slices.ContainsFunc(c.t.partitions(), only)
		heard := false
		err := c.t.onLeaders(ctx, op, only, func(result json.RawMessage) error {
			heard = true
			if take == nil {
				return nil
			}
			return take(result)
		})
		if err == nil && concerned && !heard {
			c.t.dropUnused(c.name)
			return ErrNoChannel
		}
		return err
	}
	for _, pt := range c.t.partitions() {
		if only == nil || only(pt) {
			op.Partitions = append(op.Partitions, pt.number)
		}
	}
	result, err := c.perform(ctx, op)
	if err == nil && take != nil && len(result) > 0 {
		err = take(result)
	}
	return err
}

// resolveSeek is the place that op.Seek names in each of its partitions that this node serves.
func (c *Channel) resolveSeek(op operation) (ids []ID, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil, c.closed
	}
	c.syncVisible()
	for i := range c.cursors {
		cur := &c.cursors[i]
		if !cur.assigned || !op.about(cur.part.number) {
			continue
		}
		id, err := c.resolveSeekIn(cur, op.Seek)
		if err != nil {
			return nil, err
		}
		ids = append(ids, core.MakeID(cur.part.number, id))
	}
	return ids, nil
}

// resolveSeekIn is where to is in a partition; mu is held.
func (c *Channel) resolveSeekIn(cur *cursor, to *SeekTo) (segment.MsgID, error) {
	_, _, start := cur.part.log.Start()
	switch to.Kind {
	case SeekBeginning:
		return start, nil
	case SeekEnd:
		return cur.end, nil
	case SeekID:
		return min(to.ID.MsgID(), segment.MaxMsgID), nil
	case SeekCount:
		from := int64(c.m.OldestUnconfirmed(cur.part.number))
		return segment.MsgID(min(max(from+clampCount(to.Count), int64(start)), max(int64(cur.end), int64(start)))), nil
	case SeekTime:
		_, id, err := cur.part.log.SeekTime(to.Time.UnixNano())
		if errors.Is(err, segment.ErrAtEnd) || errors.Is(err, segment.ErrPastEnd) {
			return cur.end, nil
		}
		return id, err
	}
	return 0, ErrSeek
}

// clampCount keeps a client's number from overflowing a message id.
func clampCount(n int64) int64 { return min(max(n, -int64(segment.MaxMsgID)), int64(segment.MaxMsgID)) }

// seekLocal goes to op.Targets in the partitions that this node serves.
func (c *Channel) seekLocal(ctx context.Context, op operation) error {
	var evs []core.Event
	for _, id := range op.Targets {
		n := id.Partition()
		if !op.about(n) || !c.hasPartition(int(n)) {
			continue
		}
		_, _, start := c.t.partitions()[n].log.Start()
		evs = append(evs, core.Event{Kind: core.EvReset, Part: n, Msg: id.MsgID(), Start: start})
	}
	if len(evs) == 0 {
		return c.closedErr()
	}
	return c.change(ctx, evs...)
}

// ResetToID is Seek with an id.
func (c *Channel) ResetToID(ctx context.Context, id ID) error {
	return c.Seek(ctx, SeekTo{Kind: SeekID, ID: id})
}

// ResetToTime is Seek with a time.
func (c *Channel) ResetToTime(ctx context.Context, when time.Time) error {
	return c.Seek(ctx, SeekTo{Kind: SeekTime, Time: when})
}
