package engine

import (
	"errors"
	"slices"
	"time"

	"penstock/replicate"
	"penstock/segment"
)

const (
	// cutRepairPatience is how long a cut waits until the leader has sent what the cut has to read and cannot.
	cutRepairPatience = 10 * time.Second
	cutRepairPoll     = 20 * time.Millisecond
	// dropPause is how long a copy that was dropped may not be dropped again by the same process: a disk that damages
	// each copy needs an operator.
	dropPause = 10 * time.Minute
)

// needsRefetch says that a log is damaged where it must be cut, or that its fold there cannot be had: fetching may help, or
// beginning anew.
func needsRefetch(err error) bool {
	var corrupt *segment.CorruptError
	return errors.As(err, &corrupt) || errors.Is(err, errNoFold)
}

// awaitRepair waits until what a cut could not read was repaired from the leader, and says whether the cut should be
// tried again. It runs on the goroutine of the cut.
func (r *replica) awaitRepair(c *logCut, err error) bool {
	if errors.Is(err, errNoFold) || r.hasBroken() {
		return false // no repair brings that back
	}
	log, bad := r.pt.log, r.pt.log.Isolated()
	r.run(func() {
		for _, ev := range r.isolated() {
			r.step(&ev)
		}
	})
	for begin := r.cn.now(); r.cn.now()-begin < int64(cutRepairPatience); {
		if !r.cn.e.host.Pause(cutRepairPoll, r.cn.e.stop) {
			return false // the engine closes
		}
		if !slices.Equal(log.Isolated(), bad) {
			return true
		}
		if !r.present() || !r.isCutBy(c) {
			return false // nobody asks for anything
		}
	}
	return false
}

// hasBroken says whether a segment of the log cannot be repaired in place: its file is gone, or does not say what it
// is.
func (r *replica) hasBroken() bool {
	return slices.ContainsFunc(r.pt.log.Segments(), func(s segment.SegmentInfo) bool { return s.Err != nil })
}

// brokenFile returns the error of a segment file that cannot be read, repaired in place or written to, if the copy may be given
// up for it. A cut asks before it writes its record. Batches that the file cannot take keep files of the commit log; if they
// fill the log, the record would wait for room for ever. A copy that is given up keeps no files (spare), and such a copy
// has to begin anew in any case. It takes mu.
func (r *replica) brokenFile() error {
	for _, s := range r.pt.log.Segments() {
		if s.Err != nil && r.mayDiscard(s.Err) {
			return s.Err
		}
	}
	return nil
}

// discard gives a copy up that can neither be cut nor repaired in place: its machine sees to it that it begins anew from
// its leader (replicate/anew.go). Its bytes stay until the leader has said where. What the copy had acknowledged is
// not here afterwards, so it is in the list of shortened copies first. One that was closed while its log was to be cut is
// given up when it is opened again.
//
// c is the cut that cannot be made, on whose goroutine it runs; nil: it runs for a repair that failed.
func (r *replica) discard(why error, c *logCut) {
	r.mu.Lock()
	may, again := r.mayGiveUp(c), r.discardedWithin(r.cn.now())
	r.mu.Unlock()
	switch {
	case !may, again && c == nil:
		return // a leader gives its leadership away; or it has begun anew already, or will
	case again:
		r.cutFailed(c, why)
		return
	}
	if err := r.cn.shortened.add([]segment.Identity{r.pt.identity()}); err != nil {
		r.cutFailed(c, errors.Join(why, err))
		return
	}
	r.run(func() {
		now := r.cn.now()
		if !r.mayGiveUp(c) || r.discardedWithin(now) {
			return // somebody else was faster
		}
		r.cn.drops.Add(1)
		r.cn.e.log.Error("a copy of a partition is damaged so that it cannot be repaired in place: it is dropped and fetched anew "+
			"from its leader. What was acknowledged is on the other replicas",
			"topic", r.pt.t.name, "partition", r.pt.number, "error", why)
		r.discarded.Store(true)
		r.discardedBefore, r.discardedAt = true, now
		r.shortened, r.cut, r.discards = true, nil, r.discards+1
		r.step(&replicate.Event{Kind: replicate.EvUnusable})
	})
}

// mayGiveUp says whether the copy may be given up by cut c, or by a repair that failed (c is nil). A cut that is not the
// copy's any more has no say: its goroutine waited for the disk while somebody else gave the copy up, and a cut that
// begins the log anew, and needs nothing of what is damaged, may be on its way. A repair leaves a cut alone that begins
// anew, or whose record is written; if that leaves anything damaged, it is asked for again. mu is held.
func (r *replica) mayGiveUp(c *logCut) bool {
	if r.cut != c && (c != nil || r.cut.reset || r.cut.stays) {
		return false
	}
	return r.follower != nil && r.follower.Err() == nil || r.closed && r.cut != nil
}

// discardUnreadableHead gives a copy up whose first batch does not read: a log cannot be continued, cut or repaired by a machine that does not know what it stands
// on. Recovery does that before the node joins, so that the copy cannot be elected.
func (r *recovery) discardUnreadableHead(pt *partition) error {
	if pt.rep == nil || pt.t.quarantined || pt.rep.discarded.Load() {
		return nil
	}
	_, err := pt.startState()
	if err == nil {
		return nil
	}
	if segment.DeviceFailed(err) || !needsRefetch(err) {
		pt.rep.waitsForDevice = true
		pt.rep.discarded.Store(true)
		r.e.log.Error("the device cannot read the first batch of a copy of a partition: the copy does not lead, and waits until it is read, or until enough other replicas are in sync to fetch "+
			"it anew; look at this node's device", "topic", pt.t.name, "partition", pt.number, "error", err)
		return nil
	}
	cn := r.e.cluster
	if err := cn.shortened.add([]segment.Identity{pt.identity()}); err != nil {
		return err
	}
	cn.drops.Add(1)
	pt.rep.discarded.Store(true)
	r.e.log.Error("the first batch of a copy of a partition cannot be read: the copy does not lead and is fetched anew from its leader. "+
		"What was acknowledged is on the other in-sync replicas, as long as those read back; look at this node's device",
		"topic", pt.t.name, "partition", pt.number, "error", err)
	return nil
}

// isGoingAway says that a partition is about to lose its bytes on this node: its topic is being deleted, or its copy is being removed.
// The flusher asks. Such a partition keeps no commit log file for what its segments cannot take: the tombstone, or the
// record of the removal, may be waiting for that room.
func (pt *partition) isGoingAway() bool {
	return pt.t.deleted.Load() || pt.rep != nil && pt.rep.isRemoving()
}

// releaseLimit says up to where files may be released because of the copies that are given up or being removed. Of one that
// no leader needs nothing is needed, and the record that begins it anew needs room; but that it lacks something must
// be known to the next process.
func (f *flusher) releaseLimit(oldest, release uint64) uint64 {
	for _, pt := range f.e.partitionList() {
		if pt.rep == nil || !pt.rep.discarded.Load() && !pt.rep.isRemoving() || pt.t.deleted.Load() || release <= oldest {
			continue
		}
		if seq, ok := pt.log.OldestUnsyncedFileSeq(); ok && seq < release && !pt.rep.mayReleaseFiles() {
			release = seq
		}
	}
	return release
}

// mayReleaseFiles says whether the commit log may let go of files that hold what the segments of a copy lack that is given up
// or being removed. The flusher calls it. Until a leader has said that it needs nothing of the copy it may be the
// last one that has what was acknowledged, and its device may read after a restart. After a crash before the copy has
// begun anew its segments may read back, with a hole, so the list of shortened copies says first that it was dropped:
// then the next process gives it up, too (openPartition). An error leaves the files.
func (r *replica) mayReleaseFiles() bool {
	r.discardMu.Lock()
	defer r.discardMu.Unlock()
	if !r.isUnneeded() {
		return false
	}
	err := r.cn.shortened.setDiscarded(r.pt.identity(), true)
	if err != nil && r.loggedDiscard.CompareAndSwap(false, true) {
		r.cn.e.log.Error("it could not be kept that a copy of a partition was dropped: the commit log keeps what it holds of that copy, and may get full; it is tried again",
			"topic", r.pt.t.name, "partition", r.pt.number, "error", err)
	}
	return err == nil
}

// isUnneeded says whether nobody needs what a copy has: the cluster has decided that it goes, or it is given up and a leader
// has said so, to this process or to one before, or the record that begins it anew waits for room.
func (r *replica) isUnneeded() bool {
	switch {
	case r.isRemoving():
		return true
	case !r.discarded.Load() || r.cn.shortened.isDiscarded(r.pt.identity()):
		return r.discarded.Load()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cut != nil && r.cut.reset || r.follower != nil && r.follower.Unneeded()
}

// isRemoving says that the copy is being removed: all replicas of its partition are in sync without it (settled). It
// stays so until nothing of it is left.
func (r *replica) isRemoving() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.removing
}

// clearDiscarded ends that the copy is given up: the record that begins it anew is durable, and nothing was acknowledged since.
func (r *replica) clearDiscarded() error {
	r.discardMu.Lock()
	defer r.discardMu.Unlock()
	if err := r.cn.shortened.setDiscarded(r.pt.identity(), false); err != nil {
		return err
	}
	r.run(func() { r.waitsForDevice = false })
	r.discarded.Store(false)
	return nil
}
