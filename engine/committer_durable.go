package engine

import (
	"runtime"

	"penstock/clog"
	"penstock/engine/core"
	"penstock/internal/failpoint"
)

// Durable makes a group's batches visible and then answers its puts: what is answered is committed. clog calls it for each
// group, in their order, once the group is on stable storage. In a cluster it only tells the replicas: they commit and
// answer. After a crash before it, recovery finds the group and makes it visible; only the answers are missing.
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
			continue // poisoned meanwhile
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
	clear(w.batches) // no references to buffers of the past
	w.batches = w.batches[:0]
	w.puts = w.puts[:0]
	// Last: a producer that is answered and puts again need not wake anybody, see push.
	if c.inFlight.Add(-1) == 0 && w.waiters > 1 {
		// Goroutines that put, wait and put again are ready to run on this processor: their next puts belong into the next
		// group. Without them it would carry only what came while this one was on the disk, half of all there is, and each
		// answer would take two flushes.
		runtime.Gosched()
	}
}

// Failed ends every put, in flight or waiting, and closes all inboxes for good: the commit log could not be written. clog
// calls it once. What was in flight may be on the disk: only the next start knows.
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
