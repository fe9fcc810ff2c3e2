package node_test

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// isThere says whether a name of the disk exists.
func isThere(t *testing.T, d *faultaio.Disk, name string) bool {
	t.Helper()
	_, err := d.ReadDir(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// A topic whose directory cannot be renamed into the trash, because the trash is on another file system or has no room
// for a name, is deleted all the same, and its space is free. The next start finds nothing of it.
func TestDeleteWithoutTrash(t *testing.T) {
	for _, why := range []error{syscall.EXDEV, syscall.ENOSPC} {
		t.Run(fmt.Sprint(why), func(t *testing.T) {
			t.Parallel()
			disk := newDisk()
			e := openOnDisk(t, disk)
			topic := topicOf(t, e, "t")
			publish(t, topic, numbered("m", 5, 0)...)
			at := node.TopicDir(e, "t")
			disk.Inject(faultaio.Rule{Kind: faultaio.KindRename, Name: at, Err: why, Count: -1})
			if err := e.DeleteTopic(t.Context(), "t"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the files are gone", func() bool { return !isThere(t, disk, at) })
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			disk = disk.Crash(1)
			e = openOnDisk(t, disk)
			if _, ok := e.Catalog().LookupTopic("t"); ok {
				t.Error("the topic is there again")
			}
		})
	}
}

// A start does not fail because the files of a deleted topic cannot be moved: it says so, and moves them when that is
// possible. Until then no start serves the topic again.
func TestStartWithWhatCannotBeMoved(t *testing.T) {
	t.Parallel()
	disk := newDisk()
	e := openOnDisk(t, disk)
	publish(t, topicOf(t, e, "t"), numbered("m", 5, 0)...)
	at := node.TopicDir(e, "t")
	never := faultaio.Rule{Kind: faultaio.KindRename, Name: at, Err: syscall.EIO, Count: -1}
	disk.Inject(never)
	if err := e.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	for life := range 2 {
		disk = disk.Crash(1)
		disk.Inject(never)
		e = openOnDisk(t, disk)
		if _, ok := e.Catalog().LookupTopic("t"); ok {
			t.Fatal("the topic is there again")
		}
		for range 4 * (1 - life) { // so much that the commit log would use its oldest file again
			publish(t, topicOf(t, e, "other"), numbered("m", 5, 12<<10)...)
		}
	}
	disk = disk.Crash(1)
	e = openOnDisk(t, disk)
	if _, ok := e.Catalog().LookupTopic("t"); ok || isThere(t, disk, at) {
		t.Error("the topic is there again, or its files are")
	}
}

// What a crash has left of a topic that was being made is removed by the next start. A directory that may hold messages
// stays.
func TestHalfMadeTopicIsSwept(t *testing.T) {
	t.Parallel()
	disk := newDisk()
	e := openOnDisk(t, disk)
	publish(t, topicOf(t, e, "t"), numbered("m", 5, 0)...)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	disk = disk.Crash(1)
	half, holds := path.Join("topics", uuid.NewString()), path.Join("topics", uuid.NewString())
	if err := errors.Join(disk.MkdirAll(half), disk.MkdirAll(path.Join(holds, "0"))); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk)
	if isThere(t, disk, half) || !isThere(t, disk, holds) {
		t.Errorf("half-made: %v, with a partition: %v", isThere(t, disk, half), isThere(t, disk, holds))
	}
	if _, ok := e.Catalog().LookupTopic("t"); !ok {
		t.Error("the topic is gone")
	}
}
