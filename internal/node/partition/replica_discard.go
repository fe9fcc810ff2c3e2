package partition

import (
	"errors"
	"slices"
	"time"

	"penstock/internal/node/logread"
	"penstock/internal/node/replay"
	"penstock/replicate"
	"penstock/segment"
)

const (
	// cutRepairPatience is how long a cut waits for the leader to send the damaged range that the cut has to read.
	cutRepairPatience = 10 * time.Second
	cutRepairPoll     = 20 * time.Millisecond
	// dropPause is the time within which one process gives up the same copy at most once. A disk that damages every new
	// copy needs an operator.
	dropPause = 10 * time.Minute
)

// needsRefetch says whether err means that the log is damaged at the cut or ends there with its beginning, or that the
// fold at the cut is not stored.
// Such a cut needs bytes from the leader: a repaired range, or a new log.
func needsRefetch(err error) bool {
	var corrupt *segment.CorruptError
	return errors.As(err, &corrupt) || errors.Is(err, replay.ErrNoFold) || errors.Is(err, logread.ErrNothingLeft)
}

// awaitRepair waits until the range that a cut could not read has been repaired from the leader, and returns whether to
// try the cut again. It runs on the goroutine of logCut.make, without mu.
func (c *logCut) awaitRepair(err error) bool {
	r := c.replica
	if errors.Is(err, replay.ErrNoFold) || errors.Is(err, logread.ErrNothingLeft) || r.hasBroken() {
		return false // a repair does not help
	}
	log, bad := r.pt.log, r.pt.log.Isolated()
	r.run(func() {
		for _, ev := range r.isolated() {
			r.step(&ev)
		}
	})
	for begin := r.node.Now(); r.node.Now()-begin < int64(cutRepairPatience); {
		if !r.node.store.host.Pause(cutRepairPoll, r.node.store.stop) {
			return false // the engine closes
		}
		if !slices.Equal(log.Isolated(), bad) {
			return true
		}
		if !r.Present() || !c.isCurrent() {
			return false // the machine does not ask for the range any more
		}
	}
	return false
}

// hasBroken says whether a segment of the log cannot be repaired in place, because its file is gone or its header
// cannot be read.
func (r *Replica) hasBroken() bool {
	return slices.ContainsFunc(r.pt.log.Segments(), func(s segment.SegmentInfo) bool { return s.Err != nil })
}

// brokenFile returns the error of a segment file that cannot be read, repaired in place or written to, if the copy may
// be given up because of it. Otherwise it returns nil. A cut calls it before it writes its record. A copy with such a
// file needs a new log anyway. Its cut could wait for ever: batches that the file cannot take keep their commit log
// files, and once these fill the commit log, it has no room for the cut's record. A copy that is given up keeps no
// files (HoldsFiles). It takes mu.
func (r *Replica) brokenFile() error {
	for _, s := range r.pt.log.Segments() {
		if s.Err != nil && r.mayDiscard(s.Err) {
			return s.Err
		}
	}
	return nil
}

// discard gives up a copy that can neither be cut nor repaired in place: its machine makes the copy begin anew from its
// leader (replicate/anew.go). From then on the copy lacks batches that it had acknowledged, so it is first added to the
// list of shortened copies. Its bytes stay until the leader has said where the new log begins. A copy that was closed
// during its cut is given up when it is opened again.
//
// c is the cut that cannot be made; discard runs on the goroutine of that cut. c is nil if a repair failed. It takes
// mu.
func (r *Replica) discard(why error, c *logCut) {
	r.mu.Lock()
	may, again := r.mayGiveUp(c), r.discardedWithin(r.node.Now())
	r.mu.Unlock()
	switch {
	case !may, again && c == nil:
		return // the copy leads, or its log is being reset already, or it was given up less than dropPause ago
	case again:
		r.cutFailed(c, why)
		return
	}
	err := r.node.Shortened.Add([]segment.Identity{r.pt.Identity()})
	for segment.Waiting(err) { // there may be room again
		if c == nil || !c.isCurrent() || !r.node.store.host.Pause(devicePoll, r.node.store.stop) {
			return // c is nil: the repair is tried again, and fails again
		}
		err = r.node.Shortened.Add([]segment.Identity{r.pt.Identity()})
	}
	if err != nil {
		r.cutFailed(c, errors.Join(why, err))
		return
	}
	r.run(func() {
		now := r.node.Now()
		if !r.mayGiveUp(c) || r.discardedWithin(now) {
			return // the state has changed while mu was released
		}
		r.node.drops.Add(1)
		text := "a copy of a partition is damaged so that it cannot be repaired in place: it is dropped and fetched anew " +
			"from its leader. What was acknowledged is on the other replicas"
		if errors.Is(why, replicate.ErrContested) {
			text = "an operator chose a leader that lacks messages of this copy: the copy is dropped and fetched anew from " +
				"that leader. What it had is kept aside"
		}
		r.node.store.log.Error(text, "topic", r.pt.topic.Name, "partition", r.pt.number, "error", why)
		r.discarded.Store(true)
		r.discardedBefore, r.discardedAt = true, now
		r.shortened, r.cut, r.discards = true, nil, r.discards+1
		r.step(&replicate.Event{Kind: replicate.EvUnusable})
	})
}

// mayGiveUp says whether the copy may be given up because of cut c, or because of a repair that failed (then c is nil).
// A cut that was replaced meanwhile must not do that: its goroutine waited for the disk, and the cut that replaced it
// may be a reset, which needs nothing of the damaged range. A repair must not disturb a reset, or a cut whose record is
// written; if damage remains after that, the machine asks for the repair again. mu is held.
func (r *Replica) mayGiveUp(c *logCut) bool {
	if r.cut != c && (c != nil || r.cut.reset || r.cut.stays) {
		return false
	}
	return r.follower != nil && r.follower.Err() == nil || r.isClosed() && r.cut != nil
}

// discardUnreadableHead gives up a copy whose first batch cannot be read. A machine needs the state in front of that
// batch to continue, cut or repair the log. Recovery calls it before the node joins the cluster, so that the copy
// cannot be elected.
func (r *Recovery) discardUnreadableHead(pt *Partition) error {
	if pt.replica.solo() || pt.topic.Quarantined || pt.replica.discarded.Load() {
		return nil
	}
	_, err := pt.readStart()
	if err == nil {
		return nil
	}
	return pt.replica.giveUpHead(err)
}

// giveUpHead gives up a copy whose first batch cannot be read because of err. It returns an error if that cannot be
// kept. No machine of the copy runs yet.
func (r *Replica) giveUpHead(err error) error {
	pt, cn := r.pt, r.node
	if segment.DeviceFailed(err) || !needsRefetch(err) {
		r.mu.Lock()
		r.waitsForDevice = true
		r.mu.Unlock()
		r.discarded.Store(true)
		cn.Log.Error("the device cannot read the first batch of a copy of a partition: the copy does not lead, and "+
			"waits until it is read, or until enough other replicas are in sync to fetch it anew; look at this node's device",
			"topic", pt.topic.Name, "partition", pt.number, "error", err)
		return nil
	}
	if err := cn.Shortened.Add([]segment.Identity{pt.Identity()}); err != nil {
		return err
	}
	cn.drops.Add(1)
	r.discarded.Store(true)
	cn.Log.Error("the first batch of a copy of a partition cannot be read: the copy does not lead and is fetched "+
		"anew from its leader. What was acknowledged is on the other in-sync replicas, as long as those read back; look "+
		"at this node's device", "topic", pt.topic.Name, "partition", pt.number, "error", err)
	return nil
}

// mayReleaseFiles says whether the commit log may release files that hold batches which the segments of this copy lack.
// The copy is given up or being removed; the flusher asks, through HoldsFiles. Until a leader has said that it needs
// nothing of the copy, the copy may be the last one with some acknowledged messages, and its device may read again
// after a restart.
//
// If the process crashes before the copy has a new log, the segments of the copy may be readable and have a gap. So the
// copy is first marked as dropped in the list of shortened copies, and the next process gives it up, too
// (OpenPartition). If that mark cannot be written, the files stay. It takes discardMu and mu.
func (r *Replica) mayReleaseFiles() bool {
	r.discardMu.Lock()
	defer r.discardMu.Unlock()
	if !r.isUnneeded() {
		return false
	}
	err := r.node.Shortened.SetDiscarded(r.pt.Identity(), true)
	if err != nil && r.loggedDiscard.CompareAndSwap(false, true) {
		r.node.store.log.Error("it could not be kept that a copy of a partition was dropped: the commit log keeps what it "+
			"holds of that copy, and may get full; it is tried again",
			"topic", r.pt.topic.Name, "partition", r.pt.number, "error", err)
	}
	return err == nil
}

// isUnneeded says whether nobody needs the content of the copy. That is so if the copy is being removed. It is also so
// if the copy is given up, and either a leader has said to this or to an earlier process that it needs nothing of the
// copy, or the record of the copy's reset waits for room. discardMu is held when the answer decides about files. It
// takes mu.
func (r *Replica) isUnneeded() bool {
	switch {
	case r.isRemoving():
		return true
	case !r.discarded.Load() || r.node.Shortened.IsDiscarded(r.pt.Identity()):
		return r.discarded.Load()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cut != nil && r.cut.reset || r.follower != nil && r.follower.Unneeded()
}

// isRemoving says whether the copy is being removed, because all replicas of its partition are in sync without it
// (health.FullyInSync). It stays true until all bytes of the copy are removed. It takes mu.
func (r *Replica) isRemoving() bool {
	return r.holds(func() bool { return r.removing })
}

// clearDiscarded records that the copy is not given up any more. It is called when the record that begins the new log
// is durable, before anything is acknowledged. It takes discardMu and mu, and writes the list of shortened copies.
func (r *Replica) clearDiscarded() error {
	r.discardMu.Lock()
	defer r.discardMu.Unlock()
	if err := r.node.Shortened.SetDiscarded(r.pt.Identity(), false); err != nil {
		return err
	}
	r.run(func() { r.waitsForDevice = false })
	r.discarded.Store(false)
	return nil
}
