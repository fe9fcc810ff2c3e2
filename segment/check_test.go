package segment

import (
	"errors"
	"fmt"
	"testing"

	"penstock/segment/aio/faultaio"
)

// checkAll walks over a log with Check and returns what was good and where damage was met.
func (w *world) checkAll(c *Checker, maxBytes int) (bytes int64, damaged []Offset) {
	w.t.Helper()
	at, _, _ := w.log.Start()
	for {
		run, err := w.log.Check(c, at, maxBytes, 0)
		var bad *CorruptError
		switch {
		case errors.Is(err, ErrAtEnd):
			return bytes, damaged
		case errors.As(err, &bad):
			damaged = append(damaged, at)
			for _, r := range w.log.Isolated() {
				if r.From <= at && at < r.To {
					at = r.To
				}
			}
			if damaged[len(damaged)-1] == at {
				w.t.Fatalf("damage at %d is not isolated: %v", at, err)
			}
		case err != nil:
			w.t.Fatal(err)
		default:
			if run.Next != at+Offset(run.Bytes) || run.Bytes == 0 {
				w.t.Fatalf("a run of %d bytes from %d to %d", run.Bytes, at, run.Next)
			}
			bytes += run.Bytes
			at = run.Next
		}
	}
}

// A scrub reads every byte once, whatever the size of its pieces, and what is in memory too.
func TestCheckWhole(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(7), 60)
	w.flush()
	w.fill(newRand(8), 5)
	defer w.log.Close()
	c := NewChecker()
	defer c.Close()
	start, _, _ := w.log.Start()
	end, _, _ := w.log.End()
	for _, maxBytes := range []int{1, 700, CheckBytes} {
		if n, bad := w.checkAll(c, maxBytes); n != int64(end-start) || len(bad) > 0 {
			t.Errorf("in pieces of %d: %d bytes of %d, damage %v", maxBytes, n, end-start, bad)
		}
	}
}

// Any flipped byte of a stored batch is found, once, at its batch, and everything else is read.
func TestCheckFindsDamage(t *testing.T) {
	base := newWorld(t, memoryDisk())
	base.fill(newRand(20), 40)
	base.settle()
	c := NewChecker()
	defer c.Close()
	for i := range base.model {
		m := &base.model[i]
		for _, at := range []int{0, 8, HeaderBytes - 1, len(m.data) - 1} {
			w := *base
			w.t = t
			w.disk = base.disk.(*faultaio.Disk).Kill(1)
			w.open(w.st)
			flip(t, w.disk, fmt.Sprintf("%s/%010d.seg", w.dir, m.slice.Segment), SegmentHeaderBytes+int64(m.slice.Offset-m.slice.SegmentBase)+int64(at))
			_, bad := w.checkAll(c, CheckBytes)
			if len(bad) == 0 || bad[0] != m.slice.Offset || w.log.Health() == nil {
				t.Errorf("batch %d byte %d, at %d: damage was found at %v", i, at, m.slice.Offset, bad)
			}
			w.log.Close()
		}
	}
}
