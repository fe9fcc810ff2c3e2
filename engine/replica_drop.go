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

// unfit says that a log is damaged where it must be cut, or that its fold there cannot be had: fetching may help, or
// beginning anew.
func unfit(err error) bool {
	var corrupt *segment.CorruptError
	return errors.As(err, &corrupt) || errors.Is(err, errNoFold)
}

// awaitRepair waits until what a cut could not read was repaired from the leader, and says whether the cut should be
// tried again. It runs on the goroutine of the cut.
func (r *replica) awaitRepair(err error) bool {
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
		if !r.cn.e.pause(cutRepairPoll, r.cn.e.stop) {
			return false // the engine closes
		}
		if !slices.Equal(log.Isolated(), bad) {
			return true
		}
	}
	return false
}

// hasBroken says whether a segment of the log cannot be repaired in place: its file is gone, or does not say what it
// is.
func (r *replica) hasBroken() bool {
	return slices.ContainsFunc(r.pt.log.Segments(), func(s segment.SegmentInfo) bool { return s.Err != nil })
}

// drop gives a copy up that can neither be cut nor repaired in place: its machine sees to it that it begins anew from
// its leader (replicate/anew.go). Its bytes stay until the leader has said where. What the copy had acknowledged is
// not here afterwards, so it is in the list of shortened copies first.
func (r *replica) drop(why error) {
	r.mu.Lock()
	follows, now := r.follower != nil && r.follower.Err() == nil, r.cn.now()
	again := r.dropped && now-r.droppedAt < int64(dropPause)
	cutting := r.cut != nil
	if follows && !again {
		r.dropped, r.droppedAt = true, now
	}
	r.mu.Unlock()
	switch {
	case !follows, again && !cutting:
		return // a leader gives its leadership away; or it has begun anew already, or will
	case again:
		r.cutFailed(why)
		return
	}
	if err := r.cn.shortened.add([]segment.Identity{r.pt.identity()}); err != nil {
		r.cutFailed(errors.Join(why, err))
		return
	}
	r.cn.drops.Add(1)
	r.cn.e.log.Error("a copy of a partition is damaged so that it cannot be repaired in place: it is dropped and fetched anew from its leader. "+
		"What was acknowledged is on the other replicas", "topic", r.pt.t.name, "partition", r.pt.number, "error", why)
	r.givenUp.Store(true)
	r.run(func() {
		r.shortened, r.cut, r.drops = true, nil, r.drops+1
		r.step(&replicate.Event{Kind: replicate.EvUnusable})
	})
}
