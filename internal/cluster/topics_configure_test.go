package cluster

import (
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/tests/support/kvfile"
)

// Settings change by compare-and-swap: of several nodes that start from the same version one wins, every node hears of
// it, and invalid settings change nothing. Partitions get a larger min_isr as soon as that many replicas are in sync,
// and a smaller one at once.
//
// B87
func TestConfigureTopic(t *testing.T) {
	w := newWorld(t, 3)
	topic := w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 5})
	if s := topic.EffectiveSettings(); s != (meta.TopicSettings{
		Partitions: 5, Durability: meta.DurabilitySynced, // min_isr follows from the replicas
	}) {
		t.Errorf("a new topic has the settings %+v", s)
	}
	configureAtOnce(t, w, topic)
	minISR := func(want int) {
		t.Helper()
		for _, n := range w.nodes {
			w.until(n, "min_isr", func(s *meta.Snapshot) bool {
				for i := range topic.Partitions {
					if s.Partitions.Get(part(topic, i)).State.MinISR != want {
						return false
					}
				}
				return true
			})
		}
	}
	minISR(3)
	for _, bad := range []meta.TopicSettings{
		{Version: 1, MinISR: 4},
		{Version: 1, MinISR: -1},
		{Version: 1, QuotaBytes: -1},
		{Version: 1, RetentionCount: -2},
		{Version: 1, QuotaMode: "x"},
		{Version: 1, RetentionAgeMs: 1 << 62},
		{Version: 1, KeepAgeMs: 1 << 62},
		{Version: 1, KeepBytes: -2},
	} {
		if _, err := w.nodes[1].ConfigureTopic(ctx(t), topic.ID, bad); !errors.Is(err, meta.ErrSettings) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := w.nodes[1].ConfigureTopic(ctx(t), uuid.New(), meta.TopicSettings{}); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("a topic that is not there: %v", err)
	}
	next := meta.TopicSettings{
		Version: 1, RetentionBytes: -1, RetentionCount: 7, RetentionAgeMs: 8, QuotaCount: 9, QuotaMode: meta.QuotaDropOldest,
		MinISR: 1, KeepAgeMs: 10, KeepBytes: -1,
	}
	got, err := w.nodes[2].ConfigureTopic(ctx(t), topic.ID, next)
	next.Version = 2
	if err != nil || got.Settings != next {
		t.Fatalf("%+v, %v", got, err)
	}
	if next.Partitions, next.Durability = 5, meta.DurabilitySynced; got.EffectiveSettings() != next {
		t.Fatalf("%+v", got.EffectiveSettings())
	}
	minISR(1)
	// 0 means the majority.
	if got, err = w.nodes[0].ConfigureTopic(ctx(t), topic.ID, meta.TopicSettings{Version: 2}); err != nil ||
		got.MinISR != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	minISR(2)
	if err := w.nodes[0].ExpandTopic(ctx(t), topic.ID, 6); err != nil {
		t.Fatal(err)
	}
	if s := w.nodes[0].Snapshot().Topics[topic.ID]; s.Settings.Version != 4 || s.Partitions != 6 {
		t.Errorf("after expanding: %+v", s)
	}
	configureMorePartitions(t, w, topic, minISR)
}

// configureAtOnce lets every node change version 0 at the same time.
func configureAtOnce(t *testing.T, w *world, topic *meta.Topic) {
	t.Helper()
	var won, lost []error
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, n := range w.nodes {
		all.Go(func() {
			_, err := n.ConfigureTopic(ctx(t), topic.ID, meta.TopicSettings{QuotaBytes: int64(i + 1), MinISR: 3})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, nil)
			} else {
				lost = append(lost, err)
			}
		})
	}
	all.Wait()
	if len(won) != 1 || slices.ContainsFunc(lost, func(err error) bool { return !errors.Is(err, meta.ErrConflict) }) {
		t.Fatalf("%d changed version 0, the others: %v", len(won), lost)
	}
}

// configureMorePartitions expands a topic to 6 partitions, with settings of version 4.
func configureMorePartitions(t *testing.T, w *world, topic *meta.Topic, minISR func(int)) {
	t.Helper()
	if _, err := w.nodes[0].ConfigureTopic(ctx(t), topic.ID, meta.TopicSettings{
		Version: 3, Partitions: 8,
	}); !errors.Is(err, meta.ErrConflict) {
		t.Errorf("the version of before it was expanded: %v", err)
	}
	got, err := w.nodes[1].ConfigureTopic(ctx(t), topic.ID, meta.TopicSettings{Version: 4, Partitions: 8, MinISR: 3})
	if err != nil || got.Partitions != 8 || got.MinISR != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	*topic = *got
	minISR(3)
	for _, bad := range []meta.TopicSettings{
		{Version: 5, Partitions: 7},
		{Version: 5, Partitions: MaxPartitionCount + 1},
		{Version: 5, Durability: "memory"},
	} {
		if _, err := w.nodes[2].ConfigureTopic(ctx(t), topic.ID, bad); !errors.Is(err, meta.ErrSettings) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// With fewer replicas in sync than min_isr, nothing can be written. A smaller min_isr makes writes possible; a larger
// one waits until enough replicas are in sync.
//
// B2, B87
func TestMinISRFollowsTheReplicas(t *testing.T) {
	w := newWorld(t, 3)
	topic := w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 1})
	id := part(topic, 0)
	row := w.nodes[0].Snapshot().Partitions.Get(id)
	var leader, follower *testNode
	for _, n := range w.nodes {
		if n.node.ID == row.State.Leader {
			leader = n
		} else {
			follower = n
		}
	}
	want := row.State
	want.ISR = slices.DeleteFunc(slices.Clone(want.ISR), func(m replicate.Member) bool {
		return m.Node == follower.node.ID
	})
	if _, err := leader.ChangeISR(ctx(t), id, &want); err != nil {
		t.Fatal(err)
	}
	if _, err := leader.ConfigureTopic(ctx(t), topic.ID, meta.TopicSettings{MinISR: 3}); err != nil {
		t.Fatal(err)
	}
	s := w.until(leader, "the smaller ISR", func(s *meta.Snapshot) bool {
		return len(s.Partitions.Get(id).State.ISR) == 2
	})
	if n := s.Partitions.Get(id).State.MinISR; n != 2 {
		t.Errorf("with two in sync min_isr is %d already", n)
	}
	w.addToISR(id, follower)
	w.until(leader, "min_isr", func(s *meta.Snapshot) bool { return s.Partitions.Get(id).State.MinISR == 3 })
}

// The stores of a single node keep settings, too; the one in a file keeps them over a restart.
func TestConfigureTopicOnStores(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	m := memory.New(memory.Options{})
	t.Cleanup(m.Close)
	for name, open := range map[string]func() kv.Store{
		"memory": func() kv.Store { return m.Store() },
		"file": func() kv.Store {
			s, err := kvfile.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			disk := uuid.New()
			for version := range uint64(3) {
				k := open()
				s := New(k, Options{})
				if _, err := s.Join(ctx(t), meta.Registration{
					Node: meta.Node{Name: "n", Store: disk, Boot: uuid.New()},
				}); err != nil {
					t.Fatal(err)
				}
				topic, err := s.CreateTopic(ctx(t), meta.Topic{Name: "x", Partitions: 1, Replicas: 1})
				if err != nil && !errors.Is(err, meta.ErrExists) {
					t.Fatal(err)
				}
				if topic.Settings.Version != version {
					t.Errorf("after %d changes: %+v", version, topic.Settings)
				}
				if _, err := s.ConfigureTopic(ctx(t), topic.ID, meta.TopicSettings{Version: version, QuotaCount: 5}); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(s.Leave(ctx(t)), s.Close(), k.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
