package channel

import (
	"cmp"

	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/platform"
)

// syncWait is a Sync that waits for commits. Channel.mu guards it. A crash loses it together with its caller.
type syncWait struct {
	marks []syncMark // one per partition whose entries are not committed yet; never empty
	done  func(error)
}

// syncMark is a place in one partition's takes (delivery.Channel.TakeControls): a Sync waits for the commit of this
// take.
type syncMark struct {
	put  *controlPut // the cursor's at the time of the Sync
	take uint64      // or notTaken
}

// syncs are the Syncs of a channel that wait for commits. Channel.mu guards them.
type syncs struct {
	host  platform.Host
	waits []*syncWait // in the order of their calls
}

// tell calls done on a goroutine of its own.
func (s *syncs) tell(done func(error), err error) { s.host.Spawn(func() { done(err) }) }

// notTaken stands for the take that will leave the machine without entries.
const notTaken = 1<<64 - 1

// Sync calls done once all that the channel's consumers here have finished and requeued so far is committed. An error
// means that some of it may be lost. Deliveries whose time is over when Sync is called are not in flight when done is.
// done runs on a goroutine of its own; nil: nobody wants to know.
func (k *Consumer) Sync(done func(error)) {
	if done == nil {
		return
	}
	c := k.ch
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick()
	switch {
	case c.closed != nil:
		c.syncs.tell(done, c.closed)
		return
	case c.consumers[k.id] != k: // what it had in flight was given to others
		c.syncs.tell(done, errs.ErrMoved)
		return
	}
	if err := c.lost(); err != nil {
		c.syncs.tell(done, err)
	} else if w := c.unsettled(done); w == nil {
		c.syncs.tell(done, nil)
	} else {
		c.sync(w)
	}
}

// lost returns the error because of which entries of the channel are not stored, or may not be. It returns nil if all
// are stored or on their way. mu is held.
func (r *channelReader) lost() error {
	for i := range r.cursors {
		if cur := &r.cursors[i]; cur.assigned && (cur.put.lost != nil || cur.put.refused != nil) {
			return cmp.Or(cur.put.lost, cur.put.refused)
		}
	}
	return nil
}

// Confirm stores the confirmations of all consumers, as Sync does for one. A node that gives its leaderships away calls
// it. It returns true, and does not call done, if nothing has to be waited for. As a read from a disk that hangs may
// hold mu for ever, Confirm may be given up: done may be called at any later time, or never.
func (c *Channel) Confirm(done func(error)) bool {
	if c.ephemeral {
		return true
	}
	if !c.mu.TryLock() {
		c.node.Host.Spawn(func() {
			c.mu.Lock()
			settled := c.confirmLocked(done)
			c.mu.Unlock()
			if settled {
				done(nil)
			}
		})
		return false
	}
	defer c.mu.Unlock()
	return c.confirmLocked(done)
}

func (c *Channel) confirmLocked(done func(error)) bool {
	if c.closed != nil {
		return true
	}
	w := c.unsettled(done)
	if w != nil && c.lost() == nil {
		c.sync(w)
		return false
	}
	return true
}

// unsettled returns what has to be committed until all that consumers have finished and requeued so far is; nil:
// nothing. mu is held.
func (c *Channel) unsettled(done func(error)) *syncWait {
	w := &syncWait{done: done}
	for i := range c.cursors {
		cur := &c.cursors[i]
		switch {
		case c.ephemeral || !cur.assigned:
		case c.m.HasControls(cur.number):
			w.marks = append(w.marks, syncMark{cur.put, notTaken})
		case c.m.LastCommitted(cur.number) < c.m.LastTake(cur.number):
			w.marks = append(w.marks, syncMark{cur.put, c.m.LastTake(cur.number)})
		}
	}
	if w.marks == nil {
		return nil
	}
	return w
}

// sync begins to wait for what unsettled has returned. mu is held.
func (c *Channel) sync(w *syncWait) {
	c.syncs.waits = append(c.syncs.waits, w)
	c.sendControls() // a caller who waits need not wait for ConfirmInterval, too
}

// label notes which take has the entries that Syncs wait for, after a take from the cursor's partition. If it has
// left entries in the machine, that is not known yet. Channel.mu is held.
func (s *syncs) label(m *delivery.Channel, cur *cursor) {
	if len(s.waits) == 0 || m.HasControls(cur.number) {
		return
	}
	for _, w := range s.waits {
		for i := range w.marks {
			if at := &w.marks[i]; at.put == cur.put && at.take == notTaken {
				at.take = m.LastTake(cur.number)
			}
		}
	}
}

// settle answers the Syncs for which the commit of a take was the last. Channel.mu is held.
func (s *syncs) settle(put *controlPut, take uint64) {
	s.end(func(w *syncWait) (bool, error) {
		for i, m := range w.marks {
			if m.put == put && m.take != notTaken && m.take <= take {
				w.marks[i] = w.marks[len(w.marks)-1]
				w.marks = w.marks[:len(w.marks)-1]
				break
			}
		}
		return len(w.marks) == 0, nil
	})
}

// fail answers the Syncs that wait for entries of a control put, because these may be lost, and notes that for
// later ones. nil: all Syncs. Channel.mu is held.
func (s *syncs) fail(put *controlPut, err error) {
	if put != nil {
		put.lost = err
	}
	s.answer(put, err)
}

// answer answers the Syncs that wait for entries of a control put; nil: all Syncs. Channel.mu is held.
func (s *syncs) answer(put *controlPut, err error) {
	s.end(func(w *syncWait) (bool, error) {
		for _, m := range w.marks {
			if put == nil || m.put == put {
				return true, err
			}
		}
		return false, nil
	})
}

// end answers the Syncs that ended says have ended, and keeps the others. Channel.mu is held.
func (s *syncs) end(ended func(*syncWait) (bool, error)) {
	kept := s.waits[:0]
	for _, w := range s.waits {
		if end, err := ended(w); end {
			s.tell(w.done, err)
		} else {
			kept = append(kept, w)
		}
	}
	clear(s.waits[len(kept):])
	s.waits = kept
}
