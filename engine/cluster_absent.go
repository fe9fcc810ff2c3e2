package engine

import (
	"time"

	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

const (
	// absentAnswerInterval is the least time between two answers to one leader about one partition. One answer is enough
	// for a burst of frames.
	absentAnswerInterval = 100 * time.Millisecond
	// absentPatience is how long a leader may ask for a missing copy before that is logged. The leader of a new topic
	// asks before the copy is opened.
	absentPatience = 5 * time.Second
	// absentForget is after how much silence an entry about a leader's questions expires. It exceeds the leader's pauses
	// between questions, which grow to 16 s.
	absentForget = time.Minute
	// maxAbsentEntries bounds the entries, and so the lines in the log.
	maxAbsentEntries = 1024

	absentLevel = 2 // a node of a lower level takes the answer for a broken frame
)

// absentCopies answers leaders that send frames for partitions of which this node has no copy, so that they know it and
// ask less often. It logs each such partition once per leader. Goroutines of connections call it. mu guards entries. A
// crash forgets them.
type absentCopies struct {
	cn *clusterNode

	mu      lock.Mutex[lock.AbsentCopies]
	entries map[absentKey]*absentEntry
}

// absentKey names the questions of one leader about one partition.
type absentKey struct {
	node replicate.NodeID // the leader
	id   segment.Identity
}

// The times in absentEntry are of Lease.Now, in ns.
type absentEntry struct {
	first, last, answered int64
	logged                bool
}

// handleFrame handles a frame for a partition without a copy here. The goroutines of the connections call it.
func (a *absentCopies) handleFrame(from replicate.NodeID, id segment.Identity, m *replicate.Message) {
	if m.Kind < replicate.MsgProbe || m.Kind > replicate.MsgHeartbeat || a.cn.Ctx.Err() != nil {
		return // not from a leader: the late answer of a follower
	}
	a.cn.e.counters.FramesWithoutCopy.Add(1)
	answer, tell := a.note(absentKey{from, id}, a.cn.Now())
	if tell {
		a.cn.Log.Warn("a node leads a partition of which this node should have a copy, and has none: the leader goes on "+
			"without it; look for an error when the topic was opened here, or restart this node",
			"leader", from, "topic", id.Topic, "partition", id.Partition)
	}
	if !answer || a.cn.e.Level() < absentLevel {
		return
	}
	reject := replicate.Message{
		Kind: replicate.MsgReject, Code: replicate.RejectAbsent, Epoch: m.Epoch, Request: m.Request,
	}
	var f netproto.Frame
	wire.Encode(&f, id, &reject, nil)
	_ = a.cn.Net.TrySend(from, &f) // the leader asks again
}

// note records a question. It says whether to answer it, and whether to log it now.
func (a *absentCopies) note(k absentKey, now int64) (answer, tell bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entries[k]
	if e == nil || now-e.last > int64(absentForget) {
		if a.entries == nil || len(a.entries) >= maxAbsentEntries {
			a.entries = map[absentKey]*absentEntry{}
		}
		e = &absentEntry{first: now, answered: now - int64(absentAnswerInterval)}
		a.entries[k] = e
	}
	e.last = now
	if answer = now-e.answered >= int64(absentAnswerInterval); answer {
		e.answered = now
	}
	if tell = !e.logged && now-e.first >= int64(absentPatience); tell {
		e.logged = true
	}
	return answer, tell
}
