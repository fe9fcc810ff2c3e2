package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/backup"
	"penstock/segment/aio"
)

// A program may name its data directory by a relative path, and change its working directory later, even to one where
// an older copy of the directory has the same name. A backup is of the directory that is open.
func TestProgramChangesItsDirectory(t *testing.T) {
	first, other := t.TempDir(), t.TempDir()
	t.Chdir(first)
	e := openWith(t, inDir("data"))
	topic := topicOf(t, e, "t")
	channelOf(t, topic, "all")
	publish(t, topic, numbered("old", 50, 500)...)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(other, "data"), os.DirFS(filepath.Join(first, "data"))); err != nil {
		t.Fatal(err)
	}
	e = openWith(t, inDir("data"))
	topic, _ = e.Catalog().LookupTopic("t")
	publish(t, topic, numbered("new", 200, 500)...)
	t.Chdir(other)
	to, s := makeBackup(t, e)
	if s.State != node.BackupDone {
		t.Fatalf("the backup: %+v", s)
	}
	if s.LinkedBytes+s.CopiedBytes == 0 {
		t.Error("nothing was copied")
	}
	restored := topicOf(t, openWith(t, inDir(restore(t, to))), "t")
	if n := channelStats(t, channelOf(t, restored, "all")).Depth; n != 250 {
		t.Errorf("the restored node has %d messages, not 250", n)
	}
}

// The files of a backup are linked by their paths. If another directory has taken the place of the data directory, the
// backup is not called done, whether its files verify or not.
func TestBackupOfAnotherDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	o := inDir(dir)
	node.LookByHand(&o)
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	publish(t, topic, numbered("p", 50, 500)...)
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(dir+".old")); err != nil {
		t.Fatal(err)
	}
	to, s := makeBackup(t, e)
	if s.State != node.BackupFailed {
		t.Errorf("the backup: %+v", s)
	}
	if _, err := backup.ReadManifest(to); err == nil {
		t.Error("it has a manifest")
	}
}

// A supervisor starts a program again at once, while the kernel still keeps the directory of the one before locked.
func TestOpenWaitsForTheProcessBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before, err := aio.OpenDisk(dir, aio.DiskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o := inDir(dir)
	o.LockWait = -1
	if _, err := node.Open(context.Background(), o); !errors.Is(err, aio.ErrLocked) {
		t.Errorf("without waiting: %v, want ErrLocked", err)
	}
	o.LockWait = 0
	time.AfterFunc(150*time.Millisecond, func() { before.Close() })
	openWith(t, o)
}
