package aio

import (
	"sync"

	"penstock/segment/aio/contract"
)

// ringQueue is a Queue whose ring belongs to a goroutine of its own, which is bound to a thread (uringQueue). The owner
// of the queue, which is the commit log's goroutine, stays an ordinary one: a channel wakes it, and its switches change
// no threads.
//
//	the owner                             the ring's goroutine
//	---------                             --------------------
//	A1 Submit: the write to ops, Wake     B1 sleeps in the ring, or for a Wake
//	A2 Wait: sleeps for its own Wake      B2 submits all of ops
//	A3 takes done                         B3 moves completions to done, wakes the owner
//
// mu guards done and broken. After a crash, a write that was in flight is durable, torn or absent, as after any
// write; only completions without an error promise anything.
type ringQueue struct {
	sleeper
	ring  *uringQueue
	ops   chan Op       // to the ring's goroutine; has room for all that may be in flight
	ended chan struct{} // closed when that goroutine has ended
	err   error         // of closing the ring; valid once ended is closed

	mu     sync.Mutex
	done   []Completion
	broken error // the ring failed: writes in flight may or may not become durable

	// Used by the owner only.
	inFlight int
	closed   bool
}

// newRingQueue opens the ring on a goroutine of its own.
func newRingQueue(d *fsDisk, depth int, arena *Arena) (*ringQueue, error) {
	q := &ringQueue{sleeper: newSleeper(), ops: make(chan Op, depth), ended: make(chan struct{})}
	opened := make(chan error)
	go q.own(d, depth, arena, opened)
	return q, <-opened
}

// own is the ring's goroutine, until ops is closed or the ring is broken.
func (q *ringQueue) own(d *fsDisk, depth int, arena *Arena, opened chan<- error) {
	defer close(q.ended)
	ring, err := newUringQueue(d, depth, arena)
	q.ring = ring
	if opened <- err; err != nil {
		return
	}
	var done []Completion
	for open := true; open && err == nil; {
		if done, open = q.submitAll(done[:0]); open {
			done, err = ring.Wait(done, len(done) == 0)
			q.deliver(done, err)
		}
	}
	q.err = ring.Close()
}

// submitAll submits what waits in ops, and appends completions for what could not be started. It returns false once
// ops is closed.
func (q *ringQueue) submitAll(done []Completion) (_ []Completion, open bool) {
	for {
		select {
		case op, ok := <-q.ops:
			if !ok {
				return done, false
			}
			if err := q.ring.Submit(op); err != nil {
				done = append(done, Completion{Tag: op.Tag, Err: err})
			}
		default:
			return done, true
		}
	}
}

// deliver hands completions to the owner.
func (q *ringQueue) deliver(done []Completion, broken error) {
	if len(done) == 0 && broken == nil {
		return
	}
	q.mu.Lock()
	q.done, q.broken = append(q.done, done...), broken
	q.mu.Unlock()
	q.Wake()
}

func (q *ringQueue) Submit(op Op) error {
	switch {
	case q.closed:
		return ErrClosed
	case q.inFlight == cap(q.ops):
		return ErrQueueFull
	}
	contract.MustBeAligned(op.Data, op.Offset, q.ring.disk.blockBytes)
	if err := fileOf(op).usable(); err != nil {
		return err
	}
	q.inFlight++
	q.ops <- op
	q.ring.Wake()
	return nil
}

func (q *ringQueue) Wait(done []Completion, block bool) ([]Completion, error) {
	if q.closed {
		return done, ErrClosed
	}
	if block {
		q.sleep(q.hasDone())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inFlight -= len(q.done)
	done = append(done, q.done...)
	q.done = q.done[:0]
	return done, q.broken
}

// hasDone says whether Wait has something to return.
func (q *ringQueue) hasDone() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.done) > 0 || q.broken != nil
}

func (q *ringQueue) InFlight() int { return q.inFlight }

// Close waits for the writes in flight and drops their completions.
func (q *ringQueue) Close() error {
	if !q.closed {
		q.closed = true
		q.state.retire()
		close(q.ops)
		q.ring.Wake()
		<-q.ended
	}
	return q.err
}
