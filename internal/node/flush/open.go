package flush

import "slices"

// DefaultMaxOpenSegments is Node.MaxOpenSegments if that is 0.
const DefaultMaxOpenSegments = 2048

// A segment file stays open from its first write until the sync that covers the write: a file that was closed before
// could lose the error of a write that reached the device later. So the files of the partitions that were opened first
// are synced when too many are open. Readers hold no descriptors: they map a file and close it.

// noteOpen says that p is about to open a file. If as many partitions have one as may have, noteOpen first closes some.
func (f *Flusher) noteOpen(p *Part) {
	if p.open {
		return
	}
	if max := int(f.mostOpen.Load()); len(f.open) >= max {
		f.closeOldest(max * 3 / 4) // several at a time: they share the commits of the file system's journal
	}
	p.open = true
	f.open = append(f.open, p)
	f.openCount.Store(int64(len(f.open)))
}

// closeOldest syncs partitions with open files until at most keep are left, those first that were opened first.
func (f *Flusher) closeOldest(keep int) {
	for len(f.open) > max(keep, 0) {
		f.sync(f.open[0])
	}
}

func (f *Flusher) noteClosed(p *Part) {
	if p.open {
		i := slices.Index(f.open, p)
		f.open = slices.Delete(f.open, i, i+1)
		p.open = false
		f.openCount.Store(int64(len(f.open)))
	}
}

// OpenSegments returns how many partitions have segment files open that were written and not synced yet. Any goroutine
// may call it.
func (f *Flusher) OpenSegments() int { return int(f.openCount.Load()) }
