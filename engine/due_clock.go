package engine

import (
	"time"

	"penstock/segment"
)

// Delays are stored as times of the clock of the node that led. If that clock was wrong, they mean something else to the node that leads next, or to the
// same one when it was restarted with the right time: messages that should wait for minutes would wait for hours. A batch says what its writer's clock showed, and one that comes from the
// future shows by how much that clock is ahead of this node's, less the way. A leader takes that out of everything that waits, before the batch that begins
// its epoch carries the fold to all replicas; a single node does it when it recovers.
//
// Only a clock that is ahead can be told so: a batch from the past may be old. What waits by a clock that was behind comes early, and is not lost.

// minClockAhead is by how much a writer's clock must be ahead before delays are corrected: clocks of nodes differ by some ms, and NTP lets them by 128.
const minClockAhead = time.Second

// writerClock is how far the clock of a partition's last writer is ahead of this node's. Recovery writes it, then the committer.
type writerClock struct {
	epoch   segment.Epoch
	aheadNs int64
}

// saw notes a batch that another process wrote. What producers sealed has their time in Created; Appended is the leader's, or that of the batch before if it was later.
func (w *writerClock) saw(h *segment.Header, nowNs int64) {
	ahead := min(h.Created, h.Appended) - nowNs
	if h.Epoch != w.epoch {
		w.epoch, w.aheadNs = h.Epoch, ahead
		return
	}
	w.aheadNs = max(w.aheadNs, ahead) // the one that was on its way for the shortest time
}

// correctDelays takes out of what waits by how much the writer's clock was ahead. It is called where this process is about to be the partition's writer, before its
// first batch: by recovery on a single node, else by the committer with the replica's mu held. A crash before that batch is on stable storage leaves the fold as it was.
func (pt *partition) correctDelays() {
	ahead := time.Duration(pt.writer.aheadNs)
	pt.writer.aheadNs = 0 // it is this process from here on
	if ahead < minClockAhead || pt.fold.MaxBytes(pt.machine.State().End) > segment.MaxBatchBytes/2 {
		return // a fold that fits into no batch does not reach the other replicas
	}
	count := pt.fold.ShiftDue(-ahead.Milliseconds())
	if count == 0 {
		return
	}
	e := pt.e
	e.counters.DelaysCorrected.Add(uint64(count))
	if others, may := e.dueLog.allow(int64(e.clock.mono()), clockLogEvery); may {
		e.log.Warn("delayed messages of a partition were stored by a node whose clock was ahead of this one's: they come "+
			"when their delay is over, not when that clock would have said so",
			"topic", pt.t.name, "partition", pt.number, "ahead", ahead.Round(time.Millisecond), "messages", count,
			"others", others)
	}
}
