package clog

// Free is how many payload bytes one more record may have in this group, so that a source can size what it coalesces.
// An empty group accepts a larger record too (see Reserve); Free speaks of the buffer it has.
func (g *Group) Free() int { return max(0, g.limit-g.end-RecordHeaderBytes) }
