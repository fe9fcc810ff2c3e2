package segment

import (
	"errors"
	"syscall"
	"testing"

	"penstock/tests/support/faultaio"
)

// A caller that may not wait for the device gets what is in memory, and ErrNotInMemory for everything else. The device
// is not used.
func TestWithoutTheDevice(t *testing.T) {
	d := faultaio.New(faultaio.Options{Seed: 1})
	w := newWorld(t, d)
	w.fill(newRand(43), 60)
	w.settle()
	w.log.Evict(w.st.End)
	w.fill(newRand(44), 10)
	w.log.Unmap()
	d.Inject(faultaio.Rule{Kind: faultaio.KindRead, Count: -1, Err: syscall.EIO})
	first, ok := w.log.InMemory(0)
	if !ok {
		t.Fatal("nothing is in memory")
	}
	cold, hot := 0, 0
	for i := range w.model {
		s := &w.model[i].slice
		at, err := w.log.Memory().SeekPosition(s.Position)
		if s.Position < first {
			var v View
			if cold++; err != ErrNotInMemory || w.log.Memory().View(&v, s.Offset, 1) != ErrNotInMemory {
				t.Fatalf("batch %d is not in memory: %v", s.Position, err)
			}
			continue
		}
		var v View
		if err == nil {
			err = w.log.Memory().View(&v, at, 1)
		}
		var h Header
		if err == nil {
			err = h.Decode(v.Bytes())
		}
		if hot++; err != nil || at != s.Offset || h.Position != s.Position {
			t.Fatalf("batch %d is in memory at %d; found %d at %d: %v", s.Position, s.Offset, h.Position, at, err)
		}
		v.Release()
	}
	if cold == 0 || hot == 0 {
		t.Errorf("%d batches are not in memory, %d are", cold, hot)
	}
	var v View
	m := w.log.Memory()
	if _, err := m.SeekPosition(w.st.Next); err != ErrAtEnd || m.View(&v, w.st.End, 1) != ErrAtEnd {
		t.Errorf("at the end: %v", err)
	}
	if _, err := w.log.Memory().SeekPosition(w.st.Next + 1); err != ErrPastEnd {
		t.Errorf("behind the end: %v", err)
	}
	if err := w.log.Memory().View(&v, w.model[len(w.model)-1].slice.Offset+1, 1); !errors.Is(err, ErrNotBoundary) {
		t.Errorf("inside a batch: %v", err)
	}
	d.ClearRules()
}
