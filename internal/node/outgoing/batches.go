package outgoing

import (
	"sync"

	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// Batches are the batches of one frame, in log order and without gaps. One goroutine owns them until they become the
// Owner of a frame. From then on the connection owns them, and calls Release when the frame is written or dropped.
type Batches struct {
	Body [][]byte          // the batches as they are stored; read-only
	Runs []wire.Run        // the segments in which the parts of Body lie
	List []replicate.Batch // describes the batches in Body

	views []*segment.View // the first used ones pin Body; the others are kept for later frames
	used  int
}

var pool = sync.Pool{New: func() any { return new(Batches) }}

func Get() *Batches { return pool.Get().(*Batches) }

// Release unpins the bytes of the log, and puts b back into the pool. It implements netproto.Releaser.
func (b *Batches) Release() {
	for i := range b.used {
		b.views[i].Release()
	}
	clear(b.Body)
	b.used, b.Body, b.Runs, b.List = 0, b.Body[:0], b.Runs[:0], b.List[:0]
	pool.Put(b)
}

// Source is the source of the batches: a segment.Log, which may wait for the device, or its Memory, which does not.
type Source interface {
	SeekPosition(pos segment.Position) (segment.Offset, error)
	View(v *segment.View, at segment.Offset, maxBytes int) error
	Where(at segment.Offset) (segment.State, error)
}

// Collect fills b, which is empty, with the batches of src whose positions are from <= position < until. It stops after
// count batches, or before the batches exceed bytes, or when the frame has no room for another run; but it collects at
// least one batch if there is one. at is the offset behind the last batch in List. The error comes from SeekPosition or
// View: the batch at that offset could not be read.
func (b *Batches) Collect(
	src Source, from, until segment.Position, count int, bytes int64,
) (at segment.Offset, err error) {
	at, err = src.SeekPosition(from)
	for err == nil && from < until && count > 0 && (bytes > 0 || len(b.List) == 0) {
		v := b.next()
		if err = src.View(v, at, int(max(bytes, 1))); err != nil {
			b.used--
			break
		}
		where, werr := src.Where(at)
		if werr != nil {
			break // the log was cut meanwhile
		}
		listed := len(b.List)
		size := b.list(v.Bytes(), at, until, count, bytes)
		if size == 0 {
			break
		}
		if !b.add(v.Bytes()[:size], &where) {
			b.List = b.List[:listed]
			break
		}
		from += segment.Position(len(b.List) - listed)
		count -= len(b.List) - listed
		at += segment.Offset(size)
		bytes -= int64(size)
	}
	return at, err
}

// list adds the first batches of run to List. run begins at offset at of the log. list adds only batches below until,
// at most count, and at most bytes in total, but always the first batch of the frame. It returns the size of what it
// added.
func (b *Batches) list(run []byte, at segment.Offset, until segment.Position, count int, bytes int64) (size int) {
	var it segment.BatchIter
	it.Reset(run)
	for h, _, ok := it.Next(); ok && h.Position < until && count > 0 &&
		(len(b.List) == 0 || int64(size+h.Size()) <= bytes); h, _, ok = it.Next() {
		b.List = append(b.List, replicate.Batch{
			Position: h.Position, FirstID: h.FirstID, Offset: at + segment.Offset(size), Epoch: h.Epoch, Bytes: h.Size(),
			Count: h.Count, PrevCRC: h.PrevCRC, CRC: h.CRC,
		})
		size += h.Size()
		count--
	}
	return size
}

func (b *Batches) next() *segment.View {
	if b.used == len(b.views) {
		b.views = append(b.views, new(segment.View))
	}
	b.used++
	return b.views[b.used-1]
}

// add appends data, which lies in the segment that where describes. It returns false if the frame has no room for
// another run. A segment may get more capacity for a later batch; the run then takes the capacity of its last piece.
func (b *Batches) add(data []byte, where *segment.State) bool {
	if n := len(b.Runs); n > 0 && b.Runs[n-1].Segment == where.Segment && b.Runs[n-1].Base == where.SegmentBase {
		r := &b.Runs[n-1]
		r.Bytes += len(data)
		r.Capacity = max(r.Capacity, where.SegmentCapacity)
	} else {
		if n == wire.MaxRunCount {
			return false
		}
		b.Runs = append(b.Runs, wire.Run{
			Segment: where.Segment, Base: where.SegmentBase, Capacity: where.SegmentCapacity, Bytes: len(data),
		})
	}
	b.Body = append(b.Body, data)
	return true
}
