package engine

import (
	"sync/atomic"

	"github.com/google/uuid"

	"penstock/engine/flush"
)

// partTopic is a topic as its partitions see it. Topic embeds it, and so do the partitions of topics that are not
// served. Any goroutine may read it; a crash loses it.
type partTopic struct {
	name        string
	uuid        uuid.UUID
	quarantined bool // its metadata cannot be read: kept, not served, never trimmed; set by recovery

	deleted atomic.Bool
	limits  atomic.Pointer[flush.Limits] // set by Topic.configure

	messages, bytes atomic.Uint64 // committed since Open

	// servingChanged is called when this node begins or ends to serve a partition of the topic, under no lock. It does
	// not block. nil: nobody wants to know.
	servingChanged func()
}

// counted counts committed messages and their bytes.
func (pt *partition) counted(count uint32, n uint64) {
	pt.t.messages.Add(uint64(count))
	pt.t.bytes.Add(n)
	pt.e.counters.Messages.Add(uint64(count))
	pt.e.counters.MessageBytes.Add(n)
}

// waitingAtTopic is how many messages no channel can get yet, because the topic has no channel or is paused.
func (pt *partition) waitingAtTopic() int64 {
	end := pt.visible.Load()
	from := min(pt.unclaimed.Load(), pt.pausedFrom.Load())
	if from == noMsgID || from >= end {
		return 0
	}
	return int64(end - from)
}
