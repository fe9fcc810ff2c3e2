package partition

import (
	"slices"
	"time"

	"penstock/internal/node/errs"
	"penstock/replicate"
)

// This file handles a copy whose segments cannot be written. After a write or sync of a segment file has failed, the
// files of the log are not written again until the node restarts or the log is reset (segment.ErrPoisoned). The copy
// can still be read, and new batches are durable in the commit log. But the commit log keeps every batch that the
// segments lack, and once it is full, all partitions of the node wait. So
//
//   - a leader hands its leadership over to another member of the ISR. Its inbox stays open meanwhile, and is closed if
//     no member can take the leadership;
//   - a follower in an ISR of minimal size goes on: its acks are as good as any;
//   - a follower that the ISR can do without is given up and begins anew from its leader. In the ISR it waits like a
//     copy whose device does not read (replica_wait_device.go): it begins anew when the leader has removed it from the
//     ISR. If the leader cannot remove it, because others had to go as well, RetryReads takes it up again, and it stays
//     as it is for dropPause. If the last file is gone or damaged, the copy does not wait (discardBroken).
//
// Even on a disk that accepts no segment at all, a copy begins anew at most once in dropPause.
//
// None of this is stored. After a crash the segments are opened again, and the commit log has the batches that they
// lack.

// The times between the attempts of a leader whose segments cannot be written to hand its leadership over. Each is
// twice as long as the one before, up to maxUnwrittenPause. Puts are refused in between, so the first is short, but
// longer than an attempt (handOverTime).
const (
	minUnwrittenPause = 2 * time.Second
	maxUnwrittenPause = 16 * time.Second
)

// unwritten holds the times of a copy whose segments cannot be written, in ns by Lease.Now. Replica.mu guards it.
type unwritten struct {
	handOverAt int64 // a leader does not try to hand over again before this time
	pause      int64 // after the last attempt, in ns; 0: none since the files were opened anew
	resetAt    int64 // a copy with a new log does not follow before this time
	staysUntil int64 // a member of the ISR is not given up before this time
	givingUp   bool  // a goroutine of discardBroken runs
}

// unwritten says whether the segments cannot be written any more, although they may still be readable. It takes no
// lock.
func (pt *Partition) unwritten() bool {
	return pt.flush.Unwritten()
}

// yieldUnwritten starts the hand-over of a leader, or gives a follower up, as the comment at the top of this file says.
// tick calls it; mu is held.
func (r *Replica) yieldUnwritten(now int64) {
	u := &r.unwritten
	if !r.pt.unwritten() {
		u.pause = 0
		return
	}
	switch {
	case r.leader != nil && now >= u.handOverAt:
		wait := int64(devicePoll)
		if len(r.state.ISR) >= 2 {
			u.pause = min(max(2*u.pause, int64(minUnwrittenPause)), int64(maxUnwrittenPause))
			wait = u.pause
		}
		u.handOverAt = now + wait
		reopens := r.pt.flush.Reopens()
		r.node.Spawn(func() { r.node.handOverUnwritten(r.pt, reopens) })
	case r.follower != nil && r.follower.Err() == nil && !r.discarded.Load() && r.cut == nil:
		if err := r.pt.flush.LastBroken(); err != nil && !r.discardedWithin(now) {
			r.discardBroken(now, err)
		} else {
			r.discardUnwritten(now)
		}
	}
}

// discardBroken gives up the copy of a follower whose last segment file is gone or damaged, as err says, unless the ISR
// needs the copy as it is. Such a copy does not wait like one whose disk refused a write: the file does not come back,
// and while the copy waits in an ISR that cannot shrink, it keeps its files of the commit log, which then has no room
// for the cuts of the node's other copies. mu is held.
func (r *Replica) discardBroken(now int64, err error) {
	if u := &r.unwritten; !u.givingUp && !r.isrNeeds(now) {
		u.givingUp = true
		r.node.Spawn(func() {
			r.discard(err, nil)
			r.run(func() { u.givingUp = false })
		})
	}
}

// discardUnwritten gives up the copy of a follower, unless the ISR needs it as it is, and returns whether it did. mu is
// held. The row that this process knows may be out of date. If that row wrongly says that the copy is outside the ISR,
// the copy stops acknowledging, but nothing is lost: a copy that waits begins anew only by a row that counts it as
// damaged (Follower.outside).
func (r *Replica) discardUnwritten(now int64) bool {
	if r.isrNeeds(now) {
		return false
	}
	if r.discardedBefore {
		r.unwritten.resetAt = r.discardedAt + int64(dropPause)
	}
	r.discardedBefore, r.discardedAt = true, now
	r.waitsForDevice, r.cut = true, nil
	r.discarded.Store(true)
	r.step(&replicate.Event{Kind: replicate.EvUnusable, Again: true})
	return true
}

// isrNeeds says whether the copy has to go on as it is: it is in an ISR of minimal size, was taken up again a short
// while ago, or knows no ISR. mu is held.
func (r *Replica) isrNeeds(now int64) bool {
	isr := r.state.ISR
	stays := len(isr) <= max(1, r.state.MinISR) || now < r.unwritten.staysUntil
	return !r.isClosed() && (len(isr) == 0 || stays && slices.Contains(isr, r.node.member()))
}

// awaitDiscard waits until the copy that cut c was meant for is given up, because files that cannot be written cannot
// be cut either. It runs on the goroutine of the cut, before the cut has written anything. A crash leaves the copy
// uncut.
func (c *logCut) awaitDiscard() {
	r := c.replica
	for done := false; !done; {
		r.run(func() { done = r.cut != c || r.discardUnwritten(r.node.Now()) })
		if !done && !r.node.store.host.Pause(devicePoll, r.node.store.stop) {
			return
		}
	}
}

// discardedWithin says whether this process gave the copy up less than dropPause ago. mu is held.
func (m *mistrust) discardedWithin(now int64) bool {
	return m.discardedBefore && now-m.discardedAt < int64(dropPause)
}

// handOverUnwritten hands the leadership of pt over. If no other replica takes it, the inbox is closed: more messages
// would only fill the commit log sooner. reopens is the value of flush.Part.Reopens when the hand-over was decided; if
// the log has been cut or has begun anew since then, the inbox stays open. It runs on a goroutine of its own, without a
// lock.
func (cn *Env) handOverUnwritten(pt *Partition, reopens uint64) {
	if !cn.Leaving.Load() {
		cn.HandOverPartition(pt, 0)
	}
	if !pt.Leading.Load() {
		return
	}
	pt.CloseAndRefuse(errs.ErrDisk, true)
	if pt.flush.Reopens() != reopens {
		pt.flush.ReopenInbox()
	}
}

// awaitResetAllowed makes a copy that begins anew for the second time within dropPause wait until dropPause is over,
// before it follows its leader. Meanwhile the log is empty: it holds no memory and no file of the commit log. It runs
// on the goroutine of the cut. It returns false when the engine closes.
func (r *Replica) awaitResetAllowed() bool {
	for {
		r.mu.Lock()
		soon := !r.isClosed() && r.node.Now() < r.unwritten.resetAt
		r.mu.Unlock()
		if !soon {
			return true
		}
		if !r.node.store.host.Pause(devicePoll, r.node.store.stop) {
			return false
		}
	}
}
