package inbox

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"penstock/internal/lock"
	"penstock/internal/node/errs"
)

// Shared is what the inboxes of a node share: their limits, and the number of bytes that wait in all of them.
type Shared struct {
	bounds     atomic.Pointer[Bounds]
	overloaded *atomic.Uint64
	wake       func()
	waiting    atomic.Int64 // see publishWaiting
}

// Bounds are the limits of inboxes, from the Options of the same names.
type Bounds struct {
	MaxInboxBytes     int64 // that may wait in one inbox
	MaxNodeInboxBytes int64 // that may wait in all inboxes
	PublishTimeout    time.Duration
	AdmitTimeout      time.Duration // negative: no put waits for room
}

// Limit sets the bounds. It is called before any other method, and again when they change. Puts that wait then stay.
func (n *Shared) Limit(b Bounds) { n.bounds.Store(&b) }

// Bounds returns the bounds. They must not be changed.
func (n *Shared) Bounds() *Bounds { return n.bounds.Load() }

// Tell sets the counter of puts that were refused because too many bytes waited, and the function that wakes the commit
// log when the bytes that wait at the node reach SecondGroupBytes. It is called before any inbox is used.
func (n *Shared) Tell(overloaded *atomic.Uint64, wake func()) {
	n.overloaded, n.wake = overloaded, wake
}

// Waiting returns approximately how many bytes wait in all inboxes.
func (n *Shared) Waiting() int64 { return n.waiting.Load() }

// SecondGroupBytes is how many bytes must wait before the commit log writes a second group while the first one is still
// being written. With fewer bytes it is faster to wait: the second flush costs more than it saves, and it misses the
// puts that arrive just after it. With large groups, sealing one group overlaps with writing the other.
const SecondGroupBytes = GroupBytes / 2

// GroupBytes is the size of one buffer of the commit log.
const GroupBytes = 1 << 20

// Inbox holds the puts for a partition that the committer has not taken yet. Producers, the forwarder, the committer
// and the replica use it. mu guards every field except node, which Use sets once, and the atomics. mu is a leaf: its
// holder takes no other lock and does not block. A crash loses the puts in the inbox; none of them was answered.
type Inbox struct {
	node         *Shared
	Leading      atomic.Bool // puts may enter; written with mu and the lock of the one who decides it held
	Parked       atomic.Bool // puts wait in the forwarder; later puts queue behind those
	mu           lock.Mutex[lock.Partition]
	puts         List
	reported     int64                    // bytes of the inbox that Node.waiting already counts
	ready        bool                     // the committer will drain it: it is in the ready list, or being drained
	pipelined    bool                     // puts wait for earlier batches, whose commit wakes the committer: see stall
	closed       error                    // the error that new puts get; nil: the inbox is open
	tombstonesOK bool                     // with closed set: tombstones are accepted, and Reopen may open the inbox
	room         chan struct{}            // closed when puts leave the inbox; nil: nobody waits for room
	seq          uint64                   // Put.Seq of the newest put
	drainedSeq   uint64                   // puts up to this Seq have left the inbox; drainedSeq <= seq
	gates        [gateCount]chan struct{} // nil: nobody waits at this gate
	drainCount   uint                     // number of drains; it selects the gate that new puts use
}

// Use makes b an inbox of the node. It is called before any other method.
func (b *Inbox) Use(node *Shared) { b.node = node }

// accepts says whether p may enter the inbox. If it may not, the forwarder takes p. mu is held.
func (b *Inbox) accepts(p *Put) bool {
	switch {
	case p.Kind == Tombstone:
		return true
	case !b.Leading.Load():
		return false
	}
	return p.Kind.Internal() || !b.Parked.Load()
}

// ErrElsewhere says that the forwarder must take the put: this node does not lead the partition, or earlier puts wait
// in the forwarder.
var ErrElsewhere = errors.New("engine: the put goes to another node")

// Enter appends p to the inbox. If the inbox is full, Enter waits for room for at most Options.AdmitTimeout. first says
// that the caller must tell the committer (driver.Driver.Push). alone is a copy of p.Alone: once p is in the inbox, it
// may be answered before Enter returns. If Enter returns an error, p is not answered.
func (b *Inbox) Enter(ctx context.Context, p *Put) (first, alone bool, err error) {
	size := int64(p.Bytes)
	p.Box, p.gate = b, nil
	b.mu.Lock()
	if b.closed == nil && !p.Kind.Internal() && !b.admits(size) {
		if p.NoWait {
			err := b.overloaded(size)
			b.mu.Unlock()
			return false, false, err
		}
		if err := b.awaitRoom(ctx, size); err != nil {
			b.mu.Unlock()
			return false, false, err
		}
	}
	if !b.accepts(p) {
		b.mu.Unlock()
		return false, false, ErrElsewhere
	}
	if err := b.closed; err != nil && !(b.tombstonesOK && p.Kind == Tombstone) {
		b.mu.Unlock()
		return false, false, err
	}
	// The first put of an inbox waits on a channel of its own, not at a gate: with many partitions, most inboxes hold
	// only one put.
	if p.Waits && !b.puts.Empty() {
		p.gateIndex = int8(b.drainCount % gateCount)
		p.gate = b.gate(p.gateIndex)
	}
	b.append(p)
	first = !b.ready && (!b.pipelined || b.puts.bytes >= SecondGroupBytes)
	b.ready = b.ready || first
	alone = p.Alone // once mu is released, p may be answered and reused
	b.mu.Unlock()
	return first, alone, nil
}

// TryEnter is Enter for a put from the forwarder, which has set p.Box. TryEnter neither waits nor forwards. It does not
// tell the committer either: Forwarder.mu is held, and under it the caller's goroutine must not write. The caller calls
// Partition.Announce after it has released Forwarder.mu. A goroutine that waits for p keeps waiting on the same channel
// or gate.
func (b *Inbox) TryEnter(p *Put) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.Leading.Load():
		return errs.ErrNoLeader
	case b.closed != nil:
		return b.closed
	case !b.admits(int64(p.Bytes)):
		return b.overloaded(int64(p.Bytes))
	}
	b.append(p)
	return nil
}

// append appends p to the inbox. mu is held. Once mu is released, p may be answered and reused by its owner at any
// time: the caller must not access p after that.
func (b *Inbox) append(p *Put) {
	b.seq++
	p.Seq = b.seq
	b.puts.Push(p)
	b.publishWaitingAndWake()
}

// TakeForReroute empties the inbox after this node has lost the leadership. The caller forwards or refuses the puts. If
// this node leads again by now, the inbox keeps its puts and the list is empty.
func (b *Inbox) TakeForReroute() List {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Leading.Load() {
		return List{}
	}
	return b.drainLocked()
}

// admits says whether the inbox and the node have room for a put of size bytes. mu is held.
func (b *Inbox) admits(size int64) bool {
	// An empty inbox takes any put that is within the batch limit. Otherwise a large put could starve.
	bounds := b.node.bounds.Load()
	if b.puts.bytes != 0 && b.puts.bytes+size > bounds.MaxInboxBytes {
		return false
	}
	return b.node.waiting.Load()+size <= bounds.MaxNodeInboxBytes
}

// overloaded returns the error of a put of size bytes that the inbox does not admit. mu is held.
func (b *Inbox) overloaded(size int64) error {
	bounds := b.node.bounds.Load()
	over := &errs.LimitError{
		Err: errs.ErrOverloaded, What: "with this request the number of bytes that wait to be stored in the partition",
		Value: b.puts.bytes + size, Most: bounds.MaxInboxBytes, Setting: "max-inbox-bytes",
	}
	if b.puts.bytes == 0 || b.puts.bytes+size <= bounds.MaxInboxBytes {
		over.What = "with this request the number of bytes that wait to be stored on the node"
		over.Most, over.Setting = bounds.MaxNodeInboxBytes, "max-node-inbox-bytes"
		// What waits for other partitions may have become less since the put was refused.
		over.Value = max(b.node.waiting.Load()+size, bounds.MaxNodeInboxBytes+1)
	}
	return over
}

// awaitRoom waits until the inbox has room for a put of size bytes, or is closed. mu is held when awaitRoom is called
// and when it returns, but not while it waits.
func (b *Inbox) awaitRoom(ctx context.Context, size int64) error {
	patience := b.node.bounds.Load().AdmitTimeout
	if patience < 0 {
		return b.overloaded(size)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	poll := time.NewTicker(5 * time.Millisecond) // room at the node may come from another inbox
	defer poll.Stop()
	for late := false; b.closed == nil && !b.admits(size); {
		if late {
			b.node.overloaded.Add(1)
			return b.overloaded(size)
		}
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
			late = true
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
func (b *Inbox) signalRoom() {
	if b.room != nil {
		close(b.room)
		b.room = nil
	}
}

// A gate is a channel on which many goroutines wait for the answers to their puts of one inbox. Closing one channel
// costs several times less per goroutine than sending on a channel of each. Successive drains of an inbox use different
// gates, so the puts of one group rarely share a gate with those of the next group or with those still in the inbox. If
// they do share a gate, some goroutines wake too early and wait again.
//
//	goroutine that answers (List.Answer)         goroutine that waits (Waiter.Wait)
//	1 sets First and Err
//	2 sets answered
//	                                                3 was woken by an earlier close, sees answered: returns
//	4 takes the gate out of gates, closes it
//	                                                5 is woken by this close, sees answered: returns
//	                                                6 or looks between 1 and 2: gateFor returns the gate that 4 closes
const gateCount = 4

// gate returns the channel that the next gateRef.open closes. mu is held.
func (b *Inbox) gate(i int8) chan struct{} {
	if b.gates[i] == nil {
		b.gates[i] = make(chan struct{})
	}
	return b.gates[i]
}

// gateFor returns the channel on which the owner of p must wait next, or nil if p was answered.
func (b *Inbox) gateFor(p *Put) chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.answered.Load() {
		return nil
	}
	return b.gate(p.gateIndex)
}

// gateRef names a gate of an inbox. The zero value names none.
type gateRef struct {
	box   *Inbox
	index int8
}

// open wakes all goroutines that wait at the gate. The caller has marked the puts that it answered; the owners of the
// others wait again at the next gate (gateFor). The caller does not hold mu of the inbox.
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

// Drain takes the whole inbox in one step, so that producers do not wait while the committer examines each put. If the
// inbox is empty, Drain clears ready, and the next put tells the committer again. Only the committer calls it.
func (b *Inbox) Drain() List {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pipelined = false
	if b.puts.Empty() {
		b.ready = false
		return List{}
	}
	b.drainCount++
	return b.drainLocked()
}

// drainLocked empties the inbox. From then on, cancel fails for the puts that were in it. mu is held.
func (b *Inbox) drainLocked() List {
	l := b.puts.Take()
	b.drainedSeq = b.seq
	b.publishLess()
	return l
}

// Prepend puts back the puts that did not fit into the group, in front of those that arrived meanwhile. l is not empty.
// Only the committer calls it.
func (b *Inbox) Prepend(l List) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drainedSeq = l.head.Seq - 1
	b.puts.Prepend(l)
	// Do not wake the commit log: its committer is the caller, and would find as little room as before, in a loop.
	b.publishWaiting()
}

// PrependAndStayReady is Prepend for a list that may be empty. The inbox stays marked as ready, because the committer
// will look at it again without being told.
func (b *Inbox) PrependAndStayReady(l List) {
	if l.Empty() {
		b.StayReady()
		return
	}
	b.Prepend(l)
}

// Stall puts back a list that must not be appended now. Afterwards the committer is told again by the next put, and by
// the replica when its state changes. With piped, only the replica tells it, and the put that brings the inbox to
// SecondGroupBytes; any other put would wake the committer for nothing.
func (b *Inbox) Stall(l List, piped bool) {
	b.Prepend(l)
	b.mu.Lock()
	b.ready, b.pipelined = false, piped
	b.mu.Unlock()
}

// StayReady marks the inbox as one that the committer looks at without being told. first says that it was not marked
// before.
func (b *Inbox) StayReady() (first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first = !b.ready
	b.ready = true
	return first
}

// SetLeads says whether this node leads the partition: on opens the inbox to puts; otherwise puts go to the forwarder.
func (b *Inbox) SetLeads(on bool) {
	b.mu.Lock()
	b.pipelined = false // the batches that puts waited for belonged to the last leadership
	b.Leading.Store(on)
	b.mu.Unlock()
}

// cancel removes p if p is still in the inbox, and says whether it did. A cancelled put is not answered.
func (b *Inbox) cancel(p *Put) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.Seq <= b.drainedSeq || !b.puts.remove(p) {
		return false // p is being written, or was refused: its answer comes
	}
	b.publishLess()
	return true
}

// publishLess must be called after puts were taken out of the inbox. mu is held.
func (b *Inbox) publishLess() {
	b.publishWaitingAndWake()
	b.signalRoom()
}

// publishWaitingAndWake calls publishWaiting, and wakes the commit log when the waiting bytes begin to justify a second
// group in flight. mu is held.
func (b *Inbox) publishWaitingAndWake() {
	if n, d := b.publishWaiting(); n >= SecondGroupBytes && n-d < SecondGroupBytes {
		b.node.wake()
	}
}

// publishWaiting adds the change of the inbox's size to Node.waiting, in steps of at least reportBytes: updating a
// shared counter twice for every put costs more than the put itself. An empty inbox leaves nothing in the sum: there
// may be many, and their partition may be gone. publishWaiting returns the new sum and what it added, or two zeros if
// it added nothing. mu is held.
func (b *Inbox) publishWaiting() (sum, added int64) {
	d := b.puts.bytes - b.reported
	if d == 0 || d < reportBytes && d > -reportBytes && b.puts.bytes > 0 {
		return 0, 0
	}
	b.reported = b.puts.bytes
	return b.node.waiting.Add(d), d
}

// reportBytes bounds how far Node.waiting may be wrong for each inbox that holds puts.
const reportBytes = 16 << 10

// WhyClosed returns the error that new puts get, or nil if the inbox is open. Only tests, of this package and of those
// that close inboxes, read it.
func (b *Inbox) WhyClosed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// CloseToNew closes the inbox to new puts, for good. Puts that are in the inbox stay there.
func (b *Inbox) CloseToNew(err error) {
	b.mu.Lock()
	if b.closed == nil || b.tombstonesOK { // also if it is closed, but Reopen could open it again
		b.closed, b.tombstonesOK = err, false
	}
	b.signalRoom()
	b.mu.Unlock()
}

// CloseAndRefuse closes the inbox, unless it is closed already, and answers the puts in it with err. With tombstonesOK,
// tombstones stay in the inbox and are still accepted, and Reopen may open the inbox again. Without tombstonesOK, the
// inbox stays closed for good.
func (b *Inbox) CloseAndRefuse(err error, tombstonesOK bool) {
	b.mu.Lock()
	if b.closed == nil {
		b.closed, b.tombstonesOK = err, tombstonesOK
	}
	b.tombstonesOK = b.tombstonesOK && tombstonesOK
	b.refuse(err, func(p *Put) bool { return !tombstonesOK || p.Kind != Tombstone })
}

// RefuseMessages answers every put in the inbox with err, except the engine's own (Kind.Internal).
func (b *Inbox) RefuseMessages(err error) {
	b.mu.Lock()
	b.refuse(err, func(p *Put) bool { return !p.Kind.Internal() })
}

// refuse answers the puts of the inbox that which selects with err. mu is held when it is called; refuse releases it.
func (b *Inbox) refuse(err error, which func(*Put) bool) {
	if err == nil {
		panic("BUG: puts are refused without a reason, which would answer them OK")
	}
	refused := b.puts.TakeIf(which)
	b.publishLess()
	b.mu.Unlock()
	refused.Answer(err)
}

// Reopen opens an inbox that was closed with tombstonesOK.
func (b *Inbox) Reopen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tombstonesOK { // only a failure to write segments closes an inbox in this way
		b.closed, b.tombstonesOK = nil, false
	}
}

// Expire sets the default deadline of the puts in the inbox, and removes and returns those whose deadline has passed.
// It is needed because a stalled committer drains no inbox. waiting says whether the inbox held any put.
func (b *Inbox) Expire(nowNs int64) (late List, waiting bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	waiting = !b.puts.Empty()
	late = b.puts.TakeIf(func(p *Put) bool {
		if p.DeadlineNs == 0 && !p.Kind.Internal() {
			p.DeadlineNs = nowNs + int64(b.node.bounds.Load().PublishTimeout)
		}
		return p.DeadlineNs != 0 && nowNs > p.DeadlineNs
	})
	if !late.Empty() {
		b.publishLess()
	}
	return late, waiting
}
