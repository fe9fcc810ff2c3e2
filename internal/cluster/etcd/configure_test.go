package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	agreement "penstock/internal/cluster"
	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
)

// joined is a store through which a new node has joined.
func joined(ctx context.Context, t *testing.T, s kv.Store, name string) meta.Store {
	t.Helper()
	m := agreement.New(s, agreement.Options{LeaseTTL: time.Minute, ControllerTick: 20 * time.Millisecond})
	t.Cleanup(func() { _ = m.Close() })
	node := meta.Node{Name: name, Store: uuid.New(), Boot: uuid.New()}
	if _, err := m.Join(ctx, meta.Registration{
		Node: node, Changed: func(*meta.Change) {}, Lease: func(time.Time) {},
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

// configureAtOnce asks for s through all stores, each with a quota of its own. It returns how many were told that they
// won, and the settings that one of them was told.
func configureAtOnce(
	ctx context.Context, t *testing.T, stores []meta.Store, topic *meta.Topic, s meta.TopicSettings,
) (won int, now meta.TopicSettings) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, store := range stores {
		all.Go(func() {
			own := s
			own.QuotaCount = int64(i + 1)
			got, err := store.ConfigureTopic(ctx, topic.ID, own)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
				now = got.EffectiveSettings()
			case !errors.Is(err, meta.ErrConflict):
				t.Errorf("through member %d: %v", i, err)
			}
		})
	}
	all.Wait()
	return won, now
}

// A topic's settings on live embedded members. Of several nodes that change one version one wins, whichever member it
// asked. More partitions come with the same transaction, or with several for a large topic. Refused changes change
// nothing. Everything is still there after the members restart.
//
// B87
func TestConfigureTopic(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx := within(t, enough)
	var stores []meta.Store
	for i := range 3 {
		stores = append(stores, joined(ctx, t, c.dial(Options{}, i), fmt.Sprint("n", i)))
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
	const most = 150 // more rows than one transaction may have
	var want meta.TopicSettings
	for round, partitions := range []int{4, most} {
		var won int
		won, want = configureAtOnce(ctx, t, stores, topic, meta.TopicSettings{
			Version: uint64(round), MinISR: 3, Partitions: partitions,
		})
		if won != 1 || want.Version != uint64(round+1) || want.Partitions != partitions || want.MinISR != 3 ||
			want.QuotaCount == 0 {
			t.Fatalf("%d changed version %d; it is %+v now", won, round, want)
		}
	}
	for _, bad := range []meta.TopicSettings{
		{Version: 2, Partitions: most - 1}, {Version: 2, Durability: "none"}, {Version: 2, MinISR: 4},
	} {
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
			p := m.Partitions.Get(meta.PartitionID{Topic: topic.ID, Partition: n})
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
	eventually("the same after a restart", joined(ctx, t, c.dial(Options{}, 2), "n3"), known)
}
