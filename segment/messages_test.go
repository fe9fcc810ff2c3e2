package segment

import (
	"bytes"
	"testing"
)

// Messages leaves exactly the batches of messages below an id, whole and in their order, and says where to go on. So a
// reader that goes on there gets each of them once, out of segments and out of memory.
func TestMessages(t *testing.T) {
	w := newWorld(t, memoryDisk())
	rng := newRand(5)
	for i := range 200 {
		if i == 150 {
			w.settle()
		}
		w.append(rng.IntN(3)*rng.IntN(4), 50+rng.IntN(300)) // every other one is a control batch
	}
	for range 300 {
		until := MsgID(rng.IntN(int(w.st.NextID) + 1))
		var want, got []byte
		for _, m := range w.model {
			if m.slice.Count > 0 && m.slice.FirstID+MsgID(m.slice.Count) <= until {
				want = append(want, m.data...)
			}
		}
		until = MsgID(0)
		for rest := want; len(rest) > 0; { // the end of a batch, as the end of what is committed is
			var h Header
			if err := h.Decode(rest); err != nil {
				t.Fatal(err)
			}
			until, rest = h.NextID(), rest[h.Size():]
		}
		at, next := Offset(0), MsgID(0)
		var v View
		for next < until {
			if err := w.log.View(&v, at, 1+rng.IntN(5000)); err != nil {
				t.Fatal(err)
			}
			to, id, err := v.Messages(until)
			if err != nil || to <= at || id < next {
				t.Fatalf("from %d at %d to %d at %d: %v", next, at, id, to, err)
			}
			got = append(got, v.Bytes()...)
			at, next = to, id
			v.Release()
		}
		if !bytes.Equal(got, want) || next != until {
			t.Fatalf("below %d there are %d bytes up to %d, want %d", until, len(got), next, len(want))
		}
	}
}
