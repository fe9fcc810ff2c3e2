package partition

import (
	"penstock/internal/node/delivery"
	"penstock/internal/node/flush"
	"penstock/internal/node/fold"
	"penstock/internal/node/logread"
	"penstock/replicate"
	"penstock/segment"
)

// These methods, with Log, CommittedEnd, Carry and FindLost, make a partition a flush.Owner: they answer what the
// flusher asks about the partition, and take its reports. The flusher holds no lock when it calls them.
var _ flush.Owner = (*Partition)(nil)

// Limits returns the limits of the topic, or nil if they are not known yet.
func (pt *Partition) Limits() *flush.Limits { return pt.topic.Limits.Load() }

// TopicDeleted says whether the topic is being deleted or was deleted.
func (pt *Partition) TopicDeleted() bool { return pt.topic.Deleted.Load() }

// MayTrim says whether retention may trim the log: the metadata of the topic and the fold of the log are known.
func (pt *Partition) MayTrim() bool { return !pt.topic.Quarantined && pt.WhyUnread() == nil }

// LeaderStart returns the position at which the leader's log begins, or 0 if it is not known.
func (pt *Partition) LeaderStart() segment.Position {
	return segment.Position(pt.replica.leaderStart.Load())
}

// Solo says whether the partition has no other copies.
func (pt *Partition) Solo() bool { return pt.replica.solo() }

// GivenUp says whether the copy is given up. Then its segments need not be written.
func (pt *Partition) GivenUp() bool { return pt.replica.discarded.Load() }

// NeedsNoFlush says whether the copy is given up and nobody needs its content. It takes Replica.mu.
func (pt *Partition) NeedsNoFlush() bool {
	return pt.replica.discarded.Load() && pt.replica.isUnneeded()
}

// HoldsFiles says whether the commit log must keep its files for batches that the segments of the copy lack. It must,
// except for a copy that is given up or being removed and that nobody needs, and for a topic that was deleted. It takes
// Replica.discardMu and Replica.mu, and may write the list of shortened copies.
func (pt *Partition) HoldsFiles() bool {
	return !pt.topic.Deleted.Load() && !pt.replica.mayReleaseFiles()
}

// Trimmed tells the machine and the channels that the log begins later (moved). A channel then counts no message that
// is gone, and goes on if it had stopped at damage that is gone now. It is told of carried messages first:
// carry.Carrier runs in the commit without which retention does not remove the old place. With lost, the next FindLost
// searches for lost messages. Trimmed may wait for the device, and takes Replica.mu.
func (pt *Partition) Trimmed(moved, lost bool) {
	if moved {
		start := logread.Border(pt.log)
		pt.Post(&delivery.Post{Event: delivery.Event{Kind: delivery.EvTrimmed, Start: start.ID, At: start.At}})
	}
	if lost {
		pt.MayHaveLost()
	}
	if !moved || pt.replica.solo() {
		return
	}
	_ = pt.start.With(pt.log, func() (err error) { // if the batch cannot be read, the next reader of it reports the damage
		pt.replica.run(func() {
			var start segment.State
			if start, err = pt.startState(); err == nil && !pt.replica.isClosed() {
				pt.replica.step(&replicate.Event{Kind: replicate.EvTrimmed, Log: start})
			}
		})
		return err
	})
}

// CloseLog closes the segments of a partition whose topic is deleted. If the flusher is writing them, CloseLog waits
// for it.
func (pt *Partition) CloseLog() error { return pt.store.flusher.CloseLog(&pt.flush) }

// EachPassed implements flush.Owner. It takes Replica.mu.
func (pt *Partition) EachPassed(from segment.MsgID, visit func(begin, end segment.MsgID)) (
	end segment.MsgID, endAt segment.Offset, carried int,
) {
	pt.replica.mu.Lock()
	defer pt.replica.mu.Unlock()
	st := pt.machine.State()
	pt.fold.Passed(from, st.NextID, func(r fold.IDRange) { visit(r.From, r.To) })
	return st.NextID, st.End, pt.fold.CarriedCount(from)
}
