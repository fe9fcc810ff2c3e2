package part

import (
	"penstock/engine/flush"
	"penstock/replicate"
	"penstock/segment"
)

// These methods, with Log, CommittedEnd, Carry and FindLost, make a partition a flush.Owner: what the flusher asks of
// it, and tells it. The flusher holds no lock when it calls them.
var _ flush.Owner = (*Partition)(nil)

// Limits are those of the topic.
func (pt *Partition) Limits() *flush.Limits { return pt.topic.Limits.Load() }

// TopicDeleted says whether the topic is being deleted, or was.
func (pt *Partition) TopicDeleted() bool { return pt.topic.Deleted.Load() }

// MayTrim says whether the metadata of the topic, and what the log says of the channels, are known.
func (pt *Partition) MayTrim() bool { return !pt.topic.Quarantined && pt.WhyUnread() == nil }

// LeaderStart is the position at which the leader's log begins; 0: not known.
func (pt *Partition) LeaderStart() segment.Position {
	return segment.Position(pt.replica.leaderStart.Load())
}

// Solo says whether the partition has no other copies.
func (pt *Partition) Solo() bool { return pt.replica.solo() }

// GivenUp says whether the copy is given up: it cannot be written, and need not be.
func (pt *Partition) GivenUp() bool { return pt.replica.discarded.Load() }

// NeedsNoFlush says whether the copy is given up, and nobody needs what it has. It takes Replica.mu.
func (pt *Partition) NeedsNoFlush() bool {
	return pt.replica.discarded.Load() && pt.replica.isUnneeded()
}

// IsGoingAway says whether this node is about to remove the partition's bytes, because the topic is being deleted or
// the copy is being removed. It takes Replica.mu.
func (pt *Partition) IsGoingAway() bool { return pt.topic.Deleted.Load() || pt.replica.isRemoving() }

// HoldsFiles says whether the commit log has to keep what the segments lack of a copy that is given up or being
// removed. It takes Replica.discardMu and Replica.mu, and may write the list of shortened copies.
func (pt *Partition) HoldsFiles() bool {
	leaves := pt.replica.discarded.Load() || pt.replica.isRemoving()
	return leaves && !pt.topic.Deleted.Load() && !pt.replica.mayReleaseFiles()
}

// Trimmed tells the replica that the log begins later (moved), and has FindLost look for what was lost.
func (pt *Partition) Trimmed(moved, lost bool) {
	if lost {
		pt.mayHaveLost.Store(true)
	}
	if !moved || pt.replica.solo() {
		return
	}
	_ = pt.withFirst(func() (err error) { // what cannot be read is told by whoever reads it next
		pt.replica.run(func() {
			var start segment.State
			if start, err = pt.startState(); err == nil && !pt.replica.isClosed() {
				pt.replica.step(&replicate.Event{Kind: replicate.EvTrimmed, Log: start})
			}
		})
		return err
	})
}

// CloseLog closes the segments of a partition whose topic is deleted. It waits for the flusher if that writes them.
func (pt *Partition) CloseLog() error { return pt.store.flusher.CloseLog(&pt.flush) }
