package replicate

import (
	"fmt"

	"penstock/segment"
)

// stamp is what recent remembers of a batch.
type stamp struct {
	end   segment.Offset // behind the batch
	epoch segment.Epoch
	crc   uint32
}

// recent remembers the newest batches of a log, [first, next): at least those that are still needed, at most max. It
// begins small and doubles, so that an idle partition costs little.
type recent struct {
	ring        []stamp // len is a power of two
	first, next segment.Position
	base        segment.Offset // offset of first
	max         int
}

const minRecentCount = 16

func newRecent(next segment.Position, end segment.Offset, maxCount int) recent {
	n := minRecentCount
	for n < maxCount {
		n <<= 1
	}
	return recent{first: next, next: next, base: end, max: n}
}

func (r *recent) at(p segment.Position) *stamp { return &r.ring[int(p)&(len(r.ring)-1)] }

// holds says whether the batch at p is remembered.
func (r *recent) holds(p segment.Position) bool { return p >= r.first && p < r.next }

// add remembers b. A full ring grows while its oldest batch is still needed and max allows it; otherwise add forgets
// the oldest batch.
func (r *recent) add(b *Batch, needed segment.Position) {
	if b.Position != r.next {
		panic(fmt.Sprintf("BUG: batch %d follows batch %d", b.Position, r.next))
	}
	if int(r.next-r.first) == len(r.ring) {
		if len(r.ring) < r.max && needed <= r.first {
			r.grow()
		} else {
			r.base = r.at(r.first).end
			r.first++
		}
	}
	r.next++
	*r.at(b.Position) = stamp{end: b.End(), epoch: b.Epoch, crc: b.CRC}
}

func (r *recent) grow() {
	old := *r
	r.ring = make([]stamp, max(minRecentCount, 2*len(old.ring)))
	for p := r.first; p < r.next; p++ {
		*r.at(p) = *old.at(p)
	}
}

// offset returns where the batch at p begins, or would begin; first <= p <= next.
func (r *recent) offset(p segment.Position) segment.Offset {
	if p == r.first {
		return r.base
	}
	return r.at(p - 1).end
}

// reach returns the end of the batches from p on that fit into bytes and count, but at least one batch.
func (r *recent) reach(p segment.Position, bytes int64, count int) segment.Position {
	until, limit := p+1, r.offset(p)+segment.Offset(bytes)
	for until < r.next && int(until-p) < count && r.at(until).end <= limit {
		until++
	}
	return until
}

// restart forgets all batches, because the log was cut or begins anew.
func (r *recent) restart(next segment.Position, end segment.Offset) {
	r.first, r.next, r.base = next, next, end
}
