package segment

import (
	"testing"
)

// The logs of a node share a bound of mapped segments. When one of them maps one too many, those that have mapped none
// for the longest time unmap theirs, but not what is being read. Logs without mappings are forgotten.
func TestMappingsOfANodeAreBounded(t *testing.T) {
	const most = 8
	m := NewMappings(most)
	opts := testOptions
	opts.Mappings = m
	mapped := func(w *world) (n int) {
		for _, s := range w.log.Segments() {
			if s.Mapped {
				n++
			}
		}
		return n
	}
	var worlds []*world
	for range 3 * most {
		w := newWorldOf(t, memoryDisk(), testSizes, opts)
		w.fill(newRand(18), 60)
		w.settle()
		worlds = append(worlds, w)
	}
	var held View
	if err := worlds[0].log.View(&held, worlds[0].log.Segments()[0].Start, 1); err != nil {
		t.Fatal(err)
	}
	for i, w := range worlds[1:] {
		var v View
		if err := w.log.View(&v, w.log.Segments()[0].Start, 1); err != nil {
			t.Fatal(err)
		}
		v.Release()
		if n := m.Count(); n > most {
			t.Fatalf("%d segments are mapped after %d logs", n, i+2)
		}
		if mapped(w) != 1 {
			t.Errorf("log %d unmapped what it has just read", i+1)
		}
	}
	if mapped(worlds[0]) != 1 || mapped(worlds[1]) != 0 {
		t.Errorf("mapped: %d of the segment that is being read, %d of the one that was read first", mapped(worlds[0]),
			mapped(worlds[1]))
	}
	held.Release()
	for _, w := range worlds {
		w.check()
		w.log.Unmap()
	}
	if m.Count() != 0 || len(m.logs) != 0 {
		t.Errorf("%d segments of %d logs are mapped after Unmap", m.Count(), len(m.logs))
	}
}
