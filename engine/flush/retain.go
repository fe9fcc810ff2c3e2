package flush

import (
	"errors"
	"io/fs"
	"time"

	"penstock/segment"
)

// learnLimits drops the checkpoints of commit log files that are gone. From the checkpoint of the oldest remaining file
// it learns, for each partition, the offset below which recovery needs no segment.
func (f *Flusher) learnLimits() {
	oldest := f.clog.OldestKept()
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.files) > 0 && f.files[0].seq <= oldest {
		if f.files[0].seq == oldest {
			for _, c := range f.files[0].ends {
				if !c.Part.owner.TopicDeleted() {
					c.Part.limit = c.End
				}
			}
		}
		f.files = f.files[1:]
	}
}

// retain removes the segments whose messages every channel has confirmed, and those beyond the topic's limits on bytes,
// count and age, unless recovery needs them.
func (f *Flusher) retain() {
	f.learnLimits()
	for p := range f.n.Parts {
		if !p.owner.MayTrim() {
			continue
		}
		log, limit := p.owner.Log(), f.limitOf(p)
		p.owner.FindLost()
		f.observe(p)
		// retainTo reads segments, so first check whether any segment could be removed.
		if first, ok := log.TrimmableTo(); !ok || limit < first {
			continue
		}
		to := f.retainTo(p)
		if to > 0 {
			f.Trim(p, to)
		}
		if first, ok := log.TrimmableTo(); ok && to < first && first <= limit {
			p.owner.Carry(limit)
		}
	}
}

// limitOf returns the offset below which recovery needs no segment of p.
func (f *Flusher) limitOf(p *Part) segment.Offset {
	f.mu.Lock()
	defer f.mu.Unlock()
	return p.limit
}

// retainTo returns the offset below which retention keeps nothing.
func (f *Flusher) retainTo(p *Part) segment.Offset {
	log := p.owner.Log()
	end, _, endID := log.End()
	var to segment.Offset
	keep := p.bound.Advance(p.owner.CommittedEnd())
	if at, _, err := log.Seek(keep.ID); err == nil {
		to = at
	} else if errors.Is(err, segment.ErrAtEnd) {
		to = end
	}
	to = min(to, keep.At)
	if start := p.owner.LeaderStart(); start > 0 {
		if at, err := log.SeekPosition(start); err == nil {
			to = max(to, at)
		}
	}
	l := p.owner.Limits()
	if l.RetentionBytes > 0 {
		to = max(to, end-segment.Offset(l.RetentionBytes))
	}
	if keep := segment.MsgID(l.RetentionCount); keep > 0 && endID > keep {
		if at, _, err := log.Seek(endID - keep); err == nil {
			to = max(to, at)
		}
	}
	if age := l.RetentionAge; age > 0 {
		to = max(to, f.agedTo(p, age))
	}
	return to
}

// Trim removes segments that end at or below to, as far as they are committed and recovery does not need them, and then
// tells the owner. Retention calls it, and so does a replica whose leader has removed these segments.
func (f *Flusher) Trim(p *Part, to segment.Offset) {
	log, limit := p.owner.Log(), f.limitOf(p)
	start, before, _ := log.Start()
	if to = min(to, limit); to > start {
		to = min(to, p.owner.CommittedEnd())
	}
	if to <= start {
		return
	}
	wanted := p.bound.Current()
	n, err := log.Trim(to)
	at, after, id := log.Start()
	f.n.TrimmedBytes.Add(uint64(n))
	if err != nil && !errors.Is(err, segment.ErrClosed) && !errors.Is(err, fs.ErrNotExist) {
		f.n.Log.Warn("retention could not remove a segment; it tries again",
			"topic", p.topic, "partition", p.number, "error", err)
	}
	p.owner.Trimmed(after != before, wanted.ID < id || wanted.At < at)
}

// observe records the growth of a partition whose topic limits the age of data, even while no segment could be removed.
func (f *Flusher) observe(p *Part) {
	if limit := p.owner.Limits().RetentionAge; limit > 0 {
		p.ages.Observe(p.owner.CommittedEnd(), f.n.Clock.Mono(), limit)
	}
}

// agedTo returns the offset below which all data is older than limit.
func (f *Flusher) agedTo(p *Part, limit time.Duration) segment.Offset {
	c := f.n.Clock
	to := p.ages.SeenBefore(c.Mono(), limit)
	ns, old := p.ages.OldTime(c, limit)
	if to >= old {
		return to
	}
	at, _, err := p.owner.Log().SeekTime(ns)
	if errors.Is(err, segment.ErrAtEnd) {
		at, err = old, nil
	}
	if err == nil {
		to = max(to, min(at, old))
	}
	return to
}
