package channel

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/platform"
)

// controlPut writes the control entries of one channel to the log of one partition. It is used again and again. While
// it is in flight, the machine collects and merges further entries. Channel.mu guards it; while busy is set, what the
// entries point to belongs to the partition.
type controlPut struct {
	c     *Channel
	index int
	write func([]fold.Control) error // of Partition.NewControls
	busy  bool
	// revoked is set when the channel no longer has the partition. Entries that are still in the inbox are then not
	// stored. The next channel of this name, on this node or another, began with a log without them: if they were
	// stored and answered, that channel would not know of those settings, or of that pause.
	revoked   atomic.Bool
	takeSeq   uint64 // the take of entries, see delivery.EvConfirmsCommitted
	entries   []fold.Control
	ranges    []fold.IDRange
	deferrals []fold.Deferral
	dead      []fold.DeadMessage
	err       error // outcome of the batch; written before onAnswer runs
	// refused says why the entries were not stored; nil: they are on their way, or were stored. They are written again
	// before any others, because the machine does not emit them again. Until they are on their way no Sync may succeed.
	refused error
	retries bool // a goroutine will write the refused entries again
	// lost says why entries were not stored, or may not be, and are not written again; nil: there are none. Only the
	// next channel, which begins with the log, delivers their messages again. Until then no Sync may succeed.
	lost error
}

// refusedPause is the time between two attempts to write entries that a partition has refused. It refuses them while
// its segments cannot be written.
const refusedPause = time.Second

// newControlPut returns the control put of a new cursor for pt.
func newControlPut(c *Channel, pt Partition, index int) *controlPut {
	p := &controlPut{c: c, index: index}
	returned := p.onAnswer
	p.write = pt.NewControls(&p.revoked, true, func(err error) { // an ordered channel waits for it without a timeout
		p.err = err
		c.node.Host.Spawn(returned)
	})
	return p
}

// onAnswer handles the result of write. It runs on a goroutine of its own, because the committer must not wait for a
// channel's lock.
func (p *controlPut) onAnswer() {
	c := p.c
	c.mu.Lock()
	p.busy = false
	deliver := false
	if c.closed == nil {
		if p.err == nil {
			p.committedLocked(p.takeSeq)
			deliver = c.settings.Order != fold.OrderNone // an ordered channel's next message waits for this commit
		} else {
			p.notStored(p.err)
		}
		if p.refused == nil {
			c.queueControls()
		}
	}
	c.mu.Unlock()
	if deliver {
		c.pump()
	}
}

// queueControls adds the channel to the confirmer's list if it has entries to write. An ordered channel writes at once,
// because its next message waits for the commit. So does a channel with a Sync, because somebody waits. mu is held.
func (c *Channel) queueControls() {
	if c.settings.Order != fold.OrderNone || len(c.syncs.waits) > 0 {
		c.sendControls()
		return
	}
	if c.ephemeral || c.queued.Load() {
		return
	}
	for i := range c.cursors {
		if c.hasControls(&c.cursors[i]) {
			c.queued.Store(true)
			c.node.add(c)
			return
		}
	}
}

// hasControls says whether sendControls may append entries to the cursor's partition now. mu is held.
func (c *Channel) hasControls(cur *cursor) bool {
	switch p := cur.put; {
	case !cur.assigned || p.busy:
		return false
	case p.refused == nil:
		return c.m.HasControls(cur.number)
	}
	return c.mayWriteAgain(cur)
}

// mayWriteAgain says whether refused entries may be written again: the log has nothing of a later leader, who did not
// know of them. mu is held.
func (c *Channel) mayWriteAgain(cur *cursor) bool {
	return !c.node.Cluster || cur.part.ServesIn(cur.epoch)
}

// sendControls appends the machine's entries to the partitions' inboxes, except where a control put is in flight. mu is
// held.
func (c *Channel) sendControls() {
	if c.closed != nil || c.ephemeral {
		return
	}
	for i := range c.cursors {
		cur := &c.cursors[i]
		p := cur.put
		if !c.hasControls(cur) {
			continue
		}
		if p.refused == nil {
			p.setControls(c.m.TakeControls(cur.number, p.entries[:0]))
			p.takeSeq = c.m.LastTake(cur.number)
			c.syncs.label(c.m, cur)
		}
		_ = p.handOver()
	}
}

// handOver appends the entries to the partition's inbox. Channel.mu is held.
func (p *controlPut) handOver() error {
	p.busy = true
	p.refused = nil
	err := p.write(p.entries)
	if err != nil { // the inbox is closed
		p.busy = false
		p.notStored(err)
	}
	return err
}

// notStored handles entries that were not stored, or may not be. If the partition refused them because of its
// disk, and no later ones were taken, they are written again. Otherwise they are lost, because behind later ones they
// could undo these. Then the next channel delivers the messages again that they confirm. Channel.mu is held.
func (p *controlPut) notStored(err error) {
	c := p.c
	cur := &c.cursors[p.index]
	if !errors.Is(err, errs.ErrDisk) || cur.put != p || p.takeSeq != c.m.LastTake(cur.number) {
		c.syncs.fail(p, err)
		return
	}
	p.refused = err
	c.syncs.answer(p, err)
	if !p.retries {
		p.retries = true
		c.node.Host.Spawn(func() {
			for c.node.Host.Pause(refusedPause, c.node.Stop) && p.writeAgain() {
			}
		})
	}
}

// writeAgain tries to write refused entries again. It returns false if there are none any more, or p is not used any
// more.
func (p *controlPut) writeAgain() bool {
	c := p.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil || c.cursors[p.index].put != p || p.refused == nil {
		p.retries = false
		return false
	}
	c.sendControls()
	return true
}

// flushControls appends all entries before the engine closes, even behind a control put in flight, so that after a
// graceful stop no confirmed message is delivered again. mu is held.
func (c *Channel) flushControls() {
	for i := range c.cursors {
		cur := &c.cursors[i]
		if cur.assigned && cur.put.refused != nil && (!c.mayWriteAgain(cur) || cur.put.handOver() != nil) {
			continue // the partition takes nothing more: its confirmed messages will be delivered again
		}
		for !c.ephemeral && cur.assigned && c.m.HasControls(cur.number) {
			write := cur.part.NewControls(nil, true, func(error) {})
			if write(cloneControls(c.m.TakeControls(cur.number, nil))) != nil {
				break // the partition takes nothing more: its confirmed messages will be delivered again
			}
		}
	}
}

// setControls stores entries in p. It copies the slices that the machine lends only until its next TakeControls.
func (p *controlPut) setControls(controls []fold.Control) {
	p.ranges, p.deferrals, p.dead = p.ranges[:0], p.deferrals[:0], p.dead[:0]
	for i := range controls {
		ct := &controls[i]
		if n := len(p.ranges); len(ct.Ranges) != 0 { // ranges of confirmed messages, or of dead letters that were moved
			p.ranges = append(p.ranges, ct.Ranges...)
			ct.Ranges = p.ranges[n:]
		}
		if n := len(p.dead); len(ct.Dead) != 0 {
			p.dead = append(p.dead, ct.Dead...)
			ct.Dead = p.dead[n:]
		}
		if n := len(p.deferrals); len(ct.Deferrals) != 0 {
			p.deferrals = append(p.deferrals, ct.Deferrals...)
			ct.Deferrals = p.deferrals[n:]
		}
	}
	p.entries = controls
}

// add adds a channel to the list. It must not be on it. Channel.mu is held.
func (n *Shared) add(c *Channel) {
	n.mu.Lock()
	n.list = append(n.list, c)
	n.mu.Unlock()
	platform.Wake(n.kick)
}

// Run writes the control entries of listed channels until Stop is closed. One goroutine per node runs it.
func (n *Shared) Run() {
	for n.Host.Either(n.kick, n.Stop) && n.Host.Pause(n.limits().ConfirmInterval, n.Stop) {
		n.Flush()
	}
}

// Flush sends the controls of every listed channel now. It skips channels whose lock is held, and leaves those to
// flushBusy.
func (n *Shared) Flush() {
	n.mu.Lock()
	list := slices.Clone(n.list)
	clear(n.list)
	n.list = n.list[:0]
	n.mu.Unlock()
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
		n.flushBusy(held)
	}
}

// busyPatience is how long Flush waits for the locks of channels, which are usually held for much less than a
// millisecond. A read from a device that hangs may hold such a lock for ever.
const busyPatience = 20 * time.Millisecond

// flushBusy sends the controls of channels whose locks are held, each as soon as its lock is free. It returns when all
// are sent, or after busyPatience.
func (n *Shared) flushBusy(held []*Channel) {
	sent := make(chan struct{}, len(held))
	for _, c := range held {
		n.Host.Spawn(func() { // at most one per channel: queued keeps it off the list until then
			c.mu.Lock()
			c.sendQueued()
			c.mu.Unlock()
			sent <- struct{}{}
		})
	}
	until := n.Host.Mono() + busyPatience
	for range held {
		if _, byTime := n.Host.EitherUntil(until, sent, nil); byTime {
			return
		}
	}
}

// sendQueued is sendControls for a channel that was on the confirmer's list. mu is held.
func (c *Channel) sendQueued() {
	c.queued.Store(false)
	c.sendControls()
}

// controlWait is a batch of control entries that were taken from the machine, on its way into a partition's log.
type controlWait struct {
	put      *controlPut   // the cursor's control put at that time; a later one counts its takes anew
	takeSeq  uint64        // see delivery.EvConfirmsCommitted
	err      error         // outcome of the batch; written before answered is sent to
	answered chan struct{} // holds the one answer
}

// apply handles the outcome of a batch of control entries. No lock is held.
func (w *controlWait) apply() {
	switch {
	case w.err == nil:
		w.put.committed(w.takeSeq)
	case errors.Is(w.err, errs.ErrUnknown):
		w.put.probe(w.takeSeq)
	default:
		c := w.put.c
		c.mu.Lock()
		defer c.mu.Unlock()
		c.syncs.fail(w.put, w.err)
	}
}

// committed tells the machine that all entries up to a take are committed. It takes Channel.mu.
func (p *controlPut) committed(take uint64) {
	c := p.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed == nil {
		p.committedLocked(take)
	}
}

// probe finds out when entries are committed whose batch was answered with ErrUnknown. It appends another entry:
// when that one is committed, so are all before it. If this node no longer leads the partition by then, the channel is
// closed or has lost the partition.
func (p *controlPut) probe(take uint64) {
	c := p.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil || c.cursors[p.index].put != p {
		return
	}
	paused := fold.Control{Kind: fold.ChannelPaused, Channel: c.name, Flag: c.m.Stats().Paused}
	write := c.cursors[p.index].part.NewControls(&p.revoked, true, func(err error) {
		if err == nil {
			c.node.Host.Spawn(func() {
				p.committed(take)
				c.pump()
			})
		}
	})
	_ = write([]fold.Control{paused}) // an error: another node leads, or the engine closes
}

// committedLocked is committed. Channel.mu is held.
func (p *controlPut) committedLocked(take uint64) {
	c := p.c
	cur := &c.cursors[p.index]
	if cur.put != p {
		return // the channel lost the partition meanwhile, and may have it again
	}
	c.ev = delivery.Event{Kind: delivery.EvConfirmsCommitted, Part: cur.number, Take: take}
	c.step()
	c.syncs.settle(p, take)
	c.startDeadLetterMover()
}

// cloneControls makes deep copies of the slices that the machine lent.
func cloneControls(controls []fold.Control) []fold.Control {
	for i := range controls {
		controls[i].Ranges = slices.Clone(controls[i].Ranges)
		controls[i].Deferrals = slices.Clone(controls[i].Deferrals)
		controls[i].Dead = slices.Clone(controls[i].Dead)
	}
	return controls
}
