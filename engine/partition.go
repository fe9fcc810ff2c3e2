package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"penstock/engine/core"
	"penstock/segment"
)

// partition joins one partition's state machine to its inbox, its log and its channels.
//
// Owners: the inbox belongs to mu. machine, fold and the fields below them belong to the
// committer goroutine. log locks itself. watchers is replaced as a whole under the topic's lock.
type partition struct {
	e      *Engine
	t      *Topic
	number uint32
	log    *segment.Log

	mu         sync.Mutex
	head, tail *Put
	waiting    int64 // bytes in the inbox
	reported   int64 // of them, counted in the engine's sum
	ready      bool  // in the engine's ready list or in the committer's hands
	closed     error // no more puts
	room       chan struct{}
	crowds     [crowdCount]crowd
	turn       uint // of crowds: counts the runs taken

	machine *core.Partition
	fold    *core.Cursors

	watchers  atomic.Pointer[[]*watch]
	visible   atomic.Uint64 // MsgID below which messages are committed
	needed    atomic.Uint64 // MsgID below which every durable channel has confirmed
	unclaimed atomic.Uint64 // MsgID from which messages wait at the topic
	heldFrom  atomic.Uint64 // topic paused: MsgID from which messages are held back; else max
	dirty     atomic.Bool   // in the flusher's queue
	flushErr  atomic.Pointer[error]
}

const notHeld = ^uint64(0)

// enqueue puts p at the end of the inbox. When the inbox is full it waits for room, at
// most Options.AdmitTimeout.
func (pt *partition) enqueue(ctx context.Context, p *Put) error {
	e := pt.e
	size := int64(p.bytes)
	pt.mu.Lock()
	if pt.closed == nil && !p.control() && !e.admits(pt, size) {
		if err := pt.awaitRoom(ctx, size); err != nil {
			pt.mu.Unlock()
			return err
		}
	}
	if err := pt.closed; err != nil {
		pt.mu.Unlock()
		return err
	}
	p.next, p.queued = nil, true
	if pt.tail == nil {
		pt.head = p
	} else {
		pt.tail.next = p
		if p.waits { // the first has a channel of its own: most inboxes of many partitions hold one put
			p.crowd = &pt.crowds[pt.turn%crowdCount]
		}
	}
	pt.tail = p
	pt.waiting += size
	pt.report()
	first := !pt.ready
	pt.ready = true
	alone := p.Alone // p may be gone as soon as the lock is free
	pt.mu.Unlock()
	if first {
		e.committer.push(pt, alone)
	}
	return nil
}

func (e *Engine) admits(pt *partition, size int64) bool {
	// An empty inbox takes any put that passed the batch limit, or a large one could starve.
	if pt.waiting != 0 && pt.waiting+size > e.opts.MaxInboxBytes {
		return false
	}
	return e.waiting.Load()+size <= e.opts.MaxNodeInboxBytes
}

// awaitRoom is called and returns with mu held.
func (pt *partition) awaitRoom(ctx context.Context, size int64) error {
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

// signalRoom is called with mu held after bytes left the inbox.
func (pt *partition) signalRoom() {
	if pt.room != nil {
		close(pt.room)
		pt.room = nil
	}
}

// takeBack removes a put that the committer has not taken yet.
func (pt *partition) takeBack(p *Put) bool {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if !p.queued {
		return false
	}
	pt.unlink(p)
	return true
}

// unlink removes p from the inbox; mu is held. Linear, but only for rare cancellations.
func (pt *partition) unlink(p *Put) {
	var prev *Put
	for q := pt.head; q != p; q = q.next {
		prev = q
	}
	if prev == nil {
		pt.head = p.next
	} else {
		prev.next = p.next
	}
	if pt.tail == p {
		pt.tail = prev
	}
	p.next, p.queued = nil, false
	pt.left(int64(p.bytes))
}

func (pt *partition) left(size int64) {
	pt.waiting -= size
	pt.report()
	pt.signalRoom()
}

// report adds what changed to the node's sum, coarsely: a shared counter that every put touches twice costs
// more than the put. mu is held.
func (pt *partition) report() {
	if d := pt.waiting - pt.reported; d >= reportBytes || d <= -reportBytes {
		pt.reported = pt.waiting
		pt.e.waiting.Add(d)
	}
}

// reportBytes is how far the node's sum may be off per partition.
const reportBytes = 16 << 10

// refuse takes the whole inbox and answers every put in it with err; with close set, puts that come
// later get it too.
func (pt *partition) refuse(err error, closeInbox bool, keepControls bool) {
	pt.mu.Lock()
	if closeInbox && pt.closed == nil {
		pt.closed = err
	}
	var out *Put
	last := &out
	for q := pt.head; q != nil; {
		next := q.next
		if !keepControls || !q.control() {
			pt.unlink(q)
			*last = q
			last = &q.next
		}
		q = next
	}
	pt.signalRoom()
	pt.mu.Unlock()
	for out != nil {
		next := out.next
		out.next = nil
		out.answer(0, err)
		out = next
	}
}

// expire gives what waits its default deadline and refuses what has waited past it: the committer
// may be stalled and look at no inbox. It reports whether something waits.
func (pt *partition) expire(nowNs int64) bool {
	var out []*Put
	pt.mu.Lock()
	for q := pt.head; q != nil; {
		next := q.next
		switch {
		case q.control():
		case q.deadline == 0:
			q.deadline = nowNs + int64(pt.e.opts.PublishTimeout)
		case nowNs > q.deadline:
			pt.unlink(q)
			out = append(out, q)
		}
		q = next
	}
	waiting := pt.head != nil
	pt.mu.Unlock()
	for _, q := range out {
		q.answer(0, ErrDeadline)
	}
	return waiting || len(out) > 0
}

// answer ends a put that was not stored.
func (p *Put) answer(first ID, err error) {
	p.First, p.Err = first, err
	if c := p.crowd; c != nil {
		p.answered.Store(true)
		c.disperse()
		return
	}
	p.Done(p)
}

// visibleEnd is the id below which channels may deliver now.
func (pt *partition) visibleEnd() segment.MsgID {
	return segment.MsgID(min(pt.visible.Load(), pt.heldFrom.Load()))
}
