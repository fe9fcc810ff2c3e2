package segment

import (
	"errors"
	"syscall"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// again reads all isolated ranges again, each to its end.
func (w *world) again(c *Checker) {
	w.t.Helper()
	for _, r := range w.log.MayReadAgain() {
		for r.From < r.To {
			until, err := w.log.ReadAgain(c, r)
			if err != nil {
				break
			}
			if until <= r.From || until > r.To {
				w.t.Fatalf("of %+v it served up to %d", r, until)
			}
			r.From = until
		}
	}
}

// A range that the device could not read is served again when the device can read it. Until then it stays isolated, and
// its neighbours are served.
func TestReadAgain(t *testing.T) {
	d := faultaio.New(faultaio.Options{Seed: 1})
	w := newWorld(t, d)
	w.fill(newRand(41), 60)
	w.settle()
	c := NewChecker()
	defer c.Close()
	seg := w.log.Segments()[1]
	w.log.Unmap()
	d.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: seg.Path, Count: -1, Err: syscall.EIO})
	got, bad := w.readAround()
	if len(bad) == 0 || len(got) == 0 || !errors.Is(w.log.Health(), aio.ErrMedia) {
		t.Fatalf("%d served, %d damaged: %v", len(got), len(bad), w.log.Health())
	}
	before := w.log.Isolated()
	if w.again(c); len(w.log.Isolated()) != len(before) {
		t.Fatalf("isolated %v, and before %v", w.log.Isolated(), before)
	}
	d.ClearRules()
	w.again(c)
	if r := w.log.Isolated(); len(r) != 0 || w.log.Health() != nil {
		t.Fatalf("isolated %v: %v", r, w.log.Health())
	}
	w.check()
}

// Bytes that read back and are wrong are damage, and are not tried again.
func TestReadAgainFindsDamage(t *testing.T) {
	d := faultaio.New(faultaio.Options{Seed: 1})
	w := newWorld(t, d)
	w.fill(newRand(42), 60)
	w.settle()
	c := NewChecker()
	defer c.Close()
	seg := w.log.Segments()[1]
	w.log.Unmap()
	d.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: seg.Path, Count: -1, Err: syscall.EIO})
	w.readAround()
	d.ClearRules()
	if !d.Corrupt(seg.Path, []byte("rotten"), SegmentHeaderBytes+300) {
		t.Fatal("no such file")
	}
	w.again(c)
	if len(w.log.MayReadAgain()) != 0 || len(w.log.Isolated()) == 0 || errors.Is(w.log.Health(), aio.ErrMedia) ||
		!errors.Is(w.log.Health(), ErrInvalid) {
		t.Errorf("isolated %v: %v", w.log.Isolated(), w.log.Health())
	}
}

// Headers that the device could not read when the log was opened are read again. Then everything is as if they had been
// readable: where the log begins, and what each segment holds. A header that reads but is wrong is damage.
func TestOpenAgain(t *testing.T) {
	for name, c := range map[string]struct {
		from, to int
		rotten   bool
	}{"the first": {0, 1, false}, "two in the middle": {1, 3, false}, "all": {0, 1 << 20, false}, "rotten": {1, 2, true}} {
		d := faultaio.New(faultaio.Options{Seed: 1})
		w := newWorld(t, d)
		w.fill(newRand(43), 60)
		w.settle()
		segments := w.log.Segments()
		if len(segments) < 4 {
			t.Fatalf("%d segments", len(segments))
		}
		before, start := segments, [3]any{}
		start[0], start[1], start[2] = w.log.Start()
		for _, s := range segments[c.from:min(c.to, len(segments))] {
			d.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: s.Path, Count: -1, Err: syscall.EIO})
		}
		w.reopen()
		if w.log.OpenAgain() || w.log.Health() == nil || len(w.log.MayReadAgain()) == 0 {
			t.Fatalf("%s: nothing was damaged: %v", name, w.log.Health())
		}
		d.ClearRules()
		if c.rotten && !d.Corrupt(segments[c.from].Path, []byte("rotten"), 0) {
			t.Fatal("no such file")
		}
		if w.log.OpenAgain() == c.rotten {
			t.Errorf("%s: served: %v", name, !c.rotten)
		}
		if c.rotten {
			if w.log.Health() == nil || len(w.log.MayReadAgain()) != 0 || w.log.OpenAgain() {
				t.Errorf("%s: it may be read again: %v", name, w.log.Health())
			}
			continue
		}
		after := w.log.Segments()
		for i := range after {
			a, b := &after[i], &before[i]
			if a.Err != nil || a.Start != b.Start || a.End != b.End || a.FirstPosition != b.FirstPosition ||
				a.FirstID != b.FirstID {
				t.Errorf("%s: segment %d is %+v, and was %+v", name, i, a, b)
			}
		}
		off, pos, id := w.log.Start()
		if start != [3]any{off, pos, id} || w.log.Health() != nil || len(w.log.Isolated()) != 0 {
			t.Errorf("%s: begins at %d, %d, %d, %v, isolated %v", name, off, pos, id, w.log.Health(), w.log.Isolated())
		}
		w.check()
	}
}

// InMemory finds the batches that are in memory by their offset, and no others.
func TestInMemory(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(43), 40)
	w.settle()
	if pos, ok := w.log.InMemory(0); ok {
		t.Errorf("position %d is in memory although everything was written", pos)
	}
	at, next, _ := w.log.End()
	w.append(1, 100)
	w.append(1, 200)
	end, _, _ := w.log.End()
	for off, want := range map[Offset]Position{0: next, at: next, at + 1: next + 1} {
		if pos, ok := w.log.InMemory(off); !ok || pos != want {
			t.Errorf("at %d: position %d (%v), want %d", off, pos, ok, want)
		}
	}
	if pos, ok := w.log.InMemory(end); ok {
		t.Errorf("position %d is behind the end", pos)
	}
}
