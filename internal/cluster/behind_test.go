package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/tests/support/kvfaults"
	"penstock/tests/support/patience"
)

// laggard is a way to the metadata whose watch can be made to fall behind.
type laggard struct {
	*kvfaults.Store
	mu   sync.Mutex
	held chan struct{} // the watch brings nothing until this is closed; nil: it is up to date
}

func (l *laggard) Watch(ctx context.Context, prefix string, after int64, changed func([]kv.Event, int64)) error {
	return l.Store.Watch(ctx, prefix, after, func(es []kv.Event, revision int64) {
		l.mu.Lock()
		held := l.held
		l.mu.Unlock()
		if held != nil {
			<-held
		}
		changed(es, revision)
	})
}

// fallBehind holds the watch up, and returns what lets it go on.
func (l *laggard) fallBehind() (goOn func()) {
	held := make(chan struct{})
	l.mu.Lock()
	l.held = held
	l.mu.Unlock()
	return sync.OnceFunc(func() {
		l.mu.Lock()
		l.held = nil
		l.mu.Unlock()
		close(held)
	})
}

// late adds a node whose watch can fall behind. It returns when all nodes know of it.
func (w *world) late(name string) (*testNode, *laggard) {
	n := w.prepare(name, uuid.New())
	way := &laggard{Store: w.m.Store(name)}
	o := w.opts
	o.Logger = slog.New(slog.NewTextHandler(n.logs, nil))
	n.Store = New(way, o)
	n.s = n.Store.(*store)
	w.join(n)
	for _, other := range w.nodes {
		w.until(other, "the node "+name, func(s *meta.Snapshot) bool { return s.Nodes[n.node.ID] != nil })
	}
	return n, way
}

// A change that a node takes for done, because its watch shows an older state, is done all the same, before it is
// answered.
func TestChangeOnANodeWhoseWatchIsBehind(t *testing.T) {
	w := newWorld(t, 3)
	a := w.nodes[0]
	b, way := w.late("n4")
	topic := w.create(a, meta.Topic{Name: "x", Partitions: 1, Replicas: 2})
	if err := a.Rebalance(ctx(t), meta.RebalancePause); err != nil {
		t.Fatal(err)
	}
	w.until(b, "the pause", func(s *meta.Snapshot) bool { return s.Rebalance.Paused && s.Topics[topic.ID] != nil })
	goOn := way.fallBehind()
	defer goOn()
	if err := a.Rebalance(ctx(t), meta.RebalanceResume); err != nil {
		t.Fatal(err)
	}
	if _, err := a.SetReplicas(ctx(t), topic.ID, 1); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, goOn)
	if err := b.Rebalance(ctx(t), meta.RebalancePause); err != nil || !b.Snapshot().Rebalance.Paused {
		t.Errorf("a pause: %v, %+v", err, b.Snapshot().Rebalance)
	}
	w.until(a, "the pause", func(s *meta.Snapshot) bool { return s.Rebalance.Paused })
	if now, err := b.SetReplicas(ctx(t), topic.ID, 2); err != nil || now.Replicas != 2 {
		t.Errorf("two replicas: %+v, %v", now, err)
	}
	w.until(a, "two replicas", func(s *meta.Snapshot) bool { return s.Topics[topic.ID].Replicas == 2 })
}

// A move that a node decides on an older state, in which the target has no replica yet, is refused: with a replica on
// both nodes from the start it would never end.
func TestMoveOnANodeWhoseWatchIsBehind(t *testing.T) {
	w := newWorld(t, 2)
	a, c := w.nodes[0], w.nodes[1]
	if err := c.ReportDisk(ctx(t), meta.DiskHung); err != nil {
		t.Fatal(err)
	}
	topic := w.create(a, meta.Topic{Name: "x", Partitions: 1, Replicas: 1})
	id := part(topic, 0)
	b, way := w.late("n3")
	if err := a.Drain(ctx(t), b.node.ID, true); err != nil {
		t.Fatal(err)
	}
	if _, err := a.SetReplicas(ctx(t), topic.ID, 2); err != nil {
		t.Fatal(err)
	}
	w.until(b, "two replicas are wanted", func(s *meta.Snapshot) bool {
		return s.Topics[topic.ID] != nil && s.Topics[topic.ID].Replicas == 2 && s.Nodes[b.node.ID].Draining
	})
	goOn := way.fallBehind()
	defer goOn()
	if err := c.ReportDisk(ctx(t), meta.DiskGood); err != nil { // now it can take a replica
		t.Fatal(err)
	}
	w.until(a, "a second replica", func(s *meta.Snapshot) bool { return len(s.Partitions.Get(id).State.Replicas) == 2 })
	time.AfterFunc(50*time.Millisecond, goOn)
	if err := b.MovePartition(ctx(t), id, a.node.ID, c.node.ID); !errors.Is(err, meta.ErrExists) {
		t.Errorf("%v; under way is %+v", err, a.Snapshot().Moves[id])
	}
}

// A node that joined a moment ago can be drained and removed through a node whose watch has not brought it yet.
func TestOperateOnANodeThatJustJoined(t *testing.T) {
	w := newWorld(t, 1)
	b, way := w.late("n2")
	goOn := way.fallBehind()
	defer goOn()
	n := w.prepare("n3", uuid.New())
	w.join(n)
	if b.Snapshot().Nodes[n.node.ID] != nil {
		t.Fatal("the watch is not behind")
	}
	time.AfterFunc(50*time.Millisecond, goOn)
	if err := b.Drain(ctx(t), n.node.ID, true); err != nil {
		t.Errorf("drain: %v", err)
	}
	again := way.fallBehind()
	defer again()
	m := w.prepare("n4", uuid.New())
	w.join(m)
	if b.Snapshot().Nodes[m.node.ID] != nil {
		t.Fatal("the watch is not behind")
	}
	time.AfterFunc(50*time.Millisecond, again)
	if err := b.RemoveNode(ctx(t), m.node.ID); !errors.Is(err, meta.ErrConflict) { // it is alive
		t.Errorf("remove: %v", err)
	}
	if err := b.Drain(ctx(t), 99, true); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("a node that does not exist: %v", err)
	}
}

// A node that joined a moment ago counts, at a node whose watch has not brought it yet: for the replicas of a new
// topic, of an older one, and of partitions that are added.
func TestReplicasOnANodeThatJustJoined(t *testing.T) {
	w := newWorld(t, 1)
	b, way := w.late("n2")
	join := func() {
		t.Helper()
		goOn := way.fallBehind()
		n := w.prepare(fmt.Sprintf("n%d", len(w.nodes)+1), uuid.New())
		w.join(n)
		if b.Snapshot().Nodes[n.node.ID] != nil {
			t.Fatal("the watch is not behind")
		}
		time.AfterFunc(50*time.Millisecond, goOn)
	}
	join()
	topic, err := b.CreateTopic(ctx(t), meta.Topic{Name: "x", Partitions: 1, Replicas: 3, MinISR: 2})
	if err != nil {
		t.Fatalf("a new topic: %v", err)
	}
	join()
	if _, err := b.SetReplicas(ctx(t), topic.ID, 4); err != nil {
		t.Errorf("replicas of an older topic: %v", err)
	}
	join()
	few, err := w.nodes[0].CreateTopic(ctx(t), meta.Topic{Name: "y", Partitions: 1, Replicas: 5, MinISR: 5})
	if err != nil {
		t.Fatal(err)
	}
	w.until(b, "the topic", func(s *meta.Snapshot) bool { return s.Topics[few.ID] != nil })
	last := w.nodes[len(w.nodes)-1]
	w.kill(last)
	if err := b.ReportDown(ctx(t), last.node.ID, last.reg.Node.Boot); err != nil {
		t.Fatal(err)
	}
	w.until(b, "a node is gone", func(s *meta.Snapshot) bool { return !s.Nodes[last.node.ID].Live })
	goOn := way.fallBehind()
	w.restart(last, last.reg.Node.Store)
	time.AfterFunc(50*time.Millisecond, goOn)
	settings := few.Settings
	settings.Partitions = 2
	if _, err := b.ConfigureTopic(ctx(t), few.ID, settings); err != nil {
		t.Errorf("partitions that are added: %v", err)
	}
}

// The keys of another cluster in the same store change, and nothing of this one does. A change that finds itself done
// does not wait for a revision that brings it nothing.
func TestChangeBesideAnotherCluster(t *testing.T) {
	w := newWorld(t, 1)
	a, other := w.nodes[0], w.m.Store("of another cluster")
	for range 2 {
		if ok, _, err := other.Txn(ctx(t), nil, []kv.Op{{Key: "another/key", Value: []byte("1")}}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		within, cancel := context.WithTimeout(t.Context(), patience.Or(10*time.Second))
		defer cancel()
		if err := a.Drain(within, a.node.ID, false); err != nil {
			t.Fatal(err)
		}
	}
}
