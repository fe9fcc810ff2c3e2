package engine

import (
	"context"

	"penstock/engine/core"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// The machine of a channel, and the fold of a leader's log, include batches that are in the log but not committed. A
// failover can undo those. So a caller that asks for an existing channel must wait until its creation is committed,
// like the caller that created it.

// committedChannel returns a channel that this node has, once its creation is committed: another caller may have asked
// for it a moment ago. A node that leads nothing only remembers channels, so it asks the leaders.
func (t *Topic) committedChannel(ctx context.Context, c *Channel) (*Channel, error) {
	if !t.e.members.others() || c.ephemeral {
		return c, nil
	}
	cn := t.e.cluster
	// Wait only for the partitions that this client will get messages from. A partition without a leader must not keep the
	// client from the others.
	only := func(n uint32) bool { return t.partitions()[n].rep.serves.Load() }
	switch {
	case t.servesAny():
		if c.isCommitted() {
			return c, nil
		}
	case t.e.opts.DisableAutoCreate:
		return c, nil // the leaders must not create it
	default:
		only = func(n uint32) bool {
			to := replicate.NodeID(t.partitions()[n].rep.target.Load())
			return to != 0 && (to == cn.self.ID || cn.isLive(to))
		}
	}
	if err := cn.gather(ctx, t, wire.Operation{Kind: wire.OpCreateChannel, Channel: c.name}, only, nil); err != nil {
		return nil, err
	}
	return t.createChannelLocal(ctx, c.name)
}

// isCommitted is isCommittedIn for all partitions that this node serves.
func (c *Channel) isCommitted() bool {
	for i, pt := range c.t.partitions() {
		if pt.rep.serves.Load() && !c.isCommittedIn(i) {
			return false
		}
	}
	return true
}

// isCommittedIn says whether the channel has the partition, and everything is committed that was in the log when the
// channel got it. The last of that may be the channel's creation.
func (c *Channel) isCommittedIn(i int) bool {
	if !c.hasPartition(i) {
		return false
	}
	c.mu.Lock()
	pt, behind := c.cursors[i].part, c.cursors[i].foundEnd
	c.mu.Unlock()
	return pt.CommittedMark() >= behind
}

// writeControls appends all control entries that the machine has after evs, and returns the waiters for their commits.
// A control put in flight precedes them in the inbox, so the order is kept. mu is held.
func (c *Channel) writeControls(evs []core.Event) (ws []*controlWait, err error) {
	for i := range c.cursors {
		cur := &c.cursors[i]
		pt := cur.part
		if !cur.assigned || c.ephemeral {
			continue // another node serves the partition, or nothing of the channel is in the log
		}
		var controls []core.Control
		leads := pt.Leads() // otherwise the operation goes to the next leader
		if leads && !c.m.HasControls(cur.number) && anyAbout(evs, cur.number) {
			controls = c.stateControls()
		}
		for controls != nil || c.m.HasControls(cur.number) {
			if controls == nil {
				controls = cloneControls(c.m.TakeControls(cur.number, nil))
			}
			w := &controlWait{put: cur.put, takeSeq: c.m.LastTake(cur.number), answered: make(chan struct{}, 1)}
			write := pt.NewControls(&cur.put.revoked, false, func(err error) {
				w.err = err
				w.answered <- struct{}{}
			})
			if err := write(controls); err != nil {
				return ws, err
			}
			controls = nil
			ws = append(ws, w)
		}
	}
	return ws, nil
}

// stateControls are the entries to write when an event changed nothing. Then the same change was asked for before, and
// its entry may still be in flight, or was refused. Once these entries are committed, the change is durable. mu is
// held.
func (c *Channel) stateControls() []core.Control {
	now := c.m.Stats()
	return []core.Control{
		{Kind: core.ChannelPaused, Channel: c.name, Flag: now.Paused},
		{Kind: core.ChannelSkipped, Channel: c.name, Flag: now.Skipped},
	}
}

// anyAbout says whether one of the events is about the partition, or about the channel as a whole.
func anyAbout(evs []core.Event, number uint32) bool {
	for i := range evs {
		if n, one := partOf(&evs[i]); !one || n == number {
			return true
		}
	}
	return false
}
