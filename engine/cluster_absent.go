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
	// absentAnswerInterval is between two answers to one leader about one partition: the frames of a burst need one.
	absentAnswerInterval = 100 * time.Millisecond
	// absentPatience is how long a leader may ask for a copy before it is logged: a new topic's leader asks before the copy is opened.
	absentPatience = 5 * time.Second
	// absentForget is when silence ends what is remembered of a leader's questions: its pauses grow to 16 s.
	absentForget = time.Minute
	// maxAbsentEntries bounds what is remembered, and so the lines in the log.
	maxAbsentEntries = 1024

	absentLevel = 2 // before it a node takes the answer for a broken frame
)

// absentCopies answers leaders that send frames for partitions of which this node has no copy, so that they know it and ask rarely. It logs each such
// partition once for each leader. mu guards entries.
type absentCopies struct {
	cn *clusterNode

	mu      lock.Mutex[lock.AbsentCopies]
	entries map[absentKey]*absentEntry
}

type absentKey struct {
	node replicate.NodeID
	id   segment.Identity
}

// absentEntry has times of clusterNode.now, in ns.
type absentEntry struct {
	first, last, answered int64
	logged                bool
}

// handleFrame takes a frame for a partition without a copy here. The connections' goroutines call it.
func (a *absentCopies) handleFrame(from replicate.NodeID, id segment.Identity, m *replicate.Message) {
	if m.Kind < replicate.MsgProbe || m.Kind > replicate.MsgHeartbeat || a.cn.ctx.Err() != nil {
		return // not of a leader: a follower's answer came late
	}
	a.cn.e.counters.FramesWithoutCopy.Add(1)
	answer, tell := a.note(absentKey{from, id}, a.cn.now())
	if tell {
		a.cn.log.Warn("a node leads a partition of which this node should have a copy, and has none: the leader goes on without it; "+
			"look for an error when the topic was opened here, or restart this node", "leader", from, "topic", id.Topic, "partition", id.Partition)
	}
	if !answer || a.cn.e.Level() < absentLevel {
		return
	}
	reject := replicate.Message{Kind: replicate.MsgReject, Code: replicate.RejectAbsent, Epoch: m.Epoch, Request: m.Request}
	var f netproto.Frame
	wire.Encode(&f, id, &reject, nil)
	_ = a.cn.net.TrySend(from, &f) // the leader asks again
}

// note says whether the leader is answered, and whether this is the time to log it.
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

// count passes on what the leader's machine has counted. mu is held.
func (r *replica) count() {
	c, n := &r.cn.e.counters, r.leader.Counts()
	if n == r.counted {
		return
	}
	c.ISRChanges.Add(n.ISRChanges - r.counted.ISRChanges)
	c.ISRHeldBack.Add(n.ISRHeldBack - r.counted.ISRHeldBack)
	c.AbsentReplicas.Add(n.Absences - r.counted.Absences)
	c.Stranded.Add(n.Stranded - r.counted.Stranded)
	if lost := n.Losses - r.counted.Losses; lost > 0 {
		r.cn.losses.Add(lost)
		r.cn.log.Error("the end of a partition's log may be lost: recovery shortened this copy, every other replica was asked, and none has more or all that was known to be committed. "+
			"The partition goes on with the longest copy that there is", "topic", r.pt.t.name, "partition", r.pt.number, "epoch", r.leader.Epoch(), "end", r.leader.Log().End.Next)
	}
	r.counted = n
}
