package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/tests/support/patience"
)

func TestCreateTopic(t *testing.T) {
	w := newWorld(t, 3)
	a := w.nodes[0]
	for _, c := range []struct {
		name string
		t    meta.Topic
		want meta.Topic
	}{
		{"defaults", meta.Topic{Name: "a", Partitions: 4}, meta.Topic{Partitions: 4, Replicas: 3, MinISR: 2}},
		{
			"as asked",
			meta.Topic{Name: "b#ephemeral", Partitions: 1, Replicas: 2, MinISR: 1},
			meta.Topic{Partitions: 1, Replicas: 2, MinISR: 1},
		},
		{
			"more than a transaction takes",
			meta.Topic{Name: "c", Partitions: 350, Replicas: 3},
			meta.Topic{Partitions: 350, Replicas: 3, MinISR: 2},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			made := w.create(a, c.t)
			if made.Name != c.t.Name || made.Partitions != c.want.Partitions || made.Replicas != c.want.Replicas ||
				made.MinISR != c.want.MinISR ||
				made.ID == uuid.Nil || made.CreatedNs == 0 {
				t.Errorf("made %+v", made)
			}
			s := a.Snapshot()
			for i := range made.Partitions {
				p := s.Partitions.Get(part(made, i))
				if p == nil {
					t.Fatalf("partition %d is missing", i)
				}
				st := p.State
				if st.Epoch != 1 || st.Version != 1 || len(st.Replicas) != made.Replicas || len(st.ISR) != made.Replicas ||
					st.MinISR != made.MinISR ||
					st.Leader != st.Replicas[0] || st.Boot != s.Nodes[st.Leader].Boot {
					t.Fatalf("partition %d: %+v", i, st)
				}
				for k, m := range st.ISR {
					if m.Node != st.Replicas[k] || m.Store != s.Nodes[m.Node].Store {
						t.Fatalf("partition %d: %+v", i, st)
					}
				}
			}
			// A node that creates it again is told that it exists.
			if again, err := w.nodes[1].CreateTopic(ctx(t), c.t); !errors.Is(err, meta.ErrExists) || again.ID != made.ID {
				t.Errorf("again: %+v, %v", again, err)
			}
		})
	}
	w.until(a, "nothing is left of the making", func(*meta.Snapshot) bool { return len(a.s.cur.Load().creating) == 0 })
}

// B92: a topic that cannot be placed is refused, and leaves nothing behind.
func TestCreateTopicRefused(t *testing.T) { synctest.Test(t, testCreateTopicRefused) }

func testCreateTopicRefused(t *testing.T) {
	w := newWorldWith(t, 2, quickLeases)
	w.kill(w.start("n3", uuid.New()))
	a := w.nodes[0]
	w.until(a, "two are alive", func(s *meta.Snapshot) bool { return s.Nodes[3] != nil && !s.Nodes[3].Live })
	_, before := w.m.Entries()
	for _, topic := range []meta.Topic{
		{Name: "x", Partitions: 1, Replicas: 3},
		{Name: "", Partitions: 1},
		{Name: "a/b", Partitions: 1},
		{Name: strings.Repeat("x", MaxTopicNameBytes+1), Partitions: 1},
		{Name: "x", Partitions: 0},
		{Name: "x", Partitions: MaxPartitionCount + 1},
		{Name: "x", Partitions: 1, Replicas: replicate.MaxReplicaCount + 1},
		{Name: "x", Partitions: 1, Replicas: 2, MinISR: 3},
		{Name: "x", Partitions: 1, Replicas: -1},
	} {
		_, err := a.CreateTopic(ctx(t), topic)
		if tooFew := errors.Is(err, meta.ErrTooFewNodes); err == nil || tooFew != (topic.Replicas == 3) {
			t.Errorf("%+v: %v", topic, err)
		}
	}
	if _, after := w.m.Entries(); after != before {
		t.Error("something was written")
	}
	// By default the dead node is expected to return: its replica is added when it is back.
	made := w.create(a, meta.Topic{Name: "x", Partitions: 1})
	st := a.row(part(made, 0))
	if made.Replicas != 3 || made.MinISR != 2 || len(st.Replicas) != 2 || len(st.ISR) != 2 || st.MinISR != 2 {
		t.Errorf("the default with two of three nodes: %+v, %+v", made, st)
	}
	if err := a.ExpandTopic(ctx(t), made.ID, 2); err != nil {
		t.Error(err)
	}
	w.kill(w.nodes[1])
	w.until(a, "one is alive", func(s *meta.Snapshot) bool { return !s.Nodes[2].Live })
	if _, err := a.CreateTopic(ctx(t), meta.Topic{Name: "y", Partitions: 1}); !errors.Is(err, meta.ErrTooFewNodes) {
		t.Errorf("one of three nodes: %v", err)
	}
	if err := a.ExpandTopic(ctx(t), made.ID, 3); !errors.Is(err, meta.ErrTooFewNodes) {
		t.Errorf("one of three nodes: %v", err)
	}
	w.restart(w.nodes[1], w.nodes[1].node.Store)
	w.restart(w.nodes[2], w.nodes[2].node.Store)
	w.settle(a, "three replicas", func(s *meta.Snapshot) bool {
		return len(s.Partitions.Get(part(made, 0)).State.ISR) == 3 && len(s.Partitions.Get(part(made, 1)).State.ISR) == 3
	})
}

// If several nodes create a topic at the same time, one succeeds and the others are told of the result.
func TestCreateTopicRace(t *testing.T) {
	w := newWorld(t, 3)
	type outcome struct {
		topic *meta.Topic
		err   error
	}
	ended := make(chan outcome)
	for i := range 9 {
		go func() {
			made, err := w.nodes[i%3].CreateTopic(ctx(t), meta.Topic{Name: "x", Partitions: 120})
			ended <- outcome{made, err}
		}()
	}
	ids, made := map[uuid.UUID]bool{}, 0
	for range 9 {
		o := <-ended
		if o.err == nil {
			made++
		} else if !errors.Is(o.err, meta.ErrExists) {
			t.Fatal(o.err)
		}
		ids[o.topic.ID] = true
	}
	if made != 1 || len(ids) != 1 {
		t.Errorf("%d were made, with %d identities", made, len(ids))
	}
	// B86: the rows that the others had begun are removed.
	w.until(w.nodes[0], "only its partitions are there", func(*meta.Snapshot) bool {
		return w.nodes[0].s.cur.Load().parts.Len() == 120
	})
}

// B85, B86: a node stops in the middle of creating a topic. Nobody sees any of it, and the written rows are removed.
func TestCreateTopicStops(t *testing.T) {
	w := newWorld(t, 3)
	creator := w.nodes[2]
	st := creator.s.cur.Load()
	topic := &meta.Topic{ID: uuid.New(), Name: "x", Partitions: 250, Replicas: 3, MinISR: 2}
	placed, err := place(candidates(st.snap), topic.Partitions, 3, newLoad(), newLoad())
	if err != nil {
		t.Fatal(err)
	}
	// A condition of the last transaction does not hold, as if a node had died.
	ok, _, err := creator.s.writeTopic(ctx(t), topic, 0, newPartitions(st.snap, topic, 0, placed), []kv.Cond{
		{Key: "no such key", ModRevision: 1},
	})
	if ok || err != nil {
		t.Fatal(ok, err)
	}
	w.until(w.nodes[0], "it is gone", func(s *meta.Snapshot) bool {
		if s.Partitions.Len() != 0 || len(s.Topics) != 0 {
			t.Fatal("somebody sees it")
		}
		st := w.nodes[0].s.cur.Load()
		return st.parts.Len() == 0 && len(st.creating) == 0
	})
	w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 1})
}

// tapped is a store that shows every transaction to the test before it is applied.
type tapped struct {
	kv.Store
	before func(ops []kv.Op)
}

func (s *tapped) Txn(ctx context.Context, conds []kv.Cond, ops []kv.Op) (bool, int64, error) {
	s.before(ops)
	return s.Store.Txn(ctx, conds, ops)
}

// B85: a creation that took so long that the controller has begun to clean up does not appear in part.
func TestCreateTopicTooSlow(t *testing.T) {
	w := newWorld(t, 0)
	a := w.prepare("n1", uuid.New())
	other := w.m.Store("other")
	slow := 0
	a.s.kv = &tapped{Store: a.s.kv, before: func(ops []kv.Op) {
		key := ops[0].Key
		if !strings.Contains(key, "/"+topicsDir) || slow > 0 {
			return
		}
		slow++ // before its last transaction its lease runs out, and the controller removes the rows that it finds
		gone := []kv.Op{{Key: strings.Replace(key, topicsDir, creatingDir, 1), Delete: true}}
		rows, _, err := other.List(ctx(t), strings.Replace(key, topicsDir, partsDir, 1))
		if err != nil || len(rows) == 0 {
			t.Error(len(rows), err)
		}
		for _, e := range rows[:50] {
			gone = append(gone, kv.Op{Key: e.Key, Delete: true})
		}
		if ok, _, err := other.Txn(ctx(t), nil, gone); !ok || err != nil {
			t.Error(ok, err)
		}
	}}
	w.join(a)
	made := w.create(a, meta.Topic{Name: "x", Partitions: 250})
	if s := a.Snapshot(); s.Partitions.Len() != 250 || s.Names["x"].ID != made.ID || slow != 1 {
		t.Errorf("%d partitions; %d times too slow", s.Partitions.Len(), slow)
	}
}

// B86: a topic is not placed on a node that has died since the decision.
func TestCreateTopicOnDeadNode(t *testing.T) { synctest.Test(t, testCreateTopicOnDeadNode) }

func testCreateTopicOnDeadNode(t *testing.T) {
	w := newWorldWith(t, 3, quickLeases)
	creator := w.nodes[2]
	stale := creator.s.cur.Load()
	w.kill(w.nodes[1])
	w.until(creator, "it is dead", func(s *meta.Snapshot) bool { return !s.Nodes[2].Live })
	topic := &meta.Topic{ID: uuid.New(), Name: "x", Partitions: 1, Replicas: 3, MinISR: 2}
	placed := [][]replicate.NodeID{{1, 2, 3}}
	ok, _, err := creator.s.writeTopic(ctx(t), topic, 0, newPartitions(stale.snap, topic, 0, placed),
		stale.conds(DefaultPrefix, 1, 2, 3))
	if ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
}

// A topic made anew under the same name is another topic: everybody can tell the two apart, and only the deleted one is
// gone. P20, P21
func TestDeleteTopic(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	first := w.create(a, meta.Topic{Name: "x", Partitions: 150})
	if err := b.DeleteTopic(ctx(t), first.ID); err != nil {
		t.Fatal(err)
	}
	if s := b.Snapshot(); s.Topics[first.ID] != nil || s.Names["x"] != nil || s.Partitions.Len() != 0 ||
		!s.Deleted[first.ID] {
		t.Error("it is there when DeleteTopic returns")
	}
	second := w.create(b, meta.Topic{Name: "x", Partitions: 2})
	if second.ID == first.ID {
		t.Fatal("the same identity")
	}
	s := w.until(a, "the rows of the first are gone", func(*meta.Snapshot) bool { return a.s.cur.Load().parts.Len() == 2 })
	if !s.Deleted[first.ID] || s.Deleted[second.ID] || s.Names["x"].ID != second.ID || s.Partitions.Len() != 2 {
		t.Errorf("%v", describe(s))
	}
	if err := a.DeleteTopic(ctx(t), first.ID); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	entries, _ := w.m.Entries()
	for _, e := range entries {
		if strings.Contains(e.Key, first.ID.String()) && !strings.Contains(e.Key, deletedDir) {
			t.Errorf("left: %s", e.Key)
		}
	}
}

// B88: existing partitions stay as they are.
func TestExpandTopic(t *testing.T) {
	w := newWorld(t, 3)
	a := w.nodes[0]
	topic := w.create(a, meta.Topic{Name: "x", Partitions: 3, Replicas: 2})
	before := a.Snapshot()
	for _, count := range []int{6, 6, 150} {
		if err := a.ExpandTopic(ctx(t), topic.ID, count); err != nil {
			t.Fatal(err)
		}
		s := a.Snapshot()
		if s.Partitions.Len() != count || s.Topics[topic.ID].Partitions != count || s.Names["x"].Partitions != count {
			t.Fatalf("%d partitions of %d", s.Partitions.Len(), count)
		}
		for i := range 3 {
			if s.Partitions.Get(part(topic, i)) != before.Partitions.Get(part(topic, i)) {
				t.Errorf("partition %d was touched", i)
			}
		}
		spread := loadOf(s)
		for _, n := range []replicate.NodeID{1, 2, 3} { // B91
			if spread.leads[n] > (count+2)/3 {
				t.Errorf("%d of %d partitions are led by node %d", spread.leads[n], count, n)
			}
		}
	}
	if err := a.ExpandTopic(ctx(t), topic.ID, 3); err == nil {
		t.Error("partitions were taken away")
	}
	if err := a.ExpandTopic(ctx(t), uuid.New(), 3); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("an unknown topic: %v", err)
	}
}

// A topic that another node has just made can be changed on this node before the watch has brought it.
func TestTopicIsFound(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	made, err := a.CreateTopic(ctx(t), meta.Topic{Name: "x", Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.ExpandTopic(ctx(t), made.ID, 2); err != nil {
		t.Error(err)
	}
	if err := a.DeleteTopic(ctx(t), made.ID); err != nil {
		t.Error(err)
	}
}

func TestTombstone(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.nodes[0], w.nodes[1]
	w.create(a, meta.Topic{Name: "x#ephemeral", Partitions: 1})
	key := meta.TombstoneKey{Topic: "x#ephemeral", Node: 2}
	until := time.Now().Add(45 * time.Second)
	if err := a.Tombstone(ctx(t), key, until); err != nil {
		t.Fatal(err)
	}
	s := w.until(b, "the tombstone", func(s *meta.Snapshot) bool { return len(s.Tombstones) == 1 })
	if got := s.Tombstones[key]; !got.Equal(until) {
		t.Errorf("until %v, want %v", got, until)
	}
	if err := a.Tombstone(ctx(t), meta.TombstoneKey{Topic: "y", Node: 2}, until); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("an unknown topic: %v", err)
	}
	if err := a.Tombstone(ctx(t), key, time.Now().Add(-2*tombstoneKeepAfter)); err != nil {
		t.Fatal(err)
	}
	w.until(b, "it is removed when it is long over", func(s *meta.Snapshot) bool { return len(s.Tombstones) == 0 })
}

// If the store does not answer for longer than an election takes, the error says so, and nothing was done.
func TestUnavailable(t *testing.T) { synctest.Test(t, testUnavailable) }

func testUnavailable(t *testing.T) {
	w := newWorldWith(t, 2, slowLeases)
	a := w.nodes[0]
	w.m.Cut("n1")
	began := time.Now()
	_, err := a.CreateTopic(ctx(t), meta.Topic{Name: "x", Partitions: 1})
	if took := time.Since(began); !errors.Is(err, meta.ErrUnavailable) || took < electionWait ||
		took > electionWait+patience.Or(2*time.Second) {
		t.Errorf("CreateTopic after %v: %v", took, err)
	}
	if err := a.Drain(ctx(t), 2, true); !errors.Is(err, meta.ErrUnavailable) {
		t.Errorf("Drain: %v", err)
	}
	w.m.Heal("n1")
	done, cancel := context.WithCancel(ctx(t))
	cancel()
	if err := a.Drain(done, 2, true); !errors.Is(err, meta.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	if s := a.Snapshot(); s.Nodes[2].Draining || s.Names["x"] != nil {
		t.Error("it was done all the same")
	}
}

// O21: a change outlasts an election of the store, and is applied once, whether the attempt that got no answer was
// applied or not.
func TestChangesOutlastAnElection(t *testing.T) {
	w := newWorldWith(t, 2, slowLeases)
	a := w.nodes[0]
	for name, fault := range map[string]func(){
		"cut": func() {
			w.m.Cut("n1")
			time.AfterFunc(electionWait/6, func() { w.m.Heal("n1") })
		},
		"lost answer": func() { w.m.LoseAnswers("n1", "", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			fault()
			made, err := a.CreateTopic(ctx(t), meta.Topic{Name: "x", Partitions: 1})
			if err != nil || a.Snapshot().Names["x"] == nil || a.Snapshot().Names["x"].ID != made.ID {
				t.Fatalf("CreateTopic: %+v, %v", made, err)
			}
			fault()
			if err := a.ExpandTopic(ctx(t), made.ID, 3); err != nil {
				t.Errorf("ExpandTopic: %v", err)
			}
			grown := a.Snapshot().Topics[made.ID]
			if grown.Partitions != 3 || grown.Settings.Version != 1 {
				t.Errorf("ExpandTopic made %+v", grown)
			}
			fault()
			set := grown.Settings
			set.QuotaBytes = 1 << 20
			now, err := a.ConfigureTopic(ctx(t), made.ID, set)
			if err != nil || now.Settings.Version != 2 || now.Settings.QuotaBytes != 1<<20 ||
				a.Snapshot().Topics[made.ID].Settings != now.Settings {
				t.Errorf("ConfigureTopic: %+v, %v", now, err)
			}
			fault()
			if err := a.Drain(ctx(t), 2, true); err != nil || !a.Snapshot().Nodes[2].Draining {
				t.Errorf("Drain: %v", err)
			}
			fault()
			if err := a.Drain(ctx(t), 2, false); err != nil || a.Snapshot().Nodes[2].Draining {
				t.Errorf("Drain off: %v", err)
			}
			id := part(made, 0)
			before := a.row(id)
			fault()
			to, err := a.TransferLeader(ctx(t), id, 0)
			if p := a.Snapshot().Partitions.Get(id); err != nil || to == before.Leader || p.TransferTo() != to ||
				p.State.Version != before.Version+1 {
				t.Errorf("TransferLeader to %d: %v, %+v", to, err, p)
			}
			fault()
			if err := a.DeleteTopic(ctx(t), made.ID); err != nil || a.Snapshot().Topics[made.ID] != nil {
				t.Errorf("DeleteTopic: %v", err)
			}
			w.m.LoseAnswers("n1", "", 0)
		})
	}
}

// deaf is a store of keys that calls lost after the next transaction that changes key, and does not say whether that
// was applied.
type deaf struct {
	kv.Store
	key  string
	skip bool // that transaction is not applied
	lost atomic.Pointer[func()]
}

func (d *deaf) Txn(ctx context.Context, conds []kv.Cond, ops []kv.Op) (bool, int64, error) {
	if !slices.ContainsFunc(ops, func(op kv.Op) bool { return op.Key == d.key }) {
		return d.Store.Txn(ctx, conds, ops)
	}
	lost := d.lost.Swap(nil)
	if lost == nil {
		return d.Store.Txn(ctx, conds, ops)
	}
	if !d.skip {
		if ok, _, err := d.Store.Txn(ctx, conds, ops); !ok || err != nil {
			return ok, 0, err
		}
	}
	(*lost)()
	return false, 0, kv.ErrUnavailable
}

// O21: a creation without an answer was applied, and the topic was deleted before the next attempt. That one makes
// another topic: nodes may still be removing what they had of the first one.
func TestCreationIsNotRepeatedAfterADeletion(t *testing.T) {
	w := newWorldWith(t, 1, slowLeases)
	b, a := w.nodes[0], w.prepare("n2", uuid.New())
	link := &deaf{Store: a.s.kv, key: a.s.key(namesDir + "x")}
	a.s.kv = link
	w.join(a)
	var first uuid.UUID
	lost := func() {
		s := w.until(b, "the topic", func(s *meta.Snapshot) bool { return s.Names["x"] != nil })
		first = s.Names["x"].ID
		if err := b.DeleteTopic(ctx(t), first); err != nil {
			t.Error(err)
		}
	}
	link.lost.Store(&lost)
	made, err := a.CreateTopic(ctx(t), meta.Topic{Name: "x", Partitions: 1})
	if err != nil || first == uuid.Nil || made.ID == first || a.Snapshot().Names["x"].ID != made.ID {
		t.Errorf("made %+v after %v was deleted: %v", made, first, err)
	}
}

// O21: settings that another caller has changed meanwhile are not taken for this change's own work: its outcome is
// unknown, and it is not applied on top of theirs.
func TestUnknownOutcomeIsTold(t *testing.T) {
	for what, skip := range map[string]bool{"applied": false, "not applied": true} {
		t.Run(what, func(t *testing.T) {
			w := newWorldWith(t, 1, slowLeases)
			b, a := w.nodes[0], w.prepare("n2", uuid.New())
			made := w.create(b, meta.Topic{Name: "x", Partitions: 1})
			link := &deaf{Store: a.s.kv, key: a.s.key(topicKey(topicsDir, made.ID)), skip: skip}
			a.s.kv = link
			w.join(a)
			w.until(a, "the topic", func(s *meta.Snapshot) bool { return s.Topics[made.ID] != nil })
			var want meta.TopicSettings
			lost := func() {
				s := w.until(b, "the change that was applied", func(s *meta.Snapshot) bool {
					return skip || s.Topics[made.ID].Settings.Version == 1
				})
				other := s.Topics[made.ID].Settings
				other.QuotaBytes = 7
				now, err := b.ConfigureTopic(ctx(t), made.ID, other)
				if err != nil {
					t.Error(err)
					return
				}
				want = now.Settings
			}
			link.lost.Store(&lost)
			mine := made.Settings
			mine.QuotaBytes = 1 << 20
			if _, err := a.ConfigureTopic(ctx(t), made.ID, mine); !errors.Is(err, meta.ErrUnavailable) {
				t.Errorf("%v", err)
			}
			if got := b.Snapshot().Topics[made.ID].Settings; got.QuotaBytes != 7 || got != want {
				t.Errorf("%+v", got)
			}
		})
	}
}
