package faultaio

import (
	"bytes"
	"fmt"

	"penstock/segment/aio"
	"penstock/segment/aio/contract"
)

// queue completes its operations inside Wait, in an order that the disk's seed chooses. It needs no goroutine: a
// simulation steps it with Wait(done, false). The disk's mu guards it.
type queue struct {
	disk     *Disk
	depth    int
	inFlight []*queueOp
	woken    bool
	closed   bool
}

// queueOp is one operation in flight.
type queueOp struct {
	file    *file
	data    []byte // the caller's memory
	copy    []byte // the data at Submit
	off     int64
	tag     uint64
	verdict verdict
	waits   int // calls of Wait until it can complete
	release int // the operation is held while the disk's count of releases has this value
}

var _ aio.Queue = (*queue)(nil)

func (q *queue) Submit(op aio.Op) error {
	f, ok := op.File.(*file)
	if !ok || f.disk != q.disk {
		panic(fmt.Sprintf("BUG: faultaio: a queue got a file of another disk (%T)", op.File))
	}
	contract.MustBeAligned(op.Data, op.Offset, aio.BlockBytes)
	d := q.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.closed {
		return errClosed
	}
	if len(q.inFlight) == q.depth {
		return aio.ErrQueueFull
	}
	if err := f.usable(); err != nil {
		return err
	}
	v, err := d.start(KindWriteSync, f.name, op.Offset, len(op.Data), false)
	if err != nil {
		return err
	}
	o := &queueOp{
		file: f, data: op.Data, copy: bytes.Clone(op.Data), off: op.Offset, tag: op.Tag, verdict: v, waits: v.Waits,
		release: -1,
	}
	if v.Hold {
		o.release = d.releases
	}
	q.inFlight = append(q.inFlight, o)
	if v.crash {
		return ErrCrashed
	}
	return nil
}

func (q *queue) Wait(done []aio.Completion, block bool) ([]aio.Completion, error) {
	d := q.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	for before := len(done); ; {
		if q.closed {
			return done, errClosed
		}
		if d.crashed {
			return done, ErrCrashed
		}
		ready, lingering := q.ready()
		// A blocking Wait that nobody woke needs at least one; otherwise the seed decides how many.
		least := 0
		if block && !q.woken {
			least = 1
		}
		if ready > 0 {
			for n := least + d.rng.IntN(ready+1-least); n > 0; n-- {
				done = append(done, q.complete())
			}
		}
		if !block {
			return done, nil
		}
		if len(done) > before || q.woken {
			q.woken = false
			return done, nil
		}
		if lingering == 0 {
			d.changed.Wait()
		}
	}
}

// ready counts the operations that can complete now, and those that need more calls of Wait. Each call of ready counts
// as one.
func (q *queue) ready() (ready, lingering int) {
	for _, o := range q.inFlight {
		switch {
		case o.release == q.disk.releases: // held
		case o.waits > 0:
			o.waits--
			lingering++
		default:
			ready++
		}
	}
	return ready, lingering
}

func (o *queueOp) isReady(d *Disk) bool { return o.release != d.releases && o.waits == 0 }

// complete performs one ready operation, which the seed chooses.
func (q *queue) complete() aio.Completion {
	var ready []int
	for i, o := range q.inFlight {
		if o.isReady(q.disk) {
			ready = append(ready, i)
		}
	}
	i := ready[q.disk.rng.IntN(len(ready))]
	o := q.inFlight[i]
	q.inFlight = append(q.inFlight[:i], q.inFlight[i+1:]...)
	return aio.Completion{Tag: o.tag, Err: o.finish()}
}

func (o *queueOp) finish() error {
	if !bytes.Equal(o.data, o.copy) {
		panic(fmt.Sprintf("BUG: memory of a write in flight was changed (%s at %d, tag %d)", o.file.name, o.off, o.tag))
	}
	return o.file.finish(KindWriteSync, o.verdict, o.copy, o.off)
}

func (q *queue) InFlight() int {
	q.disk.mu.Lock()
	defer q.disk.mu.Unlock()
	return len(q.inFlight)
}

func (q *queue) Wake() {
	q.disk.mu.Lock()
	defer q.disk.mu.Unlock()
	q.woken = true
	q.disk.changed.Broadcast()
}

// Close completes the operations in flight, held or not.
func (q *queue) Close() error {
	d := q.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	if d.crashed {
		return nil // the operations stay in flight, for Crash and Kill
	}
	for _, o := range q.inFlight {
		_ = o.finish() // the file keeps a failure; the completion is dropped like all others
	}
	q.inFlight = nil
	return nil
}
