package inbox

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"penstock/batch"
	"penstock/internal/lock"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/internal/node/platform"
	"penstock/replicate"
	"penstock/segment"
)

// Put is one request to store messages, for callers that do not want a goroutine per request (protocol servers). The
// zero value with Messages and Done set is ready for use. After Done was called, the caller may use the Put again,
// which then costs no allocation.
type Put struct {
	// Messages are stored all or none, in order, with consecutive ids. The bytes and the slice are borrowed until Done
	// is called.
	Messages [][]byte

	First message.ID // result: the id of the first message; the others are consecutive
	// Err is the other result. nil: all messages are on stable storage. ErrUnknown, ErrDisk or ErrClosed: they may have
	// been stored, or may appear later. Any other error: nothing was stored, and the put can be repeated without making
	// duplicates.
	Err error

	// Done is called exactly once, after First and Err are set: from a goroutine of the engine or, with Alone, from
	// within Submit. Done must not block, because the engine may hold locks. Submit blocks while an inbox is full, so a
	// Done that wants to submit into an inbox that may be full must do so on another goroutine.
	Done func(*Put)

	state

	// Defer delays the delivery of all messages. 0: no delay.
	Defer time.Duration
	// Deadline is the time at which a put that still waits to be stored fails with ErrDeadline. Zero:
	// Options.PublishTimeout after Submit. A put on its way to another node fails with ErrUnknown a second later.
	Deadline time.Time
	// Headers are the messages' headers: nil, or one list (which may be empty) per message. They are borrowed like
	// Messages. A name has 1 to MaxHeaderNameBytes bytes and does not begin with ReservedHeaders. See MaxHeaderCount,
	// Options.MaxHeaderBytes and ErrHeaders.
	Headers [][]message.Header
	// Alone says that the caller does nothing but wait for the answer. An idle engine may then store the put on the
	// caller's goroutine, within Submit.
	Alone bool
	// NoWait makes Submit return ErrOverloaded at once if the inbox is full.
	NoWait bool
	// Lone is a result: no other put was answered together with this one.
	Lone bool
}

// Kind says what a put stores. It is set before the put enters an inbox, and never changes.
type Kind uint8

const (
	// Messages is one record for each of Put.Messages. Consecutive puts of this kind in an inbox share a batch; a put
	// of any other kind is a batch of its own. It is the zero value: callers of Submit make this kind.
	Messages Kind = iota
	// Sealed is a batch of messages that its producer has encoded. It is stored unchanged, except for what Stamp fills
	// in.
	Sealed
	// Numbered is messages of a producer that is known by its name, such as a client of NSQ's: they become a batch with
	// the producer's numbers.
	Numbered
	// Controls is a batch of control entries.
	Controls
	// Inspection stores nothing. It runs a function on the committer, which owns the fold.
	Inspection
	// Tombstone is a record of the commit log which says that this node's copies of the topic are deleted. It concerns
	// only this node's files, so it does not matter who leads. A closed inbox accepts it too: a damaged topic can be
	// deleted.
	Tombstone
)

// Internal says whether the engine itself made the put. An internal put needs no room in the inbox and is not
// forwarded. Neither a quota nor a full disk refuses it, because its entries let retention free space. It has no
// deadline unless its maker sets one.
func (k Kind) Internal() bool { return k >= Controls }

// state holds the fields of a Put that only the engine uses. The submitter writes them before the put enters an inbox
// or a lane of the forwarder. While the put is in such a list, the lock of that list guards them. The goroutine that
// takes the put out of the list (the committer, the replica, or the one that refuses the put) owns them from then on.
// The fields that the committer reads of every put are adjacent, because at half a million puts per second the
// committer spends its time on cache misses.
type state struct {
	next        *Put   // link of List
	Box         *Inbox // the inbox of the put's partition
	Bytes       int    // size of the records that the put becomes
	Seq         uint64 // position in the inbox, see Inbox.cancel; 0: it was never in an inbox
	DeadlineNs  int64  // by the engine's clock, ns since 1970; 0: none yet
	DeferMs     uint32
	gateIndex   int8 // with gate: its index in Inbox.gates
	Kind        Kind
	Waits       bool             // a goroutine waits for the answer in Waiter.Wait
	Headered    bool             // some of the messages have headers
	Trusted     bool             // header names need no check: the engine made them, or another node checked them
	Forwarded   bool             // its sender chose this node as the leader, and gets it back when this node does not lead
	NoExpiry    bool             // no client waits for the put: its batch does not expire, however long its fate takes
	answered    atomic.Bool      // with gate: First and Err are final. Set once, before the gate opens
	SentTo      replicate.NodeID // the node that it was forwarded to
	HeaderBytes uint32           // bytes that headers add to the records
	Order       uint64           // position in the forwarder's lane

	gate    chan struct{} // shared with other waiters, see gateCount; nil: Done reports the answer
	Special *Special      // set for every kind but Messages
}

// Special holds the fields that only puts of kinds other than Messages need.
type Special struct {
	// Sealed
	Sealed []byte         // the batch; borrowed like Put.Messages
	Owner  string         // who sends it: see OwnedName of package engine
	Payer  string         // the token or address that pays for what it costs: see Inflation
	Header segment.Header // decoded from Sealed; see also Numbered
	Bodies int            // total size of the message bodies

	// Numbered. The submitter sets BaseSequence of Header, the committer the other fields.
	Producer []byte // the name with its owner (internal/node/fold/owner.go); borrowed like Put.Messages
	Tenure   uint64 // under which the submitter holds the name; its epoch if it has none: see fold.Cursors.JudgeNamed

	// Repeat is a result of Sealed and Numbered: the batch was in the log already. First is the id that it had got there.
	Repeat bool

	// Controls
	Controls []fold.Control // sealing fills in what depends on the position in the log
	Revoked  *atomic.Bool   // nil, or once set, the controls are not stored: see Partition.NewControls
	Offset   segment.Offset // result: where the batch begins

	Inspect func() // Inspection: runs on the committer, with Replica.mu held

	Release func() // Tombstone, result: releases the commit log files from the record on

	OnCommit func() // Controls, Tombstone: see List.Committed; may be nil
}

// Count returns the number of messages that the put stores.
func (p *Put) Count() int {
	if p.Kind == Sealed {
		return int(p.Special.Header.Count)
	}
	return len(p.Messages)
}

// Waiter is a Put whose submitter waits for the answer. It fills whole cache lines, because adjacent waiters belong to
// other goroutines. NewWaiter takes one from a pool. The goroutine that waits owns the waiter, and frees it after the
// answer.
type Waiter struct {
	Put
	lists   *messageLists // filled by CarryAll; nil: it was not called
	answers chan struct{}
	_       [256 - 224]byte
}

var waiters = sync.Pool{New: func() any {
	w := &Waiter{answers: make(chan struct{}, 1)}
	w.Done = func(*Put) { w.answers <- struct{}{} }
	return w
}}

// NewWaiter returns a Waiter from the pool. The caller owns it until Free.
func NewWaiter() *Waiter { return waiters.Get().(*Waiter) }

// Free clears w and puts it back into the pool. Its owner calls it after the answer.
func (w *Waiter) Free() {
	w.Put = Put{Done: w.Done}
	if w.lists != nil {
		w.lists.free()
		w.lists = nil
	}
	waiters.Put(w)
}

// Receive waits for the answer with the host's Receive, and returns the put's error. Afterwards the caller frees the
// waiter.
func (w *Waiter) Receive(h platform.Host) error {
	h.Receive(w.answers)
	return w.Err
}

// Result waits until the put is committed or has failed, and then frees the waiter. The waiter is not freed by a defer:
// when a simulated process is killed, its tasks end inside Receive, and their deferred calls would free a put that is
// still in the inbox.
func (w *Waiter) Result(h platform.Host) error {
	err := w.Receive(h)
	w.Free()
	return err
}

// Wait returns the put's result. If ctx ends while the put is still in the inbox, Wait removes it and nothing is
// stored. Once the put is being written, its bytes are in use and the answer is at most a few commits away, so Wait
// ignores ctx.
func (w *Waiter) Wait(ctx context.Context) (message.ID, error) {
	gate := w.gate
	if gate == nil {
		gate = w.answers
	}
	for cancelled := ctx.Done(); gate != nil; {
		if cancelled == nil {
			<-gate
		} else {
			select {
			case <-gate:
			case <-cancelled:
				if w.Box.cancel(&w.Put) {
					return 0, ctx.Err()
				}
				cancelled = nil
				continue
			}
		}
		if w.gate == nil || w.answered.Load() {
			break
		}
		gate = w.Box.gateFor(&w.Put) // the gate opened for other puts
	}
	return w.First, w.Err
}

// Answer answers every put of the list and empties the list. A nil err says that the puts are committed, with the ids
// that sealing gave them; otherwise nothing was stored, or the outcome is unknown. Answer returns how many goroutines
// waited for these puts.
//
// The caller owns the list: it took the list under the lock of the previous owner, and has released that lock. Done may
// submit again, so the caller holds none of Inbox.mu, Forwarder.mu and Channel.mu. It may hold two locks: clog.Log.mu
// when a flush of the commit log completes the commit, and Replica.mu when the committer refuses puts while it seals.
// An answered put belongs to its submitter.
func (l *List) Answer(err error) (waiters int) {
	lone := l.head == l.tail
	var open gateRef // gate of the puts just answered; opened after the last of consecutive puts that share it
	for p := l.Pop(); p != nil; p = l.Pop() {
		if p.Err = err; err != nil {
			p.First = 0
		}
		if p.Waits {
			waiters++
		}
		if p.gate == nil {
			p.Lone = lone
			p.Done(p)
			continue
		}
		if g := (gateRef{p.Box, p.gateIndex}); g != open {
			open.open()
			open = g
		}
		p.answered.Store(true) // from here on the owner may reuse the put
	}
	open.open()
	return waiters
}

// Answer answers a put that is in no list.
func Answer(p *Put, err error) {
	var l List
	l.Push(p)
	l.Answer(err)
}

// Committed runs the OnCommit callback of an internal put when its batch is committed, before the put is answered. An
// internal put is the only put of its batch. The callbacks of one partition run in the order of its log, with
// Replica.mu held. The callback of a tombstone, which is in no partition's log, runs on the committer without
// Replica.mu.
func (l *List) Committed() {
	if p := l.head; p != nil && p.Kind.Internal() && p.Special.OnCommit != nil {
		p.Special.OnCommit()
	}
}

// AsyncPut is a Put of one message whose callback receives the id and the error.
type AsyncPut struct {
	Put
	one      [1][]byte
	headers  [1][]message.Header
	keyed    []message.Header // memory of the headers of a message with a key
	done     func(message.ID, error)
	free     *AsyncPuts
	nextFree *AsyncPut
}

// AsyncPuts is a free list of async puts. Producers take puts from it, and the committer gives them back. A sync.Pool
// would keep the puts at the committer's processor, and producers would have to steal at every call. mu guards head and
// n.
type AsyncPuts struct {
	mu   lock.Mutex[lock.AsyncFree]
	head *AsyncPut
	n    int

	Shared bool // set in a cluster, where onDone may run on any goroutine

	// On a single node: puts of the current group, collected for recycle. Only the committer accesses these.
	back     *AsyncPut
	backTail *AsyncPut
	backN    int
}

const maxFreeAsyncPuts = 1 << 16

// Get returns a put of one message, and the partition to which its key belongs in a topic with this many partitions, or
// AnyPartition. done is called with the answer. Get fails with ErrHeaders if m has both a Key and a key header.
// Everything in m is borrowed until done is called.
func (f *AsyncPuts) Get(
	m *message.Outgoing, partitions int, done func(message.ID, error),
) (a *AsyncPut, partition int, err error) {
	a = f.take()
	a.one[0], a.Defer, a.done = m.Body, m.Delay, done
	a.Messages = a.one[:]
	if len(m.Key) == 0 && len(m.Headers) == 0 {
		return a, AnyPartition, nil
	}
	headers, key, err := keyed(m, &a.keyed)
	if err != nil {
		a.Unused()
		return nil, AnyPartition, err
	}
	a.headers[0] = headers
	a.Headers = a.headers[:]
	if len(key) == 0 {
		return a, AnyPartition, nil
	}
	return a, batch.PartitionOf(key, partitions), nil
}

func (f *AsyncPuts) take() *AsyncPut {
	f.mu.Lock()
	a := f.head
	if a != nil {
		f.head, a.nextFree = a.nextFree, nil
		f.n--
	}
	f.mu.Unlock()
	if a == nil {
		a = &AsyncPut{free: f}
		a.Done = a.onDone
	}
	return a
}

func (a *AsyncPut) reset() {
	a.First, a.Err, a.Messages, a.Box = 0, nil, nil, nil
	a.one[0], a.done = nil, nil
	if a.Headers != nil {
		clear(a.keyed)
		a.Headers, a.headers[0], a.keyed = nil, nil, a.keyed[:0]
	}
}

// Unused gives back a put that was not submitted, or that Submit refused: done is not called.
func (a *AsyncPut) Unused() {
	a.reset()
	a.free.give(a)
}

// give adds a put to the free list, unless that is full.
func (f *AsyncPuts) give(a *AsyncPut) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n < maxFreeAsyncPuts {
		a.nextFree, f.head = f.head, a
		f.n++
	}
}

// onDone hands the answer to the caller's done and frees the put. On a single node it runs on the committer, or, for a
// refused put, on any goroutine with Err set. In a cluster it runs on any goroutine.
func (a *AsyncPut) onDone(*Put) {
	done, first, err := a.done, a.First, a.Err
	a.reset()
	if f := a.free; f.Shared {
		f.give(a)
	} else if err == nil {
		if f.back == nil {
			f.backTail = a
		}
		a.nextFree, f.back = f.back, a
		f.backN++
	}
	done(first, err)
}

// Recycle gives the puts of a group back to the free list. The committer calls it at the end of a group.
func (f *AsyncPuts) Recycle() {
	if f.back == nil {
		return
	}
	f.mu.Lock()
	if f.n+f.backN <= maxFreeAsyncPuts {
		f.backTail.nextFree, f.head = f.head, f.back
		f.n += f.backN
	}
	f.mu.Unlock()
	f.back, f.backTail, f.backN = nil, nil, 0
}
