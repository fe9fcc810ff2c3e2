package outgoing

import (
	"sync"

	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// Batches are the batches of one frame, in the order of the log and without gaps. It belongs to one goroutine, and from
// when it is a frame's Owner on to the connection, which calls Release when the frame is written or dropped.
type Batches struct {
	Body [][]byte          // the batches as they are stored; not to be written
	Runs []wire.Run        // in which segments Body lies
	List []replicate.Batch // what Body holds

	views []*segment.View // the first used of them pin Body; the others are kept for later frames
	used  int
}

var pool = sync.Pool{New: func() any { return new(Batches) }}

// Get returns Batches that are empty.
func Get() *Batches { return pool.Get().(*Batches) }

// Release gives the bytes back to the log, and b to the pool. It implements netproto.Releaser.
func (b *Batches) Release() {
	for i := range b.used {
		b.views[i].Release()
	}
	clear(b.Body)
	b.used, b.Body, b.Runs, b.List = 0, b.Body[:0], b.Runs[:0], b.List[:0]
	pool.Put(b)
}

// Source is where batches are taken from: a segment.Log, which may wait for the device, or its Memory, which does not.
type Source interface {
	SeekPosition(pos segment.Position) (segment.Offset, error)
	View(v *segment.View, at segment.Offset, maxBytes int) error
	Where(at segment.Offset) (segment.State, error)
}

// Collect fills b, which is empty, with the batches of src from position from up to until. It stops after count
// batches, or so many bytes, or when the frame has no room for another run, but takes one batch in any case. An error
// is that of SeekPosition or View: the batch behind those in List, which begins at offset at, could not be had.
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

// list adds the first batches of run, which begins at offset at, to List: those below until, at most count, of at most
// so many bytes; but the first batch of the frame in any case. It returns their bytes.
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
// another run. A segment can be given more capacity for a later batch; then the run gets the capacity of its last
// piece.
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
