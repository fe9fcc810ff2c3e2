package segment

import (
	"path"
	"testing"
)

// For a log that ends after any of its batches, Beyond lists what the files hold behind that: each message once, and
// each file that the log does not need as a whole.
func TestBeyond(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(1), 150)
	w.settle()
	states := []State{w.begin}
	for _, m := range w.model {
		states = append(states, m.after)
	}
	partly, wholly := 0, 0
	for i, st := range states {
		files, err := Beyond(w.disk, w.dir, w.id, st)
		if err != nil {
			t.Fatal(err)
		}
		messages, next := int64(0), MsgID(0)
		for _, f := range files {
			messages += f.Messages
			next = max(next, f.Next)
			if f.Whole {
				wholly++
			} else {
				partly++
			}
			if !f.Whole && path.Base(f.Path) != segmentName(st.Segment) || f.UsedBytes > f.SizeBytes {
				t.Errorf("after %d batches: %+v of a log in segment %d", i, f, st.Segment)
			}
		}
		if messages != int64(w.st.NextID-st.NextID) || messages > 0 && next != w.st.NextID {
			t.Fatalf("after %d batches: %d messages up to %d, want %d up to %d: %+v",
				i, messages, next, w.st.NextID-st.NextID, w.st.NextID, files)
		}
	}
	if partly == 0 || wholly == 0 {
		t.Errorf("%d files in part, %d as a whole", partly, wholly)
	}
	if files, err := Beyond(w.disk, "none", w.id, State{}); err != nil || files != nil {
		t.Errorf("without a directory: %v, %v", files, err)
	}
}
