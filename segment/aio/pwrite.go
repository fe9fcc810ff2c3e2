package aio

import (
	"fmt"
)

// pwriteQueue writes inside Submit, with pwritev2(RWF_DSYNC) on the caller's thread, and keeps the completions until
// Wait. It is used where io_uring is refused. It is also faster for a single waiter on an idle device, because no
// second thread takes part in a write.
type pwriteQueue struct {
	sleeper
	done   []Completion // capacity is the depth; never grows
	closed bool
}

func newPwriteQueue(depth int) *pwriteQueue {
	return &pwriteQueue{sleeper: newSleeper(), done: make([]Completion, 0, depth)}
}

func (q *pwriteQueue) Submit(op Op) error {
	if q.closed {
		return ErrClosed
	}
	if len(q.done) == cap(q.done) {
		return ErrQueueFull
	}
	f := fileOf(op)
	if err := f.usable(); err != nil {
		return err
	}
	q.done = append(q.done, Completion{Tag: op.Tag, Err: f.WriteSyncAt(op.Data, op.Offset)})
	return nil
}

func (q *pwriteQueue) Wait(done []Completion, block bool) ([]Completion, error) {
	if q.closed {
		return done, ErrClosed
	}
	if block {
		q.sleep(len(q.done) > 0)
	}
	done = append(done, q.done...)
	clear(q.done)
	q.done = q.done[:0]
	return done, nil
}

func (q *pwriteQueue) InFlight() int { return len(q.done) }

func (q *pwriteQueue) Close() error {
	if !q.closed {
		q.closed = true
		q.state.retire()
	}
	return nil
}

// fileOf returns the file of op, which must belong to this package.
func fileOf(op Op) *file {
	f, ok := op.File.(*file)
	if !ok {
		panic(fmt.Sprintf("BUG: aio: a queue got a file of another disk implementation (%T)", op.File))
	}
	return f
}
