package part

import (
	"time"

	"penstock/segment"
)

// Delays are stored as due times by the clock of the leader. If that clock was wrong, the due times are wrong for the
// next leader, and for the same node after a restart with the right time: messages delayed by minutes could wait for
// hours. A batch records the time of its writer's clock. If that time is in the future, the writer's clock is ahead of
// this node's clock by at least the difference; the time that the batch travelled comes on top. A new leader subtracts
// the difference from all due times before its first batch carries the fold to all replicas. A single node does so when
// it recovers.
//
// Only a clock that is ahead can be detected: a batch from the past may just be old. Messages delayed by a clock that
// was behind are delivered early, and are not lost.

// minClockAhead is how far a writer's clock must be ahead before due times are corrected. Clocks of nodes always differ
// by some ms, and NTP tolerates 128 ms.
const minClockAhead = time.Second

// dueLogEvery is the least time between two log lines about corrected delays.
const dueLogEvery = time.Minute

// correctDelays subtracts from all due times the time by which the clock of the last writer was ahead. It is called
// when this process is about to become the partition's writer, before its first batch: by recovery on a single node,
// otherwise by the committer with Replica.mu held. A crash before that batch is on stable storage leaves the stored
// fold as it was.
func (pt *Partition) correctDelays() {
	ahead := time.Duration(pt.writer.AheadNs)
	pt.writer.AheadNs = 0 // it is this process from here on
	if ahead < minClockAhead || pt.fold.MaxBytes(pt.machine.State().End) > segment.MaxBatchBytes/2 {
		return // a fold that is too large for a batch would not reach the other replicas
	}
	count := pt.fold.ShiftDue(-ahead.Milliseconds())
	if count == 0 {
		return
	}
	s := pt.store
	s.counters.DelaysCorrected.Add(uint64(count))
	if others, may := s.dueLog.Allow(int64(s.clock.Mono()), dueLogEvery); may {
		s.log.Warn("delayed messages of a partition were stored by a node whose clock was ahead of this one's: they come "+
			"when their delay is over, not when that clock would have said so",
			"topic", pt.topic.Name, "partition", pt.number, "ahead", ahead.Round(time.Millisecond), "messages", count,
			"others", others)
	}
}
