package segment

import (
	"errors"
	"fmt"
	"testing"

	"penstock/tests/support/faultaio"
)

// checkAll walks over a log with Check. It returns how many bytes were good, and where it met damage.
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

// A scrub reads every byte once, whatever the size of its pieces, including what is only in memory.
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

// Check finds any flipped byte of a stored batch, once, at that batch, and reads everything else.
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
			flip(t, w.disk, fmt.Sprintf("%s/%010d.seg", w.dir, m.slice.Segment),
				SegmentHeaderBytes+int64(m.slice.Offset-m.slice.SegmentBase)+int64(at))
			_, bad := w.checkAll(c, CheckBytes)
			if len(bad) == 0 || bad[0] != m.slice.Offset || w.log.Health() == nil {
				t.Errorf("batch %d byte %d, at %d: damage was found at %v", i, at, m.slice.Offset, bad)
			}
			w.log.Close()
		}
	}
}

// Parts of the files that no batch covers are checked, too: a flipped bit in a header block or in an index is found
// once, and mended while the log is open.
func TestCheckFilesMends(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(21), 100)
	w.settle()
	c := NewChecker()
	defer c.Close()
	check := func() []FileFault { return w.log.CheckFiles(c, func(int64) bool { return true }) }
	content := func(name string) string {
		data, err := w.disk.ReadFile(name, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if bad := check(); len(bad) > 0 {
		t.Fatal(bad)
	}
	segments := w.log.Segments()
	if len(segments) < 3 {
		t.Fatalf("%d segments", len(segments))
	}
	for i, s := range segments {
		names := map[string]int{s.Path: SegmentHeaderBytes}
		if i+1 < len(segments) {
			names[indexPath(s.Path)] = len(content(indexPath(s.Path)))
		}
		for name, n := range names {
			before := content(name)
			for at := 0; at < n; at += 13 {
				flip(t, w.disk, name, int64(at))
				if bad := check(); len(bad) != 1 || bad[0].Path != name || !bad[0].Mended {
					t.Errorf("%s, byte %d: %v", name, at, bad)
				}
				if content(name) != before {
					t.Fatalf("%s, byte %d: it is not what it was", name, at)
				}
			}
		}
	}

	// A header block that is whole, and is that of another segment, was written to the wrong place by the device.
	before := content(segments[1].Path)
	other := []byte(content(segments[2].Path)[:SegmentHeaderBytes])
	if !w.disk.(*faultaio.Disk).Corrupt(segments[1].Path, other, 0) {
		t.Fatal("nothing was written")
	}
	if bad := check(); len(bad) != 1 || bad[0].Path != segments[1].Path || !bad[0].Mended {
		t.Errorf("the header of another segment: %v", bad)
	}
	if content(segments[1].Path) != before {
		t.Error("the header of another segment was not replaced")
	}

	missing := indexPath(segments[1].Path)
	before = content(missing)
	if err := w.disk.Remove(missing); err != nil {
		t.Fatal(err)
	}
	if bad := check(); len(bad) > 0 || content(missing) != before {
		t.Errorf("an index that was missing: %v", bad)
	}
	w.reopen()
	if got, _, err := w.readAll(1 << 20); err != nil || len(got) != len(w.model) {
		t.Errorf("%d batches of %d: %v", len(got), len(w.model), err)
	}
}

// Batches that segments hold and memory still has are read from the device, and written again if the device has lost
// them.
func TestCheckMendsFromMemory(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(9), 40)
	w.flush()
	w.sync()
	c := NewChecker()
	defer c.Close()
	for i := range w.model {
		m := &w.model[i]
		flip(t, w.disk, fmt.Sprintf("%s/%010d.seg", w.dir, m.slice.Segment),
			SegmentHeaderBytes+int64(m.slice.Offset-m.slice.SegmentBase)+int64(i*37%len(m.data)))
		if run, err := w.log.Check(c, m.slice.Offset, 1, 0); err != nil || !run.Mended || run.Bytes != int64(len(m.data)) {
			t.Errorf("batch %d: %+v, %v", i, run, err)
		}
		if run, err := w.log.Check(c, m.slice.Offset, 1, 0); err != nil || run.Mended || run.InMemory {
			t.Errorf("batch %d, once more: %+v, %v", i, run, err)
		}
	}
	w.append(1, 100) // only in memory
	if run, err := w.log.Check(c, w.log.Flushed(), 1, 0); err != nil || !run.InMemory {
		t.Errorf("%+v, %v", run, err)
	}
	if err := w.log.Health(); err != nil {
		t.Error(err)
	}
	w.settle()
	w.reopen()
	if got, _, err := w.readAll(1 << 20); err != nil || len(got) != len(w.model) {
		t.Errorf("%d batches of %d: %v", len(got), len(w.model), err)
	}
}
