package channel

import (
	"context"
	"slices"
	"time"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/replicate/wire"
	"penstock/segment"
)

// DeadLettersOnly is the filter of a channel that keeps dead letters for a redrive, and wants nothing else.
func DeadLettersOnly() fold.Filter {
	return fold.Filter{Rules: []fold.Rule{{Header: OriginTopicHeader, Match: fold.MatchExists}}}
}

// startSweeper starts a goroutine that calls Sweep from time to time, if the channel is one for dead letters only. It
// ends with the channel. mu is held.
func (c *Channel) startSweeper() {
	if !c.started || c.sweeper || c.closed != nil || !isStore(&c.settings.Filter) {
		return
	}
	c.sweeper = true
	c.node.Host.SpawnIn(c.node.Tasks, func() {
		told := ""
		for c.node.Host.Pause(c.node.limits().SweepInterval, c.done) {
			if err := c.Sweep(); err != nil && c.Err() == nil && err.Error() != told {
				told = err.Error()
				c.node.Log.Warn("what is no dead letter could not be confirmed in the channel that keeps dead letters, and "+
					"is kept, too; it is tried again", "topic", c.topic.Name(), "channel", c.name, "error", err)
			}
		}
	})
}

// sweepCount is how many messages Sweep confirms in one step.
const sweepCount = MaxListCount

// sweepPatience bounds one call of Sweep, which waits for what it confirms to be committed.
const sweepPatience = 5 * time.Second

// Sweep confirms what the filter DeadLettersOnly leaves out, in the partitions that this node serves. No consumer reads
// such a channel, and without Sweep it would keep for ever what others publish to its topic. A channel with other
// settings keeps all. A crash, or another leader, makes Sweep begin again at the oldest message that is not confirmed.
// After an error the next call goes on.
func (c *Channel) Sweep() error {
	ctx, cancel := c.node.Host.WithTimeout(c.node.Context(), sweepPatience)
	defer cancel()
	for i := range c.topic.Count() {
		for {
			more, err := sweeper{c}.step(ctx, c.topic.Partition(i))
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
	}
	return nil
}

// sweeper is one call of Sweep. The places up to which it has looked are in the channel's cursors.
type sweeper struct{ c *Channel }

// step is one step of Sweep in one partition. It returns false when there is nothing more to confirm.
func (s sweeper) step(ctx context.Context, pt Partition) (more bool, err error) {
	c := s.c
	from, end, ok := s.todo(int(pt.Number()))
	if !ok || from >= end {
		return false, nil
	}
	p := peeker{count: sweepCount, room: MaxPeekBytes, readAhead: c.node.limits().ReadAheadBytes, others: true}
	if err := c.peekPartition(&p, pt, &wire.PeekRequest{From: batch.MakeID(pt.Number(), from)}); err != nil {
		return false, err
	}
	next, full := end, len(p.found) >= p.count
	op := wire.Operation{Kind: wire.OpConfirm, Partitions: []uint32{pt.Number()}}
	for i := range p.found {
		op.IDs = append(op.IDs, p.found[i].ID)
	}
	if full {
		next = p.found[len(p.found)-1].ID.MsgID() + 1
	}
	if len(op.IDs) > 0 {
		if err := c.confirm(ctx, op); err != nil {
			return false, err
		}
	}
	s.done(int(pt.Number()), next)
	return full, nil
}

// todo returns the range of messages of a partition that Sweep has not looked at. ok says whether there is something
// to do for it.
func (s sweeper) todo(index int) (from, end segment.MsgID, ok bool) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil || !isStore(&c.settings.Filter) || index >= len(c.cursors) || !c.cursors[index].assigned {
		return 0, 0, false
	}
	c.syncVisible()
	cur := &c.cursors[index]
	return max(cur.swept, c.m.NextUnconfirmed(cur.number, 0)), cur.end, true
}

func isStore(f *fold.Filter) bool {
	want := DeadLettersOnly()
	return f.Invert == want.Invert && slices.Equal(f.Rules, want.Rules)
}

// done notes that Sweep has looked at everything below next.
func (s sweeper) done(index int, next segment.MsgID) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if index < len(c.cursors) && c.cursors[index].assigned {
		c.cursors[index].swept = next
	}
}
