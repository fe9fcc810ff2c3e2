package partition

import (
	"slices"
	"time"

	"penstock/replicate"
	"penstock/segment"
)

// This file handles a copy whose device cannot read it, perhaps only for a moment. Its bytes are still there, and may
// be good where all other copies have decayed unnoticed. So while the copy is in the ISR it is kept: the store counts
// it as damaged, it does not lead and acknowledges nothing, and the device is tried again (RetryReads). The copy is
// given up and fetched anew if the device reads wrong bytes, or if the copy is outside the ISR, because then at least
// min_isr other copies are in the ISR. If the device never reads again, the copy waits until another copy has joined
// the ISR.

// firstRetryPause is the least time for which a copy stays given up because its segments could not be written.
const firstRetryPause = 30 * time.Second

// devicePoll is how often a cut that waits for its device tries again.
const devicePoll = time.Second

// mayDiscard says whether the copy may be given up because of err. It takes mu.
func (r *Replica) mayDiscard(err error) bool {
	return !segment.DeviceFailed(err) || r.othersHaveAll()
}

// othersHaveAll says whether the in-sync replicas have all that was acknowledged without this copy. The row that this
// process knows may be from before the copy joined the ISR. So the copy counts as outside the ISR only by a row that
// says that the copy is damaged: a damaged copy does not join. It takes mu.
func (r *Replica) othersHaveAll() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	row, self := r.row.Load(), r.node.member()
	return r.isClosed() ||
		row != nil && slices.Contains(row.Damaged, self) && len(row.State.ISR) > 0 && !slices.Contains(row.State.ISR, self)
}

// awaitDevice waits for devicePoll, during which RetryReads may succeed, and says whether to try the cut again. It runs
// on the goroutine of logCut.make, without a lock.
func (r *Replica) awaitDevice(err error) bool {
	return !r.mayDiscard(err) && r.node.store.host.Pause(devicePoll, r.node.store.stop)
}

// DeviceReads is called when the device may have read a range that it could not read before. It tells the machine. If
// the copy was waiting, it makes a new machine for it (reopen), or gives the copy up if the bytes are damaged
// (stopWaiting). It runs on the goroutine of RetryReads. It may wait for the device, and takes mu.
func (r *Replica) DeviceReads() {
	if !r.discarded.Load() {
		r.run(func() {
			if r.active() && len(r.isolated()) == 0 {
				r.step(&replicate.Event{Kind: replicate.EvRepaired, Until: r.pt.machine.State().Next})
			}
		})
		return
	}
	_, err := r.pt.readStart()
	switch {
	case err == nil:
		r.reopen()
	case !segment.DeviceFailed(err) && needsRefetch(err):
		r.stopWaiting(err)
	}
}

// IsWaitingForDevice says whether the copy is given up and its machine waits for the device. It takes mu.
func (r *Replica) IsWaitingForDevice() bool {
	return r.holds(func() bool { return r.waitsForDevice && !r.isClosed() && r.follower != nil && r.follower.Waits() })
}

// reopen makes a new machine for a copy that waited and can be read again. Nothing of the copy is lost: as long as the
// old machine waited, it did not begin a new log. discardMu keeps commit log files that the copy needs from being
// released meanwhile.
func (r *Replica) reopen() {
	r.discardMu.Lock()
	defer r.discardMu.Unlock()
	r.run(func() {
		if r.pt.unwritten() && (len(r.incoming) > 0 || r.node.Now()-r.discardedAt < int64(firstRetryPause)) {
			return // first append the batches under way, and give the leader time to remove the copy from the ISR
		}
		if !r.waitsForDevice || r.isClosed() || r.follower == nil || !r.follower.Waits() ||
			r.node.Shortened.IsDiscarded(r.pt.Identity()) {
			return
		}
		r.discarded.Store(false)
		if err := r.open(r.follower.Committed()); err != nil {
			r.discarded.Store(true)
			return
		}
		r.waitsForDevice, r.unwritten.staysUntil = false, r.node.Now()+int64(dropPause)
		r.pt.LookForLost()
		r.node.store.log.Info("a copy of a partition that waited to be fetched anew reads, and is needed as it is: it takes "+
			"part",
			"topic", r.pt.topic.Name, "partition", r.pt.number)
		r.step(&replicate.Event{Kind: replicate.EvState, State: &r.state})
		r.correctDamaged(r.row.Load())
	})
}

// stopWaiting gives up a copy whose device reads again, but reads damaged bytes. First it adds the copy to the list of
// shortened copies, because the copy will lack batches that it had acknowledged. It takes mu.
func (r *Replica) stopWaiting(why error) {
	if err := r.node.Shortened.Add([]segment.Identity{r.pt.Identity()}); err != nil {
		return // the next call of DeviceReads tries again
	}
	r.run(func() {
		if r.waitsForDevice && !r.isClosed() && r.follower != nil && r.follower.Waits() {
			r.shortened = true
			r.node.store.log.Error("the device reads the beginning of a copy of a partition again, and it is damaged",
				"topic", r.pt.topic.Name, "partition", r.pt.number, "error", why)
			r.step(&replicate.Event{Kind: replicate.EvUnusable})
			r.noteDiscarded()
		}
	})
}

// noteDiscarded counts and logs a copy whose machine no longer waits for the device, and so begins anew. mu is held.
func (r *Replica) noteDiscarded() {
	if !r.waitsForDevice || r.follower == nil || r.follower.Waits() {
		return
	}
	r.waitsForDevice, r.discards = false, r.discards+1
	r.node.drops.Add(1)
	what := "the first batch of a copy of a partition could not be read"
	if r.pt.unwritten() {
		what = "the segments of a copy of a partition could not be written"
	}
	r.node.store.log.Error(what+": it is dropped and fetched anew from its leader. What was acknowledged is on the other "+
		"replicas, as long as those read back; look at this node's device",
		"topic", r.pt.topic.Name, "partition", r.pt.number)
}
