package engine

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"penstock/engine/core"
	"penstock/internal/lock"
)

// confirmer writes what channels confirm, defer and reset into the log, together and at most Options.ConfirmInterval late:
// one control batch per partition and channel, however many FINs there were. Only these few milliseconds of confirmations
// come again after a crash. mu guards the list; channels add themselves with Channel.mu held, and run takes the list.
type confirmer struct {
	e    *Engine
	mu   lock.Mutex[lock.Confirmer]
	list []*Channel
	kick chan struct{}
}

func newConfirmer(e *Engine) *confirmer {
	return &confirmer{e: e, kick: make(chan struct{}, 1)}
}

// controlPut carries one channel's controls to one partition's log. It is used again and again; while it is on its way,
// what the machine has more waits and merges. Its own fields belong to Channel.mu, and while it is busy to the inbox and
// the committer.
type controlPut struct {
	Put
	entries specialPut
	c       *Channel
	index   int
	busy    bool // guarded by the channel's mu
	// revoked says that the channel has the partition no more. What it still has in the inbox is not stored: the next
	// channel of this name, on this node or another, has begun with a log without it, and would not know of settings or a
	// pause that were answered.
	revoked   atomic.Bool
	takeSeq   uint64 // see core.EvConfirmsCommitted
	ranges    []core.IDRange
	deferrals []core.Deferral
	dead      []core.DeadMessage
}

func newControlPut(c *Channel, index int) *controlPut {
	p := &controlPut{c: c, index: index}
	p.kind, p.special, p.entries.source = putControls, &p.entries, p
	p.noExpiry = true // an ordered channel waits for it, and nothing else would tell
	returned := p.onAnswer
	p.Done = func(*Put) { c.e.host.Spawn(returned) }
	return p
}

// onAnswer runs off the committer, which must not wait for a channel's lock.
func (p *controlPut) onAnswer() {
	c := p.c
	c.mu.Lock()
	p.busy = false
	deliver := false
	if c.closed == nil {
		if p.Err == nil {
			c.controlsCommittedLocked(p, p.takeSeq)
			deliver = c.settings.Order != core.OrderNone // the next message waited for this
		}
		c.queueControls()
	}
	c.mu.Unlock()
	if deliver {
		c.pump()
	}
}

// queueControls puts the channel on the confirmer's list if it has something to write. An ordered channel writes at once,
// because the next message waits for it. mu is held.
func (c *Channel) queueControls() {
	if c.settings.Order != core.OrderNone {
		c.sendControls()
		return
	}
	if c.ephemeral || c.queued.Load() {
		return
	}
	for i := range c.cursors {
		cur := &c.cursors[i]
		if cur.assigned && !cur.put.busy && c.m.HasControls(cur.part.number) {
			c.queued.Store(true)
			c.e.confirmer.add(c)
			return
		}
	}
}

// sendControls hands over what there is; mu is held.
func (c *Channel) sendControls() {
	if c.closed != nil || c.ephemeral {
		return
	}
	for i := range c.cursors {
		cur := &c.cursors[i]
		p := cur.put
		if !cur.assigned || p.busy || !c.m.HasControls(cur.part.number) {
			continue
		}
		p.setControls(c.m.TakeControls(cur.part.number, p.entries.controls[:0]))
		p.takeSeq = c.m.LastTake(cur.part.number)
		p.busy = true
		if err := cur.part.enqueue(context.Background(), &p.Put); err != nil {
			p.busy = false // closed: what was confirmed will be delivered again, nothing is lost
		}
	}
}

// flushControls hands over everything before the engine closes, even behind a control put that is on its way: after a
// graceful stop no confirmed message comes again. mu is held.
func (c *Channel) flushControls() {
	for i := range c.cursors {
		cur := &c.cursors[i]
		for !c.ephemeral && cur.assigned && c.m.HasControls(cur.part.number) {
			own := &specialPut{controls: cloneControls(c.m.TakeControls(cur.part.number, nil))}
			if cur.part.postControls(own, func(error) {}) != nil {
				return
			}
		}
	}
}

// setControls copies what the machine lent only until its next TakeControls.
func (p *controlPut) setControls(controls []core.Control) {
	p.ranges, p.deferrals, p.dead = p.ranges[:0], p.deferrals[:0], p.dead[:0]
	for i := range controls {
		ct := &controls[i]
		if n := len(p.ranges); len(ct.Ranges) != 0 { // confirmed, and moved to the dead-letter topic
			p.ranges = append(p.ranges, ct.Ranges...)
			ct.Ranges = p.ranges[n:]
		}
		if len(ct.Dead) != 0 {
			p.dead = append(p.dead, ct.Dead...)
			ct.Dead = p.dead
		}
		if len(ct.Deferrals) != 0 {
			p.deferrals = append(p.deferrals, ct.Deferrals...)
			ct.Deferrals = p.deferrals
		}
	}
	p.entries.controls = controls
}

func (f *confirmer) add(c *Channel) {
	f.mu.Lock()
	f.list = append(f.list, c)
	f.mu.Unlock()
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

func (f *confirmer) run() {
	for f.e.host.Either(f.kick, f.e.stop) && f.e.host.Pause(f.e.opts.ConfirmInterval, f.e.stop) {
		f.flush()
	}
}

// flush sends every listed channel's controls now.
func (f *confirmer) flush() {
	f.mu.Lock()
	list := slices.Clone(f.list)
	clear(f.list)
	f.list = f.list[:0]
	f.mu.Unlock()
	var held []*Channel
	for _, c := range list {
		if !c.mu.TryLock() {
			held = append(held, c)
			continue
		}
		c.sendQueued()
		c.mu.Unlock()
	}
	if len(held) > 0 {
		f.flushBusy(held)
	}
}

// busyPatience is how long the other channels' confirmations wait for those of channels whose lock is held: most often much
// less than a millisecond. A read from a device that hangs may hold one for ever.
const busyPatience = 20 * time.Millisecond

// flushBusy sends the controls of channels whose locks were held, each as soon as it is free.
func (f *confirmer) flushBusy(held []*Channel) {
	sent := make(chan struct{}, len(held))
	for _, c := range held {
		f.e.host.Spawn(func() { // at most one of a channel: it is not listed again before that
			c.mu.Lock()
			c.sendQueued()
			c.mu.Unlock()
			sent <- struct{}{}
		})
	}
	until := f.e.host.Mono() + busyPatience
	for range held {
		if _, byTime := f.e.host.EitherUntil(until, sent, nil); byTime {
			return
		}
	}
}

// sendQueued is sendControls for a channel that was on the confirmer's list; mu is held.
func (c *Channel) sendQueued() {
	c.queued.Store(false)
	c.sendControls()
}

// applyOutcome takes in what became of controls that were answered.
func (c *Channel) applyOutcome(w controlWait) {
	switch {
	case w.Err == nil:
		c.controlsCommitted(w.put, w.takeSeq)
	case errors.Is(w.Err, ErrUnknown):
		c.probeCommit(w.put, w.takeSeq)
	}
	w.free()
}

// controlWait is a waiter for controls that were taken from the machine.
type controlWait struct {
	*waiter
	pt      *partition
	put     *controlPut // of the partition's cursor then: a later one's takes are others
	takeSeq uint64      // see core.EvConfirmsCommitted
}

// controlsCommitted tells the machine that the log has, for good, what was taken up to a take.
func (c *Channel) controlsCommitted(put *controlPut, take uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed == nil {
		c.controlsCommittedLocked(put, take)
	}
}

// probeCommit finds out when controls are committed whose put was answered ErrUnknown: they are when something behind them
// in the log is. If this node leads no more by then, the channel has ended, or has given the partition away.
func (c *Channel) probeCommit(put *controlPut, take uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil || c.cursors[put.index].put != put {
		return
	}
	paused := core.Control{Kind: core.ChannelPaused, Channel: c.name, Flag: c.m.Stats().Paused}
	own := &specialPut{source: put, controls: []core.Control{paused}}
	_ = c.cursors[put.index].part.postControls(own, func(err error) { // else it leads no more, or the engine ends
		if err == nil {
			c.e.host.Spawn(func() {
				c.controlsCommitted(put, take)
				c.pump()
			})
		}
	})
}

// controlsCommittedLocked is controlsCommitted with mu held.
func (c *Channel) controlsCommittedLocked(put *controlPut, take uint64) {
	cur := &c.cursors[put.index]
	if cur.put != put {
		return // the partition was given away meanwhile, and may be back
	}
	c.ev = core.Event{Kind: core.EvConfirmsCommitted, Part: cur.part.number, Take: take}
	c.step()
	c.startDeadLetterMover()
}

// cloneControls makes what the machine lent its own.
func cloneControls(controls []core.Control) []core.Control {
	for i := range controls {
		controls[i].Ranges = slices.Clone(controls[i].Ranges)
		controls[i].Deferrals = slices.Clone(controls[i].Deferrals)
		controls[i].Dead = slices.Clone(controls[i].Dead)
	}
	return controls
}
