package engine

import (
	"slices"
	"time"

	"penstock/replicate"
	"penstock/segment"
)

// A device that could not read for a moment is no reason to give a copy up: its bytes are there, and may be whole where all others have rotted unseen. As long as
// the copy is in the ISR it is kept: it is damaged by the store's word, does not lead, acknowledges nothing, and its device is asked again (retryReads). It is
// given up, and fetched anew, when what reads is wrong, or when it is outside of the ISR: then at least min_isr other copies are in it. A device that
// never reads again keeps the copy waiting until another one has joined.

// devicePoll is how often a cut that waits for its device looks whether it may go on.
const devicePoll = time.Second

// mayDiscard says whether a copy may be given up because of err. The row that this process knows may be from before the copy joined, so a copy is outside of the
// ISR only by a row that counts it as damaged: such a copy does not join.
func (r *replica) mayDiscard(err error) bool {
	if !segment.DeviceFailed(err) {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	row, self := r.row.Load(), r.cn.member()
	return r.closed || row != nil && slices.Contains(row.Damaged, self) && len(row.State.ISR) > 0 && !slices.Contains(row.State.ISR, self)
}

// awaitDevice lets some time pass in which retryReads may read what a cut has to read, and says whether the cut should be tried again. It runs on the
// goroutine of the cut.
func (r *replica) awaitDevice(err error) bool {
	return !r.mayDiscard(err) && r.cn.e.host.Pause(devicePoll, r.cn.e.stop)
}

// deviceReads takes up a copy whose device may read again what it did not. It runs on the goroutine of retryReads.
func (r *replica) deviceReads() {
	if !r.discarded.Load() {
		r.run(func() {
			if !r.closed && (r.leader != nil || r.follower != nil) && len(r.isolated()) == 0 {
				r.step(&replicate.Event{Kind: replicate.EvRepaired, Until: r.pt.machine.State().Next})
			}
		})
		return
	}
	_, err := r.pt.startState()
	switch {
	case err == nil:
		r.reopen()
	case !segment.DeviceFailed(err) && needsRefetch(err):
		r.stopWaiting(err)
	}
}

// isWaitingForDevice says whether the machine of the copy waits for the device.
func (r *replica) isWaitingForDevice() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waitsForDevice && !r.closed && r.follower != nil && r.follower.Waits()
}

// reopen makes a new machine of a copy that waited and reads again. Nothing of it is gone: what the machine before had been told
// has not begun. discardMu keeps the commit log from letting go of anything meanwhile.
func (r *replica) reopen() {
	r.discardMu.Lock()
	defer r.discardMu.Unlock()
	r.run(func() {
		if r.pt.unwritten() && (len(r.incoming) > 0 || r.cn.now()-r.discardedAt < int64(firstRetryPause)) {
			return // what was on its way comes first, and the leader has time to remove the copy
		}
		if !r.waitsForDevice || r.closed || r.follower == nil || !r.follower.Waits() || r.cn.shortened.isDiscarded(r.pt.identity()) {
			return
		}
		r.discarded.Store(false)
		if err := r.open(r.follower.Committed()); err != nil {
			r.discarded.Store(true)
			return
		}
		r.waitsForDevice, r.unwritten.staysUntil = false, r.cn.now()+int64(dropPause)
		r.pt.mayHaveLost.Store(len(r.pt.fold.Gone(nil, r.pt.startBorder(), 1)) > 0)
		r.cn.e.log.Info("a copy of a partition that waited to be fetched anew reads, and is needed as it is: it takes part", "topic", r.pt.t.name, "partition", r.pt.number)
		r.step(&replicate.Event{Kind: replicate.EvState, State: &r.state})
		r.correctDamaged(r.row.Load())
	})
}

// stopWaiting gives a copy up whose device reads again, and reads what is wrong. That it will lack what it had acknowledged is kept first.
func (r *replica) stopWaiting(why error) {
	if err := r.cn.shortened.add([]segment.Identity{r.pt.identity()}); err != nil {
		return // it is tried again
	}
	r.run(func() {
		if r.waitsForDevice && !r.closed && r.follower != nil && r.follower.Waits() {
			r.shortened = true
			r.cn.e.log.Error("the device reads the beginning of a copy of a partition again, and it is damaged", "topic", r.pt.t.name, "partition", r.pt.number, "error", why)
			r.step(&replicate.Event{Kind: replicate.EvUnusable})
			r.noteDiscarded()
		}
	})
}

// noteDiscarded counts a copy that has waited for its device and does not any more. mu is held.
func (r *replica) noteDiscarded() {
	if !r.waitsForDevice || r.follower == nil || r.follower.Waits() {
		return
	}
	r.waitsForDevice, r.discards = false, r.discards+1
	r.cn.drops.Add(1)
	what := "the first batch of a copy of a partition could not be read"
	if r.pt.unwritten() {
		what = "the segments of a copy of a partition could not be written"
	}
	r.cn.e.log.Error(what+": it is dropped and fetched anew from its leader. What was acknowledged is on the other "+
		"replicas, as long as those read back; look at this node's device", "topic", r.pt.t.name, "partition", r.pt.number)
}
