package etcd

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	agreement "penstock/cluster"
	"penstock/engine/meta"
)

// A topic's settings on live embedded members: of all who change one version one wins, wherever it asked; more partitions come with the same
// transaction, or with several of a large topic; refused changes change nothing; and everything is there when the members were started again.
//
// B87
func TestConfigureTopic(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start(0, 1, 2)
	c.ready(0, 1, 2)
	ctx := within(t, 40*time.Second)
	var stores []meta.Store
	for i := range 3 {
		s := agreement.New(c.dial(Options{}, i), agreement.Options{LeaseTTL: time.Minute, ControllerTick: 20 * time.Millisecond})
		t.Cleanup(func() { _ = s.Close() })
		name := fmt.Sprint("n", i)
		if _, err := s.Join(ctx, meta.Registration{Node: meta.Node{Name: name, Store: uuid.New(), Boot: uuid.New()}, Changed: func(*meta.Change) {}, Lease: func(time.Time) {}}); err != nil {
			t.Fatal(err)
		}
		stores = append(stores, s)
	}
	eventually := func(what string, s meta.Store, holds func(*meta.Snapshot) bool) {
		t.Helper()
		for !holds(s.Snapshot()) {
			if ctx.Err() != nil {
				t.Fatalf("not in time: %s", what)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	for _, s := range stores {
		eventually("three nodes", s, func(m *meta.Snapshot) bool { return len(m.Nodes) == 3 })
	}
	topic, err := stores[0].CreateTopic(ctx, meta.Topic{Name: "t", Partitions: 2, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	const most = 150 // more rows than one transaction has
	want := meta.TopicSettings{Version: 1, MinISR: 3, Partitions: 4, Durability: meta.DurabilitySynced}
	for round, partitions := range []int{4, most} {
		var mu sync.Mutex
		var all sync.WaitGroup
		won := 0
		for i, s := range stores {
			all.Go(func() {
				got, err := s.ConfigureTopic(ctx, topic.ID, meta.TopicSettings{Version: uint64(round), MinISR: 3, QuotaCount: int64(i + 1), Partitions: partitions})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won++
					want = got.EffectiveSettings()
				case !errors.Is(err, meta.ErrConflict):
					t.Errorf("through member %d: %v", i, err)
				}
			})
		}
		all.Wait()
		if won != 1 || want.Version != uint64(round+1) || want.Partitions != partitions || want.MinISR != 3 || want.QuotaCount == 0 {
			t.Fatalf("%d changed version %d; it is %+v now", won, round, want)
		}
	}
	for _, bad := range []meta.TopicSettings{{Version: 2, Partitions: most - 1}, {Version: 2, Durability: "none"}, {Version: 2, MinISR: 4}} {
		if _, err := stores[1].ConfigureTopic(ctx, topic.ID, bad); !errors.Is(err, meta.ErrSettings) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	known := func(m *meta.Snapshot) bool {
		now := m.Topics[topic.ID]
		if now == nil || now.EffectiveSettings() != want {
			return false
		}
		for n := range uint32(most) {
			p := m.Partitions[meta.PartitionID{Topic: topic.ID, Partition: n}]
			if p == nil || len(p.State.Replicas) != 3 || p.State.MinISR != 3 {
				return false
			}
		}
		return true
	}
	for _, s := range stores {
		eventually("the settings and all partitions", s, known)
	}
	c.stop(0, 1, 2)
	c.start(0, 1, 2)
	c.ready(0, 1, 2)
	again := agreement.New(c.dial(Options{}, 2), agreement.Options{LeaseTTL: time.Minute})
	t.Cleanup(func() { _ = again.Close() })
	if _, err := again.Join(ctx, meta.Registration{Node: meta.Node{Name: "n3", Store: uuid.New(), Boot: uuid.New()}, Changed: func(*meta.Change) {}, Lease: func(time.Time) {}}); err != nil {
		t.Fatal(err)
	}
	eventually("the same after a restart", again, known)
}
