package engine

import "penstock/segment/aio"

// Batches that fit into no ordinary buffer have buffers of their own, which are bounded together.
const (
	lowLargeBytes  = aio.DefaultMaxLargeBytes / 2
	wantLargeBytes = aio.DefaultMaxLargeBytes / 4
)

// Flushing begins late, so that many partitions' pieces grow, and goes on until there is air.
func (f *flusher) lowBuffers() int { return f.e.arena.Count() / 4 }

func (f *flusher) wantBuffers() int { return f.e.arena.Count() / 2 }

// short says whether less than so many buffers are free, or large ones take more than so much.
func (f *flusher) short(free int, large int64) bool {
	return f.e.arena.Free() <= free || f.e.arena.LargeBytes() > large
}

// evict lets flushed bytes leave memory, oldest first.
func (f *flusher) evict() bool {
	progress := false
	for f.short(f.wantBuffers(), wantLargeBytes) {
		f.mu.Lock()
		if len(f.flushed) == 0 {
			f.mu.Unlock()
			return progress
		}
		ev := f.flushed[0]
		f.flushed = f.flushed[1:]
		f.mu.Unlock()
		ev.part.log.Evict(ev.upTo)
		progress = true
	}
	return progress
}
