package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/tests/support/patience"
)

// levelled is a node whose version knows levels up to known, with a directory of a given level.
func (w *world) levelled(name string, known, stored, founding int) *testNode {
	n := w.prepare(name, uuid.New())
	n.reg.Node.Level, n.reg.Node.StoreLevel, n.reg.Founding = known, stored, founding
	n.reg.Raise = func(level int) error {
		n.raised = append(n.raised, level)
		return n.raiseErr
	}
	return n
}

func emptyWorld(t *testing.T) *world {
	w := newWorld(t, 0)
	return w
}

func (w *world) level(n *testNode, level, wanted int) {
	w.t.Helper()
	w.until(n, "the level", func(s *meta.Snapshot) bool {
		is, to := s.Levels()
		return is == level && to == wanted
	})
}

// The first node founds the cluster at the level that it states, after it has raised its directory.
func TestLevelOfNewCluster(t *testing.T) {
	w := emptyWorld(t)
	a := w.levelled("a", 2, 1, 2)
	w.join(a)
	b := w.levelled("b", 3, 1, 3)
	w.join(b)
	w.level(b, 2, 2)
	for _, n := range []*testNode{a, b} {
		if len(n.raised) != 1 || n.raised[0] != 2 {
			t.Errorf("the directory of %s was raised to %v", n.reg.Node.Name, n.raised)
		}
	}
	w.until(b, "store levels", func(s *meta.Snapshot) bool {
		return s.Nodes[a.node.ID].StoreLevel == 2 && s.Nodes[b.node.ID].StoreLevel == 2 && s.Nodes[b.node.ID].Level == 3
	})
}

// A version that does not know the cluster's level cannot join, and leaves nothing behind.
func TestLevelRefusesJoin(t *testing.T) {
	w := emptyWorld(t)
	a := w.levelled("a", 2, 1, 2)
	w.join(a)
	old := w.levelled("old", 1, 1, 1)
	_, err := old.Join(ctx(t), old.reg)
	if !errors.Is(err, meta.ErrNewerLevel) || !strings.Contains(err.Error(), "feature level 2") ||
		!strings.Contains(err.Error(), `"old"`) {
		t.Fatalf("it was answered %v", err)
	}
	third := w.levelled("third", 2, 1, 2)
	w.join(third) // so that it sees everything that was written before
	if now := third.Snapshot(); len(now.Nodes) != 2 || now.Nodes[2] == nil || now.Nodes[2].Name != "third" ||
		len(old.raised) != 0 {
		t.Errorf("it left traces: %d nodes, raised %v", len(now.Nodes), old.raised)
	}
}

// A node whose directory cannot be raised cannot join either.
func TestLevelRaiseFails(t *testing.T) {
	w := emptyWorld(t)
	w.join(w.levelled("a", 2, 1, 2))
	n := w.levelled("b", 2, 1, 2)
	n.raiseErr = errors.New("the disk is full")
	if _, err := n.Join(ctx(t), n.reg); !errors.Is(err, n.raiseErr) {
		t.Fatalf("it was answered %v", err)
	}
}

// The level is raised in two steps: every directory first.
func TestRaiseLevel(t *testing.T) {
	w := emptyWorld(t)
	a := w.levelled("a", 2, 1, 1)
	w.join(a)
	old := w.levelled("old", 0, 0, 0)
	w.join(old)
	w.until(a, "both nodes", func(s *meta.Snapshot) bool { return len(s.Nodes) == 2 })
	if err := a.RaiseLevel(ctx(t), 2); !errors.Is(err, meta.ErrLevel) || !strings.Contains(err.Error(), "on old,") {
		t.Fatalf("raising with an old node was answered %v", err)
	}
	w.level(a, 1, 1)
	// The newer version is started on that node.
	if err := old.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	b := w.levelled("old", 2, 1, 1)
	b.reg.Node.Store = old.reg.Node.Store
	w.join(b)
	w.until(a, "the newer version", func(s *meta.Snapshot) bool { return s.Nodes[b.node.ID].Level == 2 })
	if err := a.RaiseLevel(ctx(t), 2); err != nil {
		t.Fatal(err)
	}
	w.level(b, 1, 2)
	if err := a.Raised(ctx(t), 2); err != nil {
		t.Fatal(err)
	}
	w.until(b, "the first directory", func(s *meta.Snapshot) bool { return s.Nodes[a.node.ID].StoreLevel == 2 })
	w.level(b, 1, 2)
	// A node that joins meanwhile has to know the wanted level.
	late := w.levelled("late", 1, 1, 1)
	if _, err := late.Join(ctx(t), late.reg); !errors.Is(err, meta.ErrNewerLevel) {
		t.Fatalf("it was answered %v", err)
	}
	if err := b.Raised(ctx(t), 2); err != nil {
		t.Fatal(err)
	}
	w.level(a, 2, 2)
	if err := a.RaiseLevel(ctx(t), 1); !errors.Is(err, meta.ErrLevel) {
		t.Fatalf("going back was answered %v", err)
	}
}

// A version from before there were levels does not look at the level when it registers: the other nodes turn it away.
func TestLevelTurnsAway(t *testing.T) {
	w := emptyWorld(t)
	a := w.levelled("a", 2, 1, 2)
	w.join(a)
	row := meta.Node{ID: 7, Name: "old", Store: uuid.New(), Boot: uuid.New()}
	key := a.s.key(nodeKey(nodesDir, row.ID))
	ok, _, err := a.s.txn(ctx(t), nil, []kv.Op{
		put(key, row), put(a.s.key(nodeKey(liveDir, row.ID)), processRow{Node: row.ID, Boot: row.Boot}),
	})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	w.until(a, "it is turned away", func(s *meta.Snapshot) bool {
		n := s.Nodes[7]
		return n != nil && n.Boot == uuid.Nil && !n.Live && n.Store == row.Store
	})
	for deadline := time.Now().Add(patience.Or(30 * time.Second)); a.logs.contains("turned away") != 1; time.Sleep(
		time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log says it %d times", a.logs.contains("turned away"))
		}
	}
}
