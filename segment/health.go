package segment

import (
	"errors"
	"slices"
)

// damage is a CorruptError and the offset in the log to which it applies.
type damage struct {
	at  Offset
	err *CorruptError
}

// MaxDamageCount bounds the errors that Health lists.
const MaxDamageCount = 64

// noteDamage keeps an error for Health. The caller holds l.mu, or is Open.
func (l *Log) noteDamage(at Offset, err *CorruptError) {
	if len(l.damage) < MaxDamageCount {
		l.damage = append(l.damage, damage{at, err})
	}
}

// damageAt returns the error for a read in an isolated range of f. The caller holds l.mu.
func (l *Log) damageAt(f *segFile, at Offset) *CorruptError {
	s, _ := f.isolated(at)
	for _, d := range l.damage {
		if d.err.Path == f.path && d.at == s.from {
			return d.err
		}
	}
	return f.corrupt(f.at(s.from), ErrInvalid)
}

// isolate makes the batch at off, which was found damaged, unreadable, whatever the device returns for it later. That
// ends with Repair, ReadAgain or a cut. size is the batch's size. If size is 0, which means unknown, or if the segment
// has MaxIsolatedCount ranges already, more than the batch is isolated. The caller holds l.mu.
func (l *Log) isolate(f *segFile, off Offset, size int, cause error) error {
	if _, known := f.isolated(off); known {
		return l.damageAt(f, off)
	}
	end := min(f.base+Offset(f.capacity), l.flushed) // what is written later will be good
	if i := slices.Index(l.segs, f); i >= 0 {
		end = min(end, l.segmentEnd(i))
	}
	if size > 0 && len(f.bad) < MaxIsolatedCount {
		end = min(end, off+Offset(size))
	} else if i, _ := slices.BinarySearchFunc(f.index, off+1, compareEntry); f.indexed && i < len(f.index) &&
		len(f.bad) < MaxIsolatedCount {
		end = f.index[i].off
	}
	err := f.corrupt(f.at(off), cause)
	i, _ := slices.BinarySearchFunc(f.bad, off, func(s span, off Offset) int { return int(s.from - off) })
	f.bad = slices.Insert(f.bad, i, span{off, end})
	l.noteDamage(off, err)
	return err
}

// segmentEnd is where the flushed bytes of segment i end. The caller holds l.mu.
func (l *Log) segmentEnd(i int) Offset {
	if i+1 < len(l.segs) {
		return min(l.flushed, l.segs[i+1].base)
	}
	return l.flushed
}

func compareEntry(e indexEntry, off Offset) int { return int(e.off - off) }

// Health returns nil, or all damage known so far, joined: CorruptErrors for ranges that are not served, and ErrPoisoned
// if files can no longer be written. Everything that Health does not name is served.
func (l *Log) Health() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	if l.poisoned != nil {
		errs = append(errs, l.poisoned)
	}
	for _, d := range l.damage {
		errs = append(errs, d.err)
	}
	return errors.Join(errs...)
}

// Range is a half-open range of a log.
type Range struct{ From, To Offset }

// Isolated lists the ranges known to be damaged, in log order. A replica fetches them again from a peer, and a reader
// may continue at To. To is never inside a good batch, but a reader that continues there may meet more damage.
func (l *Log) Isolated() []Range {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Range
	for i, f := range l.segs {
		end := l.segmentEnd(i)
		if f.broken != nil {
			out = append(out, Range{f.base, end})
			continue
		}
		for _, s := range f.bad {
			if s.from < end {
				out = append(out, Range{s.from, min(s.to, end)})
			}
		}
	}
	return out
}

// Poisoned returns nil, or the reason why the files can no longer be written: see ErrPoisoned.
func (l *Log) Poisoned() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.poisoned
}
