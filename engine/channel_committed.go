package engine

import (
	"context"

	"penstock/engine/core"
	"penstock/replicate"
)

// What a channel's machine has, or the fold of a leader's log, is final only when the batch in the log is committed: a
// failover before that takes it back. So a caller that asks for something that exists must wait for its commit as well as
// the caller that made it.

// committedChannel returns a channel that this node has, once its creation is committed: somebody else may have asked for
// it a moment ago. A node that leads nothing only remembers channels; the leaders know.
func (t *Topic) committedChannel(ctx context.Context, c *Channel) (*Channel, error) {
	cn := t.e.cluster
	if cn == nil || c.ephemeral {
		return c, nil
	}
	// Only of the partitions that the client is about to get messages from: one without a leader keeps nobody from the rest.
	only := func(pt *partition) bool { return pt.rep.serves.Load() }
	switch {
	case t.servesAny():
		if c.isCommitted() {
			return c, nil
		}
	case t.e.opts.DisableAutoCreate:
		return c, nil // the leaders are not to make it
	default:
		only = func(pt *partition) bool {
			to := replicate.NodeID(pt.rep.target.Load())
			return to != 0 && (to == cn.self.ID || cn.isLive(to))
		}
	}
	if err := cn.gather(ctx, t, operation{Kind: opCreateChannel, Channel: c.name}, only, nil); err != nil {
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

// isCommittedIn says whether the channel has the partition, and all is committed that was in the log when it got the
// partition: its creation may have been the last of it.
func (c *Channel) isCommittedIn(i int) bool {
	if !c.hasPartition(i) {
		return false
	}
	c.mu.Lock()
	pt, behind := c.cursors[i].part, c.cursors[i].foundEnd
	c.mu.Unlock()
	return pt.committedMark() >= behind
}

// writeControls hands over everything that the machine wants in the log after evs, and returns what to wait for; mu is
// held. A control put that is on its way stands before these in the inbox, so the order holds.
func (c *Channel) writeControls(ctx context.Context, evs []core.Event) (ws []controlWait, err error) {
	for i := range c.cursors {
		cur := &c.cursors[i]
		pt := cur.part
		if !cur.assigned || c.ephemeral {
			continue // the others are another node's
		}
		var controls []core.Control
		leads := pt.rep == nil || pt.rep.leads.Load() // else the next leader is asked
		if leads && !c.m.HasControls(pt.number) && anyAbout(evs, pt.number) {
			controls = c.stateControls()
		}
		for controls != nil || c.m.HasControls(pt.number) {
			if controls == nil {
				controls = cloneControls(c.m.TakeControls(pt.number, nil))
			}
			take := c.m.LastTake(pt.number)
			w, err := pt.appendControls(ctx, &specialPut{controls: controls, source: cur.put})
			if err != nil {
				return ws, err
			}
			controls = nil
			ws = append(ws, controlWait{w, pt, cur.put, take})
		}
	}
	return ws, nil
}

// stateControls is what to write when an event changed nothing: it was asked for before, and that may be on its way to the
// log, or have been refused there. Once these entries are committed it is done. mu is held.
func (c *Channel) stateControls() []core.Control {
	now := c.m.Stats()
	return []core.Control{
		{Kind: core.ChannelPaused, Channel: c.name, Flag: now.Paused},
		{Kind: core.ChannelSkipped, Channel: c.name, Flag: now.Skipped},
	}
}

// anyAbout says whether one of the events is about a partition, or the channel as a whole.
func anyAbout(evs []core.Event, number uint32) bool {
	for i := range evs {
		if n, one := partOf(&evs[i]); !one || n == number {
			return true
		}
	}
	return false
}
