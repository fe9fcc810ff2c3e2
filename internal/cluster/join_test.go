package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/segment"
)

// Ids are given once, by name. The cluster has one identity. Every node sees every other.
func TestJoin(t *testing.T) {
	w := newWorld(t, 3)
	for i, n := range w.nodes {
		if n.node.ID != replicate.NodeID(i+1) || !n.node.Live {
			t.Errorf("node %+v, want id %d", n.node, i+1)
		}
		s := w.until(n, "sees all", func(s *meta.Snapshot) bool {
			return len(s.Nodes) == 3 && s.Nodes[1].Live && s.Nodes[2].Live && s.Nodes[3].Live && s.Controller != 0
		})
		if s.Cluster == uuid.Nil || s.Cluster != w.nodes[0].Snapshot().Cluster {
			t.Errorf("cluster %v", s.Cluster)
		}
		if s.Nodes[2].Peer != "n2:1" || s.Nodes[2].Boot != w.nodes[1].reg.Node.Boot {
			t.Errorf("node 2 is %+v", s.Nodes[2])
		}
	}
	if _, err := w.nodes[0].Join(ctx(t), w.nodes[0].reg); !errors.Is(err, errJoined) {
		t.Errorf("a second Join: %v", err)
	}
}

// All nodes join an empty store at once.
func TestJoinRace(t *testing.T) {
	w := newWorld(t, 0)
	const count = 8
	nodes := make([]*testNode, count)
	ended := make(chan error, count)
	for i := range nodes {
		nodes[i] = w.prepare(fmt.Sprint("n", i), uuid.New())
		go func() {
			node, err := nodes[i].Join(ctx(t), nodes[i].reg)
			nodes[i].node = node
			ended <- err
		}()
	}
	ids := map[replicate.NodeID]bool{}
	clusters := map[uuid.UUID]bool{}
	for range nodes {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	for _, n := range nodes {
		w.nodes = append(w.nodes, n)
		ids[n.node.ID], clusters[n.Snapshot().Cluster] = true, true
	}
	if len(ids) != count || len(clusters) != 1 || ids[0] {
		t.Errorf("ids %v, clusters %v", ids, clusters)
	}
}

func TestJoinTooMany(t *testing.T) {
	w := newWorld(t, 0)
	r := &rows{t: t}
	s := w.m.Store("seed")
	for i := range MaxNodeCount {
		key := DefaultPrefix + nodeKey(nodesDir, replicate.NodeID(i+1))
		if _, _, err := s.Txn(t.Context(), nil, opsOf(key, meta.Node{
			ID: replicate.NodeID(i + 1), Name: fmt.Sprint(i),
		})); err != nil {
			r.t.Fatal(err)
		}
	}
	n := w.prepare("new", uuid.New())
	if _, err := n.Join(ctx(t), n.reg); err == nil || errors.Is(err, meta.ErrUnavailable) {
		t.Errorf("node %d joins: %v", MaxNodeCount+1, err)
	}
	w.join(w.prepare("7", uuid.New())) // a name that is known
}

// The rows say which copies cannot be relied on before the node is live, so no controller elects it, however fast.
// Partitions of which the node has no copy, and unknown ones, stay as they are.
func TestJoinDamaged(t *testing.T) {
	t.Run("named", func(t *testing.T) {
		testJoinDamaged(t, func(r *meta.Registration, id meta.PartitionID) {
			r.Damaged = []meta.PartitionID{id, {Topic: uuid.New(), Partition: 3}}
		})
	})
	t.Run("all", func(t *testing.T) {
		testJoinDamaged(t, func(r *meta.Registration, _ meta.PartitionID) { r.AllDamaged = true })
	})
}

func testJoinDamaged(t *testing.T, say func(*meta.Registration, meta.PartitionID)) {
	w := newWorldWith(t, 3, slowLeases)
	others := w.create(w.nodes[0], meta.Topic{Name: "others", Partitions: 6, Replicas: 1})
	topic := w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 1, Replicas: 2})
	id, n := part(topic, 0), w.nodes[1]
	w.kill(n)
	again := w.prepare("n2", n.reg.Node.Store)
	say(&again.reg, id)
	w.join(again)
	again.mu.Lock()
	first := again.changes[0].Snapshot.Partitions.Get(id)
	again.mu.Unlock()
	if !slices.Contains(first.Damaged, again.member()) {
		t.Errorf("the first snapshot says that %v are damaged", first.Damaged)
	}
	for n := range 6 {
		again.mu.Lock()
		p := again.changes[0].Snapshot.Partitions.Get(part(others, n))
		again.mu.Unlock()
		if len(p.Damaged) > 0 && !slices.Contains(p.State.Replicas, again.node.ID) {
			t.Errorf("a partition that it has no copy of says that %v are damaged", p.Damaged)
		}
	}
	if err := w.nodes[0].HandOver(ctx(t), id, &first.State, again.node.ID); first.State.Leader == w.nodes[0].node.ID &&
		!errors.Is(err, meta.ErrUnsafe) {
		t.Errorf("handing over to it: %v", err)
	}
}

// Join waits for a store that does not answer yet for as long as the caller wants, and can be tried again.
func TestJoinWaits(t *testing.T) {
	w := newWorld(t, 0)
	n := w.prepare("n1", uuid.New())
	w.m.Cut("n1")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := n.Join(short, n.reg); !errors.Is(err, meta.ErrUnavailable) {
		t.Fatalf("with no store: %v", err)
	}
	go func() {
		<-time.After(50 * time.Millisecond)
		w.m.Heal("n1")
	}()
	w.join(n)
	if n.node.ID != 1 {
		t.Errorf("node %d", n.node.ID)
	}
}

// A registration whose answer was lost is found, and not made twice.
func TestJoinUnknown(t *testing.T) {
	w := newWorld(t, 0)
	w.m.LoseAnswers("n1", DefaultPrefix+nodesDir, 1)
	if n := w.start("n1", uuid.New()); n.node.ID != 1 || len(n.Snapshot().Nodes) != 1 || !n.Snapshot().Nodes[1].Live {
		t.Errorf("%+v", n.Snapshot().Nodes)
	}
}

// Changes come in order and once each. The first one has everything. The snapshot of each change has what the change
// lists.
func TestChanges(t *testing.T) {
	w := newWorld(t, 1)
	a := w.nodes[0]
	topic := w.create(a, meta.Topic{Name: "x", Partitions: 3, Replicas: 1})
	late := w.start("n2", uuid.New())
	late.mu.Lock()
	first := late.changes[0]
	late.mu.Unlock()
	if len(first.Partitions) != 3 || len(first.Topics) != 1 || len(first.Nodes) != 2 {
		t.Errorf("the first change: %+v", first)
	}
	old := late.Snapshot()
	if err := a.ExpandTopic(ctx(t), topic.ID, 5); err != nil {
		t.Fatal(err)
	}
	w.until(late, "expansion", func(s *meta.Snapshot) bool { return s.Partitions.Len() == 5 })
	if err := a.DeleteTopic(ctx(t), topic.ID); err != nil {
		t.Fatal(err)
	}
	w.until(late, "deletion", func(s *meta.Snapshot) bool { return s.Deleted[topic.ID] })
	if err := late.s.waitDelivered(ctx(t), late.Snapshot().Revision); err != nil {
		t.Fatal(err)
	}
	late.mu.Lock()
	defer late.mu.Unlock()
	revision := int64(0)
	var partitions []meta.PartitionID
	for _, c := range late.changes[1:] {
		if c.Snapshot.Revision <= revision {
			t.Errorf("revision %d after %d", c.Snapshot.Revision, revision)
		}
		revision = c.Snapshot.Revision
		partitions = append(partitions, c.Partitions...)
	}
	// 2 more when the topic grew, 5 fewer when it was deleted. The rows that the controller removes later change
	// nothing here.
	if len(partitions) != 7 {
		t.Errorf("changed: %v", partitions)
	}
	if old.Partitions.Len() != 3 || len(old.Topics) != 1 || old.Deleted[topic.ID] {
		t.Error("a published snapshot was changed")
	}
	s := late.changes[len(late.changes)-1].Snapshot
	if s.Partitions.Len() != 0 || len(s.Topics) != 0 || len(s.Names) != 0 {
		t.Errorf("there is still %v", describe(s))
	}
}

// A watch that has fallen behind the store's history reads everything again, and reports the differences.
func TestWatchGap(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	x := w.create(a, meta.Topic{Name: "x", Partitions: 2, Replicas: 1})
	kept := w.create(a, meta.Topic{Name: "kept", Partitions: 2, Replicas: 1})
	w.until(b, "topics", func(s *meta.Snapshot) bool { return len(s.Topics) == 2 })
	if err := b.s.waitDelivered(ctx(t), b.Snapshot().Revision); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	seen := len(b.changes)
	b.mu.Unlock()
	w.m.Cut("n2")
	y, err := a.CreateTopic(ctx(t), meta.Topic{Name: "y", Partitions: 2, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.DeleteTopic(ctx(t), x.ID); err != nil {
		t.Fatal(err)
	}
	w.m.Compact()
	w.m.Heal("n2")
	w.until(b, "the topics as they are", func(s *meta.Snapshot) bool {
		return s.Topics[y.ID] != nil && s.Topics[x.ID] == nil && s.Deleted[x.ID]
	})
	if err := b.s.waitDelivered(ctx(t), b.Snapshot().Revision); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var topics []uuid.UUID
	for _, c := range b.changes[seen:] {
		topics = append(topics, c.Topics...)
	}
	if !slices.Contains(topics, x.ID) || !slices.Contains(topics, y.ID) || slices.Contains(topics, kept.ID) {
		t.Errorf("changed: %v of x %v, y %v, kept %v", topics, x.ID, y.ID, kept.ID)
	}
}

// refusing is a store that refuses to list for some time, as etcd does while the node's user lacks the right.
type refusing struct {
	kv.Store
	left atomic.Int32 // how many calls of List are still refused
}

func (s *refusing) List(ctx context.Context, prefix string) ([]kv.Entry, int64, error) {
	if s.left.Add(-1) >= 0 {
		return nil, 0, errors.New("the user may not read this")
	}
	return s.Store.List(ctx, prefix)
}

// A node whose watch has fallen behind, and which is refused to read everything, asks again until it may.
func TestWatchGapRefused(t *testing.T) {
	w := newWorld(t, 1)
	a := w.nodes[0]
	b := w.prepare("n2", uuid.New())
	way := &refusing{Store: b.s.kv}
	b.s.kv = way
	w.join(b)
	w.m.Cut("n2")
	if _, err := a.CreateTopic(ctx(t), meta.Topic{Name: "x", Partitions: 1, Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	w.m.Compact()
	way.left.Store(2)
	w.m.Heal("n2")
	w.until(b, "the topic", func(s *meta.Snapshot) bool { return s.Names["x"] != nil })
	if way.left.Load() >= 0 {
		t.Error("nothing was refused")
	}
}

// A row of another version is not taken for a deletion. P20
func TestUnreadableRow(t *testing.T) {
	w := newWorld(t, 1)
	a := w.nodes[0]
	topic := w.create(a, meta.Topic{Name: "x", Partitions: 1})
	s := w.m.Store("other")
	for _, key := range []string{topicKey(topicsDir, topic.ID), partKey(partsDir, part(topic, 0))} {
		if _, _, err := s.Txn(t.Context(), nil, opsOf(DefaultPrefix+key, json.RawMessage(`"?"`))); err != nil {
			t.Fatal(err)
		}
	}
	w.create(a, meta.Topic{Name: "y", Partitions: 1})
	if snap := a.Snapshot(); snap.Names["x"] == nil || snap.Partitions.Get(part(topic, 0)) == nil {
		t.Error("what could not be read was taken for gone")
	}
	if a.logs.contains("cannot be read") != 2 {
		t.Error("nobody was told")
	}
}

// A single node's topics enter the cluster with it, once, with epochs that its log does not have. B79
func TestImport(t *testing.T) {
	w := newWorld(t, 0)
	n := w.prepare("n1", uuid.New())
	small := meta.Topic{ID: uuid.New(), Name: "small", Partitions: 2, Replicas: 1}
	large := meta.Topic{ID: uuid.New(), Name: "large", Partitions: 250}
	n.reg.Import = []meta.ImportedTopic{
		{Topic: small, Epochs: []segment.Epoch{3, 7}}, {Topic: large, Epochs: make([]segment.Epoch, 250)},
	}
	w.join(n)
	n.mu.Lock()
	first := n.changes[0].Snapshot
	n.mu.Unlock()
	if first.Partitions.Len() != 252 || len(first.Topics) != 2 {
		t.Fatalf("%d partitions in the first snapshot", first.Partitions.Len())
	}
	for i, epoch := range []segment.Epoch{4, 8} {
		st := first.Partitions.Get(part(&small, i)).State
		want := []replicate.Member{n.member()}
		if st.Epoch != epoch || st.Leader != 1 || st.Boot != n.reg.Node.Boot || st.MinISR != 1 ||
			!slices.Equal(st.ISR, want) || len(st.Replicas) != 1 {
			t.Errorf("partition %d: %+v", i, st)
		}
	}
	if got := first.Topics[large.ID]; got.Replicas != 3 || got.MinISR != 2 {
		t.Errorf("%+v", got)
	}

	// The same process joins again after a topic was deleted in the cluster: that topic stays deleted, and the other
	// one is not made twice.
	if err := n.DeleteTopic(ctx(t), small.ID); err != nil {
		t.Fatal(err)
	}
	w.kill(n)
	again := w.prepare("n1", n.node.Store)
	again.reg.Import = n.reg.Import
	w.join(again)
	s := w.until(again, "its new process leads", func(s *meta.Snapshot) bool {
		return s.Partitions.Get(part(&large, 0)).State.Epoch == 2
	})
	if s.Topics[small.ID] != nil || len(s.Topics) != 1 {
		t.Error("a deleted topic came back")
	}

	// Another node's topic of the same name is another topic, and both nodes' data stay untouched.
	clash := w.prepare("n2", uuid.New())
	clash.reg.Import = []meta.ImportedTopic{
		{Topic: meta.Topic{ID: uuid.New(), Name: "large", Partitions: 1}, Epochs: []segment.Epoch{1}},
	}
	if _, err := clash.Join(ctx(t), clash.reg); !errors.Is(err, meta.ErrExists) {
		t.Errorf("another topic of that name: %v", err)
	}
	w.until(again, "it did not stay", func(s *meta.Snapshot) bool { return s.Nodes[2] != nil && !s.Nodes[2].Live })
}

// An imported topic gets its replicas when there are nodes for them, and then its min_isr.
func TestImportGrows(t *testing.T) {
	w := newWorld(t, 0)
	n := w.prepare("n1", uuid.New())
	topic := meta.Topic{ID: uuid.New(), Name: "x", Partitions: 1}
	n.reg.Import = []meta.ImportedTopic{{Topic: topic, Epochs: []segment.Epoch{1}}}
	w.join(n)
	id := part(&topic, 0)
	for i, minISR := range []int{2, 2} {
		next := w.start(fmt.Sprint("n", i+2), uuid.New())
		w.until(n, "another replica", func(s *meta.Snapshot) bool { return len(s.Partitions.Get(id).State.Replicas) == i+2 })
		w.until(next, "its replica", func(s *meta.Snapshot) bool { return len(s.Partitions.Get(id).State.Replicas) == i+2 })
		w.addToISR(id, next)
		w.until(n, "min_isr", func(s *meta.Snapshot) bool { return s.Partitions.Get(id).State.MinISR == minISR })
	}
	s := w.until(n, "all in sync", func(s *meta.Snapshot) bool { return len(s.Partitions.Get(id).State.ISR) == 3 })
	if st := s.Partitions.Get(id).State; st.Epoch != 2 || len(st.Replicas) != 3 {
		t.Errorf("%+v", st)
	}
}

// Nothing works before Join, nor after Close or Leave, and nothing panics.
func TestNotJoined(t *testing.T) {
	m := memory.New(memory.Options{})
	t.Cleanup(m.Close)
	s := New(m.Store(), Options{})
	try := func(when string) {
		t.Helper()
		id := uuid.New()
		_, created := s.CreateTopic(ctx(t), meta.Topic{Name: "x", Partitions: 1})
		_, changed := s.ChangeISR(ctx(t), meta.PartitionID{Topic: id}, &replicate.State{})
		for i, err := range []error{
			created, changed, s.DeleteTopic(ctx(t), id), s.ExpandTopic(ctx(t), id, 2), s.Drain(ctx(t), 1, true), s.Leave(ctx(t)),
			s.HandOver(ctx(t), meta.PartitionID{}, &replicate.State{}, 0), s.ReportDown(ctx(t), 1, id),
		} {
			if !errors.Is(err, errNotJoined) {
				t.Errorf("%s, call %d: %v", when, i, err)
			}
		}
	}
	try("before")
	if s.Snapshot() != nil {
		t.Error("there is a snapshot")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Join(ctx(t), meta.Registration{
		Node: meta.Node{Name: "n", Store: uuid.New(), Boot: uuid.New()},
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Leave(ctx(t)); err != nil {
		t.Error(err)
	}
	try("after Leave")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	try("after Close")
}
