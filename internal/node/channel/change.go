package channel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/replicate/wire"
)

// Perform carries out op on this node, in those partitions of op that the channel has here. op may be any operation of
// a channel except its creation, its deletion and the question for its settings. If Perform succeeds, it returns a
// result, which may be just the value true, and a change is committed.
func (c *Channel) Perform(ctx context.Context, op wire.Operation) ([]byte, error) {
	switch op.Kind {
	case wire.OpPauseChannel:
		return wire.EncodeResult(true, c.change(ctx, delivery.Event{Kind: delivery.EvPause, Flag: op.Flag}))
	case wire.OpSkipChannel:
		return wire.EncodeResult(true, c.change(ctx, delivery.Event{Kind: delivery.EvSkip, Flag: op.Flag}))
	case wire.OpEmptyChannel:
		return wire.EncodeResult(true, c.change(ctx, delivery.Event{Kind: delivery.EvEmpty}))
	case wire.OpResolveSeek:
		return wire.EncodeResult(c.resolveSeek(op))
	case wire.OpSeek:
		return wire.EncodeResult(true, c.seek(ctx, op))
	case wire.OpPeek:
		return wire.EncodeResult(c.peek(op))
	case wire.OpPending:
		return wire.EncodeResult(c.pending(op))
	case wire.OpDeferred:
		return wire.EncodeResult(c.deferredMessages(op))
	case wire.OpConfirm:
		return wire.EncodeResult(true, c.confirm(ctx, op))
	case wire.OpConfigure:
		return wire.EncodeResult(c.configure(ctx, op))
	case wire.OpRedrive:
		return wire.EncodeResult(c.claimRedrive(op))
	}
	panic(fmt.Sprintf("BUG: engine: %q is not an operation of a channel", op.Kind))
}

// confirm confirms op.IDs, even those that are in flight.
func (c *Channel) confirm(ctx context.Context, op wire.Operation) error {
	var evs []delivery.Event
	for _, id := range op.IDs {
		if n := id.Partition(); op.About(n) && c.HasPartition(int(n)) {
			evs = append(evs, delivery.Event{Kind: delivery.EvDrop, ID: id})
		}
	}
	if len(evs) == 0 {
		return c.Err()
	}
	return c.change(ctx, evs...)
}

// change steps events, and returns when the control entries that they caused are committed, or ctx ends. If the error
// wraps ErrUnknown, the entries may still be committed later.
func (c *Channel) change(ctx context.Context, evs ...delivery.Event) error {
	c.mu.Lock()
	if c.closed != nil {
		c.mu.Unlock()
		return c.closed
	}
	c.applyPostsLocked()
	c.syncVisible()
	for i := range evs {
		if !c.concerns(&evs[i]) {
			continue
		}
		c.ev = evs[i]
		if err := c.step().Err; err != nil {
			c.mu.Unlock()
			return err
		}
	}
	c.learnSettings()
	for i := range c.cursors {
		c.cursors[i].found, c.cursors[i].bad = false, nil
	}
	ws, err := c.writeControls(evs)
	c.mu.Unlock()
	for _, w := range ws {
		// Without a quorum the entries wait for as long as it takes. They must be written, because the machine
		// considers them written. But the caller need not wait for that.
		if !c.node.Host.Either(w.answered, ctx.Done()) {
			err = errors.Join(err, errs.ErrUnknown, ctx.Err())
			c.node.Host.Spawn(func() {
				c.node.Host.Receive(w.answered)
				w.apply()
			})
			continue
		}
		err = errors.Join(err, w.err)
		w.apply()
	}
	c.pump()
	return err
}

// concerns says whether an event is about the channel as a whole, or about a partition that the channel still has here.
// mu is held.
func (r *channelReader) concerns(ev *delivery.Event) bool {
	number, one := partOf(ev)
	return !one || int(number) < len(r.cursors) && r.cursors[number].assigned
}

// partOf returns the partition that an event is about. If one is false, the event is about the channel as a whole.
func partOf(ev *delivery.Event) (number uint32, one bool) {
	switch ev.Kind {
	case delivery.EvReset:
		return ev.Part, true
	case delivery.EvDrop:
		return ev.ID.Partition(), true
	}
	return 0, false
}

// writeControls appends all control entries that the machine has after evs, and returns the batches to wait for. If a
// control put is in flight, it is before them in the inbox, so the order is kept. mu is held.
func (c *Channel) writeControls(evs []delivery.Event) (ws []*controlWait, err error) {
	for i := range c.cursors {
		cur := &c.cursors[i]
		pt := cur.part
		if !cur.assigned || c.ephemeral {
			continue // another node serves the partition, or nothing of the channel is in the log
		}
		if p := cur.put; p.refused != nil { // these come before
			if !c.mayWriteAgain(cur) {
				return ws, p.refused
			}
			if err := p.handOver(); err != nil {
				return ws, err
			}
		}
		var controls []fold.Control
		leads := pt.Leads() // otherwise the operation goes to the next leader
		if leads && !c.m.HasControls(cur.number) && anyAbout(evs, cur.number) {
			controls = c.stateControls()
		}
		for controls != nil || c.m.HasControls(cur.number) {
			if controls == nil {
				controls = cloneControls(c.m.TakeControls(cur.number, nil))
				c.syncs.label(c.m, cur)
			}
			w := &controlWait{put: cur.put, takeSeq: c.m.LastTake(cur.number), answered: make(chan struct{}, 1)}
			write := pt.NewControls(&cur.put.revoked, false, func(err error) {
				w.err = err
				w.answered <- struct{}{}
			})
			if err := write(controls); err != nil {
				c.syncs.fail(cur.put, err)
				return ws, err
			}
			controls = nil
			ws = append(ws, w)
		}
	}
	return ws, nil
}

// stateControls returns the entries to write when an event changed nothing. Then somebody asked for the same change
// before, and its entry may still be in flight, or was refused. Once the entries of stateControls are committed, the
// change is durable. mu is held.
func (c *Channel) stateControls() []fold.Control {
	now := c.m.Stats()
	return []fold.Control{
		{Kind: fold.ChannelPaused, Channel: c.name, Flag: now.Paused},
		{Kind: fold.ChannelSkipped, Channel: c.name, Flag: now.Skipped},
	}
}

// anyAbout says whether one of the events is about the partition, or about the channel as a whole.
func anyAbout(evs []delivery.Event, number uint32) bool {
	return slices.ContainsFunc(evs, func(ev delivery.Event) bool {
		n, one := partOf(&ev)
		return !one || n == number
	})
}
