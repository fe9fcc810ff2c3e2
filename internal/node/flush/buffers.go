package flush

import "penstock/segment/aio"

// A batch that does not fit into an ordinary buffer gets a large buffer of its own. Flushing begins when large buffers
// take more than lowLargeBytes together, and continues until they take at most wantLargeBytes.
const (
	lowLargeBytes  = aio.DefaultMaxLargeBytes / 2
	wantLargeBytes = aio.DefaultMaxLargeBytes / 4
)

// lowBuffers is the number of free buffers at which flushing begins. It is low so that the unflushed bytes of each
// partition grow into large writes.
func (f *Flusher) lowBuffers() int { return f.n.Arena.Count() / 4 }

// wantBuffers is the number of free buffers at which flushing ends.
func (f *Flusher) wantBuffers() int { return f.n.Arena.Count() / 2 }

// short says whether no more than free buffers are free, or large buffers take more than large bytes.
func (f *Flusher) short(free int, large int64) bool {
	return f.n.Arena.Free() <= free || f.n.Arena.LargeBytes() > large
}

// evict releases buffers whose bytes are flushed, oldest first, until enough buffers are free. It says whether it
// released any.
func (f *Flusher) evict() bool {
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
		ev.part.owner.Log().Evict(ev.upTo)
		progress = true
	}
	return progress
}
