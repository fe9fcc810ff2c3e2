package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/internal/meta"
	"penstock/replicate"
)

func liveNodes(ids ...replicate.NodeID) []*meta.Node {
	var nodes []*meta.Node
	for _, id := range ids {
		nodes = append(nodes, &meta.Node{ID: id, Live: true})
	}
	return nodes
}

func TestPlace(t *testing.T) {
	draining := liveNodes(1, 2, 3)
	draining[0].Draining = true
	hung := liveNodes(1, 2, 3)
	hung[0].Disk = meta.DiskHung
	busy := newLoad()
	busy.replicas[1], busy.leads[1] = 10, 10
	mine := newLoad()
	mine.replicas[1], mine.leads[1], mine.replicas[2] = 1, 1, 1
	for _, c := range []struct {
		name            string
		nodes           []*meta.Node
		count, replicas int
		all, existing   load
		want            string
	}{
		{"one node", liveNodes(7), 2, 1, newLoad(), newLoad(), "[[7] [7]]"},
		{"all replicas on all nodes", liveNodes(1, 2, 3), 3, 3, newLoad(), newLoad(), "[[1 2 3] [2 1 3] [3 1 2]]"},
		{"fewer replicas than nodes", liveNodes(1, 2, 3, 4), 4, 2, newLoad(), newLoad(), "[[1 2] [3 4] [2 1] [4 3]]"},
		{"a busy node comes last", liveNodes(1, 2, 3), 2, 1, busy, newLoad(), "[[2] [3]]"},
		{"but the topic's own spread counts more", liveNodes(1, 2, 3), 3, 1, busy, newLoad(), "[[2] [3] [1]]"},
		{"what the topic has already counts", liveNodes(1, 2, 3), 2, 2, newLoad(), mine, "[[3 1] [2 3]]"},
		{"a draining node only if it must", draining, 2, 2, newLoad(), newLoad(), "[[2 3] [3 2]]"},
		{"a disk that hangs leads only if it must", hung, 2, 3, newLoad(), newLoad(), "[[2 3 1] [3 2 1]]"},
		{"a draining node as the last replica", draining, 2, 3, newLoad(), newLoad(), "[[2 3 1] [3 2 1]]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := place(c.nodes, c.count, c.replicas, c.all, c.existing)
			if err != nil || fmt.Sprint(got) != c.want {
				t.Errorf("%v, %v, want %s", got, err, c.want)
			}
		})
	}
	// B92
	if _, err := place(liveNodes(1, 2), 1, 3, newLoad(), newLoad()); !errors.Is(err, meta.ErrTooFewNodes) {
		t.Errorf("3 replicas on 2 nodes: %v", err)
	}
}

// Whatever the numbers are: no node is twice in a partition, the nodes' counts of a topic's leaders differ by one at
// most and those of its replicas by two, and the same arguments give the same result. B91.
func TestPlaceSpreads(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		count, replicas := 1+rng.IntN(40), 1+rng.IntN(5)
		var ids []replicate.NodeID
		for i := range replicas + rng.IntN(6) {
			ids = append(ids, replicate.NodeID(3*i+1))
		}
		all := newLoad()
		for _, id := range ids {
			all.replicas[id], all.leads[id] = rng.IntN(20), rng.IntN(20)
		}
		got, err := place(liveNodes(ids...), count, replicas, all, newLoad())
		if err != nil {
			t.Fatal(err)
		}
		again, _ := place(liveNodes(ids...), count, replicas, all, newLoad())
		if fmt.Sprint(got) != fmt.Sprint(again) {
			t.Fatal("two answers to one question")
		}
		leads, holds := map[replicate.NodeID]int{}, map[replicate.NodeID]int{}
		for _, row := range got {
			leads[row[0]]++
			for _, id := range row {
				holds[id]++
			}
			if sorted := slices.Compact(slices.Sorted(slices.Values(row))); len(sorted) != replicas {
				t.Fatalf("replicas %v", row)
			}
		}
		for what, counts := range map[string]map[replicate.NodeID]int{"leaders": leads, "replicas": holds} {
			least, most := count*replicas, 0
			for _, id := range ids {
				least, most = min(least, counts[id]), max(most, counts[id])
			}
			if most-least > map[string]int{"leaders": 1, "replicas": 2}[what] {
				t.Fatalf("%d partitions of %d on %d nodes: %s from %d to %d", count, replicas, len(ids), what, least, most)
			}
		}
	}
}
