package segment

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"penstock/segment/aio"
)

// OpenAgain reads the headers of those segments again that the device could not read when the log was opened. It says
// whether at least one of these segments is served now. A header that reads but is wrong is damage, as at Open, and is
// not tried again. OpenAgain holds l.io, which writers of the log need, for as long as the device takes.
func (l *Log) OpenAgain() bool {
	l.io.Lock()
	defer l.io.Unlock()
	l.mu.Lock()
	files := slices.Clone(l.segs)
	l.mu.Unlock()
	changed, served := false, false
	for i, f := range slices.Backward(files) { // a header must fit the segments above it
		if f.broken == nil || !DeviceFailed(f.broken) {
			continue
		}
		h, size, err := readSegmentHeader(l.disk, f.path)
		if err != nil && (!errors.Is(err, errSegHeader) || DeviceFailed(err)) {
			continue
		}
		l.mu.Lock()
		l.dropDamage(func(at Offset) bool { return at == f.base })
		if err == nil {
			err = l.fitsAgain(i, &h)
		}
		if changed = true; err != nil {
			f.broken = f.corrupt(0, err)
		} else {
			l.takeHead(i, h, size)
			served = true
		}
		l.mu.Unlock()
	}
	if changed {
		l.mu.Lock()
		for _, f := range l.segs {
			if f.broken != nil {
				l.dropDamage(func(at Offset) bool { return at == f.base })
			}
		}
		l.standIn(l.segs)
		l.mu.Unlock()
	}
	return served
}

// DeviceFailed says whether err is about a device that could not read, and not about the bytes it returned.
func DeviceFailed(err error) bool { return errors.Is(err, aio.ErrMedia) || errors.Is(err, syscall.EIO) }

// fitsAgain checks the header of segment i of an open log as fits does while the log is opened. The caller holds l.mu.
func (l *Log) fitsAgain(i int, h *segHeader) error {
	f := l.segs[i]
	st := State{Segment: f.number, SegmentBase: f.base, End: l.flushed}
	if f.sealed {
		st.Segment++
	}
	if i > 0 && (h.starts || l.segs[i-1].broken == nil && h.base > l.segs[i-1].base+Offset(l.segs[i-1].capacity)) {
		return errors.New("it does not continue the segment before it")
	}
	return l.fits(h, f.number, min(l.baseAbove(l.segs[i+1:]), l.flushed), st)
}

// takeHead serves segment i, whose header h was read again. The caller holds l.mu.
func (l *Log) takeHead(i int, h segHeader, size int64) {
	f := l.segs[i]
	f.broken, f.segHeader = nil, h
	l.noteShort(f, size, l.segmentEnd(i))
	if i == 0 {
		l.start = place{f.first, f.firstPos, f.firstID}
	}
}

// errReadSoFar is the reason for which the rest of a range stays isolated after the device read its beginning again.
var errReadSoFar = fmt.Errorf("%w: a range that it could not read was read again up to here", aio.ErrMedia)

// ReadAgain retries an isolated range that the device could not read: cables, paths and sectors come back. It reads
// about CheckBytes from the beginning of the range, from the device and not from memory that shows what the device once
// had. The part that verifies is served again and ends at until. The rest stays isolated and can be tried next. If the
// device returns bytes that do not verify, they are damage. Damage is not tried again, nor is any range that was
// isolated for another reason. ReadAgain holds l.io, which writers of the log need, for as long as the device takes.
func (l *Log) ReadAgain(c *Checker, r Range) (until Offset, err error) {
	l.io.Lock()
	defer l.io.Unlock()
	f, err := l.damagedIn(r)
	if err != nil {
		return r.From, err
	}
	defer f.release()
	l.mu.Lock()
	cause := l.damageAt(f, r.From)
	l.mu.Unlock()
	if !errors.Is(cause, aio.ErrMedia) {
		return r.From, cause
	}
	run, _, err := l.checkFile(c, f, r.From, r.To, CheckBytes)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.serveAgain(f, Range{r.From, run.Next}, errReadSoFar)
		return run.Next, nil
	case isDamage(err) && !errors.Is(err, aio.ErrMedia):
		l.dropDamage(func(at Offset) bool { return at == r.From })
		l.noteDamage(r.From, f.corrupt(f.at(r.From), err))
	}
	return r.From, err
}

// MayReadAgain lists the isolated ranges that ReadAgain or OpenAgain can retry.
func (l *Log) MayReadAgain() []Range {
	all := l.Isolated()
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(all, func(r Range) bool {
		return !slices.ContainsFunc(l.damage, func(d damage) bool { return d.at == r.From && DeviceFailed(d.err) })
	})
}

// serveAgain ends the isolation of r, the beginning of an isolated range, whose bytes are good now. What remains of the
// isolated range stays isolated, for the reason rest. The caller holds l.mu.
func (l *Log) serveAgain(f *segFile, r Range, rest error) {
	l.dropDamage(func(at Offset) bool { return at == r.From })
	i := slices.IndexFunc(f.bad, func(s span) bool { return s.from == r.From })
	end := f.bad[i].to
	if n := slices.Index(l.segs, f); n >= 0 {
		end = min(end, l.segmentEnd(n)) // what is written later will be good
	}
	if r.To >= end {
		f.bad = slices.Delete(f.bad, i, i+1)
		return
	}
	f.bad[i].from = r.To
	l.noteDamage(r.To, f.corrupt(f.at(r.To), rest))
}
