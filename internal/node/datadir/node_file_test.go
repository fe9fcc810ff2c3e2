package datadir

import (
	"errors"
	"io/fs"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/tests/support/faultaio"
)

// openNode opens the directory of a node that knows levels up to newest.
func openNode(t *testing.T, disk *faultaio.Disk, newest int, member bool) *NodeFile {
	t.Helper()
	f, err := OpenNodeFile(disk, slog.New(slog.DiscardHandler), "n", newest, member, uuid.New)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The new store of a single node has the newest level. The new store of a cluster member has the first level, whatever
// level the cluster turns out to have. Opened again, it is the same store.
func TestNewStore(t *testing.T) {
	for _, c := range []struct {
		member bool
		level  int
	}{{false, 2}, {true, FirstLevel}} {
		disk := faultaio.New(faultaio.Options{})
		f := openNode(t, disk, 2, c.member)
		if f.Level() != c.level || f.NodeID() != "n" || f.StoreID() == uuid.Nil || f.Cluster() != uuid.Nil {
			t.Errorf("member %v: %+v at level %d", c.member, f.node, f.Level())
		}
		if again := openNode(t, disk, 2, c.member); !reflect.DeepEqual(again.node, f.node) || again.Level() != f.Level() {
			t.Errorf("%+v, opened again %+v", f.node, again.node)
		}
	}
}

// The directory of a cluster is opened by its member alone.
func TestClusterDirectoryIsRefusedAlone(t *testing.T) {
	disk, log := faultaio.New(faultaio.Options{}), slog.New(slog.DiscardHandler)
	cluster := uuid.New()
	if err := openNode(t, disk, 2, true).Adopt(cluster); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "n"} {
		if _, err := OpenNodeFile(disk, log, name, 2, false, uuid.New); err == nil ||
			!strings.Contains(err.Error(), cluster.String()) {
			t.Errorf("a single node %q is answered %v", name, err)
		}
	}
	if f := openNode(t, disk, 2, true); f.Cluster() != cluster {
		t.Errorf("the member has cluster %s", f.Cluster())
	}
}

func TestForeignDirectoryIsRefused(t *testing.T) {
	disk, log := faultaio.New(faultaio.Options{}), slog.New(slog.DiscardHandler)
	openNode(t, disk, 2, false)
	if _, err := OpenNodeFile(disk, log, "other", 2, false, uuid.New); err == nil ||
		!strings.Contains(err.Error(), `node "n"`) {
		t.Errorf("another node is answered %v", err)
	}
	if _, err := OpenNodeFile(disk, log, "n", 1, false, uuid.New); !errors.Is(err, meta.ErrNewerLevel) {
		t.Errorf("an older version is answered %v", err)
	}
	if err := errors.Join(disk.Remove(NodePath), disk.MkdirAll("clog"), disk.WriteFile("clog/0.clog", nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenNodeFile(disk, log, "n", 2, false, uuid.New); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that lost its %s: %v", NodePath, err)
	}
}

// The level changes only once the directory holds it durably, and never goes back. F3
func TestRaise(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	f := openNode(t, disk, 2, true)
	broken := errors.New("broken")
	disk.Inject(faultaio.Rule{Err: broken, Count: -1})
	if err := f.Raise(2); !errors.Is(err, broken) || f.Level() != 1 {
		t.Errorf("it was not written, and the level is %d (%v)", f.Level(), err)
	}
	disk.ClearRules()
	if err := f.Raise(3); !errors.Is(err, meta.ErrNewerLevel) || f.Level() != 1 {
		t.Errorf("level %d, which nobody knows: %v", f.Level(), err)
	}
	for _, level := range []int{2, 1} {
		if err := f.Raise(level); err != nil || f.Level() != 2 {
			t.Errorf("raised to %d it has level %d (%v)", level, f.Level(), err)
		}
	}
	if after := openNode(t, disk.Crash(1), 2, true); after.Level() != 2 {
		t.Errorf("after a crash it has level %d", after.Level())
	}
}

// A directory belongs to one cluster for ever.
func TestAdopt(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	f, ours := openNode(t, disk, 2, true), uuid.UUID{1}
	for range 2 {
		if err := f.Adopt(ours); err != nil || f.Cluster() != ours {
			t.Fatalf("it belongs to %v (%v)", f.Cluster(), err)
		}
	}
	f = openNode(t, disk.Crash(1), 2, true)
	if err := f.Adopt(uuid.UUID{2}); err == nil || f.Cluster() != ours {
		t.Errorf("it belongs to %v (%v)", f.Cluster(), err)
	}
}

// The code that repairs the file sees the content that the file should have now, and nobody writes the file meanwhile.
func TestNodeFileIsHeldWhileItIsChecked(t *testing.T) {
	f := openNode(t, faultaio.New(faultaio.Options{}), 2, true)
	if err := errors.Join(f.Raise(2), f.Adopt(uuid.UUID{1})); err != nil {
		t.Fatal(err)
	}
	f.With(func(known *Node) {
		if known.Level() != 2 || known.Cluster != (uuid.UUID{1}) || known.NodeID != "n" {
			t.Errorf("it is to say %+v", known)
		}
		if f.mu.TryLock() {
			t.Error("another goroutine could write the file")
			f.mu.Unlock()
		}
	})
}
