package backup

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/node/datadir"
	"penstock/segment"
	"penstock/segment/aio"
)

func quick() Options { return Options{Pause: func(time.Duration) bool { return true }} }

// write makes a backup of a member of a cluster: two topics, one with two partitions, and a commit log file.
func memberBackup(t *testing.T) (from string, topics [2]uuid.UUID) {
	t.Helper()
	from = filepath.Join(t.TempDir(), "backup")
	w, err := NewWriter(from, quick())
	if err != nil {
		t.Fatal(err)
	}
	topics = [2]uuid.UUID{{1}, {2}}
	node := datadir.Node{
		Format: datadir.FormatOf(datadir.FirstLevel), NodeID: "n1", StoreID: uuid.UUID{9}, Cluster: uuid.UUID{8},
	}
	must(t, w.WriteTwice(datadir.NodePath, &node))
	for i, id := range topics {
		m := datadir.Topic{Format: datadir.TopicFormat, ID: id, Name: "t", Partitions: 1 + i}
		must(t, w.WriteTwice(datadir.TopicPath(id)+"/"+datadir.TopicFile, &m))
	}
	must(t, w.Write(datadir.PartitionPath(topics[0], 7)+"/0000000000.seg", make([]byte, 3*chunkBytes)))
	must(t, w.Append("clog/0000000001.clog", []byte("a")))
	must(t, w.Append("clog/0000000001.clog", []byte("b")))
	must(t, w.Commit(&Manifest{NodeID: "n1", Cluster: node.Cluster}))
	return from, topics
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The restored data of a node of a cluster may lack what the node has acknowledged. All its copies count as shortened,
// also those whose only trace is in the metadata.
func TestRestoredMemberIsShortened(t *testing.T) {
	from, topics := memberBackup(t)
	to := filepath.Join(t.TempDir(), "restored")
	r, err := Restore(from, to, RestoreOptions{})
	must(t, err)
	if r.Shortened != 4 {
		t.Errorf("%d copies are shortened", r.Shortened)
	}
	disk, err := aio.OpenDisk(to, aio.DiskOptions{Mode: aio.ModePwrite})
	must(t, err)
	defer disk.Close()
	list, err := datadir.ReadShortened(disk)
	must(t, err)
	for _, id := range []segment.Identity{
		{Topic: topics[0], Partition: 0},
		{Topic: topics[0], Partition: 7},
		{Topic: topics[1], Partition: 0},
		{Topic: topics[1], Partition: 1},
		datadir.UnnamedCopies,
	} {
		if !list.Has(id) {
			t.Errorf("%v counts as whole", id)
		}
	}
	if data, err := disk.ReadFile("clog/0000000001.clog", 10); err != nil || string(data) != "ab" {
		t.Errorf("the commit log has %q (%v)", data, err)
	}
	if _, err := Restore(from, filepath.Join(t.TempDir(), "r"), RestoreOptions{NodeID: "x"}); err == nil ||
		!strings.Contains(err.Error(), "leave the new name out") {
		t.Errorf("under another name: %v", err)
	}
}

// A backup that did not get its manifest is none.
func TestUnfinishedBackup(t *testing.T) {
	from, _ := memberBackup(t)
	must(t, os.Remove(filepath.Join(from, ManifestFile)))
	to := filepath.Join(t.TempDir(), "restored")
	if _, err := Restore(from, to, RestoreOptions{}); err == nil || !strings.Contains(err.Error(), "no complete backup") {
		t.Error(err)
	}
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Error("something was restored")
	}
}

// A full file is linked on one file system and copied to another one; the beginning of a growing one is copied, and the
// copy is as long. When the writer fails, nothing is left, and the originals are as they were.
func TestLinksAndCopies(t *testing.T) {
	source := filepath.Join(t.TempDir(), "0.seg")
	must(t, os.WriteFile(source, []byte("0123456789"), 0o600))
	for _, in := range []string{t.TempDir(), "/dev/shm"} {
		to, err := os.MkdirTemp(in, "penstock-backup")
		if err != nil {
			t.Logf("no other file system: %v", err)
			continue
		}
		t.Cleanup(func() { os.RemoveAll(to) })
		w, err := NewWriter(to, quick())
		must(t, err)
		must(t, w.Link("topics/x/0/0.seg", source))
		must(t, w.Copy("topics/x/1/0.seg", source, 4))
		linked := w.files["topics/x/0/0.seg"]
		a, _ := os.Stat(source)
		b, err := os.Stat(w.at("topics/x/0/0.seg"))
		must(t, err)
		if os.SameFile(a, b) != linked.Linked || linked.Bytes != 10 || linked.CRC != "280c069e" {
			t.Errorf("in %s: %+v", in, linked)
		}
		if in != "/dev/shm" && !linked.Linked {
			t.Error("it was copied within the file system")
		}
		copied, err := os.ReadFile(w.at("topics/x/1/0.seg"))
		must(t, err)
		if string(copied) != "0123\x00\x00\x00\x00\x00\x00" || w.files["topics/x/1/0.seg"].Linked {
			t.Errorf("the copy has %q", copied)
		}
		w.o.Blocked = func() error { return errors.New("full") }
		if err := w.Copy("topics/x/2/0.seg", source, -1); err == nil || err.Error() != "full" {
			t.Error(err)
		}
		w.Discard()
		if left, err := os.ReadDir(to); err != nil || len(left) != 0 {
			t.Errorf("%v are left (%v)", left, err)
		}
	}
	if data, err := os.ReadFile(source); err != nil || string(data) != "0123456789" {
		t.Errorf("the original has %q (%v)", data, err)
	}
}

// The rate bounds what is read: the pauses add up to the bytes divided by the rate.
func TestRate(t *testing.T) {
	var paused time.Duration
	w, err := NewWriter(t.TempDir(), Options{
		Rate: 4 * chunkBytes, Pause: func(d time.Duration) bool { paused += d; return paused < 2*time.Second },
	})
	must(t, err)
	source := filepath.Join(t.TempDir(), "0.seg")
	must(t, os.WriteFile(source, make([]byte, 6*chunkBytes), 0o600))
	must(t, w.Copy("a", source, -1))
	if paused != 1500*time.Millisecond {
		t.Errorf("6 MiB at 4 MiB a second took %v", paused)
	}
	if err := w.Copy("b", source, -1); !errors.Is(err, ErrStopped) {
		t.Errorf("when the process ends: %v", err)
	}
}

// A restore holds the locks of the new data directory: nobody else may be in it.
func TestRestoreHoldsTheLocks(t *testing.T) {
	from, _ := memberBackup(t)
	to := t.TempDir()
	disk, err := aio.OpenDisk(to, aio.DiskOptions{Mode: aio.ModePwrite})
	must(t, err)
	must(t, os.Remove(filepath.Join(to, "LOCK")))
	if _, err := Restore(from, to, RestoreOptions{}); !errors.Is(err, aio.ErrLocked) {
		t.Errorf("restored into a directory in use: %v, want ErrLocked", err)
	}
	entries, err := os.ReadDir(to)
	must(t, err)
	if len(entries) != 0 {
		t.Errorf("it left %v", entries)
	}
	must(t, disk.Close())
	if _, err := Restore(from, to, RestoreOptions{}); err != nil {
		t.Error(err)
	}
}

// The other offline commands are refused, too, in a directory whose LOCK was deleted under a running node.
func TestCopyNeedsTheLocks(t *testing.T) {
	data := t.TempDir()
	disk, err := aio.OpenDisk(data, aio.DiskOptions{Mode: aio.ModePwrite})
	must(t, err)
	_, err = datadir.OpenNodeFile(disk, slog.New(slog.DiscardHandler), "n1", datadir.FirstLevel, false, uuid.New)
	must(t, err)
	must(t, os.Remove(filepath.Join(data, "LOCK")))
	to := filepath.Join(t.TempDir(), "backup")
	if err := Copy(data, to, new(Manifest), datadir.NewestLevel, quick()); !errors.Is(err, aio.ErrLocked) {
		t.Errorf("copied a directory in use: %v, want ErrLocked", err)
	}
	if _, _, err := datadir.Upgrade(data, datadir.NewestLevel); !errors.Is(err, aio.ErrLocked) {
		t.Errorf("upgraded a directory in use: %v, want ErrLocked", err)
	}
	must(t, disk.Close())
	if _, to, err := datadir.Upgrade(data, datadir.NewestLevel); err != nil || to != datadir.NewestLevel {
		t.Errorf("upgraded to level %d (%v)", to, err)
	}
}
