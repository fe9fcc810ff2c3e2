package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"penstock/replicate"
	"penstock/segment"
)

// learnLimits drops the checkpoints of commit log files that are gone. From the checkpoint of the oldest file that is
// left it learns, for each partition, the offset below which recovery needs no segment.
func (f *flusher) learnLimits() {
	oldest := f.e.clog.OldestKept()
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.files) > 0 && f.files[0].seq <= oldest {
		if f.files[0].seq == oldest {
			for _, c := range f.files[0].ends {
				if !c.part.t.deleted.Load() {
					f.limits[c.part] = c.end
				}
			}
		}
		f.files = f.files[1:]
	}
}

// retain removes the segments whose messages every channel has confirmed, and those beyond the topic's limits on bytes,
// count and age. Recovery must not need them.
func (f *flusher) retain() {
	f.learnLimits()
	for _, pt := range f.e.partitionList() {
		if pt.t.quarantined || pt.whyUnread() != nil {
			continue
		}
		f.mu.Lock()
		limit := f.limits[pt]
		f.mu.Unlock()
		f.findLost(pt)
		f.observe(pt)
		// retainTo reads segments, so first check whether any segment could be removed.
		if first, ok := pt.log.TrimmableTo(); !ok || limit < first {
			continue
		}
		to := f.retainTo(pt)
		if to > 0 {
			f.trim(pt, to)
		}
		if first, ok := pt.log.TrimmableTo(); ok && to < first && first <= limit {
			f.carry(pt, limit)
		}
	}
}

// retainTo returns the offset below which nothing has to be kept.
func (f *flusher) retainTo(pt *partition) segment.Offset {
	end, _, endID := pt.log.End()
	var to segment.Offset
	keep := pt.bound.Advance(pt.committedEnd())
	if at, _, err := pt.log.Seek(keep.ID); err == nil {
		to = at
	} else if errors.Is(err, segment.ErrAtEnd) {
		to = end
	}
	to = min(to, keep.At)
	if pt.rep.leaderStart.Load() > 0 {
		if at, err := pt.log.SeekPosition(segment.Position(pt.rep.leaderStart.Load())); err == nil {
			to = max(to, at)
		}
	}
	l := pt.t.limits.Load()
	if l.retentionBytes > 0 {
		to = max(to, end-segment.Offset(l.retentionBytes))
	}
	if keep := segment.MsgID(l.retentionCount); keep > 0 && endID > keep {
		if at, _, err := pt.log.Seek(endID - keep); err == nil {
			to = max(to, at)
		}
	}
	if age := l.retentionAge; age > 0 {
		to = max(to, f.agedTo(pt, age))
	}
	return to
}

// trim removes segments below to, as far as recovery needs nothing of them and they are committed, and tells the
// replica. It records in mayHaveLost if more went than consumers have confirmed.
func (f *flusher) trim(pt *partition, to segment.Offset) {
	f.mu.Lock()
	limit := f.limits[pt]
	f.mu.Unlock()
	start, before, _ := pt.log.Start()
	if to = min(to, limit); to > start {
		to = min(to, pt.committedEnd())
	}
	if to <= start {
		return
	}
	wanted := pt.bound.Current()
	n, err := pt.log.Trim(to)
	if left := pt.startBorder(); wanted.ID < left.ID || wanted.At < left.At {
		pt.mayHaveLost.Store(true)
	}
	f.e.counters.TrimmedBytes.Add(uint64(n))
	if err != nil && !errors.Is(err, segment.ErrClosed) && !errors.Is(err, fs.ErrNotExist) {
		f.e.log.Warn("retention could not remove a segment; it tries again",
			"topic", pt.t.name, "partition", pt.number, "error", err)
	}
	if _, after, _ := pt.log.Start(); after == before || pt.rep.solo() {
		return
	}
	pt.rep.run(func() {
		start, err := pt.startState()
		if err == nil && !pt.rep.isClosed() {
			pt.rep.step(&replicate.Event{Kind: replicate.EvTrimmed, Log: start})
		}
	})
}

// markRotten notes that a commit log file is damaged, and wakes the flusher, whose dropRotten replaces the file.
func (f *flusher) markRotten(file uint64) {
	for {
		old := f.rotten.Load()
		if file <= old || f.rotten.CompareAndSwap(old, file) {
			break
		}
	}
	f.wakeUp()
}

// rottenFile is the error that Health reports while a damaged commit log file is still in use.
func (f *flusher) rottenFile() error {
	if file := f.rotten.Load(); file != 0 {
		return fmt.Errorf("engine: file %d of the commit log is damaged; nothing is lost: what it holds is being written "+
			"to segments", file)
	}
	return nil
}

// observe records the growth of a partition that has a limit by age, even while none of its segments could be removed.
func (f *flusher) observe(pt *partition) {
	if limit := pt.t.limits.Load().retentionAge; limit > 0 {
		pt.ages.Observe(pt.committedEnd(), f.e.clock.Mono(), limit)
	}
}

// agedTo returns the offset below which all data is older than limit.
func (f *flusher) agedTo(pt *partition, limit time.Duration) segment.Offset {
	c := f.e.clock
	to := pt.ages.SeenBefore(c.Mono(), limit)
	ns, old := pt.ages.OldTime(c, limit)
	if to >= old {
		return to
	}
	at, _, err := pt.log.SeekTime(ns)
	if errors.Is(err, segment.ErrAtEnd) {
		at, err = old, nil
	}
	if err == nil {
		to = max(to, min(at, old))
	}
	return to
}
