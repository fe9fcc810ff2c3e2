package partition

import (
	"sync/atomic"

	"github.com/google/uuid"

	"penstock/internal/node/budget"
	"penstock/internal/node/logread"
	"penstock/segment"
)

// Topic holds what the partitions of a topic share. Each Topic of package engine contains one, and the partitions of
// topics that are not served have one too. Any goroutine may read it. A crash loses it.
type Topic struct {
	Name        string
	ID          uuid.UUID
	Quarantined bool // its metadata cannot be read: its data is kept, not served and never trimmed; set by recovery

	Deleted atomic.Bool
	budget.Topic

	Messages, Bytes atomic.Uint64 // committed since Open

	// ServingChanged is called without a lock when this node begins or stops serving a partition of the topic. It does
	// not block. It is nil if nothing needs the call.
	ServingChanged func()
}

// counted adds count committed messages and the n bytes of their bodies to the counters.
func (pt *Partition) counted(count uint32, n uint64) {
	pt.topic.Messages.Add(uint64(count))
	pt.topic.Bytes.Add(n)
	pt.store.counters.Messages.Add(uint64(count))
	pt.store.counters.MessageBytes.Add(n)
}

// WaitingAtTopic returns the number of messages that no channel can get yet, because the topic has no channel or is
// paused. Of those that were published below the start of the log, only the carried ones exist; to count them, it takes
// Replica.mu.
func (pt *Partition) WaitingAtTopic() int64 {
	end := segment.MsgID(pt.visible.Load())
	from := min(pt.unclaimed.Load(), pt.pausedFrom.Load())
	if from == noMsgID || segment.MsgID(from) >= end {
		return 0
	}
	start := logread.Border(pt.log)
	n := int64(end) - int64(max(segment.MsgID(from), min(start.ID, end)))
	if start.ID > segment.MsgID(from) && pt.Carries() {
		pt.replica.mu.Lock()
		defer pt.replica.mu.Unlock()
		n += int64(pt.fold.CountCarriedBelow(segment.MsgID(from), start))
	}
	return n
}
