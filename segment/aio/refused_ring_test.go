package aio

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A ring can be refused after the probe of OpenDisk found that rings work, here because the process may open no more
// files. Then the queue works without a ring, and Info says so.
func TestRingRefusedLater(t *testing.T) {
	disk, err := OpenDisk(t.TempDir(), DiskOptions{Mode: ModeUring})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if disk.Info().Engine == "pwrite" {
		t.Skipf("this machine refuses io_uring: %s", disk.Info().Reason)
	}
	f := createFile(t, disk, "a", BlockBytes)
	p := aligned(t, BlockBytes)

	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	q, err := disk.NewQueue(QueueOptions{})
	if err := errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)); err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if info := disk.Info(); info.Engine != "pwrite" || info.Reason == "" {
		t.Errorf("info %+v, want pwrite and a reason", info)
	}
	if err := q.Submit(Op{File: f, Data: p}); err != nil {
		t.Fatal(err)
	}
	if done, err := q.Wait(nil, true); err != nil || len(done) != 1 || done[0].Err != nil {
		t.Fatalf("completions %v, %v", done, err)
	}
	if errors.Is(f.Sync(), syscall.EMFILE) {
		t.Fatal("the limit is still in force")
	}
}
