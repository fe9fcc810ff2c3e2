package engine

import (
	"runtime"

	"penstock/clog"
	"penstock/engine/core"
	"penstock/internal/failpoint"
)

// Durable makes a group's batches visible, and then answers its puts. So a message that is answered is committed. clog
// calls it for each group in order, once the group is on stable storage. For replicated partitions it only informs the
// replicas, which commit and answer. After a crash before Durable, recovery finds the group and makes it visible; only
// the answers are lost.
func (c *committer) Durable(g *clog.Group) {
	w := &c.slots[g.Slot()]
	w.touched, w.waiters = w.touched[:0], 0
	for i := range w.batches {
		b := &w.batches[i]
		pt := b.part
		if pt.rep != nil {
			c.replicaDurable(w, i)
			continue
		}
		c.ev = core.PartitionEvent{Kind: core.PartitionDurable, Position: b.slice.Position + 1}
		pt.machine.Step(&c.ev, &c.res)
		if c.res.Committed <= b.slice.Position {
			continue // the machine has a fault since: the engine is poisoned
		}
		failpoint.Pass("engine/before-append")
		pt.log.Append(&b.slice)
		if b.deferN != 0 {
			pt.postDeferred(w.deferred[b.deferFrom : b.deferFrom+b.deferN])
		}
		pt.visible.Store(uint64(b.nextID))
		c.e.flusher.markDirty(pt)
		if b.slice.Count == 0 {
			continue
		}
		pt.t.countedBytes(b.slice.Count, b.bodyBytes)
		if n := len(w.touched); n == 0 || w.touched[n-1] != pt {
			w.touched = append(w.touched, pt)
		}
	}
	failpoint.Pass("engine/before-answer")
	for i := range w.puts {
		w.puts[i].committed()
		w.waiters += w.puts[i].answer(nil)
	}
	failpoint.Pass("engine/after-answer")
	for i, pt := range w.touched {
		w.touched[i] = nil
		pt.wake()
	}
	c.e.asyncFree.recycle()
	for i, cut := range w.cuts {
		cut.durable <- nil
		w.cuts[i] = nil
	}
	w.cuts = w.cuts[:0]
	clear(w.batches) // drop the references to the group's buffer
	w.batches = w.batches[:0]
	w.puts = w.puts[:0]
	// This comes last: until then, push wakes nobody for a producer that was just answered and puts again.
	if c.inFlight.Add(-1) == 0 && w.waiters > 1 {
		// The producers that were just answered are runnable on this processor. Let them run first, so that their next puts
		// join the next group. Otherwise the next group has only the puts that came while this one was on the disk, about
		// half of all, and each put waits for two flushes.
		runtime.Gosched()
	}
}

// Failed answers every put with an error, in flight or waiting, and closes all inboxes for good, because the commit log
// could not be written. clog calls it once. A group that was in flight may be on the disk or not; recovery at the next
// start finds out.
func (c *committer) Failed(err error) {
	e := c.e
	e.poison(err)
	why := e.refusal()
	for i := range c.slots {
		w := &c.slots[i]
		for i := range w.puts {
			w.puts[i].answer(why)
		}
		w.puts, w.batches, w.cuts = nil, nil, nil
	}
	for _, pt := range e.partitionList() {
		c.ev = core.PartitionEvent{Kind: core.PartitionFault, Flag: true, Err: why}
		pt.machine.Step(&c.ev, &c.res)
		if pt.rep != nil {
			pt.rep.fault(err)
		}
		pt.closeAndRefuse(why, false)
	}
}
