package cluster

import (
	"slices"

	"penstock/engine/meta"
	"penstock/replicate"
)

// Leaving lists the replicas that a partition has beyond what its topic wants: they stand at the end, are about to be removed when
// those before them are in sync, and should hand over if they lead.
func Leaving(s *meta.Snapshot, id meta.PartitionID) []replicate.NodeID {
	t, p := s.Topics[id.Topic], s.Partitions[id]
	if t == nil || p == nil || len(p.State.Replicas) <= t.Replicas {
		return nil
	}
	return p.State.Replicas[t.Replicas:]
}

// PreferredLeader is who should lead a partition when nothing stands against it: the first of its replicas that is in the ISR, alive,
// whole, and neither draining nor leaving. 0: nobody. A leader that is not preferred hands over when it is convenient, which brings
// leadership back after a node returned; placement has spread the first replicas.
func PreferredLeader(s *meta.Snapshot, id meta.PartitionID) replicate.NodeID {
	p := s.Partitions[id]
	if p == nil {
		return 0
	}
	leaving := Leaving(s, id)
	for _, n := range p.State.Replicas {
		if !slices.Contains(leaving, n) && inSync(s, p, n) && !s.Nodes[n].Draining {
			return n
		}
	}
	return 0
}
