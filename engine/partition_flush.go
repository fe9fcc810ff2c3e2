package engine

import (
	"penstock/engine/flush"
	"penstock/replicate"
	"penstock/segment"
)

// These methods, with Log, CommittedEnd, Carry and FindLost, make a partition a flush.Owner: what the flusher asks of
// it, and tells it. The flusher holds no lock when it calls them.
var _ flush.Owner = (*partition)(nil)

// Limits are those of the topic.
func (pt *partition) Limits() *flush.Limits { return pt.t.limits.Load() }

// TopicDeleted says whether the topic is being deleted, or was.
func (pt *partition) TopicDeleted() bool { return pt.t.deleted.Load() }

// MayTrim says whether the metadata of the topic, and what the log says of the channels, are known.
func (pt *partition) MayTrim() bool { return !pt.t.quarantined && pt.whyUnread() == nil }

// LeaderStart is the position at which the leader's log begins; 0: not known.
func (pt *partition) LeaderStart() segment.Position {
	return segment.Position(pt.rep.leaderStart.Load())
}

// Solo says whether the partition has no other copies.
func (pt *partition) Solo() bool { return pt.rep.solo() }

// GivenUp says whether the copy is given up: it cannot be written, and need not be.
func (pt *partition) GivenUp() bool { return pt.rep.discarded.Load() }

// NeedsNoFlush says whether the copy is given up, and nobody needs what it has. It takes replica.mu.
func (pt *partition) NeedsNoFlush() bool { return pt.rep.discarded.Load() && pt.rep.isUnneeded() }

// IsGoingAway says whether this node is about to remove the partition's bytes, because the topic is being deleted or
// the copy is being removed. It takes replica.mu.
func (pt *partition) IsGoingAway() bool { return pt.t.deleted.Load() || pt.rep.isRemoving() }

// HoldsFiles says whether the commit log has to keep what the segments lack of a copy that is given up or being
// removed. It takes replica.discardMu and replica.mu, and may write the list of shortened copies.
func (pt *partition) HoldsFiles() bool {
	leaves := pt.rep.discarded.Load() || pt.rep.isRemoving()
	return leaves && !pt.t.deleted.Load() && !pt.rep.mayReleaseFiles()
}

// Trimmed tells the replica that the log begins later (moved), and has FindLost look for what was lost.
func (pt *partition) Trimmed(moved, lost bool) {
	if lost {
		pt.mayHaveLost.Store(true)
	}
	if !moved || pt.rep.solo() {
		return
	}
	pt.rep.run(func() {
		start, err := pt.startState()
		if err == nil && !pt.rep.isClosed() {
			pt.rep.step(&replicate.Event{Kind: replicate.EvTrimmed, Log: start})
		}
	})
}

// CloseLog closes the segments of a partition whose topic is deleted. It waits for the flusher if that writes them.
func (pt *partition) CloseLog() error { return pt.e.flusher.CloseLog(&pt.flush) }
