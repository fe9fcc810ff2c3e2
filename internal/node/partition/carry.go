package partition

import (
	"errors"

	"penstock/internal/node/delivery"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/logread"
	"penstock/segment"
)

// A deferred message that waits for days would keep its segment on disk, and all later segments too. So when nothing
// else needs the oldest segments, their deferred messages are copied, with their ids, into a control batch at the end
// of the log (fold.DeferredCarried). Then the segments are removed:
//
//	flusher                       committer, or under the replica's lock     channels
//	1 retention meets a segment
//	  that is not confirmed
//	                              2 look: only deferred messages hold it?
//	3 reads their records
//	                              4 the batch is sealed, and folded
//	                              5 it is committed                          6 they learn the new places
//	7 removes the segments
//
// Step 7 never precedes step 5 (retain.Bound), so after a crash or a cut the message is in at least one of the two
// places. A channel that reads the old place during step 7 gets the message again when its timeout expires.
//
// Retention by size, age or count removes segments even if messages wait in them. Those messages are lost. They count
// as confirmed in every channel, and each channel is told (FindLost, Channel.forgetGone). So lost messages hold back
// nothing else, and a lost deferred message does not stay listed until its time.

const (
	maxCarryBytes      = 256 << 10 // size of all records in one batch; a single larger record is carried alone
	maxCarryCandidates = 16        // how many segment borders toCarry tries at most
	noOffset           = 1<<63 - 1
)

// Carry copies the deferred messages out of the oldest segments, if nothing else needs those segments. limit is the
// highest offset up to which segments may be removed. The flusher calls Carry without a lock. Carry does not wait for
// the copy.
func (pt *Partition) Carry(limit segment.Offset) {
	if !pt.replica.serves.Load() || !pt.carrying.CompareAndSwap(false, true) {
		return
	}
	var borders []fold.Border
	for i, s := range pt.log.Segments() {
		if i > 0 && s.Start <= limit && s.Err == nil {
			borders = append(borders, fold.Border{At: s.Start, ID: s.FirstID})
		}
	}
	var sources []fold.CarrySource
	start := pt.startBorder()
	pt.runOnCommitter(func() { sources = pt.toCarry(start, borders) }, func(err error) {
		if err != nil || len(sources) == 0 {
			pt.carrying.Store(false)
			return
		}
		pt.store.host.Spawn(func() { pt.carryFrom(sources) })
	})
}

// toCarry decides which messages to carry. It tries the highest border first, and then lower ones. It runs on the
// committer, which owns the fold.
func (pt *Partition) toCarry(start fold.Border, borders []fold.Border) []fold.CarrySource {
	for n := 0; len(borders) > 0 && n < maxCarryCandidates; n++ {
		b := borders[len(borders)-1]
		sources, ok := pt.fold.ToCarry(nil, start, b, fold.MaxCarriedCount)
		if ok {
			return sources
		}
		borders = borders[:len(borders)/2]
	}
	return nil
}

// carryFrom reads the messages and hands the batch that carries them to the committer. It runs on a goroutine of its
// own, because it may wait for the device.
func (pt *Partition) carryFrom(sources []fold.CarrySource) {
	var ms []fold.CarriedMessage
	bytes := 0
	for _, s := range sources {
		m, err := pt.ReadRecord(s.ID, s.At)
		if errors.Is(err, segment.ErrBelowStart) {
			continue // retention has just removed the message; FindLost will report it
		}
		if err != nil {
			pt.store.log.Warn("a deferred message cannot be carried out of its old segment, which therefore stays",
				"topic", pt.topic.Name, "partition", pt.number, "error", err)
			break
		}
		if bytes += len(m.Record); bytes > maxCarryBytes && len(ms) > 0 {
			break
		}
		ms = append(ms, m)
	}
	if len(ms) == 0 {
		pt.carrying.Store(false)
		return
	}
	own := &inbox.Special{Controls: []fold.Control{{Kind: fold.DeferredCarried, Carried: ms}}}
	own.OnCommit = func() { pt.postCarried(ms, own.Offset) }
	if err := pt.postControls(own, func(error) { pt.carrying.Store(false) }); err != nil {
		pt.carrying.Store(false)
	}
}

// postCarried tells the channels the new places of carried messages. Of a message that waits it tells the due time of
// the fold, which correctDelays may have changed since the message was published. Replica.mu is held.
func (pt *Partition) postCarried(ms []fold.CarriedMessage, at segment.Offset) {
	ds := make([]fold.DeferredMessage, len(ms))
	for i := range ms {
		ds[i] = fold.DeferredMessage{ID: ms[i].ID, DueMs: pt.fold.DueOr(ms[i].ID, ms[i].DueMs), At: at}
	}
	pt.post(&delivery.Post{Event: delivery.Event{Kind: delivery.EvCarried, Deferred: ds}})
}

// FindLost looks for deferred messages that were removed with their segments, and tells the channels. It does so only
// after retention has removed messages that were not confirmed. The flusher calls it without a lock.
func (pt *Partition) FindLost() {
	if !pt.mayHaveLost.Load() || !pt.replica.serves.Load() || !pt.searchingLost.CompareAndSwap(false, true) {
		return
	}
	pt.mayHaveLost.Store(false)
	start := pt.startBorder()
	var gone []segment.MsgID
	pt.runOnCommitter(func() {
		gone = pt.fold.Gone(nil, start, fold.MaxCarriedCount)
		pt.publishFold(pt.machine.State().NextID)
	}, func(err error) {
		if err != nil || len(gone) > 0 {
			pt.mayHaveLost.Store(true) // look again, until none is found
		}
		if err == nil && len(gone) > 0 {
			pt.post(&delivery.Post{Event: delivery.Event{Kind: delivery.EvTrimmed, Start: start.ID}, Gone: gone})
		}
		pt.searchingLost.Store(false)
	})
}

// ReadRecord reads a copy of a stored message. at is the offset of the batch that holds it; 0 means the batch in which
// it was published. It may wait for the device.
func (pt *Partition) ReadRecord(id segment.MsgID, at segment.Offset) (fold.CarriedMessage, error) {
	return logread.Record(pt.log, id, at)
}

// OnlyCarried lists at most count messages with ids from the id from on, whose bytes are only in control batches that
// carry them. It also returns the first id of the log: messages from that id on still have their bytes where they were
// published.
//
// OnlyCarried takes Replica.mu to read the fold. It does not read it on the committer (runOnCommitter), because without
// a quorum the committer takes nothing from the inbox.
func (pt *Partition) OnlyCarried(from segment.MsgID, count int) ([]fold.CarrySource, segment.MsgID) {
	if start := pt.startBorder(); pt.carriedFrom.Load() == noOffset {
		return nil, start.ID
	}
	pt.replica.mu.Lock()
	defer pt.replica.mu.Unlock()
	start := pt.startBorder()
	return pt.fold.CarriedBelow(nil, from, start, count), start.ID
}
