package channel

import "penstock/engine/base"

// syncWait is a Sync that waits for commits. Channel.mu guards it. A crash loses it together with its caller.
type syncWait struct {
	marks []syncMark // one per partition whose entries are not committed yet; never empty
	done  func(error)
}

// syncMark is a place in one partition's takes (core.Channel.TakeControls): a Sync waits for the commit of this take.
type syncMark struct {
	put  *controlPut // the cursor's at the time of the Sync
	take uint64      // or notTaken
}

// notTaken stands for the take that will leave the machine without entries.
const notTaken = 1<<64 - 1

// Sync calls done once all that the channel's consumers here have finished and requeued so far is committed. An error
// means that some of it may be lost. done runs on a goroutine of its own.
func (k *Consumer) Sync(done func(error)) {
	c := k.ch
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed != nil:
		c.answerSync(done, c.closed)
		return
	case c.consumers[k.id] != k: // what it had in flight was given to others
		c.answerSync(done, base.ErrMoved)
		return
	}
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
		c.answerSync(done, nil)
		return
	}
	c.syncs = append(c.syncs, w)
	c.sendControls() // a caller who waits need not wait for ConfirmInterval, too
}

func (c *Channel) answerSync(done func(error), err error) { c.node.Host.Spawn(func() { done(err) }) }

// labelSyncs notes which take has the entries that Syncs wait for, after a take from the cursor's partition. If it has
// left entries in the machine, that is not known yet. mu is held.
func (c *Channel) labelSyncs(cur *cursor) {
	if len(c.syncs) == 0 || c.m.HasControls(cur.number) {
		return
	}
	for _, w := range c.syncs {
		for i := range w.marks {
			if m := &w.marks[i]; m.put == cur.put && m.take == notTaken {
				m.take = c.m.LastTake(cur.number)
			}
		}
	}
}

// settleSyncs answers the Syncs for which the commit of a take was the last. mu is held.
func (c *Channel) settleSyncs(put *controlPut, take uint64) {
	c.endSyncs(func(w *syncWait) (bool, error) {
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

// failSyncs answers the Syncs that wait for entries of a control put, because these may be lost. nil: all Syncs. mu is
// held.
func (c *Channel) failSyncs(put *controlPut, err error) {
	c.endSyncs(func(w *syncWait) (bool, error) {
		for _, m := range w.marks {
			if put == nil || m.put == put {
				return true, err
			}
		}
		return false, nil
	})
}

// endSyncs answers the Syncs that ended says have ended, and keeps the others. mu is held.
func (c *Channel) endSyncs(ended func(*syncWait) (bool, error)) {
	kept := c.syncs[:0]
	for _, w := range c.syncs {
		if end, err := ended(w); end {
			c.answerSync(w.done, err)
		} else {
			kept = append(kept, w)
		}
	}
	clear(c.syncs[len(kept):])
	c.syncs = kept
}
