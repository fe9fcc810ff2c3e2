package partition

import (
	"penstock/internal/node/events"
	"penstock/internal/node/fold"
	"penstock/internal/node/logread"
	"penstock/segment"
)

// These methods give goroutines that do not own the fold of a partition access to it. Unless they say otherwise, they
// take Replica.mu, so the fold does not change meanwhile.

// ReadFold calls f with the fold of the log, with Replica.mu held.
func (pt *Partition) ReadFold(f func(*fold.Cursors)) {
	pt.replica.mu.Lock()
	defer pt.replica.mu.Unlock()
	f(pt.fold)
}

// ReadChannels calls f with the cursor of each channel in the log, and returns whether the log says that the topic is
// paused. f runs with Replica.mu held.
func (pt *Partition) ReadChannels(f func(*fold.Cursor)) (paused bool) {
	pt.ReadFold(func(now *fold.Cursors) {
		now.Each(f)
		paused = now.TopicPaused
	})
	return paused
}

// FindChannel says whether the log has the channel, and whether the log has batches at its end that are not committed
// (open). It takes Replica.mu.
func (pt *Partition) FindChannel(name string) (has, open bool) {
	pt.replica.mu.Lock()
	defer pt.replica.mu.Unlock()
	return pt.fold.Channel(name) != nil, pt.replica.committed() < pt.machine.State().Next
}

// Adopt gives the partition to all channels that the log has: each gets a snapshot and all later events. channel
// returns the Subscriber of a name, and is called with Replica.mu held. Adopt returns the names, whether the topic is
// paused, and whether nothing about channels was ever written to the log (neverHad).
func (pt *Partition) Adopt(channel func(name string) events.Subscriber) (names []string, paused, neverHad bool) {
	pt.replica.mu.Lock()
	defer pt.replica.mu.Unlock()
	pt.fold.Each(func(cur *fold.Cursor) { names = append(names, cur.Name) })
	for _, name := range names {
		pt.followFound(channel(name), name)
	}
	return names, pt.fold.TopicPaused, pt.neverHadChannels()
}

// neverHadChannels says whether nothing about channels was ever written to the log. Replica.mu is held.
func (pt *Partition) neverHadChannels() bool {
	return pt.fold.Len() == 0 && pt.fold.Unclaimed == 0 && !pt.fold.TopicPaused
}

// LeadsWithoutChannels says whether this node of a cluster leads the partition, and nothing about channels was ever
// written to its log. It takes Replica.mu.
func (pt *Partition) LeadsWithoutChannels() bool {
	if pt.replica.solo() || !pt.Leading.Load() {
		return false
	}
	pt.replica.mu.Lock()
	defer pt.replica.mu.Unlock()
	return pt.neverHadChannels()
}

// Lacks returns the control entries with which this partition's log gets the channels and the pause that the log of
// first has and this one lacks. Recovery calls it while nothing else uses the folds, so it takes no lock.
func (pt *Partition) Lacks(first *Partition) (entries []fold.Control) {
	first.fold.Each(func(cur *fold.Cursor) {
		if pt.fold.Channel(cur.Name) == nil {
			entries = append(entries, fold.Control{Kind: fold.ChannelCreated, Channel: cur.Name})
		}
	})
	if first.fold.TopicPaused && !pt.fold.TopicPaused && pt.fold.Len() == 0 {
		entries = append(entries, fold.Control{Kind: fold.TopicPaused, Flag: true})
	}
	return entries
}

// Epoch returns the epoch of the newest batch, or 0 if there is none. It takes no lock: the engine calls it while it
// opens, before the commit log runs.
func (pt *Partition) Epoch() segment.Epoch {
	if pt.machine == nil {
		return 0
	}
	return pt.machine.State().Epoch
}

// ReadRecord reads a copy of a stored message. at is the offset of the batch that holds it; 0 means the batch in which
// it was published. It may wait for the device.
func (pt *Partition) ReadRecord(id segment.MsgID, at segment.Offset) (fold.CarriedMessage, error) {
	return logread.Record(pt.log, id, at)
}

// Fold returns the fold of the log to a caller that runs on the committer or holds Replica.mu.
func (pt *Partition) Fold() *fold.Cursors { return pt.fold }

// correctDelays corrects the due times of the fold. It is called when this process is about to become the partition's
// writer, before its first batch: by recovery on a single node, otherwise by the committer with Replica.mu held.
func (pt *Partition) correctDelays() {
	pt.store.delays.Correct(&pt.writer, pt.fold, pt.epochs.Entries(), pt.machine.State().End, pt.topic.Name, pt.number)
}

// FoldChanged is called on the committer when the fold is judged anew because the log begins later.
func (pt *Partition) FoldChanged() { pt.publishFold(pt.machine.State().NextID) }
