package cluster

import (
	"slices"

	"penstock/engine/meta"
	"penstock/replicate"
)

// Leaving lists the replicas that a partition has beyond what its topic wants: they stand at the end, are about to be
// removed when those before them are in sync, and should hand over if they lead.
func Leaving(s *meta.Snapshot, id meta.PartitionID) []replicate.NodeID {
	t, p := s.Topics[id.Topic], s.Partitions[id]
	if t == nil || p == nil || len(p.State.Replicas) <= t.Replicas {
		return nil
	}
	return p.State.Replicas[t.Replicas:]
}

// PreferredLeader is who should lead a partition when nothing stands against it: its first replica, if that one is in
// the ISR, alive, whole, its disk good, and neither draining nor leaving; else the present leader, if the same is true
// of it, its disk aside: one that is slow for a while moves nothing, and about one that hangs the node itself decides.
// Else the first of which all is true. 0: nobody. A leader that is not preferred hands over when it is convenient. That
// brings leadership back after a node returned (placement has spread the first replicas), and moves it no more often
// than that.
func PreferredLeader(s *meta.Snapshot, id meta.PartitionID) replicate.NodeID {
	p := s.Partitions[id]
	if p == nil || len(p.State.Replicas) == 0 {
		return 0
	}
	leaving := Leaving(s, id)
	for _, n := range append([]replicate.NodeID{p.State.Replicas[0], p.State.Leader}, p.State.Replicas...) {
		if inSync(s, p, n) && (n == p.State.Leader || s.Nodes[n].Disk.Rank() == 0) && !s.Nodes[n].Draining &&
			!slices.Contains(leaving, n) {
			return n
		}
	}
	return 0
}
