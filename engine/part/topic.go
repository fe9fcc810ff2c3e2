package part

import (
	"sync/atomic"

	"github.com/google/uuid"

	"penstock/engine/flush"
)

// Topic is what the partitions of a topic share. The engine's Topic has one, and so have the partitions of topics that
// are not served. Any goroutine may read it; a crash loses it.
type Topic struct {
	Name        string
	ID          uuid.UUID
	Quarantined bool // its metadata cannot be read: kept, not served, never trimmed; set by recovery

	Deleted atomic.Bool
	Limits  atomic.Pointer[flush.Limits] // set with the topic's settings

	Messages, Bytes atomic.Uint64 // committed since Open

	// ServingChanged is called when this node begins or ends to serve a partition of the topic, under no lock. It does
	// not block. nil: nobody wants to know.
	ServingChanged func()
}

// counted counts committed messages and their bytes.
func (pt *Partition) counted(count uint32, n uint64) {
	pt.topic.Messages.Add(uint64(count))
	pt.topic.Bytes.Add(n)
	pt.store.counters.Messages.Add(uint64(count))
	pt.store.counters.MessageBytes.Add(n)
}

// WaitingAtTopic is how many messages no channel can get yet, because the topic has no channel or is paused.
func (pt *Partition) WaitingAtTopic() int64 {
	end := pt.visible.Load()
	from := min(pt.unclaimed.Load(), pt.pausedFrom.Load())
	if from == noMsgID || from >= end {
		return 0
	}
	return int64(end - from)
}
