package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"penstock/internal/lock"
)

// inboxes is what the inboxes of a node share: their limits, and how many bytes wait in all of them.
type inboxes struct {
	maxInboxBytes     int64 // that may wait in one inbox
	maxNodeInboxBytes int64 // that may wait in all
	publishTimeout    time.Duration
	admitTimeout      time.Duration
	overloaded        *atomic.Uint64
	wake              func()
	waiting           atomic.Int64 // see publishWaiting
}

// limit sets the limits, from the Options with these names. It is called before anything else.
func (n *inboxes) limit(maxInboxBytes, maxNodeInboxBytes int64, publishTimeout, admitTimeout time.Duration) {
	n.maxInboxBytes, n.maxNodeInboxBytes = maxInboxBytes, maxNodeInboxBytes
	n.publishTimeout, n.admitTimeout = publishTimeout, admitTimeout
}

// tell sets what counts the puts that were refused because too many bytes waited, and what wakes the commit log when an
// inbox has grown to secondGroupBytes. It is called before anything else.
func (n *inboxes) tell(overloaded *atomic.Uint64, wake func()) {
	n.overloaded, n.wake = overloaded, wake
}

// bytes is approximately how many bytes wait in all inboxes.
func (n *inboxes) bytes() int64 { return n.waiting.Load() }

// secondGroupBytes is how many bytes must wait before a second group of the commit log joins the one on the disk. With
// fewer bytes it is faster to wait: the second flush costs more than it saves, and it misses puts that come just after
// it. With large groups, sealing one overlaps with writing the other.
const secondGroupBytes = groupBytes / 2

// groupBytes is the size of one buffer of the commit log.
const groupBytes = 1 << 20

// inbox has the puts for a partition that the committer has not taken yet. Producers, the forwarder, the committer and
// the replica use it. mu guards all but the atomics. It is a leaf: its holder takes no other lock and does not wait. A
// crash loses the puts, which were not answered.
type inbox struct {
	node         *inboxes
	leads        atomic.Bool // puts may enter; written with mu held, and with the lock of who decides it
	parked       atomic.Bool // puts wait in the forwarder; later puts queue behind them
	mu           lock.Mutex[lock.Partition]
	puts         putList
	reported     int64                    // bytes of the inbox that node.waiting already counts
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

// use makes b an inbox of the node. It is called before anything else.
func (b *inbox) use(node *inboxes) { b.node = node }

// accepts says whether p may enter the inbox. If not, the forwarder takes p. mu is held.
func (b *inbox) accepts(p *Put) bool {
	switch {
	case p.kind == putTombstone:
		return true
	case !b.leads.Load():
		return false
	}
	return p.kind.internal() || !b.parked.Load()
}

// errNotHere says that the forwarder takes the put: this node does not lead, or earlier puts wait in the forwarder.
var errNotHere = errors.New("engine: the put goes to another node")

// enter appends p to the inbox. It waits while the inbox is full, at most Options.AdmitTimeout. first says that the
// committer must be told (committer.push); alone is p.Alone then. If enter returns an error, p is not answered.
// Otherwise it may be answered before enter returns.
func (b *inbox) enter(ctx context.Context, p *Put) (first, alone bool, err error) {
	size := int64(p.bytes)
	p.box, p.gate = b, nil
	b.mu.Lock()
	if b.closed == nil && !p.kind.internal() && !b.admits(size) {
		if err := b.awaitRoom(ctx, size); err != nil {
			b.mu.Unlock()
			return false, false, err
		}
	}
	if !b.accepts(p) {
		b.mu.Unlock()
		return false, false, errNotHere
	}
	if err := b.closed; err != nil && !(b.tombstonesOK && p.kind == putTombstone) {
		b.mu.Unlock()
		return false, false, err
	}
	// The first put of an inbox waits on a channel of its own, not at a gate: with many partitions most inboxes hold one
	// put.
	if p.waits && !b.puts.empty() {
		p.gateIndex = int8(b.drainCount % gateCount)
		p.gate = b.gate(p.gateIndex)
	}
	b.append(p)
	first = !b.ready && (!b.pipelined || b.puts.bytes >= secondGroupBytes)
	b.ready = b.ready || first
	alone = p.Alone // once mu is released, p may be answered and reused
	b.mu.Unlock()
	return first, alone, nil
}

// tryEnqueue is enter for a put from the forwarder, which has set p.box. It neither waits nor forwards. It does not
// tell the committer either: forwarder.mu is held, and nothing may be written on the caller's goroutine under it. The
// caller calls announce after it has released forwarder.mu. A goroutine that waits for p keeps waiting on the same
// channel or gate.
func (b *inbox) tryEnqueue(p *Put) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.leads.Load():
		return ErrNoLeader
	case b.closed != nil:
		return b.closed
	case !b.admits(int64(p.bytes)):
		return ErrOverloaded
	}
	b.append(p)
	return nil
}

// append appends p to the inbox. mu is held. Once mu is released, p may be answered and reused by its owner at any
// time: the caller must not access p after that.
func (b *inbox) append(p *Put) {
	b.seq++
	p.seq = b.seq
	b.puts.push(p)
	b.publishWaitingAndWake()
}

// drainForReroute empties the inbox after this node has lost the leadership. The caller forwards or refuses the puts.
// The list is empty if the node leads again.
func (b *inbox) drainForReroute() putList {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.leads.Load() { // it leads again
		return putList{}
	}
	return b.drainLocked()
}

// admits says whether the inbox and the node have room for a put of size bytes. mu is held.
func (b *inbox) admits(size int64) bool {
	// An empty inbox takes any put that passed the batch limit, or a large one could starve.
	if b.puts.bytes != 0 && b.puts.bytes+size > b.node.maxInboxBytes {
		return false
	}
	return b.node.waiting.Load()+size <= b.node.maxNodeInboxBytes
}

// awaitRoom waits until the inbox has room for a put, or is closed. mu is held when it is called and when it returns;
// awaitRoom releases it while it waits.
func (b *inbox) awaitRoom(ctx context.Context, size int64) error {
	if b.node.admitTimeout < 0 {
		return ErrOverloaded
	}
	timer := time.NewTimer(b.node.admitTimeout)
	defer timer.Stop()
	poll := time.NewTicker(5 * time.Millisecond) // room at the node may come from another partition
	defer poll.Stop()
	for b.closed == nil && !b.admits(size) {
		if b.room == nil {
			b.room = make(chan struct{})
		}
		room := b.room
		b.mu.Unlock()
		var err error
		select {
		case <-room:
		case <-poll.C:
		case <-timer.C:
			err = ErrOverloaded
			b.node.overloaded.Add(1)
		case <-ctx.Done():
			err = ctx.Err()
		}
		b.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

// signalRoom wakes the goroutines that wait for room in the inbox. mu is held.
func (b *inbox) signalRoom() {
	if b.room != nil {
		close(b.room)
		b.room = nil
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
func (b *inbox) gate(i int8) chan struct{} {
	if b.gates[i] == nil {
		b.gates[i] = make(chan struct{})
	}
	return b.gates[i]
}

// gateFor returns the channel on which the owner of p must wait again, or nil if p was answered.
func (b *inbox) gateFor(p *Put) chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.answered.Load() {
		return nil
	}
	return b.gate(p.gateIndex)
}

// gateRef names a gate of an inbox; the zero value names none.
type gateRef struct {
	box   *inbox
	index int8
}

// open wakes all goroutines that wait at the gate. The caller has marked the puts that it answered; the owners of the
// others wait again at the next gate (gateFor). The caller does not hold the inbox's mu.
func (g gateRef) open() {
	if g.box == nil {
		return
	}
	g.box.mu.Lock()
	ch := g.box.gates[g.index]
	g.box.gates[g.index] = nil
	g.box.mu.Unlock()
	if ch != nil {
		close(ch)
	}
}

// drain takes the whole inbox in one step, so that producers do not wait while the committer examines each put. If the
// inbox is empty, drain clears ready, and the next put tells the committer again. Only the committer calls it.
func (b *inbox) drain() putList {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pipelined = false
	if b.puts.empty() {
		b.ready = false
		return putList{}
	}
	b.drainCount++
	return b.drainLocked()
}

// drainLocked empties the inbox; from then on cancel fails for its puts. mu is held.
func (b *inbox) drainLocked() putList {
	l := b.puts.take()
	b.drainedSeq = b.seq
	b.publishLess()
	return l
}

// prepend puts back the puts that did not fit into the group, in front of those that arrived since. l is not empty.
// Only the committer calls it.
func (b *inbox) prepend(l putList) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drainedSeq = l.head.seq - 1
	b.puts.prepend(l)
	// Do not wake the commit log: the committer is the caller, and would find as little room as before, again and again.
	b.publishWaiting()
}

// prependAndStayReady is prepend for a list that may be empty. The inbox stays marked as ready, because the committer
// will look at it again without being told.
func (b *inbox) prependAndStayReady(l putList) {
	if l.empty() {
		b.stayReady()
		return
	}
	b.prepend(l)
}

// stall puts back a list that may not be appended now. Afterwards the next put calls push again, and so does the
// replica when its state changes. With piped, only the replica does, and the put that brings the inbox to
// secondGroupBytes; any other put would wake the committer for nothing.
func (b *inbox) stall(l putList, piped bool) {
	b.prepend(l)
	b.mu.Lock()
	b.ready, b.pipelined = false, piped
	b.mu.Unlock()
}

// stayReady marks the inbox as one that the committer looks at without being told. It says whether it was not.
func (b *inbox) stayReady() (first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first = !b.ready
	b.ready = true
	return first
}

// setLeads opens the inbox to puts, or sends them to the forwarder.
func (b *inbox) setLeads(on bool) {
	b.mu.Lock()
	b.pipelined = false // the batches that it counted belonged to the last leadership
	b.leads.Store(on)
	b.mu.Unlock()
}

// cancel removes p if it is still in the inbox, and says whether it did. A cancelled put is not answered.
func (b *inbox) cancel(p *Put) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.seq <= b.drainedSeq || !b.puts.remove(p) {
		return false // it is being written or was refused: the answer comes
	}
	b.publishLess()
	return true
}

// publishLess must be called after puts were taken out of the inbox. mu is held.
func (b *inbox) publishLess() {
	b.publishWaitingAndWake()
	b.signalRoom()
}

// publishWaitingAndWake does publishWaiting, and wakes the commit log when the waiting bytes begin to justify a second
// group in flight. mu is held.
func (b *inbox) publishWaitingAndWake() {
	if n, d := b.publishWaiting(); n >= secondGroupBytes && n-d < secondGroupBytes {
		b.node.wake()
	}
}

// publishWaiting adds the change of the inbox's size to node.waiting, in steps of at least reportBytes: to update a shared
// counter twice for every put costs more than the put itself. It returns the new sum and what was added, or two zeros
// if the change is still too small. mu is held.
func (b *inbox) publishWaiting() (sum, added int64) {
	d := b.puts.bytes - b.reported
	if d < reportBytes && d > -reportBytes {
		return 0, 0
	}
	b.reported = b.puts.bytes
	return b.node.waiting.Add(d), d
}

// reportBytes bounds the error of node.waiting per inbox.
const reportBytes = 16 << 10

// whyClosed is the error that new puts get; nil: the inbox is open.
func (b *inbox) whyClosed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// closeInbox closes the inbox to new puts, for good. Those that are in it stay.
func (b *inbox) closeInbox(err error) {
	b.mu.Lock()
	if b.closed == nil || b.tombstonesOK { // also if it is closed, but reopenInbox could open it again
		b.closed, b.tombstonesOK = err, false
	}
	b.signalRoom()
	b.mu.Unlock()
}

// closeAndRefuse closes the inbox, unless it is closed, and answers the puts in it with err. With tombstonesOK,
// tombstones stay in the inbox and are still accepted, and reopen may open the inbox again. Without it, the inbox
// stays closed for good.
func (b *inbox) closeAndRefuse(err error, tombstonesOK bool) {
	b.mu.Lock()
	if b.closed == nil {
		b.closed, b.tombstonesOK = err, tombstonesOK
	}
	b.tombstonesOK = b.tombstonesOK && tombstonesOK
	b.refuse(err, func(p *Put) bool { return !tombstonesOK || p.kind != putTombstone })
}

// refuseMessages answers every put in the inbox with err, except the engine's own (putKind.internal).
func (b *inbox) refuseMessages(err error) {
	b.mu.Lock()
	b.refuse(err, func(p *Put) bool { return !p.kind.internal() })
}

// refuse answers the puts of the inbox that which selects with err. mu is held when it is called; refuse releases it.
func (b *inbox) refuse(err error, which func(*Put) bool) {
	refused := b.puts.takeIf(which)
	b.publishLess()
	b.mu.Unlock()
	refused.answer(err)
}

// reopen opens an inbox that was closed with tombstonesOK.
func (b *inbox) reopen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tombstonesOK { // nothing but a failure to write segments closes an inbox like this
		b.closed, b.tombstonesOK = nil, false
	}
}

// expire sets the default deadline of the puts in the inbox, and removes and returns those whose deadline has passed:
// the committer may be stalled and drain no inbox. waiting says whether any put was there.
func (b *inbox) expire(nowNs int64) (late putList, waiting bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	waiting = !b.puts.empty()
	late = b.puts.takeIf(func(p *Put) bool {
		if p.deadline == 0 && !p.kind.internal() {
			p.deadline = nowNs + int64(b.node.publishTimeout)
		}
		return p.deadline != 0 && nowNs > p.deadline
	})
	if !late.empty() {
		b.publishLess()
	}
	return late, waiting
}
