package flush

import (
	"errors"
	"io/fs"
	"time"

	"penstock/internal/node/retain"
	"penstock/segment"
)

// learnLimits drops the checkpoints of commit log files before oldest, the oldest one that is kept. From the checkpoint
// of that file it learns, for each partition, which segments recovery does not need.
func (f *Flusher) learnLimits(oldest uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.files) > 0 && f.files[0].seq <= oldest {
		if f.files[0].seq == oldest {
			for _, c := range f.files[0].ends {
				if !c.Part.owner.TopicDeleted() {
					c.Part.limit = below(c.End)
				}
			}
		}
		f.files = f.files[1:]
	}
}

// below returns the limit of a partition whose recovery takes the log below end from segments. It keeps the segment in
// which end lies, and also the one that ends there: recovery takes no batch from the segment above it, so the file of
// that one is made again, and a crash meanwhile leaves nothing that tells a log without unread messages from a lost
// one.
func below(end segment.Offset) segment.Offset { return max(end, 1) - 1 }

// retain removes the segments whose messages every channel has confirmed, unless the topic's settings keep them, and
// those beyond the topic's limits on bytes, count and age; but none that recovery needs.
func (f *Flusher) retain() {
	f.noteStarts()
	f.learnLimits(f.clog.OldestKept())
	for p := range f.n.Parts {
		if !p.owner.MayTrim() {
			continue
		}
		log, limit := p.owner.Log(), f.limitOf(p)
		p.owner.FindLost()
		f.observe(p)
		// boundaries reads segments, so first check whether any segment could be removed.
		if first, ok := log.TrimmableTo(); !ok || limit < first {
			continue
		}
		b := f.boundaries(p)
		if to := b.To(); to > 0 {
			f.Trim(p, to)
		}
		limit = min(limit, b.Kept) // what is kept anyway needs no carrying
		if first, ok := log.TrimmableTo(); ok && b.To() < first && first <= limit {
			p.owner.Carry(limit)
		}
	}
}

// noteStarts notes where each log begins, once, on a directory on which a version may have run that keeps no such
// notes: the next start then misses what somebody removed. What is missing now is taken for what retention removed.
func (f *Flusher) noteStarts() {
	if f.clog.StartsNoted() || !f.n.MayNote() {
		return
	}
	for p := range f.n.Parts {
		if err := p.owner.Log().NoteStart(); err != nil {
			if f.n.Host.Since(f.refused) >= refusedLogEvery {
				f.refused = f.n.Host.Instant()
				f.n.Log.Warn("it could not be noted where the log of a partition begins; it is tried again. Nothing is lost, "+
					"but until then nobody would miss the first segment if somebody removed it: look at the disk's space and inodes",
					"topic", p.topic, "partition", p.number, "error", err)
			}
			return
		}
	}
	f.clog.NoteStarts()
}

// limitOf returns the limit of p.
func (f *Flusher) limitOf(p *Part) segment.Offset {
	f.mu.Lock()
	defer f.mu.Unlock()
	return p.limit
}

// boundaries looks up what retention goes by in the log of p.
func (f *Flusher) boundaries(p *Part) (b retain.Boundaries) {
	log := p.owner.Log()
	end, _, endID := log.End()
	need := p.bound.Advance(p.owner.CommittedEnd())
	if at, _, err := log.Seek(need.ID); err == nil {
		b.Confirmed = at
	} else if errors.Is(err, segment.ErrAtEnd) {
		b.Confirmed = end
	}
	b.Confirmed = min(b.Confirmed, need.At)
	if start := p.owner.LeaderStart(); start > 0 {
		if at, err := log.SeekPosition(start); err == nil {
			b.Bound = at
		}
	}
	l := p.owner.Limits()
	aged := segment.Offset(0)
	if l.Keep.Age > 0 {
		aged = f.agedTo(p, &p.seenToKeep, l.Keep.Age)
	}
	b.Kept = l.Keep.From(end, aged)
	if l.RetentionBytes > 0 {
		b.Bound = max(b.Bound, end-segment.Offset(l.RetentionBytes))
	}
	if count := segment.MsgID(l.RetentionCount); count > 0 && endID > count {
		if at, _, err := log.Seek(endID - count); err == nil {
			b.Bound = max(b.Bound, at)
		}
	}
	if age := l.RetentionAge; age > 0 {
		b.Bound = max(b.Bound, f.agedTo(p, &p.seen, age))
	}
	return b
}

// Trim removes segments that end at or below to, as far as they are committed and recovery does not need them, and then
// tells the owner. It keeps the segment in which the committed part of the log ends, also if it ends there. Retention
// calls it, and so does a replica whose leader has removed these segments.
func (f *Flusher) Trim(p *Part, to segment.Offset) {
	log, limit := p.owner.Log(), f.limitOf(p)
	start, before, _ := log.Start()
	if to = min(to, limit); to > start {
		to = min(to, below(p.owner.CommittedEnd())) // a cut may come, and needs what is in front of it
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

// observe records the growth of a partition whose topic goes by the age of data, even while no segment could be
// removed.
func (f *Flusher) observe(p *Part) {
	l := p.owner.Limits()
	if l.RetentionAge <= 0 && l.Keep.Age <= 0 {
		return
	}
	end, now := p.owner.CommittedEnd(), f.n.Clock.Mono()
	if l.RetentionAge > 0 {
		p.seen.Observe(end, now, l.RetentionAge)
	}
	if l.Keep.Age > 0 {
		p.seenToKeep.Observe(end, now, l.Keep.Age)
	}
}

// agedTo returns the offset below which all data is older than limit. seen was observed with this limit.
func (f *Flusher) agedTo(p *Part, seen *retain.Seen, limit time.Duration) segment.Offset {
	c := f.n.Clock
	to := seen.Before(c.Mono(), limit)
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
