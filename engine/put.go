package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"penstock/engine/core"
	"penstock/internal/lock"
	"penstock/replicate"
	"penstock/segment"
)

// putKind says what a put stores. It is set before the put enters an inbox, and never changes.
type putKind uint8

const (
	// putMessages is one record for each of Put.Messages. Consecutive puts of this kind in an inbox share a batch; a put
	// of any other kind is a batch of its own. It is the zero value: callers of Submit make this kind.
	putMessages putKind = iota
	// putSealed is a batch of messages that its producer has encoded. It is stored unchanged, except for what Stamp fills
	// in.
	putSealed
	// putControls is a batch of control entries.
	putControls
	// putInspection stores nothing. It runs a function on the committer, which owns the fold.
	putInspection
	// putTombstone is a record of the commit log which says that this node's copies of the topic are deleted. It concerns
	// only this node's files, so it does not matter who leads. A closed inbox accepts it too: a damaged topic can be
	// deleted.
	putTombstone
)

// internal says that the engine itself made the put. Such a put needs no room in the inbox and is not forwarded.
// Neither a quota nor a full disk refuses it, because what it stores lets retention free space. It has no deadline
// unless its maker sets one.
func (k putKind) internal() bool { return k >= putControls }

// putState holds the fields of a Put that only the engine uses. The submitter writes them before the put enters an
// inbox or a lane of the forwarder. While the put is in one of these lists, the lock of that list guards them. The
// goroutine that takes the put out of the list owns them from then on: the committer, the replica, or whoever refuses
// the put. The fields that the committer reads of every put are adjacent: at half a million puts per second its time
// goes into cache misses.
type putState struct {
	next        *Put // link of putList
	part        *partition
	bytes       int    // size of the records that the put becomes
	seq         uint64 // position in the inbox, see partition.cancel; 0: it was never in an inbox
	deadline    int64  // by the engine's clock, ns since 1970; 0: none yet
	deferMs     uint32
	gateIndex   int8 // with gate: its index in partition.gates
	kind        putKind
	waits       bool             // a goroutine waits for the answer in waiter.wait
	headered    bool             // some of the messages have headers
	trusted     bool             // names of headers need no check: they are the engine's, or another node checked them
	forwarded   bool             // it came from another node, and goes back there when this node no longer leads
	noExpiry    bool             // no request waits: it learns the fate of its batch, however long that takes
	answered    atomic.Bool      // with gate: First and Err are final. Set once, before the gate opens
	to          replicate.NodeID // the node that it was forwarded to
	headerBytes uint32           // bytes that headers add to the records
	order       uint64           // position in the forwarder's lane

	gate    chan struct{} // shared with other waiters, see gateCount; nil: Done reports the answer
	special *specialPut   // set for every kind but putMessages
}

// specialPut has the further fields of puts that are not putMessages.
type specialPut struct {
	// putSealed
	sealed []byte         // the batch; borrowed like Put.Messages
	header segment.Header // decoded from it
	bodies int            // total size of the message bodies

	// putControls
	controls []core.Control // sealing fills in what depends on the position in the log
	revoked  *atomic.Bool   // once it is set the controls are not stored, see NewControls; nil: never
	offset   segment.Offset // result: where the batch begins

	inspect func() // putInspection: runs on the committer

	release func() // putTombstone, result: ends the hold on the commit log files from the record on

	onCommit func() // putControls, putTombstone: see putList.committed; may be nil
}

// count returns the number of messages that the put stores.
func (p *Put) count() int {
	if p.kind == putSealed {
		return int(p.special.header.Count)
	}
	return len(p.Messages)
}

// waiter is a Put whose submitter waits for the answer. It fills whole cache lines, because adjacent waiters belong to
// other goroutines. getWaiter takes one from a pool; the goroutine that waits owns it, and frees it after the answer.
type waiter struct {
	Put
	one  [1][]byte
	done chan struct{}
	_    [256 - 240]byte
}

var waiters = sync.Pool{New: func() any {
	w := &waiter{done: make(chan struct{}, 1)}
	w.Done = func(*Put) { w.done <- struct{}{} }
	return w
}}

func getWaiter() *waiter { return waiters.Get().(*waiter) }

func (w *waiter) free() {
	w.Put = Put{Done: w.Done}
	w.one[0] = nil
	waiters.Put(w)
}

// wait returns the put's result. If ctx ends while the put is still in the inbox, wait removes it and nothing is
// stored. Once the put is being written, its bytes are in use and the answer is at most a few commits away, so wait
// ignores ctx.
func (w *waiter) wait(ctx context.Context) (ID, error) {
	gate := w.gate
	if gate == nil {
		gate = w.done
	}
	for cancelled := ctx.Done(); gate != nil; {
		if cancelled == nil {
			<-gate
		} else {
			select {
			case <-gate:
			case <-cancelled:
				if w.part.cancel(&w.Put) {
					return 0, ctx.Err()
				}
				cancelled = nil
				continue
			}
		}
		if w.gate == nil || w.answered.Load() {
			break
		}
		gate = w.part.gateFor(&w.Put) // the gate opened for other puts
	}
	return w.First, w.Err
}

// answer answers every put of the list and empties the list. A nil err says that the puts are committed, with the ids
// that sealing gave them; otherwise nothing was stored, or the outcome is unknown. answer returns how many goroutines
// wait for these puts.
//
// The caller owns the list: it took the list under the lock of the previous owner, and has released that lock. Done may
// submit again, so the caller holds none of partition.mu, forwarder.mu and Channel.mu. It may hold two locks:
// clog.Log.mu on a single node, and replica.mu when the committer refuses puts while it seals. An answered put belongs
// to its submitter.
func (l *putList) answer(err error) (waiters int) {
	var open gateRef // of consecutive puts with the same gate, opened behind the last of them
	for p := l.pop(); p != nil; p = l.pop() {
		if p.Err = err; err != nil {
			p.First = 0
		}
		if p.waits {
			waiters++
		}
		if p.gate == nil {
			p.Done(p)
			continue
		}
		if g := (gateRef{p.part, p.gateIndex}); g != open {
			open.open()
			open = g
		}
		p.answered.Store(true) // from here on the owner may reuse the put
	}
	open.open()
	return waiters
}

// answer answers a put that is in no list.
func (p *Put) answer(err error) {
	var l putList
	l.push(p)
	l.answer(err)
}

// committed runs the onCommit callback of an internal put when its batch is committed, before the put is answered. Such
// a put is the only one of its batch. The callbacks of one partition run in the order of its log: with replica.mu held
// in a cluster, on the committer on a single node.
func (l *putList) committed() {
	if p := l.head; p != nil && p.kind.internal() && p.special.onCommit != nil {
		p.special.onCommit()
	}
}

// Publish stores one message and returns when it is on stable storage. It borrows body until then. An error that is
// neither ErrDisk nor ErrClosed means that nothing was stored.
func (t *Topic) Publish(ctx context.Context, body []byte) (ID, error) {
	return t.publish(ctx, body, nil, 0)
}

// PublishDeferred is Publish for a message whose first delivery waits for delay.
func (t *Topic) PublishDeferred(ctx context.Context, body []byte, delay time.Duration) (ID, error) {
	return t.publish(ctx, body, nil, delay)
}

// PublishBatch stores all messages or none, in order and with consecutive ids in one partition, and returns the first
// id. It borrows the bodies until it returns.
func (t *Topic) PublishBatch(ctx context.Context, bodies [][]byte) (ID, error) {
	return t.publish(ctx, nil, bodies, 0)
}

func (t *Topic) publish(ctx context.Context, body []byte, bodies [][]byte, delay time.Duration) (ID, error) {
	w := getWaiter()
	defer w.free()
	if bodies == nil {
		w.one[0] = body
		bodies = w.one[:]
	}
	w.Messages, w.Defer, w.Alone, w.waits = bodies, delay, true, true
	if err := t.submit(ctx, &w.Put, nil); err != nil {
		return 0, err
	}
	return w.wait(ctx)
}

// PublishSealed stores a batch that segment.Builder sealed, without encoding its records again. It borrows the batch
// until it returns.
func (t *Topic) PublishSealed(ctx context.Context, batch []byte) (ID, error) {
	w := getWaiter()
	defer w.free()
	w.kind, w.special, w.Alone, w.waits = putSealed, &specialPut{sealed: batch}, true, true
	if err := t.submit(ctx, &w.Put, nil); err != nil {
		return 0, err
	}
	return w.wait(ctx)
}

// asyncPut is a Put whose callback gets the id and the error.
type asyncPut struct {
	Put
	one      [1][]byte
	done     func(ID, error)
	free     *asyncFree
	nextFree *asyncPut
}

// asyncFree is the free list of async puts. Producers take from it and the committer gives back. A sync.Pool would keep
// the puts at the committer's processor, and producers would have to steal at every call. mu guards head and n.
type asyncFree struct {
	mu   lock.Mutex[lock.AsyncFree]
	head *asyncPut
	n    int

	shared bool // in a cluster, where any goroutine may run onDone

	// On a single node: puts of the current group, collected for recycle. Only the committer accesses these.
	back     *asyncPut
	backTail *asyncPut
	backN    int
}

const maxFreeAsyncPuts = 1 << 16

func (f *asyncFree) get() *asyncPut {
	f.mu.Lock()
	a := f.head
	if a != nil {
		f.head, a.nextFree = a.nextFree, nil
		f.n--
	}
	f.mu.Unlock()
	if a == nil {
		a = &asyncPut{free: f}
		a.Done = a.onDone
	}
	return a
}

func (a *asyncPut) reset() {
	a.First, a.Err, a.Messages, a.part = 0, nil, nil, nil
	a.one[0], a.done = nil, nil
}

// onDone runs on the committer on a single node; for a refused put, on any goroutine and with Err set. In a cluster it
// runs on any goroutine.
func (a *asyncPut) onDone(*Put) {
	done, first, err := a.done, a.First, a.Err
	a.reset()
	if f := a.free; f.shared {
		f.mu.Lock()
		if f.n < maxFreeAsyncPuts {
			a.nextFree, f.head = f.head, a
			f.n++
		}
		f.mu.Unlock()
	} else if err == nil {
		if f.back == nil {
			f.backTail = a
		}
		a.nextFree, f.back = f.back, a
		f.backN++
	}
	done(first, err)
}

// recycle gives the puts of a group back to the free list. The committer calls it at the end of a group.
func (f *asyncFree) recycle() {
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

// PublishAsync submits one message, and calls done exactly once: when the message is on stable storage, or was refused.
// It borrows body until then. done may run on the committer and must not block: it may send on a buffered channel,
// count, or hand over. PublishAsync blocks only while the inbox is full, at most Options.AdmitTimeout. If it returns an
// error, done is not called.
func (t *Topic) PublishAsync(body []byte, done func(ID, error)) error {
	a := t.e.asyncFree.get()
	a.one[0], a.done = body, done
	a.Messages = a.one[:]
	if err := t.submit(context.Background(), &a.Put, nil); err != nil {
		return err
	}
	return nil
}

// Submit submits a Put. It blocks only while the inbox is full, at most Options.AdmitTimeout, and then returns
// ErrOverloaded. If it returns an error, nothing was stored and Done is not called.
func (t *Topic) Submit(p *Put) error { return t.submit(context.Background(), p, nil) }

// submit measures p and puts it into the inbox of pt; nil: of the topic's next partition.
func (t *Topic) submit(ctx context.Context, p *Put, pt *partition) error {
	e := t.e
	if err := e.measure(p); err != nil {
		return err
	}
	if t.deleted.Load() {
		return ErrDeleted
	}
	// The engine's watch sets the default deadline, for a put that is still in the inbox at its next round: to read the
	// clock for every put would cost as much as storing it.
	p.deadline = 0
	if !p.Deadline.IsZero() {
		p.deadline = e.clock.NowNs() + int64(e.host.Until(p.Deadline))
	}
	if pt == nil {
		pt = t.nextPartition()
	}
	return pt.enqueue(ctx, p)
}

// measure checks a put against the limits and computes p.bytes.
func (e *Engine) measure(p *Put) error {
	if p.kind == putSealed {
		return e.measureSealed(p)
	}
	if p.Defer < 0 || p.Defer > e.opts.MaxDefer {
		return ErrDeferTooLong
	}
	p.deferMs = uint32((p.Defer + time.Millisecond - 1) / time.Millisecond)
	if len(p.Messages) == 0 {
		return ErrEmptyMessage
	}
	if p.headered = false; p.Headers != nil {
		return e.measureHeaders(p)
	}
	n := 0
	for _, m := range p.Messages {
		if len(m) == 0 {
			return ErrEmptyMessage
		}
		if len(m) > e.opts.MaxMessageBytes {
			return ErrMessageTooBig
		}
		n += segment.RecordSize(len(m), p.deferMs)
	}
	if n > e.opts.MaxBatchBytes {
		return ErrBatchTooBig
	}
	p.bytes = n
	return nil
}
