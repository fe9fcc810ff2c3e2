package engine

import (
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// partTopic is a topic as its partitions see it. Topic embeds it, and so do the partitions of topics that are not
// served. Any goroutine may read it; a crash loses it.
type partTopic struct {
	name        string
	uuid        uuid.UUID
	quarantined bool // its metadata cannot be read: kept, not served, never trimmed; set by recovery

	deleted atomic.Bool
	limits  atomic.Pointer[topicLimits] // set by Topic.configure

	messages, bytes atomic.Uint64 // committed since Open

	// servingChanged is called when this node begins or ends to serve a partition of the topic, under no lock. It does
	// not block. nil: nobody wants to know.
	servingChanged func()
}

// topicLimits are the limits that hold for a topic: its settings, or the node's options where it has none. 0 is no
// limit.
type topicLimits struct {
	retentionBytes, retentionCount int64
	retentionAge                   time.Duration
	rejectBytes, rejectCount       int64
}

// counted counts committed messages and their bytes.
func (pt *partition) counted(count uint32, n uint64) {
	pt.t.messages.Add(uint64(count))
	pt.t.bytes.Add(n)
	pt.e.counters.Messages.Add(uint64(count))
	pt.e.counters.MessageBytes.Add(n)
}
