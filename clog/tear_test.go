package clog

import (
	"errors"
	"slices"
	"testing"
	"time"

	"penstock/segment"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/patience"
)

// TestTears lists what may lie behind the end of a log, and what recovery makes of it.
func TestTears(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 2)
	base := func(f *forge) { f.checkpoint(1); f.records(1, 3) }
	late := func(f *forge) { // a group that was in flight together with the one before it
		f.group(1, func(g *Group) { g.add(&Placement{Type: Tombstone}, 0, 4) })
		f.lower(1, 2)
	}
	for _, c := range []struct {
		name    string
		build   func(f *forge)
		records uint64
		group   uint64 // group number in the tear; 0: no tear
		mark    bool
		err     error
	}{
		{name: "nothing", build: base, records: 3},
		{name: "a mark", build: func(f *forge) { base(f); f.mark(1) }, records: 3},
		{name: "never written", build: func(f *forge) { base(f); f.records(1, 1); f.drop(1, 1) }, records: 3},
		{
			name:  "a group whose body is damaged",
			build: func(f *forge) { base(f); f.records(1, 1); f.damage(1, 2*aio.BlockBytes+70) }, records: 3, group: 3,
		},
		{
			name:  "a group whose header is damaged",
			build: func(f *forge) { base(f); f.records(1, 1); f.damage(1, 2*aio.BlockBytes+50) }, records: 3, group: 3,
		},
		{
			name:  "with a mark behind",
			build: func(f *forge) { base(f); f.records(1, 1); f.mark(1); f.damage(1, 2*aio.BlockBytes+70) }, records: 3,
			err: corrupt,
		},
		{
			name:  "with a header of its own damaged and a mark behind",
			build: func(f *forge) { base(f); f.records(1, 1); f.mark(1); f.damage(1, 2*aio.BlockBytes+50) }, records: 3,
			err: corrupt,
		},
		{name: "with a damaged mark behind", build: func(f *forge) {
			base(f)
			f.records(1, 1)
			f.mark(1)
			f.damage(1, 2*aio.BlockBytes+70)
			f.damage(1, 3*aio.BlockBytes+9)
		}, records: 3, group: 3},
		{
			name: "a damaged mark", build: func(f *forge) { base(f); f.mark(1); f.damage(1, 2*aio.BlockBytes+3) }, records: 3,
			group: 3, mark: true,
		},
		{name: "a damaged mark, and a group that promises it", build: func(f *forge) {
			base(f)
			f.mark(1)
			f.damage(1, 2*aio.BlockBytes+3)
			f.records(1, 1)
		}, records: 3, err: corrupt},
		{name: "a damaged mark, and a group that was on its way with it", build: func(f *forge) {
			base(f)
			f.mark(1)
			f.damage(1, 2*aio.BlockBytes+3)
			late(f)
		}, records: 3, group: 3},
		{name: "a lost group, and one that was on its way with it", build: func(f *forge) {
			base(f)
			f.records(1, 1)
			f.drop(1, 1)
			late(f)
		}, records: 3, group: 3},
		{
			name: "a checkpoint that is not whole", build: func(f *forge) { base(f); f.checkpoint(2); f.damage(2, 70) },
			records: 3, group: 3, mark: true,
		},
		{name: "groups of an older generation", build: func(f *forge) {
			base(f)
			stale := *f
			stale.files = map[uint64][]byte{}
			stale.h.CRC++
			stale.records(9, 4)
			f.files[1] = append(f.files[1], stale.files[9]...)
		}, records: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newForge()
			c.build(f)
			f.m.added = f.next
			r, report, err := recovered(f.disk(t), arena, f.m)
			if c.err == nil && err != nil || c.err != nil && !errors.As(err, new(*segment.CorruptError)) {
				t.Fatalf("%v, want %v", err, c.err)
			}
			if r.next != c.records {
				t.Errorf("%d records, want %d", r.next, c.records)
			}
			tear := report.Tear
			switch {
			case c.group == 0 && tear != nil:
				t.Errorf("a tear: %+v", tear)
			case c.group == 0:
			case tear == nil || tear.Group != c.group || tear.Mark != c.mark || tear.Bytes < aio.BlockBytes ||
				tear.File == fileName(1) && tear.Offset != 2*aio.BlockBytes:
				t.Errorf("the tear is %+v, want group %d, mark %v", tear, c.group, c.mark)
			case !report.Torn || report.TornBytes < tear.Bytes:
				t.Errorf("%+v", report)
			}
		})
	}
}

// Flip one bit anywhere in the last group, or in the mark behind it: nothing is dropped silently. Without a mark, the
// log reports the group that it cut. With a mark, the log is damaged. A damaged mark costs nothing but its promise.
func TestEveryBitOfTheEnd(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 2)
	f := newForge()
	f.checkpoint(1)
	f.records(1, 3)
	f.records(1, 1)
	groupAt, markAt := 2*aio.BlockBytes, 3*aio.BlockBytes
	flip := func(off int, bit byte) (*replayed, *Report, error) {
		p := f.files[1]
		p[off] ^= bit
		defer func() { p[off] ^= bit }()
		return recovered(f.disk(t), arena, f.m)
	}
	f.m.added = f.next
	for off := groupAt; off < groupAt+300; off++ {
		_, report, err := flip(off, 1<<(off%8))
		if err != nil || report.Tear == nil || report.Tear.Mark || report.Records != 3 {
			t.Fatalf("byte %d of the last group: %v, %+v", off-groupAt, err, report)
		}
	}
	f.mark(1)
	for off := groupAt; off < groupAt+300; off++ {
		if _, report, err := flip(off, 1<<(off%8)); !errors.As(err, new(*segment.CorruptError)) {
			t.Fatalf("byte %d of a group with a mark: %v, %+v", off-groupAt, err, report)
		}
	}
	for off := markAt; off < markAt+aio.BlockBytes; off += 1 + (off-markAt)/GroupHeaderBytes*13 {
		for bit := range 8 {
			_, report, err := flip(off, 1<<bit)
			if err != nil || report.Tear == nil || !report.Tear.Mark && off < markAt+GroupHeaderBytes || report.Records != 4 {
				t.Fatalf("byte %d, bit %d of the mark: %v, %+v", off-markAt, bit, err, report)
			}
		}
	}
}

// The warning names the partitions whose record headers can still be read.
func TestTearNamesPartitions(t *testing.T) {
	f := newForge()
	f.checkpoint(1)
	f.records(1, 3)
	f.records(1, 3)
	first := f.m.placement(3)
	f.damage(1, len(f.files[1])-aio.BlockBytes+GroupHeaderBytes+RecordHeaderBytes+5)
	_, report, err := recovered(f.disk(t), testArena(t, 4*aio.BlockBytes, 2), f.m)
	if err != nil || report.Tear == nil || !slices.Contains(report.Tear.Partitions, segment.Identity{
		Topic: first.Topic, Partition: first.Partition,
	}) {
		t.Errorf("%v, %+v", err, report.Tear)
	}
}

// An idle log promises its last group, once. The marks of a log that is often idle take no room in its buffers.
func TestMarkAtRest(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	m.size = func(uint64) int { return 100 }
	arena := testArena(t, 4*aio.BlockBytes, 2)
	l := openOn(t, d, arena, small(0), m)
	l.Rested()
	step(t, l, 3)
	if s := l.Stats(); s.Marks != 0 {
		t.Fatalf("%d marks of a log that has nothing to promise", s.Marks)
	}
	for round := range uint64(5) {
		m.put(1)
		step(t, l, 3)
		l.Rested()
		l.Rested()
		step(t, l, 3)
		if s := l.Stats(); s.Marks != round+1 || m.acked != round+1 {
			t.Fatalf("%d marks and %d records after %d puts and rests", s.Marks, m.acked, round+1)
		}
		r, report, err := recovered(d.Crash(round), arena, m)
		if err != nil || report.Tear != nil || r.next != m.acked {
			t.Fatalf("%v, %d records, %+v", err, r.next, report)
		}
	}
}

// A log driven by Run notices by itself that it is idle.
func TestMarkByTimer(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	opts := small(0)
	opts.Inline, opts.MarkAfter = false, time.Millisecond
	l, _, err := Open(d, testArena(t, 4*aio.BlockBytes, 2), opts, &replayed{m: m})
	if err != nil {
		t.Fatal(err)
	}
	l.SetSource(m)
	ran := make(chan error, 1)
	go func() { ran <- l.Run() }()
	for round := range uint64(3) {
		m.put(1)
		l.Wake()
		for end := time.Now().Add(patience.Or(30 * time.Second)); l.Stats().Marks < round+1; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no mark: %+v", l.Stats())
			}
		}
	}
	l.Stop()
	if err := errors.Join(<-ran, l.Close()); err != nil {
		t.Error(err)
	}
}
