package world

import (
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// Whatever operators have begun ends although a node dies for good that it concerns.
func TestCorpse(t *testing.T) {
	var seeds []uint64
	for seed := range uint64(10) {
		seeds = append(seeds, seed)
	}
	sum := runAll(t, Config{Features: FeatureCorpse}, seeds)
	if sum.Corpses == 0 || sum.Undone == 0 {
		t.Errorf("%d nodes died for good, and %d moves were undone: the seeds do not reach what they are for",
			sum.Corpses, sum.Undone)
	}
	draws := func(from uint64) (count int) {
		for seed := from; seed < from+100; seed++ {
			if Draws(seed, Config{})&FeatureCorpse != 0 {
				count++
			}
		}
		return count
	}
	if old, now := draws(firstCorpseSeed-200), draws(firstCorpseSeed); old != 0 || now == 0 {
		t.Errorf("%d old seeds and %d new ones draw it", old, now)
	}
}

// A partition has to get a replica that it lacks only where its cluster knows of a node that may take one: a node whose
// disk hangs by its row gets none, also when the disk has begun to answer. B90.
func TestGrowthIsLookedAt(t *testing.T) {
	good := meta.Node{Live: true}
	id := meta.PartitionID{Topic: uuid.UUID{'t'}}
	for _, c := range []struct {
		name  string
		other meta.Node // may it take a replica?
		fails bool
	}{
		{"a good node", good, true},
		{"a slow disk", meta.Node{Live: true, Disk: meta.DiskSlow}, true},
		{"a clock that differs", meta.Node{Live: true, ClockDiffers: true}, true},
		{"a disk that hangs", meta.Node{Live: true, Disk: meta.DiskHung}, false},
		{"a disk that has failed", meta.Node{Live: true, Disk: meta.DiskFailed}, false},
		{"a node that drains", meta.Node{Live: true, Draining: true}, false},
		{"a node that is dead", meta.Node{}, false},
	} {
		s := &meta.Snapshot{
			Nodes:  map[replicate.NodeID]*meta.Node{1: &good, 2: &c.other},
			Topics: map[uuid.UUID]*meta.Topic{id.Topic: {ID: id.Topic, Name: "t", Replicas: 2}},
		}
		s.Partitions = s.Partitions.With(id, &meta.Partition{ID: id, State: replicate.State{
			Leader: 1, Replicas: []replicate.NodeID{1}, ISR: []replicate.Member{{Node: 1}},
		}})
		w := &World{store: &store{snap: s}}
		w.corpse.grows = map[meta.PartitionID]int64{}
		for range 2 {
			w.lookAtGrowth()
			w.now += mostMoveTime + 1
		}
		if fails := w.Violation != ""; fails != c.fails {
			t.Errorf("%s could take the replica: %q", c.name, w.Violation)
		}
	}
}
