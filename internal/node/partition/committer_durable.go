package partition

import (
	"penstock/clog"
)

// Durable tells the replicas which batches of the group are durable on this node. The replicas commit what is now
// durable on enough nodes, make it visible and answer its puts; on a single node that is the whole group. clog calls
// Durable for each group in order, once the group is on stable storage. After a crash before Durable, recovery finds
// the group and makes it visible. Only the answers are lost.
func (c *committer) Durable(g *clog.Group) {
	c.telling.Store(int64(c.store.host.Mono()) + 1)
	defer c.telling.Store(0)
	w, waiters := &c.slots[g.Slot()], 0
	for i := range w.batches {
		waiters += c.batchDurable(w, i)
	}
	for i := range w.tombstones {
		w.tombstones[i].Committed()
		waiters += w.tombstones[i].Answer(nil)
	}
	c.store.asyncFree.Recycle()
	for i, cut := range w.cuts {
		cut.durable <- nil
		w.cuts[i] = nil
	}
	w.cuts = w.cuts[:0]
	clear(w.batches) // drop the references to the group's buffer
	w.batches = w.batches[:0]
	w.tombstones = w.tombstones[:0]
	c.Told(waiters)
}

// Failed answers every put with an error, whether it is in flight or waits in an inbox, and closes all inboxes for
// good, because the commit log could not be written. clog calls it once. A group that was in flight may be on the disk
// or not; the recovery at the next start finds out.
func (c *committer) Failed(err error) {
	s := c.store
	s.poison(err)
	why := s.Refusal()
	for i := range c.slots {
		w := &c.slots[i]
		for i := range w.tombstones {
			w.tombstones[i].Answer(why)
		}
		w.tombstones, w.batches, w.cuts = nil, nil, nil
	}
	for _, pt := range s.Partitions() {
		pt.replica.run(func() {
			pt.machine.Poison(why)
			pt.replica.fault(err)
		})
		pt.CloseAndRefuse(why, false)
	}
}
