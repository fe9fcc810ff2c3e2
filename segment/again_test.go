package segment

import (
	"errors"
	"syscall"
	"testing"

	"penstock/segment/aio"
	"penstock/segment/aio/faultaio"
)

// again tries all isolated ranges to their ends.
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

// What the device could not read is served again when it can; until then it stays isolated, and neighbours are served.
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

// What reads back and is wrong is damage, and is not tried any more.
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
	if len(w.log.MayReadAgain()) != 0 || len(w.log.Isolated()) == 0 || errors.Is(w.log.Health(), aio.ErrMedia) || !errors.Is(w.log.Health(), ErrInvalid) {
		t.Errorf("isolated %v: %v", w.log.Isolated(), w.log.Health())
	}
}
