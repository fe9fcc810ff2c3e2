package cluster

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
)

// Who may take a name that a living process has.
func TestClaim(t *testing.T) {
	lives := []meta.Life{meta.LifeFirst, meta.LifeCurrent, meta.LifePast, meta.LifeUnknown}
	for holder, want := range map[meta.Holder][]claimed{
		meta.HolderAnswers: {refused, refused, refused, refused},
		meta.HolderGone:    {takeOver, takeOver, takeOver, awaitLease},
		meta.HolderSilent:  {awaitLease, awaitLease, awaitLease, awaitLease},
	} {
		for i, life := range lives {
			if got := claim(life, holder); got != want[i] {
				t.Errorf("a directory that is %d, and a holder that is %d: %d, want %d", life, holder, got, want[i])
			}
		}
	}
}

func holder(h meta.Holder, asked *int) func(context.Context, *meta.Node, uuid.UUID) meta.Holder {
	return func(_ context.Context, row *meta.Node, cluster uuid.UUID) meta.Holder {
		*asked++
		if row.Boot == uuid.Nil || !row.Live || cluster == uuid.Nil {
			panic("a row without a living process is asked for")
		}
		return h
	}
}

// A process whose name answers elsewhere is refused by name, address and time. Nothing is written, and the one that
// lives goes on.
func TestHeldNameIsRefused(t *testing.T) {
	w := newWorld(t, 2)
	first := w.nodes[0]
	w.create(first, meta.Topic{Name: "x", Partitions: 2, Replicas: 2})
	before, _ := w.m.Entries()
	n := w.prepare("n1", first.reg.Node.Store)
	n.reg.Node.Peer = "elsewhere:9"
	asked := 0
	n.reg.Holder = holder(meta.HolderAnswers, &asked)
	n.reg.Enter = func(*meta.Node) error { t.Error("the directory was told"); return nil }
	n.reg.AllDamaged = true
	_, err := n.Join(ctx(t), n.reg)
	since := time.UnixMilli(first.node.SinceMs).UTC().Format(time.RFC3339)
	if !errors.Is(err, meta.ErrNameHeld) || asked != 1 {
		t.Fatalf("it was answered %v, after %d questions", err, asked)
	}
	for _, part := range []string{`"n1"`, "n1:1", since, "elsewhere:9"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %s: %v", part, err)
		}
	}
	if after, _ := w.m.Entries(); !reflect.DeepEqual(before, after) {
		t.Errorf("the store has changed: %v, was %v", after, before)
	}
	if err := first.Raised(ctx(t), 1); err != nil {
		t.Errorf("the one that lives: %v", err)
	}
}

// A process that was killed is replaced at once if nobody is at its address, and when its lease has ended if nothing
// answers there. Once it has no lease, or this is its own process, nobody is asked.
func TestWaitsForTheLease(t *testing.T) { synctest.Test(t, testWaitsForTheLease) }

func testWaitsForTheLease(t *testing.T) {
	w := newWorldWith(t, 2, quickLeases)
	n := w.nodes[0]
	for _, c := range []struct {
		holder meta.Holder
		life   meta.Life
		atOnce bool
	}{
		{meta.HolderGone, meta.LifeCurrent, true},
		{meta.HolderSilent, meta.LifeCurrent, false},
		{meta.HolderGone, meta.LifeUnknown, false},
	} {
		w.kill(n)
		began := time.Now()
		next := w.prepare("n1", n.reg.Node.Store)
		asked := 0
		next.reg.Holder = holder(c.holder, &asked)
		next.reg.Life = func(row *meta.Node) meta.Life {
			if row.Boot != n.reg.Node.Boot {
				t.Errorf("the row of process %v is judged, want %v", row.Boot, n.reg.Node.Boot)
			}
			return c.life
		}
		w.join(next)
		if took := time.Since(began); (took < 50*time.Millisecond) != c.atOnce || took > 2*quickLeases.LeaseTTL {
			t.Errorf("%+v: it registered after %v", c, took)
		}
		if got := next.logs.contains("waits until its lease ends"); (got == 0) != c.atOnce || got > 1 || asked == 0 {
			t.Errorf("%+v: %d lines say that it waits; %d questions", c, got, asked)
		}
		n = next
	}
	w.kill(n)
	w.until(w.nodes[1], "the end of the lease", func(s *meta.Snapshot) bool {
		return s.Nodes[n.node.ID].Boot == n.reg.Node.Boot && !s.Nodes[n.node.ID].Live
	})
	next := w.prepare("n1", n.reg.Node.Store)
	asked := 0
	next.reg.Holder = holder(meta.HolderAnswers, &asked)
	if w.join(next); asked != 0 {
		t.Error("a process without a lease was asked for")
	}
}

// If the lease does not end, the process does not register, and says why.
func TestSilentHolderThatStays(t *testing.T) {
	w := newWorld(t, 1)
	n := w.prepare("n1", w.nodes[0].reg.Node.Store)
	asked := 0
	n.reg.Holder = holder(meta.HolderSilent, &asked)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := n.Join(short, n.reg)
	if !errors.Is(err, meta.ErrNameHeld) || !strings.Contains(err.Error(), "does not end") {
		t.Errorf("it was answered %v", err)
	}
}

// A process that is replaced stops serving when it hears of that, not when its lease ends, and does not get another
// lease.
func TestReplacedProcessStopsAtOnce(t *testing.T) {
	w := newWorld(t, 0)
	n := w.prepare("n1", uuid.New())
	changed := n.reg.Changed
	n.reg.Changed = func(c *meta.Change) {
		n.mu.Lock()
		if c.Snapshot.Nodes[1].Boot != n.reg.Node.Boot && n.replaced == 0 {
			t.Error("the engine hears of the other process before it is told to stop")
		}
		n.mu.Unlock()
		changed(c)
	}
	w.join(n)
	again := w.prepare("n1", n.reg.Node.Store)
	w.join(again)
	w.until(n, "it hears that it was replaced", func(s *meta.Snapshot) bool {
		return s.Nodes[n.node.ID].Boot == again.reg.Node.Boot
	})
	if err := n.s.waitDelivered(ctx(t), n.Snapshot().Revision); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	replaced, leases := n.replaced, n.leases
	n.mu.Unlock()
	if replaced != 1 {
		t.Fatalf("it was told %d times", replaced)
	}
	if err := n.s.serve(ctx(t), &n.reg, time.Now().Add(time.Hour)); !errors.Is(err, errReplaced) {
		t.Errorf("an answer to an earlier request for more time: %v", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leases != leases || n.replaced != 1 {
		t.Errorf("it got %d leases more, and was told %d times", n.leases-leases, n.replaced)
	}
}

// What the directory must know is durable before the row is written, and before the level is raised. If that fails,
// nothing is written.
func TestDirectoryIsToldFirst(t *testing.T) {
	w := newWorld(t, 2)
	n := w.prepare("n1", w.nodes[0].reg.Node.Store)
	before, _ := w.m.Entries()
	full := errors.New("no room")
	n.reg.Enter = func(row *meta.Node) error {
		if row.Boot != w.nodes[0].reg.Node.Boot {
			t.Errorf("it is told of %v", row.Boot)
		}
		return full
	}
	n.reg.Raise = func(int) error { t.Error("it was raised"); return nil }
	if _, err := n.Join(ctx(t), n.reg); !errors.Is(err, full) {
		t.Errorf("it was answered %v", err)
	}
	if after, _ := w.m.Entries(); !reflect.DeepEqual(before, after) {
		t.Errorf("the store has changed: %v, was %v", after, before)
	}
	n.reg.Enter = func(*meta.Node) error {
		if s := w.nodes[1].Snapshot(); s.Nodes[1].Boot != w.nodes[0].reg.Node.Boot {
			t.Error("it had registered before its directory knew")
		}
		return nil
	}
	w.join(n)
}
