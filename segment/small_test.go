package segment

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// The first segment file of a log begins with 64 KiB of space, and gets more as the log grows, up to its size. So does
// a file that was opened again.
func TestFirstSegmentBeginsSmall(t *testing.T) {
	const capacity = 1 << 20
	dir := t.TempDir()
	disk, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorldOf(t, disk, DefaultSizes, testOptions)
	t.Cleanup(func() { _ = disk.Close() })
	for _, step := range []struct {
		batches, size int
		reopen        bool
		want          int64
	}{
		{3, 100, false, 64 << 10},
		{1, 70 << 10, false, 128 << 10},
		{1, 100, true, 128 << 10},
		{1, 200 << 10, true, 512 << 10},
		{1, 500 << 10, false, capacity + SegmentHeaderBytes},
	} {
		if step.reopen {
			w.reopen()
		}
		for range step.batches {
			w.append(1, step.size)
		}
		w.settle()
		w.check()
		var st syscall.Stat_t
		if err := syscall.Stat(filepath.Join(dir, filepath.FromSlash(w.log.Segments()[0].Path)), &st); err != nil {
			t.Fatal(err)
		}
		if st.Size != capacity+SegmentHeaderBytes {
			t.Errorf("the file has %d bytes", st.Size)
		}
		if got := st.Blocks * 512; got > step.want+8<<10 { // and blocks of the file system's own
			t.Errorf("with %d bytes the file takes %d, want at most %d", w.st.End, got, step.want)
		}
	}
}

// A segment that cannot get more space on a full disk loses nothing: the flush fails as it does when there is no room
// for a file, the file system takes nothing, and the next flush after space was made goes on. If there is room for the
// batches, but not for twice the space, the segment gets what it needs.
func TestFullDiskWhileASegmentGrows(t *testing.T) {
	disk := faultaio.New(faultaio.Options{Seed: 1})
	w := newWorldOf(t, disk, DefaultSizes, testOptions)
	w.append(1, 40<<10)
	w.settle()
	free, err := disk.FreeBytes()
	if err != nil {
		t.Fatal(err)
	}
	used := faultaio.DefaultCapacityBytes - free
	disk.SetCapacity(used + 16<<10)
	w.append(1, 60<<10)
	if _, err := w.log.Flush(w.w, 1<<20); !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrPoisoned) {
		t.Fatalf("a flush into a full disk: %v", err)
	}
	w.check()
	disk.SetCapacity(used + 48<<10) // 128 KiB are 64 more
	w.settle()
	w.check()
	if left, err := disk.FreeBytes(); err != nil || left >= 16<<10 {
		t.Errorf("%d bytes are free (%v): the batch did not take its space", left, err)
	}
	w.reopen()
	w.check()
}
