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

// partition connects the state machine of one partition (core.Partition) to its inbox, its log and its channels. log
// has a lock of its own. After a crash the inbox is empty, and its puts were not answered; recovery rebuilds the rest
// from the commit log (recover.go).
type partition struct {
	e      *store
	t      *partTopic
	number uint32
	log    *segment.Log
	rep    *replica

	inboxState
	logEnd
	retained

	// Atomics, which any goroutine reads.
	unread   atomic.Pointer[error]        // why the fold is unknown; nil: it is known. See whyUnread
	watchers atomic.Pointer[[]subscriber] // who gets the partition's events, see watching; replaced with mu held
	visible  atomic.Uint64                // the committed messages are those below this MsgID
	// While the topic has no channel: messages from this MsgID on wait for the first one; else noMsgID.
	unclaimed atomic.Uint64
	// While the topic is paused: messages from this MsgID on are held back; else noMsgID.
	pausedFrom atomic.Uint64
	dirty      atomic.Bool           // the partition is in the flusher's queue
	flushErr   atomic.Pointer[error] // why a segment could not be written; nil: none since reopenInbox
	reopens    atomic.Uint64         // how often reopenInbox was called
	stateBytes atomic.Int64          // upper bound of the fold's size in a checkpoint
	quota      quotaState
}

// newPartition returns a partition whose log ends as st says, with the fold of what is in it. The caller sets rep and
// log.
func newPartition(
	e *store, t *partTopic, number uint32, st segment.State, fold *core.Cursors,
) *partition {
	pt := &partition{e: e, t: t, number: number}
	pt.machine, pt.fold = core.NewPartition(st, e.sizes()), fold
	return pt
}

// inboxState is the inbox of a partition: the puts that the committer has not taken yet. mu guards it. mu is a leaf:
// its holder takes no other lock and does not wait.
type inboxState struct {
	mu           lock.Mutex[lock.Partition]
	inbox        putList
	reported     int64                    // bytes of the inbox that e.waiting already counts
	ready        bool                     // the committer will drain it: it is in the ready list, or being drained
	pipelined    bool                     // puts wait for earlier batches, whose commit wakes the committer: see stall
	closed       error                    // the error that new puts get; nil: the inbox is open
	tombstonesOK bool                     // with closed: tombstones are accepted, and reopenInbox may open it
	room         chan struct{}            // closed when puts leave the inbox; nil: nobody waits for room
	seq          uint64                   // Put.seq of the newest put
	drainedSeq   uint64                   // puts up to this one have left the inbox; drainedSeq <= seq
	gates        [gateCount]chan struct{} // nil: nobody waits there
	drainCount   uint                     // how often the inbox was drained; it selects the gate that new puts use
}

// logEnd is the end of the log, and what follows from its content. The committer owns it. It changes it with
// replica.mu held, so that others may read it under that lock.
type logEnd struct {
	machine   *core.Partition
	fold      *core.Cursors
	epochs    replicate.EpochTable
	writer    writerClock
	newest    int64            // append time of the newest batch, ns since 1970; the next batch's is not earlier
	recovered segment.Position // the log is committed up to here at least; found by recovery
}

// retained is what retention needs to know of the log. bound and ages have locks of their own.
type retained struct {
	// Messages below this MsgID may go: every durable channel has confirmed them, or a control batch carries those that
	// one has not.
	needed atomic.Uint64
	// Offset of the first control batch whose carried messages are still needed, or noOffset.
	carriedFrom   atomic.Int64
	bound         confirmedBound
	carrying      atomic.Bool // flusher.carry is at work on this partition
	searchingLost atomic.Bool // flusher.findLost is at work
	mayHaveLost   atomic.Bool // unconfirmed messages were removed, and channels may still wait for them: see findLost
	ages          ages
}

// accepts says whether p may enter the inbox. If not, the forwarder takes p. mu is held.
func (pt *partition) accepts(p *Put) bool {
	switch {
	case p.kind == putTombstone:
		return true
	case !pt.rep.leads.Load():
		return false
	}
	return p.kind.internal() || !pt.rep.parked.Load()
}

func (pt *partition) identity() segment.Identity {
	return segment.Identity{Topic: pt.t.uuid, Partition: pt.number}
}

const noMsgID = ^uint64(0)

// enqueue appends p to the inbox and tells the committer. In a cluster, the forwarder takes the puts of partitions that
// this node does not lead. enqueue waits while the inbox is full, at most Options.AdmitTimeout. If it returns nil, p is
// answered, perhaps before enqueue returns; if it returns an error, p is not answered. The caller holds no lock of the
// commit path (docs/concurrency.md): a put that is Alone may be written and answered on the caller's goroutine. The
// caller may hold Channel.mu if p is not Alone.
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
	if !pt.accepts(p) {
		pt.mu.Unlock()
		return pt.rep.cn.above.ForwardPut(pt, p)
	}
	if err := pt.closed; err != nil && !(pt.tombstonesOK && p.kind == putTombstone) {
		pt.mu.Unlock()
		return err
	}
	// The first put of an inbox waits on a channel of its own, not at a gate: with many partitions most inboxes hold one
	// put.
	if p.waits && !pt.inbox.empty() {
		p.gateIndex = int8(pt.drainCount % gateCount)
		p.gate = pt.gate(p.gateIndex)
	}
	pt.append(p)
	first := !pt.ready && (!pt.pipelined || pt.inbox.bytes >= secondGroupBytes)
	pt.ready = pt.ready || first
	alone := p.Alone // once mu is released, p may be answered and reused
	pt.mu.Unlock()
	if first {
		e.committer.push(pt, alone)
	}
	return nil
}

// tryEnqueue is enqueue for a put from the forwarder, which has set p.part. It neither waits nor forwards. It does not
// tell the committer either: forwarder.mu is held, and nothing may be written on the caller's goroutine under it. The
// caller calls announce after it has released forwarder.mu. A goroutine that waits for p keeps waiting on the same
// channel or gate.
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

// append appends p to the inbox. mu is held. Once mu is released, p may be answered and reused by its owner at any
// time: the caller must not access p after that.
func (pt *partition) append(p *Put) {
	pt.seq++
	p.seq = pt.seq
	pt.inbox.push(p)
	pt.publishWaitingAndWake()
}

// drainForReroute empties the inbox after this node has lost the leadership. The caller forwards or refuses the puts.
// The list is empty if the node leads again.
func (pt *partition) drainForReroute() putList {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if pt.rep.leads.Load() { // it leads again
		return putList{}
	}
	return pt.drainLocked()
}

// admits says whether the inbox and the node have room for a put of size bytes. mu is held.
func (e *store) admits(pt *partition, size int64) bool {
	// An empty inbox takes any put that passed the batch limit, or a large one could starve.
	if pt.inbox.bytes != 0 && pt.inbox.bytes+size > e.opts.MaxInboxBytes {
		return false
	}
	return e.waiting.Load()+size <= e.opts.MaxNodeInboxBytes
}

// awaitRoom waits until the inbox has room for a put, or is closed. mu is held when it is called and when it returns;
// awaitRoom releases it while it waits.
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

// signalRoom wakes the goroutines that wait for room in the inbox. mu is held.
func (pt *partition) signalRoom() {
	if pt.room != nil {
		close(pt.room)
		pt.room = nil
	}
}

// A gate is a channel on which many goroutines wait for the answers to their puts of one inbox. Closing one channel
// costs several times less per goroutine than sending on a channel of each. Successive drains of an inbox use different
// gates, so that the puts of one group rarely share a gate with those of the next group or of the inbox. If they do,
// some goroutines wake too early and wait again.
//
//	goroutine that answers (putList.answer)         goroutine that waits (waiter.wait)
//	1 sets First and Err
//	2 sets answered
//	                                                3 was woken by an earlier close, sees answered: returns
//	4 takes the gate out of gates, closes it
//	                                                5 is woken by this close, sees answered: returns
//	                                                6 or looks between 1 and 2: gateFor gives it the gate that 4 closes
const gateCount = 4

// gate returns the channel that the next gateRef.open closes. mu is held.
func (pt *partition) gate(i int8) chan struct{} {
	if pt.gates[i] == nil {
		pt.gates[i] = make(chan struct{})
	}
	return pt.gates[i]
}

// gateFor returns the channel on which the owner of p must wait again, or nil if p was answered.
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

// open wakes all goroutines that wait at the gate. The caller has marked the puts that it answered; the owners of the
// others wait again at the next gate (gateFor). The caller does not hold the partition's mu.
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

// drain takes the whole inbox in one step, so that producers do not wait while the committer examines each put. If the
// inbox is empty, drain clears ready, and the next put tells the committer again. Only the committer calls it.
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

// drainLocked empties the inbox; from then on cancel fails for its puts. mu is held.
func (pt *partition) drainLocked() putList {
	l := pt.inbox.take()
	pt.drainedSeq = pt.seq
	pt.publishLess()
	return l
}

// prepend puts back the puts that did not fit into the group, in front of those that arrived since. l is not empty.
// Only the committer calls it.
func (pt *partition) prepend(l putList) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	pt.drainedSeq = l.head.seq - 1
	pt.inbox.prepend(l)
	// Do not wake the commit log: the committer is the caller, and would find as little room as before, again and again.
	pt.publishWaiting()
}

// cancel removes p if it is still in the inbox, and says whether it did. A cancelled put is not answered.
func (pt *partition) cancel(p *Put) bool {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if p.seq <= pt.drainedSeq || !pt.inbox.remove(p) {
		return false // it is being written or was refused: the answer comes
	}
	pt.publishLess()
	return true
}

// publishLess must be called after puts were taken out of the inbox. mu is held.
func (pt *partition) publishLess() {
	pt.publishWaitingAndWake()
	pt.signalRoom()
}

// publishWaitingAndWake does publishWaiting, and wakes the commit log when the waiting bytes begin to justify a second
// group in flight. mu is held.
func (pt *partition) publishWaitingAndWake() {
	if n, d := pt.publishWaiting(); n >= secondGroupBytes && n-d < secondGroupBytes {
		pt.e.clog.Wake()
	}
}

// publishWaiting adds the change of the inbox's size to e.waiting, in steps of at least reportBytes: to update a shared
// counter twice for every put costs more than the put itself. It returns the new sum and what was added, or two zeros
// if the change is still too small. mu is held.
func (pt *partition) publishWaiting() (sum, added int64) {
	d := pt.inbox.bytes - pt.reported
	if d < reportBytes && d > -reportBytes {
		return 0, 0
	}
	pt.reported = pt.inbox.bytes
	return pt.e.waiting.Add(d), d
}

// reportBytes bounds the error of e.waiting per partition.
const reportBytes = 16 << 10

// closeInbox closes the inbox to new puts, for good. Those that are in it stay.
func (pt *partition) closeInbox(err error) {
	pt.mu.Lock()
	if pt.closed == nil || pt.tombstonesOK { // also if it is closed, but reopenInbox could open it again
		pt.closed, pt.tombstonesOK = err, false
	}
	pt.signalRoom()
	pt.mu.Unlock()
}

// closeAndRefuse closes the inbox, unless it is closed, and answers the puts in it with err. With tombstonesOK,
// tombstones stay in the inbox and are still accepted, and reopenInbox may open the inbox again. Without it, the inbox
// stays closed for good.
func (pt *partition) closeAndRefuse(err error, tombstonesOK bool) {
	pt.mu.Lock()
	if pt.closed == nil {
		pt.closed, pt.tombstonesOK = err, tombstonesOK
	}
	pt.tombstonesOK = pt.tombstonesOK && tombstonesOK
	pt.refuse(err, func(p *Put) bool { return !tombstonesOK || p.kind != putTombstone })
}

// refuseMessages answers every put in the inbox with err, except the engine's own (putKind.internal).
func (pt *partition) refuseMessages(err error) {
	pt.mu.Lock()
	pt.refuse(err, func(p *Put) bool { return !p.kind.internal() })
}

// refuse answers the puts of the inbox that which selects with err. mu is held when it is called; refuse releases it.
func (pt *partition) refuse(err error, which func(*Put) bool) {
	refused := pt.inbox.takeIf(which)
	pt.publishLess()
	pt.mu.Unlock()
	refused.answer(err)
}

// reopenInbox opens an inbox that was closed because segments could not be written (flusher.failed). It is called
// without a lock, after the log was cut, replaced or repaired: the failure concerned the old files. If the new files
// cannot be written either, the next flush closes the inbox again. An inbox that was closed because the engine closes,
// or because the commit log failed, stays closed.
func (pt *partition) reopenInbox() {
	// This comes first: a flush of the old files may have failed, and be about to close the inbox. It compares reopens
	// before it does.
	pt.reopens.Add(1)
	pt.flushErr.Store(nil)
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if pt.tombstonesOK { // nothing but a failure to write segments closes an inbox like this
		pt.closed, pt.tombstonesOK = nil, false
	}
}

// expire sets the default deadline of the puts in the inbox, and refuses those whose deadline has passed: the committer
// may be stalled and drain no inbox. It says whether any put was waiting. The engine's watch goroutine calls it every
// 250 ms, without a lock.
func (pt *partition) expire(nowNs int64) bool {
	why := pt.rep.whyStalled()
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
