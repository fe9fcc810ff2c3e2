package segment

import (
	"testing"

	"penstock/segment/aio"
)

// A leader gave a segment more room than this copy's file has, because the copy made the file after a restart, from the
// batches that it had by then. The file is enlarged when a batch needs it. A reader of the old file keeps its bytes,
// and a checkpoint with the larger capacity opens the log.
func TestFileGetsMoreRoom(t *testing.T) {
	onDisks(t, func(t *testing.T, disk aio.Disk) {
		for _, reopened := range []bool{false, true} {
			w := newWorldOf(t, disk, testSizes, testOptions)
			if reopened {
				w.dir += "r"
				w.open(State{})
			}
			w.append(1, 2000)
			w.settle()
			var v View
			if err := w.log.View(&v, 0, 1<<20); err != nil {
				t.Fatal(err)
			}
			before := string(v.Bytes())
			large := w.st
			large.SegmentCapacity = 64 << 10
			w.st = large
			w.append(1, 100) // this one still fits into the file
			w.settle()
			if reopened {
				w.reopen()
				w.check()
			}
			for range 5 {
				w.append(1, 10_000)
			}
			if w.st.Segment != 0 {
				t.Fatalf("the batches went to segment %d", w.st.Segment)
			}
			w.settle()
			w.check()
			if string(v.Bytes()) != before {
				t.Error("a reader of the old file sees other bytes")
			}
			v.Release()
			w.reopen()
			w.check()
			w.append(1, 30_000) // the next segment follows
			w.settle()
			w.reopen()
			w.check()
		}
	})
}
