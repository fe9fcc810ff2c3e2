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

// putKind says what a put stores. It is set before the put enters an inbox, and does not change.
type putKind uint8

const (
	// putMessages: Put.Messages, a record each. Puts of this kind that follow each other in an inbox share a batch; a put
	// of any other kind is a batch of its own. The zero value: what callers of Submit make.
	putMessages putKind = iota
	// putSealed: a batch of messages that its producer sealed. It is stored as it is, but for what Stamp fills in.
	putSealed
	// putControls: control entries.
	putControls
	// putInspection: nothing is stored. A function runs on the committer, which alone may read the fold.
	putInspection
	// putTombstone: a record in the commit log that this node's copies of the topic are deleted. It concerns the files of
	// this node, whoever leads, and is taken where nothing else is: a damaged topic can be deleted.
	putTombstone
)

// internal says that the engine itself asks. Such a put needs no room in the inbox, and is refused neither for a quota nor
// for a full disk: what it stores lets space go. It has no deadline unless its maker sets one, and is not forwarded.
func (k putKind) internal() bool { return k >= putControls }

// putState is the engine's side of a Put. Whoever submits the put writes it before the put enters an inbox or a lane of the
// forwarder. From then on the lock of that list guards it, and once the put was taken from there it belongs to the taker:
// the committer, the replica, or whoever refuses it. What the committer reads of every put stands together: at half a
// million waiting puts a second its time is cache misses.
type putState struct {
	next        *Put // putList's
	part        *partition
	bytes       int    // of the records that the put becomes
	seq         uint64 // its place in the order of the inbox, see partition.cancel; 0: it was in none
	deadline    int64  // by the engine's clock, ns since 1970; 0: none yet
	deferMs     uint32
	gateIndex   int8 // with gate: its index in partition.gates
	kind        putKind
	waits       bool             // a goroutine waits for it in waiter.wait
	headered    bool             // some of the messages have headers
	trusted     bool             // the engine's own, or checked by another node: reserved names of headers are in order
	forwarded   bool             // another node's, which gets it back when this node leads no more
	noExpiry    bool             // nobody's request: it hears what became of its batch, however long that takes
	answered    atomic.Bool      // with gate: First and Err are set. Set once, before the gate opens
	to          replicate.NodeID // that it was forwarded to
	headerBytes uint32           // bytes that headers add to the records
	order       uint64           // in the forwarder's lane

	gate    chan struct{} // for crowds: closed when some of them are answered; nil: Done tells
	special *specialPut   // of every kind but putMessages
}

// specialPut is what a put of a rare kind has in addition.
type specialPut struct {
	// putSealed
	sealed []byte         // the batch, borrowed like Put.Messages
	header segment.Header // decoded from it
	bodies int            // bytes of its messages' bodies

	// putControls
	controls []core.Control // what only the log's order can tell is filled in at sealing
	source   *controlPut    // whose channel's machine gave the controls away; nil: nobody's
	offset   segment.Offset // result: of the batch

	inspect func() // putInspection: what runs

	release func() // putTombstone, result: lets the commit log's files go that are kept from the record on

	onCommit func() // putControls, putTombstone: see putList.committed; nil: nothing
}

// count is how many messages a put stores.
func (p *Put) count() int {
	if p.kind == putSealed {
		return int(p.special.header.Count)
	}
	return len(p.Messages)
}

// waiter is a Put with a goroutine that waits for it. It fills whole cache lines: its neighbours belong to other goroutines.
// A waiter comes from a pool (getWaiter), belongs to the goroutine that waits, and is freed by it after the answer.
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

// wait returns the put's result. If ctx ends while the put is still in the inbox it is
// taken back and nothing of it is stored; once it is on its way to the disk, its bytes are in use and the
// answer is at most a few commits away, so wait stays for it.
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
		gate = w.part.gateFor(&w.Put) // others of the crowd were answered first
	}
	return w.First, w.Err
}

// answer ends every put of a list and empties the list. With err nothing was stored, or nobody knows; without, the puts are
// committed and have the ids that sealing gave them. It returns how many goroutines wait for the puts.
//
// The list is the caller's: it was taken under its owner's lock, and that lock was released. Done may submit again, so the
// caller holds none of partition.mu, forwarder.mu and Channel.mu. On a single node clog.Log.mu is held; and puts that the
// committer refuses while it seals are answered with replica.mu held, too. Once it is answered a put is its submitter's.
func (l *putList) answer(err error) (waiters int) {
	var open gateRef // opened once for puts in a row that wait there, behind the last of them
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
		p.answered.Store(true) // the waiter may be gone from here on
	}
	open.open()
	return waiters
}

// answer ends one put, which is in no list.
func (p *Put) answer(err error) {
	var l putList
	l.push(p)
	l.answer(err)
}

// committed does what the put of a batch wants done when the batch is committed, before it is answered. Such a put is the
// only one of its batch. The callbacks of a partition run in the order of its log: with replica.mu held, or, on a single
// node, on the committer.
func (l *putList) committed() {
	if p := l.head; p != nil && p.kind.internal() && p.special.onCommit != nil {
		p.special.onCommit()
	}
}

// Publish stores one message and returns when it is on stable storage. Body is borrowed
// until then. An error that is neither ErrDisk nor ErrClosed means that nothing was stored.
func (t *Topic) Publish(ctx context.Context, body []byte) (ID, error) {
	return t.publish(ctx, body, nil, 0)
}

// PublishDeferred is Publish for a message whose first delivery waits for delay.
func (t *Topic) PublishDeferred(ctx context.Context, body []byte, delay time.Duration) (ID, error) {
	return t.publish(ctx, body, nil, delay)
}

// PublishBatch stores messages all or nothing, in order, with consecutive ids in one
// partition, and returns the first id. The bodies are borrowed until it returns.
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

// PublishSealed stores a batch that segment.Builder sealed, as it is: its records are
// not encoded again. The batch's bytes are borrowed until it returns.
func (t *Topic) PublishSealed(ctx context.Context, batch []byte) (ID, error) {
	w := getWaiter()
	defer w.free()
	w.kind, w.special, w.Alone, w.waits = putSealed, &specialPut{sealed: batch}, true, true
	if err := t.submit(ctx, &w.Put, nil); err != nil {
		return 0, err
	}
	return w.wait(ctx)
}

// asyncPut is a Put with a callback for its id.
type asyncPut struct {
	Put
	one      [1][]byte
	done     func(ID, error)
	free     *asyncFree
	nextFree *asyncPut
}

// asyncFree keeps unused async puts. Producers take them and the committer brings them back: a sync.Pool keeps what it is
// given at the giver's processor, so producers would steal at every call. mu guards the list.
type asyncFree struct {
	mu   lock.Mutex[lock.AsyncFree]
	head *asyncPut
	n    int

	shared bool // in a cluster answers come from any goroutine

	// Only the committer, which gives back a group's puts together.
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

// onDone runs on the committer, or elsewhere when the put was refused (then Err is set).
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

// recycle runs on the committer at the end of a group.
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

// PublishAsync hands one message over and calls done exactly once when it is on stable
// storage or refused. body is borrowed until then. done runs on the engine's committer and must not
// block: signal a channel, count, or hand over. PublishAsync itself blocks only while the inbox is full, at
// most Options.AdmitTimeout; if it returns an error, done is not called.
func (t *Topic) PublishAsync(body []byte, done func(ID, error)) error {
	a := t.e.asyncFree.get()
	a.one[0], a.done = body, done
	a.Messages = a.one[:]
	if err := t.submit(context.Background(), &a.Put, nil); err != nil {
		return err
	}
	return nil
}

// Submit hands a Put over. It blocks only while the inbox is full, at most
// Options.AdmitTimeout, and then returns ErrOverloaded. If it returns an error, nothing was stored and
// Done is not called.
func (t *Topic) Submit(p *Put) error { return t.submit(context.Background(), p, nil) }

// submit hands p to a partition; nil: the next one.
func (t *Topic) submit(ctx context.Context, p *Put, pt *partition) error {
	e := t.e
	if err := e.measure(p); err != nil {
		return err
	}
	if t.deleted.Load() {
		return ErrDeleted
	}
	// The default deadline is set by watch, when a put is still there at its next round: reading the
	// clock for every put costs as much as storing it.
	p.deadline = 0
	if !p.Deadline.IsZero() {
		p.deadline = e.clock.nowNs() + int64(e.host.Until(p.Deadline))
	}
	if pt == nil {
		pt = t.nextPartition()
	}
	return pt.enqueue(ctx, p)
}

// measure checks a put against the limits and computes what its records need.
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
