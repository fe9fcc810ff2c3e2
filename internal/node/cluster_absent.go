package node

import (
	"time"

	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

const (
	// absentInterval is the least time between two answers to one leader about one partition. One answer is enough for a
	// burst of frames.
	absentInterval = 100 * time.Millisecond
	// absentPatience is how long a leader may ask for a missing copy before that is logged. The leader of a new topic
	// asks before the copy is opened.
	absentPatience = 5 * time.Second
	// absentForget is how long a leader must be silent before its entry expires. It exceeds the leader's pauses between
	// questions, which grow to 16 s.
	absentForget = time.Minute
	// maxAbsent bounds the number of entries, and so the number of log lines.
	maxAbsent = 1024

	absentLevel = 2 // feature level: a node of a lower level would take the answer for a broken frame
)

// absentCopies records which leaders have asked for partitions of which this node has no copy. A crash forgets it. mu
// guards entries.
type absentCopies struct {
	mu      lock.Mutex[lock.AbsentCopies]
	entries map[absentCopy]*absentEntry
}

// absentCopy names the questions of one leader about one partition.
type absentCopy struct {
	leader replicate.NodeID
	id     segment.Identity
}

// absentEntry says when a leader asked first and last, and when it was answered last. The times are by Lease.Now, in
// ns.
type absentEntry struct {
	first, last, answered int64
	logged                bool
}

// answerAbsent handles a frame from another node for a partition of which this node has no copy. It tells the leader,
// which then asks less often, and logs each such partition once per leader. The goroutines of the connections call it,
// without a lock.
func (cn *clusterNode) answerAbsent(from replicate.NodeID, id segment.Identity, m *replicate.Message) {
	if m.Kind < replicate.MsgProbe || m.Kind > replicate.MsgHeartbeat {
		return // not from a leader: a late answer of a follower
	}
	cn.e.counters.FramesWithoutCopy.Add(1)
	answer, tell := cn.absent.note(absentCopy{from, id}, cn.Now(), cn.e.Level())
	if tell {
		cn.e.counters.MissingCopies.Add(1)
		cn.Log.Warn("a node leads a partition of which this node should have a copy, and has none: the leader goes on "+
			"without it; look for an error when the topic was opened here, or restart this node",
			"leader", from, "topic", id.Topic, "partition", id.Partition)
	}
	if !answer {
		return
	}
	reject := replicate.Message{
		Kind: replicate.MsgReject, Code: replicate.RejectAbsent, Epoch: m.Epoch, Request: m.Request,
	}
	var f netproto.Frame
	wire.Encode(&f, id, &reject, nil)
	_ = cn.Net.TrySend(from, &f) // the leader asks again
}

// note records a question of a leader at the time now, at a feature level. It returns whether to answer the question,
// and whether to log it. It takes mu.
func (a *absentCopies) note(k absentCopy, now int64, level int) (answer, tell bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entries[k]
	if e == nil || now-e.last > int64(absentForget) {
		if a.entries == nil || len(a.entries) >= maxAbsent {
			a.entries = map[absentCopy]*absentEntry{}
		}
		e = &absentEntry{first: now, answered: now - int64(absentInterval)}
		a.entries[k] = e
	}
	e.last = now
	if answer = now-e.answered >= int64(absentInterval); answer {
		e.answered = now
	}
	if tell = !e.logged && now-e.first >= int64(absentPatience); tell {
		e.logged = true
	}
	return answer && level >= absentLevel, tell
}
