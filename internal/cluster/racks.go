package cluster

import (
	"penstock/internal/meta"
	"penstock/replicate"
)

// racksOf counts the replicas in each rack, without the one on node not. Nodes that name no rack count as one rack.
func racksOf(s *meta.Snapshot, replicas []replicate.NodeID, not replicate.NodeID) map[string]int {
	racks := map[string]int{}
	for _, n := range replicas {
		if n != not {
			racks[orNone(s.Nodes[n]).Rack]++
		}
	}
	return racks
}

// InOneRack says whether all replicas of a partition, two or more, are in one rack although the cluster has more: what
// makes that rack fail then makes the partition fail.
func InOneRack(s *meta.Snapshot, replicas []replicate.NodeID) bool {
	if len(replicas) < 2 || len(racksOf(s, replicas, 0)) > 1 {
		return false
	}
	rack := orNone(s.Nodes[replicas[0]]).Rack
	for _, n := range s.Nodes {
		if n.Rack != rack {
			return true
		}
	}
	return false
}
