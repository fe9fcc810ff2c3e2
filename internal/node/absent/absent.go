package absent

import (
	"log/slog"
	"sync/atomic"
	"time"

	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

const (
	// answerInterval is the least time between two answers to one leader about one partition. One answer is enough
	// for a burst of frames.
	answerInterval = 100 * time.Millisecond
	// patience is how long a leader may ask for a missing copy before that is logged. The leader of a new topic
	// asks before the copy is opened.
	patience = 5 * time.Second
	// forget is how long a leader must be silent before its entry expires. It exceeds the leader's pauses between
	// questions, which grow to 16 s.
	forget = time.Minute
	// maxEntries bounds the number of entries, and so the number of log lines.
	maxEntries = 1024

	level = 2 // feature level: a node of a lower level would take the answer for a broken frame
)

// Env is what Copies get from the node.
type Env struct {
	Log   *slog.Logger
	Now   func() int64 // Lease.Now
	Level func() int   // the feature level in force
	Send  func(to replicate.NodeID, f *netproto.Frame) error

	Frames  *atomic.Uint64 // counts frames from leaders about partitions of which this node has no copy
	Missing *atomic.Uint64 // counts times that a leader went on for patience to ask for a copy that is not here
}

// Copies records which leaders have asked for partitions of which this node has no copy. mu guards entries.
type Copies struct {
	Env
	mu      lock.Mutex[lock.AbsentCopies]
	entries map[question]*entry
}

// question names the questions of one leader about one partition.
type question struct {
	node replicate.NodeID // the leader that asks
	id   segment.Identity
}

// entry says when a leader asked first and last, and when it was answered last. The times are by Lease.Now, in
// ns.
type entry struct {
	first, last, answered int64
	logged                bool
}

// Answer handles a frame from another node for a partition of which this node has no copy. It tells the leader,
// which then asks less often, and logs each such partition once per leader. The goroutines of the connections call it,
// without a lock.
func (a *Copies) Answer(from replicate.NodeID, id segment.Identity, m *replicate.Message) {
	if m.Kind < replicate.MsgProbe || m.Kind > replicate.MsgHeartbeat {
		return // not from a leader: a late answer of a follower
	}
	a.Frames.Add(1)
	answer, tell := a.note(question{from, id}, a.Now())
	if tell {
		a.Missing.Add(1)
		a.Log.Warn("a node leads a partition of which this node should have a copy, and has none: the leader goes on "+
			"without it; look for an error when the topic was opened here, or restart this node",
			"leader", from, "topic", id.Topic, "partition", id.Partition)
	}
	if !answer || a.Level() < level {
		return
	}
	reject := replicate.Message{
		Kind: replicate.MsgReject, Code: replicate.RejectAbsent, Epoch: m.Epoch, Request: m.Request,
	}
	var f netproto.Frame
	wire.Encode(&f, id, &reject, nil)
	_ = a.Send(from, &f) // the leader asks again
}

// note records a question of a leader at the time now. It returns whether to answer the question, and whether to log
// it. It takes mu.
func (a *Copies) note(k question, now int64) (answer, tell bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entries[k]
	if e == nil || now-e.last > int64(forget) {
		if a.entries == nil || len(a.entries) >= maxEntries {
			a.entries = map[question]*entry{}
		}
		e = &entry{first: now, answered: now - int64(answerInterval)}
		a.entries[k] = e
	}
	e.last = now
	if answer = now-e.answered >= int64(answerInterval); answer {
		e.answered = now
	}
	if tell = !e.logged && now-e.first >= int64(patience); tell {
		e.logged = true
	}
	return answer, tell
}
