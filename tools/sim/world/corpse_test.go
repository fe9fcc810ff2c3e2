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

// A move of the leader's replica has to end where its cluster knows of a node that can take over. A node whose disk
// hangs by its row cannot. B89.
func TestMovesAreLookedAt(t *testing.T) {
	live := meta.Node{Live: true}
	hangs, drains := meta.Node{Live: true, Disk: meta.DiskFailed}, meta.Node{Live: true, Draining: true}
	both := meta.Node{Live: true, Disk: meta.DiskFailed, Draining: true}
	id := meta.PartitionID{Topic: uuid.UUID{'t'}}
	for _, c := range []struct {
		name   string
		to, by meta.Node // where the replica goes, and another member of the ISR
		isr    []replicate.NodeID
		cancel bool
		fails  bool
	}{
		{"the new replica can lead", live, drains, []replicate.NodeID{1, 2, 3}, false, true},
		{"the other one can", hangs, live, []replicate.NodeID{1, 2, 3}, false, true},
		{"nobody can", hangs, drains, []replicate.NodeID{1, 2, 3}, false, false},
		{"nobody can, and the move is to be undone", hangs, drains, []replicate.NodeID{1, 2, 3}, true, true},
		{"all drain, and it is to be given up", both, drains, []replicate.NodeID{1, 2, 3}, false, true},
		{"the new replica does not catch up", hangs, drains, []replicate.NodeID{1, 3}, false, true},
		{"the new replica's node is dead", meta.Node{}, drains, []replicate.NodeID{1, 2, 3}, false, true},
	} {
		s := &meta.Snapshot{Nodes: map[replicate.NodeID]*meta.Node{1: &live, 2: &c.to, 3: &c.by}}
		p := &meta.Partition{ID: id, State: replicate.State{
			Leader: 1, MinISR: 1, Replicas: []replicate.NodeID{2, 3, 1},
		}}
		for _, n := range c.isr {
			p.State.ISR = append(p.State.ISR, replicate.Member{Node: n})
		}
		s.Partitions = s.Partitions.With(id, p)
		w := &World{store: &store{snap: s, moves: map[meta.PartitionID]move{id: {from: 1, to: 2, cancel: c.cancel}}}}
		w.corpse.since, w.corpse.moves = map[meta.PartitionID]int64{}, map[meta.PartitionID]move{}
		for range 2 {
			w.lookAtMoves()
			w.now += mostMoveTime + 1
		}
		if fails := w.Violation != ""; fails != c.fails {
			t.Errorf("%s: %q", c.name, w.Violation)
		}
	}
}
