package engine

import (
	"context"
	"sync/atomic"
	"time"

	"penstock/engine/core"
	"penstock/internal/lock"
	"penstock/replicate"
	"penstock/segment"
)

// partition joins one partition's state machine to its inbox, its log and its channels.
//
// mu guards the inbox and what stands with it, and who watches. It is a leaf: its holder takes no other lock and does
// nothing that may wait. machine, fold and the fields up to newest belong to the committer; in a cluster it changes them
// with replica.mu held, so others may read them under that lock. The atomics below are how everybody else learns of them.
// log has a lock of its own. After a crash the inbox is empty and its puts were not answered; the rest comes back from the
// commit log (recover.go).
type partition struct {
	e      *Engine
	t      *Topic
	number uint32
	log    *segment.Log

	mu           lock.Mutex[lock.Partition]
	inbox        putList
	reported     int64                    // bytes of the inbox that the engine's sum counts
	ready        bool                     // in the committer's ready list, or in its hands
	pipelined    bool                     // the inbox waits for batches before it: their commit tells the committer, puts need not
	closed       error                    // why the inbox takes no more puts; nil: it does
	tombstonesOK bool                     // with closed: it takes tombstones, and reopenInbox may open it
	room         chan struct{}            // closed when bytes left the inbox; nil: nobody waits for that
	seq          uint64                   // Put.seq of the last put that came
	drainedSeq   uint64                   // puts up to this one were taken; drainedSeq <= seq
	gates        [gateCount]chan struct{} // nil: nobody waits there
	drainCount   uint                     // how often the inbox was taken: which gate its puts use

	machine *core.Partition
	fold    *core.Cursors
	epochs  replicate.EpochTable
	writer  writerClock
	newest  int64 // append time of the newest batch, ns since 1970: the next one's is not before it. The committer's

	unread atomic.Pointer[error] // why the fold is not known, see whyUnread

	recovered segment.Position // what the last life knew to be committed, at least
	rep       *replica         // nil on a single node

	watchers atomic.Pointer[[]*Channel] // see watching
	visible  atomic.Uint64              // MsgID below which messages are committed
	// MsgID below which every durable channel has confirmed, or a control batch carries what it has not.
	needed atomic.Uint64
	// Of control batches that carry messages: the first that is needed, or noOffset.
	carriedFrom   atomic.Int64
	bound         confirmedBound
	carrying      atomic.Bool           // messages are being carried
	searchingLost atomic.Bool           // for those that are gone
	mayHaveLost   atomic.Bool           // something went that somebody had not confirmed: perhaps it waits, see findLost
	unclaimed     atomic.Uint64         // MsgID from which messages wait at the topic
	pausedFrom    atomic.Uint64         // topic paused: MsgID from which messages are held back; else max
	dirty         atomic.Bool           // in the flusher's queue
	flushErr      atomic.Pointer[error] // a segment could not be written: the inbox is closed, see reopenInbox
	reopens       atomic.Uint64         // how often reopenInbox was called
	quota         quotaState
	ages          ages
	stateBytes    atomic.Int64 // what the fold takes in a checkpoint, at most
}

// accepts says whether p may enter the inbox of a partition in a cluster, or the forwarder has to take it. mu is held.
func (pt *partition) accepts(p *Put) bool {
	switch {
	case p.kind == putTombstone:
		return true
	case !pt.rep.leads.Load():
		return false
	}
	return p.kind.internal() || !pt.rep.parked.Load()
}

// forwardPut takes a put whose partition another node leads, or nobody.
func (cn *clusterNode) forwardPut(pt *partition, p *Put) error {
	if p.kind.internal() {
		return ErrNoLeader
	}
	p.seq = 0
	return cn.forward.enqueue(pt, p)
}

func (pt *partition) identity() segment.Identity {
	return segment.Identity{Topic: pt.t.uuid, Partition: pt.number}
}

const noMsgID = ^uint64(0)

// enqueue puts p at the end of the inbox and tells the committer. In a cluster the forwarder takes what this node does not
// lead. enqueue waits while the inbox is full, at most Options.AdmitTimeout. Unless it returns an error, p is answered,
// perhaps before enqueue returns. The caller holds no lock of the commit path (docs/concurrency.md): a put that is Alone
// may be written and answered on the caller's goroutine. Channel.mu may be held for a put that is not.
func (pt *partition) enqueue(ctx context.Context, p *Put) error {
	e := pt.e
	size := int64(p.bytes)
	p.part, p.gate = pt, nil
	pt.mu.Lock()
	if pt.closed == nil && !p.kind.internal() && !e.admits(pt, size) {
		if err := pt.awaitRoom(ctx, size); err != nil {
			pt.mu.Unlock()
			return err
		}
	}
	if pt.rep != nil && !pt.accepts(p) {
		pt.mu.Unlock()
		return e.cluster.forwardPut(pt, p)
	}
	if err := pt.closed; err != nil && !(pt.tombstonesOK && p.kind == putTombstone) {
		pt.mu.Unlock()
		return err
	}
	if p.waits && !pt.inbox.empty() { // the first has a channel of its own: most inboxes of many partitions hold one put
		p.gateIndex = int8(pt.drainCount % gateCount)
		p.gate = pt.gate(p.gateIndex)
	}
	pt.append(p)
	first := !pt.ready && (!pt.pipelined || pt.inbox.bytes >= secondGroupBytes)
	pt.ready = pt.ready || first
	alone := p.Alone // p may be gone as soon as the lock is free
	pt.mu.Unlock()
	if first {
		e.committer.push(pt, alone)
	}
	return nil
}

// tryEnqueue is enqueue for a put of the forwarder, which has set p.part. It neither waits nor forwards, and does not tell
// the committer: nothing may be written on the spot while the forwarder's lock is held, so the caller calls announce
// afterwards. Whoever waits for p goes on waiting where it does.
func (pt *partition) tryEnqueue(p *Put) error {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	switch {
	case !pt.rep.leads.Load():
		return ErrNoLeader
	case pt.closed != nil:
		return pt.closed
	case !pt.e.admits(pt, int64(p.bytes)):
		return ErrOverloaded
	}
	pt.append(p)
	return nil
}

// append puts p at the end of the inbox; mu is held. Once mu is free, p may be answered at any time and belong to its owner
// again: the caller must not look at it any more.
func (pt *partition) append(p *Put) {
	pt.seq++
	p.seq = pt.seq
	pt.inbox.push(p)
	pt.publishWaitingAndWake()
}

// drainForReroute takes the inbox for the forwarder, or to refuse it, once this node leads the partition no more.
func (pt *partition) drainForReroute() putList {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if pt.rep.leads.Load() { // it leads again
		return putList{}
	}
	return pt.drainLocked()
}

// admits says whether there is room for a put of that size; mu is held.
func (e *Engine) admits(pt *partition, size int64) bool {
	// An empty inbox takes any put that passed the batch limit, or a large one could starve.
	if pt.inbox.bytes != 0 && pt.inbox.bytes+size > e.opts.MaxInboxBytes {
		return false
	}
	return e.waiting.Load()+size <= e.opts.MaxNodeInboxBytes
}

// awaitRoom waits for room for a put, or until the inbox is closed. It is called and returns with mu held, and lets go of
// it while it waits.
func (pt *partition) awaitRoom(ctx context.Context, size int64) error {
	if pt.e.opts.AdmitTimeout < 0 {
		return ErrOverloaded
	}
	timer := time.NewTimer(pt.e.opts.AdmitTimeout)
	defer timer.Stop()
	poll := time.NewTicker(5 * time.Millisecond) // room at the node may come from another partition
	defer poll.Stop()
	for pt.closed == nil && !pt.e.admits(pt, size) {
		if pt.room == nil {
			pt.room = make(chan struct{})
		}
		room := pt.room
		pt.mu.Unlock()
		var err error
		select {
		case <-room:
		case <-poll.C:
		case <-timer.C:
			err = ErrOverloaded
			pt.e.counters.Overloaded.Add(1)
		case <-ctx.Done():
			err = ctx.Err()
		}
		pt.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

// signalRoom wakes who waits for room; mu is held.
func (pt *partition) signalRoom() {
	if pt.room != nil {
		close(pt.room)
		pt.room = nil
	}
}

// A gate is a channel on which the goroutines whose puts wait in one inbox wait together. Waking each through a channel of
// its own costs several times what closing one channel costs per receiver. The drains of an inbox use gates in turn, so
// that the puts of a group, of the group behind it and of the inbox rarely share one. If they do, some wake early and wait
// again.
//
//	whoever answers (putList.answer)                the goroutine that waits (waiter.wait)
//	1 sets First and Err
//	2 sets answered
//	                                                3 wakes from an earlier closing, sees answered: returns
//	4 takes the gate out of gates, closes it
//	                                                5 or wakes from this one, sees answered: returns
//	                                                6 or looks between 1 and 2: gateFor gives it the gate that 4 closes
const gateCount = 4

// gate returns the channel that gateRef.open closes next; mu is held.
func (pt *partition) gate(i int8) chan struct{} {
	if pt.gates[i] == nil {
		pt.gates[i] = make(chan struct{})
	}
	return pt.gates[i]
}

// gateFor returns where p waits further, or nil if it was answered.
func (pt *partition) gateFor(p *Put) chan struct{} {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if p.answered.Load() {
		return nil
	}
	return pt.gate(p.gateIndex)
}

// gateRef names a gate of a partition; the zero value names none.
type gateRef struct {
	part  *partition
	index int8
}

// open wakes a crowd. Those who are to go are marked as answered before; the others find the next gate (gateFor). The
// caller does not hold the partition's mu.
func (g gateRef) open() {
	if g.part == nil {
		return
	}
	g.part.mu.Lock()
	ch := g.part.gates[g.index]
	g.part.gates[g.index] = nil
	g.part.mu.Unlock()
	if ch != nil {
		close(ch)
	}
}

// drain takes the whole inbox at once, however long it is: producers do not wait while the committer looks at each put. If
// the inbox is empty, the next put tells the committer again. Only the committer calls it.
func (pt *partition) drain() putList {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	pt.pipelined = false
	if pt.inbox.empty() {
		pt.ready = false
		return putList{}
	}
	pt.drainCount++
	return pt.drainLocked()
}

// drainLocked takes all of the inbox: none of it can be cancelled any more. mu is held.
func (pt *partition) drainLocked() putList {
	l := pt.inbox.take()
	pt.drainedSeq = pt.seq
	pt.publishLess()
	return l
}

// prepend gives back what did not fit into the group: before what came since. l is not empty. The committer calls it.
func (pt *partition) prepend(l putList) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	pt.drainedSeq = l.head.seq - 1
	pt.inbox.prepend(l)
	pt.publishWaiting() // and wake nobody: the committer is here, and would find no more room than before, again and again
}

// cancel removes a put that the committer has not taken yet, and says whether it did: then p is not answered.
func (pt *partition) cancel(p *Put) bool {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if p.seq <= pt.drainedSeq || !pt.inbox.remove(p) {
		return false // it is on its way to the log, or was refused: its answer comes
	}
	pt.publishLess()
	return true
}

// publishLess follows whatever takes puts out of the inbox; mu is held.
func (pt *partition) publishLess() {
	pt.publishWaitingAndWake()
	pt.signalRoom()
}

// publishWaitingAndWake is publishWaiting, and tells the commit log when a second group is worth it. mu is held.
func (pt *partition) publishWaitingAndWake() {
	if n, d := pt.publishWaiting(); n >= secondGroupBytes && n-d < secondGroupBytes {
		pt.e.clog.Wake()
	}
}

// publishWaiting adds what changed to the node's sum, coarsely: a shared counter that every put touches twice costs more
// than the put. It returns the sum and what was added to it, or zeros while that can wait. mu is held.
func (pt *partition) publishWaiting() (sum, added int64) {
	d := pt.inbox.bytes - pt.reported
	if d < reportBytes && d > -reportBytes {
		return 0, 0
	}
	pt.reported = pt.inbox.bytes
	return pt.e.waiting.Add(d), d
}

// reportBytes is how far the node's sum may be off per partition.
const reportBytes = 16 << 10

// closeAndRefuse closes the inbox, if it is open, and answers every put in it with err. With tombstonesOK tombstones stay
// and more may come, and reopenInbox may open the inbox again. Without, the inbox stays closed for good.
func (pt *partition) closeAndRefuse(err error, tombstonesOK bool) {
	pt.mu.Lock()
	if pt.closed == nil {
		pt.closed, pt.tombstonesOK = err, tombstonesOK
	}
	pt.tombstonesOK = pt.tombstonesOK && tombstonesOK
	pt.refuse(err, func(p *Put) bool { return !tombstonesOK || p.kind != putTombstone })
}

// refuseMessages answers every put in the inbox with err that is not the engine's own.
func (pt *partition) refuseMessages(err error) {
	pt.mu.Lock()
	pt.refuse(err, func(p *Put) bool { return !p.kind.internal() })
}

// refuse answers those puts in the inbox that which chooses. It is called with mu held, and releases it.
func (pt *partition) refuse(err error, which func(*Put) bool) {
	refused := pt.inbox.takeIf(which)
	pt.publishLess()
	pt.mu.Unlock()
	refused.answer(err)
}

// reopenInbox opens an inbox that was closed because segments could not be written (flusher.failed). It is called, without
// a lock, after the log was cut, has begun anew or was repaired: the failure belongs to the files before. If the new files
// cannot be written either, the next flush closes the inbox again. An inbox that was closed because the node closes, or
// because its commit log failed, stays closed.
func (pt *partition) reopenInbox() {
	// First: a flush of the files before may have failed, and close the inbox only now. It looks at reopens afterwards.
	pt.reopens.Add(1)
	pt.flushErr.Store(nil)
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if pt.tombstonesOK { // nobody else closes an inbox with an exception
		pt.closed, pt.tombstonesOK = nil, false
	}
}

// expire gives the puts in the inbox their default deadline, and refuses those that have waited past theirs: the committer
// may be stalled and look at no inbox. It says whether anything waited. The engine's watch calls it every 250 ms, without a
// lock.
func (pt *partition) expire(nowNs int64) bool {
	why := ErrDeadline
	if pt.rep != nil {
		why = pt.rep.whyStalled()
	}
	pt.mu.Lock()
	waiting := !pt.inbox.empty()
	late := pt.inbox.takeIf(func(p *Put) bool {
		if p.deadline == 0 && !p.kind.internal() {
			p.deadline = nowNs + int64(pt.e.opts.PublishTimeout)
		}
		return p.deadline != 0 && nowNs > p.deadline
	})
	if !late.empty() {
		pt.publishLess()
	}
	pt.mu.Unlock()
	late.answer(why)
	return waiting
}

// visibleEnd is the id below which channels may deliver now.
func (pt *partition) visibleEnd() segment.MsgID {
	return segment.MsgID(min(pt.visible.Load(), pt.pausedFrom.Load()))
}
