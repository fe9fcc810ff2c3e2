package flush

import (
	"errors"
	"testing"
	"time"

	"penstock/internal/node/clock"
	"penstock/internal/node/errs"
	"penstock/segment"
	"penstock/tests/support/logtest"
)

// The age of data that arrived while the process ran is the time since its arrival, whatever times its leader gave it.
// Those times count only for data that was there at the start.
func TestAgedTo(t *testing.T) {
	now, mono := time.Unix(1_700_000_000, 0), 2*time.Hour
	f, p := newTestPart(t, clock.New(func() time.Time { return now }, func() time.Duration { return mono }))
	p.log.Put(1, 1, now.UnixNano())
	old := p.log.State.End
	p.log.Put(1, 1, now.UnixNano()) // as if a leader whose clock is behind had sent it just now
	middle := now
	now, mono = now.Add(20*time.Millisecond), mono+20*time.Millisecond
	p.log.Put(1, 1, now.UnixNano())
	p.Recovered(old, middle.UnixNano(), mono-time.Hour)
	if to := f.agedTo(&p.Part, &p.seen, 10*time.Millisecond); to != old {
		t.Errorf("what lies below %d is too old, and what came since the start lies behind %d", to, old)
	}
}

// Retention keeps the number of bytes that the limit of the topic allows.
//
// B39.
func TestRetentionBytesAreKept(t *testing.T) {
	const keep = 300 << 10
	f, p := newTestPart(t, nil)
	for range 10 {
		p.log.Put(100, 1000, time.Unix(1_700_000_000, 0).UnixNano())
	}
	p.limits.RetentionBytes = keep
	if to := f.boundaries(&p.Part).To(); to != p.log.State.End-segment.Offset(keep) {
		t.Errorf("of %d bytes those below %d may go, want all but %d", p.log.State.End, to, keep)
	}
}

// Retention keeps the segment in which the checkpoint ends from which a recovery would start, also if it ends there,
// and the same after a cut.
func TestTrimKeepsWhereRecoveryStarts(t *testing.T) {
	for _, cut := range []bool{false, true} {
		f, p := newTestPart(t, nil)
		for p.log.State.Segment < 4 {
			p.log.Put(1, 3000, time.Unix(1_700_000_000, 0).UnixNano())
			p.log.Flush()
		}
		if err := p.log.Sync(); err != nil {
			t.Fatal(err)
		}
		segments := p.log.Segments()
		want := segments[2]
		checkpoint := want.End
		if cut {
			checkpoint = p.log.State.End
		}
		f.files = []checkpointFile{{1, []LogEnd{{Part: &p.Part, End: checkpoint}}}, {2, nil}}
		f.learnLimits(1)
		if cut {
			f.Cut(&p.Part, want.End)
		}
		f.Trim(&p.Part, 1<<62)
		if first := p.log.Segments()[0]; first.Number != want.Number {
			t.Errorf("the log begins with segment %d, want %d, at whose end recovery starts", first.Number, want.Number)
		}
	}
}

// Retention keeps the segment in which the committed part of a log ends, also if it ends there: a cut to the committed
// part needs the state of the channels in front of the cut, which is in that segment.
func TestTrimKeepsWhereTheCommittedPartEnds(t *testing.T) {
	f, p := newTestPart(t, nil)
	for p.log.State.Segment < 4 {
		p.log.Put(1, 3000, time.Unix(1_700_000_000, 0).UnixNano())
		p.log.Flush()
	}
	if err := p.log.Sync(); err != nil {
		t.Fatal(err)
	}
	want := p.log.Segments()[2]
	p.committed = want.End
	f.files = []checkpointFile{{1, []LogEnd{{Part: &p.Part, End: p.log.State.End}}}, {2, nil}}
	f.learnLimits(1)
	f.Trim(&p.Part, 1<<62)
	if first := p.log.Segments()[0]; first.Number != want.Number {
		t.Errorf("the log begins with segment %d, want %d, in which the committed part ends", first.Number, want.Number)
	}
}

// The commit log keeps the batches that the segments of a copy lack, if the copy is given up or being removed, for as
// long as the copy says so. After that, the next process knows that the copy lacks something.
func TestReleaseLimit(t *testing.T) {
	f, p := newTestPart(t, nil)
	p.log.Put(1, 1, time.Unix(1_700_000_000, 0).UnixNano())
	seq, ok := p.log.OldestUnsyncedFileSeq()
	if !ok {
		t.Fatal("the segments have it")
	}
	for _, p.holds = range []bool{true, false} {
		if release := f.releaseLimit(seq + 5); (release == seq) != p.holds || release > seq+5 {
			t.Errorf("the copy needs file %d: %v, and those below %d are released", seq, p.holds, release)
		}
	}
}

// A failed write closes the inbox of a copy until its log is replaced. A flush of the old log that failed does not
// close the inbox of the new one, and nothing opens an inbox that is closed for good.
func TestInboxOpensForAnotherLog(t *testing.T) {
	f, p := newTestPart(t, nil)
	before := p.Reopens()
	f.failed(&p.Part, before, &segment.CorruptError{})
	if !p.isClosed() {
		t.Fatal("puts come to a log that takes nothing")
	}
	if p.ReopenInbox(); p.isClosed() {
		t.Error("puts do not come to another log")
	}
	f.failed(&p.Part, before, &segment.CorruptError{})
	if p.isClosed() {
		t.Error("an error of the log before closes the inbox of this one")
	}
	for what, end := range map[string]func(){
		"the node closes":       func() { p.CloseToNew(errs.ErrClosed) },
		"the commit log failed": func() { p.CloseAndRefuse(errs.ErrDisk, false) },
	} {
		p.openInbox()
		f.failed(&p.Part, p.Reopens(), &segment.CorruptError{})
		end()
		if p.ReopenInbox(); !p.isClosed() {
			t.Errorf("%s, and the inbox opens", what)
		}
	}
}

// A copy whose last segment file is broken takes no more batches into segments, and is not repaired in place: it counts
// as one that cannot be written, so that its replica gives it up, and a leader first looks for another one. Where there
// is no other copy, or if only a range of the file is damaged, the inbox is closed.
func TestBrokenFileIsUnwritten(t *testing.T) {
	for _, c := range []struct{ shared, broken, closed, unwritten bool }{
		{true, true, false, true},
		{true, false, true, false},
		{false, true, true, true},
		{false, false, true, false},
	} {
		f, p := newTestPart(t, nil)
		p.shared = c.shared
		p.log.Put(1, 100, 1)
		p.log.Flush()
		if err := errors.Join(p.log.Sync(), p.log.Close()); err != nil {
			t.Fatal(err)
		}
		if c.broken && !p.log.Disk.Corrupt(logtest.Dir+"/0000000000.seg", []byte("rotten"), segment.SegmentHeaderBytes/2) {
			t.Fatal("nothing was damaged")
		}
		var err error
		p.log.Log, err = segment.Open(p.log.Disk, logtest.Dir, segment.Identity{}, p.log.State, segment.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p.log.Put(1, 100, 1)
		_, err = p.log.Log.Flush(f.writer, 1<<20)
		if (err != nil) != c.broken {
			t.Fatalf("broken %v: %v", c.broken, err)
		}
		if !c.broken {
			err = &segment.CorruptError{} // a range before what is flushed
		}
		f.failed(&p.Part, p.Reopens(), err)
		if p.isClosed() != c.closed || p.Unwritten() != c.unwritten {
			t.Errorf("%+v: the inbox is closed %v, it cannot be written %v", c, p.isClosed(), p.Unwritten())
		}
	}
}

// While files are pinned none is given back, also not by a release that was decided before they were pinned.
func TestPinnedFilesAreKept(t *testing.T) {
	f := New(Env{})
	first, second := f.PinFiles(), f.PinFiles()
	for range 2 {
		if f.giveBack(5) || f.released != 0 {
			t.Fatal("a pinned file was given back")
		}
		first()
		first = func() {}
	}
	second()
	if f.pins != 0 {
		t.Errorf("%d pins are left", f.pins)
	}
}
