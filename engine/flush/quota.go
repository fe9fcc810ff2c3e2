package flush

import (
	"errors"

	"penstock/segment"
)

// AskQuotas makes the flusher update soon the offsets from which logs count for quotas. The committer calls it when a
// put was refused.
func (f *Flusher) AskQuotas() {
	f.quotasAsked.Store(true)
	f.WakeUp()
}

// learnQuotas updates countedFrom of the partitions that have a quota on bytes.
func (f *Flusher) learnQuotas() {
	f.quotasAsked.Store(false)
	for p := range f.n.Parts {
		if l := p.owner.Limits(); l == nil || l.RejectBytes == 0 {
			continue
		}
		needed := p.Needed()
		if needed == p.lookedUp && !p.atEnd && needed != 0 {
			continue
		}
		at, _, err := p.owner.Log().Seek(needed)
		if p.atEnd = errors.Is(err, segment.ErrAtEnd); err != nil && !p.atEnd {
			continue // below the log's start, which then counts; or unreadable, which others report
		}
		p.lookedUp = needed
		p.countedFrom.Store(uint64(at))
	}
}
