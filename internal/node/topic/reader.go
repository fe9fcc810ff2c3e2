package topic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"penstock/batch"
	"penstock/internal/node/clock"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// Start is the place where a Reader begins. Kind says which of the other fields counts.
type Start struct {
	Kind StartKind
	ID   message.ID
	Time time.Time
}

// StartKind is the kind of a Start.
type StartKind uint8

// The kinds of Start.
const (
	StartOldest StartKind = iota // at the oldest message that is kept
	StartNewest                  // at the next message that is published
	StartAtID                    // at Start.ID, or later if that message does not exist yet
	StartAtTime                  // at the first batch that was stored at Start.Time or later, by the leader's clock
)

// TrimmedError says that the messages at a reader's place are not kept any more. First is the first id that is kept, or
// the next one to come.
type TrimmedError struct{ First message.ID }

func (e *TrimmedError) Error() string {
	return fmt.Sprintf("engine: the messages to be read next are not kept any more; the first one that is has the id %v",
		e.First)
}

// Stored is what a Reader found: whole batches, back to back, as producers and leaders made them, checked against their
// checksums. Control batches are left out. A batch may begin with messages below Next, which the reader did not mean.
type Stored struct {
	Batches []byte
	Next    message.ID // of the first message that is meant
	Newest  message.ID // of the partition's next message: behind the newest one that is committed
	// Release gives the bytes up. It must be called once. Until then they pin memory, which for new messages is the
	// commit log's own.
	Release func()
}

// Reader reads the messages of one partition in the order of the log, whatever channels exist and have confirmed, and
// whether the topic is paused or not. It has no state but its place: nothing is stored about it, and retention does not
// wait for it. It sees what is committed. A message with a delay comes at its place in the log, without the delay, and
// not at all once only a carried copy of it is left.
//
// One goroutine at a time calls Next; any goroutine may call Close. A crash loses the Reader: who wants to go on later
// keeps the id of the next message, and opens one at that id.
type Reader struct {
	t      *Topic
	pt     *partition.Partition
	epoch  segment.Epoch // of the leadership in which the reader was opened; 0 on a single node
	closed atomic.Bool

	next  segment.MsgID
	at    segment.Offset // of the batch that has next, or of a control batch before it
	found bool           // at is known
}

// OpenReader returns a reader for one partition, at the node that leads it. It may read the device to find a time. It
// returns ErrNoPartition, ErrStart, ErrDeleted, ErrClosed, ErrNoLeader if this node does not lead the partition, a
// TrimmedError if from is an id that is not kept any more, or an error of reading the log.
func (t *Topic) OpenReader(partition int, from Start) (*Reader, error) {
	if partition < 0 || partition >= t.Partitions() {
		return nil, errs.ErrNoPartition
	}
	r := &Reader{t: t, pt: t.PartitionList()[partition]}
	r.epoch = r.pt.ServingEpoch()
	if err := r.ended(); err != nil {
		return nil, err
	}
	if err := r.begin(from); err != nil {
		return nil, err
	}
	return r, nil
}

// begin sets next to the place from.
func (r *Reader) begin(from Start) error {
	_, _, start := r.pt.Log().Start()
	switch {
	case from.Kind == StartOldest:
		r.next = start
	case from.Kind == StartNewest:
		r.next = r.end()
	case from.Kind == StartAtID && from.ID.Partition() == r.pt.Number():
		if r.next = from.ID.MsgID(); r.next < start {
			return r.trimmed()
		}
	case from.Kind == StartAtTime:
		_, id, err := r.pt.Log().SeekTime(clock.UnixNs(from.Time))
		if err != nil && !errors.Is(err, segment.ErrAtEnd) {
			return r.failed(err)
		}
		r.next = id
	default:
		return errs.ErrStart
	}
	return nil
}

// Next returns the next batches, of at most max bytes, but always at least one batch. It waits until there are some or
// ctx ends. New messages come batch by batch.
//
// Next returns the error of ctx, a TrimmedError, ErrNoLeader once this node does not lead the partition any more (even
// if it does again), ErrDeleted, or ErrClosed if the reader or the engine was closed. Any other error says why the
// batch at the reader's place cannot be read; Next may be called again, because damage may be repaired.
func (r *Reader) Next(ctx context.Context, max int) (Stored, error) {
	for {
		if err := r.ended(); err != nil {
			return Stored{}, err
		}
		if r.end() > r.next {
			if s, err := r.read(max); err != nil || s.Release != nil {
				return s, err
			}
			continue
		}
		news := r.pt.News()
		if r.end() > r.next || r.ended() != nil {
			continue
		}
		if r.t.env.Host.Either(news, ctx.Done()); ctx.Err() != nil {
			return Stored{}, ctx.Err()
		}
	}
}

// Place returns the id of the first message that Next returns next, and the id of the partition's next message: if the
// second is not larger, there is nothing to read now. The goroutine that calls Next may call it.
func (r *Reader) Place() (next, newest message.ID) {
	n := r.pt.Number()
	return batch.MakeID(n, r.next), batch.MakeID(n, r.end())
}

// Close ends the reader; a Next that waits returns ErrClosed. What Next has returned must still be released.
func (r *Reader) Close() {
	r.closed.Store(true)
	r.pt.Tell()
}

// end returns the id behind the newest committed message.
func (r *Reader) end() segment.MsgID { return segment.MsgID(r.pt.Published()) }

// ended returns the error with which the reader has ended, or nil.
func (r *Reader) ended() error {
	switch {
	case r.closed.Load() || r.t.env.Closed():
		return errs.ErrClosed
	case r.t.shared.Deleted.Load():
		return errs.ErrDeleted
	case !r.pt.Serves() || !r.pt.ServesIn(r.epoch):
		return errs.ErrNoLeader
	}
	return nil
}

// read reads the batches at the reader's place, of which at least one is committed. It returns nothing if it must be
// called again.
func (r *Reader) read(max int) (Stored, error) {
	log := r.pt.Log()
	if !r.found {
		at, _, err := log.Seek(r.next)
		if errors.Is(err, segment.ErrBelowStart) {
			return Stored{}, r.trimmed()
		}
		if err != nil {
			return Stored{}, r.failed(err)
		}
		r.at, r.found = at, true
	}
	p := pinnedBatches()
	err := log.View(&p.view, r.at, min(max, segment.MaxBatchBytes))
	if err != nil {
		p.free()
		if r.found = false; errors.Is(err, segment.ErrBelowStart) {
			return Stored{}, nil // retention may have removed control batches only: the next Seek tells
		}
		return Stored{}, r.failed(err)
	}
	end := r.end()
	at, next, err := p.view.Messages(end)
	if batches := p.view.Bytes(); err == nil && len(batches) > 0 {
		n := r.pt.Number()
		s := Stored{
			Batches: batches, Next: batch.MakeID(n, r.next), Newest: batch.MakeID(n, end), Release: p.release,
		}
		r.at, r.next = at, next
		return s, nil
	}
	p.free()
	r.at = at
	return Stored{}, err
}

// trimmed returns the error for a place that is not kept any more.
func (r *Reader) trimmed() error {
	_, _, start := r.pt.Log().Start()
	return &TrimmedError{First: batch.MakeID(r.pt.Number(), start)}
}

// failed returns the error of the reader for one of the log. The log may be closed or cut because the reader has ended.
func (r *Reader) failed(err error) error {
	if why := r.ended(); why != nil {
		return why
	}
	if errors.Is(err, segment.ErrClosed) {
		return errs.ErrNoLeader
	}
	return err
}

// pinned is what a Stored pins. release is free, bound once, so that a Stored costs no allocation.
type pinned struct {
	view    segment.View
	release func()
}

var pinnedPool sync.Pool

func pinnedBatches() *pinned {
	if p, ok := pinnedPool.Get().(*pinned); ok {
		return p
	}
	p := new(pinned)
	p.release = p.free
	return p
}

func (p *pinned) free() {
	p.view.Release()
	pinnedPool.Put(p)
}
