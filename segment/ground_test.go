package segment

import (
	"errors"
	"strings"
	"testing"
	"time"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// renamer is a disk that calls renamed when a name was changed, before the log can go on.
type renamer struct {
	aio.Disk
	renamed func()
}

func (d *renamer) Rename(from, to string) error {
	err := d.Disk.Rename(from, to)
	d.renamed()
	return err
}

// The newest segment is watched, however it came to its name: made, found by Open, replaced by a larger copy, or newest
// again after a cut. A look that comes while the log itself replaces the file waits, and finds nothing wrong.
func TestNewestSegmentIsWatched(t *testing.T) {
	disk := &renamer{Disk: faultaio.New(faultaio.Options{Seed: 1}), renamed: func() {}}
	w := newWorldOf(t, disk, testSizes, testOptions)
	fine := func(step string) {
		t.Helper()
		for range 2 {
			if err := w.log.CheckGround(); err != nil {
				t.Fatalf("%s: a false alarm: %v", step, err)
			}
		}
	}
	fine("empty")
	w.append(1, 2000)
	fine("in memory")
	w.settle()
	fine("made")
	w.reopen()
	fine("opened")
	w.append(1, 100)
	w.settle()
	large := w.st
	large.SegmentCapacity = 64 << 10
	w.st = large
	looks := make(chan error, 10)
	count := 0
	disk.renamed = func() {
		count++
		go func() { looks <- w.log.CheckGround() }()
		select {
		case err := <-looks:
			looks <- err
			t.Errorf("it did not wait for the log: %v", err)
		case <-time.After(50 * time.Millisecond): // it never comes
		}
		if w.log.checkNewest() == nil {
			t.Error("the name leads to the copy already, and nobody sees it: this test shows nothing")
		}
	}
	for range 5 {
		w.append(1, 10_000)
	}
	w.settle()
	disk.renamed = func() {}
	if count == 0 || w.st.Segment != 0 {
		t.Fatalf("%d copies, segment %d", count, w.st.Segment)
	}
	for range count {
		if err := <-looks; err != nil {
			t.Errorf("during the copy: a false alarm: %v", err)
		}
	}
	fine("replaced by a copy")
	w.append(1, 30_000)
	w.settle()
	fine("a segment more")
	w.check()

	name := w.log.segs[len(w.log.segs)-1].path
	if err := disk.Remove(name); err != nil {
		t.Fatal(err)
	}
	lost := (*aio.GroundError)(nil)
	if err := w.log.CheckGround(); !errors.As(err, &lost) || !strings.Contains(err.Error(), name+" was removed") {
		t.Errorf("removed, and it says %v", err)
	}
	if err := disk.WriteFile(name, []byte("another")); err != nil {
		t.Fatal(err)
	}
	if err := w.log.CheckGround(); !errors.As(err, &lost) || !strings.Contains(err.Error(), name+" was replaced") {
		t.Errorf("replaced, and it says %v", err)
	}
	if err := errors.Join(w.log.Close(), w.log.CheckGround()); err != nil {
		t.Errorf("a closed log has nothing to lose: %v", err)
	}
}
