package segment

import (
	"bytes"
	"testing"

	"penstock/segment/aio"
)

// A view that keeps its bytes shows them again from any batch of the run, without a pin on the segment. It shows
// nothing once the log has been cut or begins later. Bytes of the tail are not kept.
func TestViewKeepsVerifiedBytes(t *testing.T) {
	onDisks(t, func(t *testing.T, disk aio.Disk) {
		w := newWorld(t, disk)
		w.fill(newRand(4), 120)
		first, second := w.model[0].slice, w.model[1].slice
		last := w.model[len(w.model)-1].slice
		w.flush()
		w.sync()
		w.log.Evict(last.Offset)
		var mapped, tail View
		if err := w.log.View(&tail, last.Offset, 4096); err != nil {
			t.Fatal(err)
		}
		if n := tail.Keep(); n != 0 || w.log.Again(&tail, last.Offset) {
			t.Errorf("a view of the tail keeps %d bytes", n)
		}
		if err := w.log.View(&mapped, 0, 64<<10); err != nil {
			t.Fatal(err)
		}
		run := bytes.Clone(mapped.Bytes())
		if w.log.Again(&mapped, 0) {
			t.Error("a view that was not kept is shown again")
		}
		if n := mapped.Keep(); n < len(run) {
			t.Fatalf("a view of %d bytes keeps %d", len(run), n)
		}
		for _, at := range []Offset{first.Offset, second.Offset} {
			if !w.log.Again(&mapped, at) || mapped.at != at || !bytes.Equal(mapped.Bytes(), run[at:]) {
				t.Fatalf("at %d the view shows %d bytes from %d on, want %d",
					at, len(mapped.Bytes()), mapped.at, len(run[at:]))
			}
		}
		if w.log.Again(&mapped, first.Offset) || w.log.Again(&mapped, Offset(len(run))) {
			t.Error("the view shows bytes before or behind what it keeps")
		}
		w.log.Evict(w.st.End)
		if n, err := w.log.Trim(w.st.End); err != nil || n == 0 {
			t.Fatalf("trim: %d, %v", n, err)
		}
		if trashed, err := disk.ReadDir("trash"); err != nil || len(trashed) != 0 {
			t.Errorf("%d files in the trash: a kept view pins a segment (%v)", len(trashed), err)
		}
		if w.log.Again(&mapped, second.Offset) {
			t.Error("the view shows what retention removed")
		}
		mapped.Release()
	})
}

// Who reads batches of more than half of what it wants at once must not have twice as much copied as it gets.
func TestViewCopiesLittleInVain(t *testing.T) {
	const window, size = 1 << 20, 600 << 10
	w := newWorldOf(t, memoryDisk(), Sizes{16 << 20, 16 << 20}, Options{})
	for range 6 {
		w.append(1, size)
	}
	w.settle()
	var v View
	for range 5 {
		at := v.at + Offset(len(v.data))
		v.Release()
		if err := w.log.View(&v, at, window); err != nil {
			t.Fatal(err)
		}
		copied := v.run.ready - v.run.from
		if got := int64(len(v.Bytes())); got < size || copied > got+HeaderBytes {
			t.Fatalf("at %d: %d bytes were copied for %d", at, copied, got)
		}
	}
	v.Release()
}
