package partition

import (
	"time"

	"penstock/internal/node/inbox"
)

// push tells the committer that the inbox of pt is no longer empty. With alone, the caller has nothing to do but wait
// for the answer to its put; if the commit log is idle, the caller then does the committer's work itself. b is nil if
// the caller must not hang in a write. Any goroutine may call push, without Inbox.mu.
func (c *committer) push(pt *Partition, alone bool, b Blocker) {
	c.readyMu.Lock()
	c.ready = append(c.ready, pt)
	c.readyMu.Unlock()
	// While a group is on the disk, no wake-up is needed: clog calls Gather after Durable has decremented inFlight, and
	// ready already lists pt. A wake-up would only take a processor from the producers. If enough bytes wait for a
	// second group, the inbox wakes the log.
	if c.inFlight.Load() > 0 {
		return
	}
	// If the last group had several puts, the next one probably will too. Then the first caller must not write a group
	// of its own: the other puts would have to wait for that write.
	switch {
	case !alone || c.lastGroupShared.Load():
	case c.store.replicas != nil:
		// The caller may be the goroutine of a client's connection. It must not hang when this node's disk does. So it
		// only seals the batch and sends it to the followers, and another goroutine writes the group. The goroutine of
		// a connection to another node may write itself, because it can be replaced while it hangs
		// (netproto.Conn.MayBlock). It does not write either if the disk is slow.
		if c.store.clog.GatherOnSpot() && c.gathered != nil {
			if b != nil && c.lastWrite.Load() < int64(maxSpotWrite) {
				b.MayBlock()
				c.writeHere()
				return
			}
			select {
			case c.gathered <- struct{}{}:
			default: // writeGathered has not taken the previous value yet, and will find this group too
			}
			return
		}
	case c.store.clog.StepOnSpot() && !c.hasReady():
		return
	}
	if c.suitsBeside() {
		c.leave()
	} else {
		c.store.clog.Wake()
	}
}

// large says that enough bytes wait for two groups at a time, which only the commit log's own goroutine can write.
func (c *committer) large() bool { return c.store.inboxes.Waiting() >= inbox.SecondGroupBytes }

// suitsBeside says whether stepBeside is to do the commit log's work: the last group had several waiting goroutines,
// which the committer lets run before the next group, and puts do not wait for two groups at a time.
func (c *committer) suitsBeside() bool { return c.beside != nil && c.waited.Load() && !c.large() }

// leave lets stepBeside do the commit log's work.
func (c *committer) leave() {
	select {
	case c.beside <- struct{}{}:
	default: // it has not taken the previous value yet, and will find all that waits
	}
}

// leavesGroup leaves the next group to stepBeside, if that suits it and several groups before, and the commit log's own
// goroutine is about to write it. It says whether it did.
func (c *committer) leavesGroup() bool {
	if c.small++; !c.suitsBeside() {
		c.small = 0
	}
	if c.small <= maxSmall || !c.store.clog.CanLeave() {
		return false
	}
	if c.hasReady() {
		c.leave()
	}
	return true
}

// stepBeside does the commit log's work while that suits it, until stop is closed. It has its own goroutine, on a
// single node only. Like the commit log's goroutine, it may hang as long as the disk does.
func (c *committer) stepBeside() {
	for c.store.host.Either(c.beside, c.store.stop) {
		for c.hasReady() {
			if !c.suitsBeside() || !c.store.clog.StepBeside() {
				c.store.clog.Wake()
				break
			}
		}
	}
}

// writeGathered writes the groups that push gathered on other goroutines, until stop is closed. It has its own
// goroutine, on nodes of a cluster only. Like the commit log's goroutine, it may hang as long as the disk does.
func (c *committer) writeGathered() {
	for c.store.host.Either(c.gathered, c.store.stop) {
		c.writeHere()
	}
}

// writeHere writes the group that push gathered, on the calling goroutine.
func (c *committer) writeHere() {
	h := c.store.host
	begin := h.Mono()
	wrote := c.store.clog.WriteOnSpot()
	c.lastWrite.Store(int64(h.Mono() - begin))
	// A put that arrived while the group was on the disk did not wake the log. See push.
	if !wrote || c.hasReady() {
		c.store.clog.Wake()
	}
}

// maxSpotWrite bounds how long the last write may have taken if a connection's goroutine is to make the next one. While
// that goroutine writes, it reads nothing from the other node.
const maxSpotWrite = 2 * time.Millisecond

// maxSmall is how many small groups the commit log's goroutine writes before it leaves the next ones to stepBeside. A
// producer with much on its way leaves an inbox nearly empty now and then; it would suffer from each change.
const maxSmall = 8

// hasReady says whether any inbox waits to be sealed.
func (c *committer) hasReady() bool {
	c.readyMu.Lock()
	defer c.readyMu.Unlock()
	return len(c.ready) > 0 || c.leftover.Load()
}
