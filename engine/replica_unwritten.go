package engine

import (
	"errors"
	"time"

	"penstock/replicate"
	"penstock/segment"
)

// A segment file whose write or sync failed takes nothing more (segment.ErrPoisoned): until the node is restarted, the commit log keeps what the partition's
// segments lack, and gets full some day, for all partitions of the node. Every byte is there and reads, and what comes is durable in the commit log. So in a cluster
//
//   - a leader gives its leadership to another member of the ISR. Its inbox stays open meanwhile, and is closed if nobody can take it;
//   - a follower in the smallest ISR goes on: its acks are as good as any;
//   - a follower that the ISR can do without begins anew from its leader. In the ISR it is given up as one whose device does not read (replica_waits.go): not before
//     the leader has removed it. If it stays in, because others had to go as well, retryReads takes it up again, for dropPause.
//
// A disk on which no segment can be written makes no copy begin anew more than once in dropPause.

// unwrittenPause lies between two attempts of a leader to give its leadership away.
const unwrittenPause = 10 * time.Second

// unwritten is when a copy whose segments cannot be written does what; mu of its replica guards it.
type unwritten struct {
	handsOverAt int64 // its leadership is given away, the next time
	anewAt      int64 // it may follow, once it has begun anew
	staysUntil  int64 // in the ISR it is not given up before
}

// unwritten says that the segments take nothing more, although they read. Any goroutine may ask.
func (pt *partition) unwritten() bool {
	err := pt.flushErr.Load()
	return err != nil && errors.Is(*err, segment.ErrPoisoned)
}

// leaveUnwritten does what the comment above says. Each tick calls it; mu is held.
func (r *replica) leaveUnwritten(now int64) {
	if !r.pt.unwritten() {
		return
	}
	switch {
	case r.leader != nil && now >= r.unwritten.handsOverAt:
		r.unwritten.handsOverAt = now + int64(unwrittenPause)
		if len(r.state.ISR) < 2 {
			r.unwritten.handsOverAt = now + int64(devicePoll)
		}
		changes := r.pt.changes.Load()
		r.cn.spawn(func() { r.cn.handOverUnwritten(r.pt, changes) })
	case r.follower != nil && r.follower.Err() == nil && !r.givenUp.Load() && r.cut == nil:
		r.giveUpUnwritten(now)
	}
}

// giveUpUnwritten gives a copy up, unless it is needed as it is, and says whether it did. mu is held.
func (r *replica) giveUpUnwritten(now int64) bool {
	isr := r.state.ISR
	stays := len(isr) <= max(1, r.state.MinISR) || now < r.unwritten.staysUntil
	if !r.closed && (len(isr) == 0 || stays && memberOf(isr, r.cn.member())) {
		return false
	}
	if r.dropped {
		r.unwritten.anewAt = r.droppedAt + int64(dropPause)
	}
	r.dropped, r.droppedAt = true, now
	r.waits, r.cut = true, nil
	r.givenUp.Store(true)
	r.step(&replicate.Event{Kind: replicate.EvUnusable, Again: true})
	return true
}

// leaveUncut waits until a copy may be given up that its leader wants cut: files that take nothing more cannot be cut either. It runs on the goroutine of the cut,
// which has written nothing.
func (r *replica) leaveUncut(c *logCut) {
	for done := false; !done; {
		r.run(func() { done = r.cut != c || r.giveUpUnwritten(r.cn.now()) })
		if !done && !r.cn.e.pause(devicePoll, r.cn.e.stop) {
			return
		}
	}
}

// droppedSince says whether this process gave the copy up less than dropPause ago. mu is held.
func (r *replica) droppedSince(now int64) bool {
	return r.dropped && now-r.droppedAt < int64(dropPause)
}

// handOverUnwritten gives a leadership away, or closes the inbox: what it took would only make the commit log full sooner. changes is what pt.changes was before.
func (cn *clusterNode) handOverUnwritten(pt *partition, changes uint64) {
	if !cn.leaving.Load() {
		cn.handOverSoon(pt, 0)
	}
	if !pt.rep.leads.Load() {
		return
	}
	pt.refuse(ErrDisk, true, (*Put).ofThisNode)
	if pt.changes.Load() != changes {
		pt.writesAgain()
	}
}

// awaitAnew waits until a copy may follow that began anew not long ago, too, because its segments could not be written: its log is empty now, and keeps no memory and
// no file of the commit log. It says false when the engine closes.
func (r *replica) awaitAnew() bool {
	for {
		r.mu.Lock()
		soon := !r.closed && r.cn.now() < r.unwritten.anewAt
		r.mu.Unlock()
		if !soon {
			return true
		}
		if !r.cn.e.pause(devicePoll, r.cn.e.stop) {
			return false
		}
	}
}
