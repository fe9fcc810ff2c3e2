package cluster

import (
	"slices"

	"penstock/internal/meta"
	"penstock/replicate"
)

// Leaving lists the replicas that a partition is about to lose, and that should hand over if they lead: the one that a
// move takes away, and those beyond the number that its topic wants, which will be removed when the others are in sync.
// The first ones of the list stay. One on a draining node takes nobody's place among them: it goes, too, but whoever
// leads there hands over for that reason.
func Leaving(s *meta.Snapshot, id meta.PartitionID) (nodes []replicate.NodeID) {
	t, p, goes := s.Topics[id.Topic], s.Partitions.Get(id), s.Goes(id)
	if t == nil || p == nil {
		return nil
	}
	stay := 0
	for _, n := range p.State.Replicas {
		switch {
		case n == goes:
			nodes = append(nodes, n)
		case orNone(s.Nodes[n]).Draining:
		case stay < t.Replicas:
			stay++
		default:
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// PreferredLeader returns the node that should lead a partition. It is the first replica, if that one is in the ISR,
// alive, whole, has a good disk and a clock like the others, and is neither draining nor leaving. Otherwise it is the
// present leader under the same conditions, except that its disk does not matter: a disk that is slow for a while is no
// reason to move the leadership, and about a disk that hangs the node itself decides. Otherwise it is the first replica
// that meets all conditions. If there is none and the leader has to go, a clock that differs will do; and if its node
// is being drained, or a move takes its replica away, a slow disk, too. 0: there is nobody, and the present leader goes
// on. A leader that is not preferred hands over when convenient. So leadership returns when a node does (placement has
// spread the first replicas), and moves no more often than that.
func PreferredLeader(s *meta.Snapshot, id meta.PartitionID) replicate.NodeID {
	p := s.Partitions.Get(id)
	if p == nil || len(p.State.Replicas) == 0 {
		return 0
	}
	leaving := Leaving(s, id)
	for _, n := range append([]replicate.NodeID{p.State.Replicas[0], p.State.Leader}, p.State.Replicas...) {
		if !inSync(s, p, n) || s.Nodes[n].Draining || slices.Contains(leaving, n) {
			continue
		}
		if s.Nodes[n].Rank() == 0 || n == p.State.Leader && !s.Nodes[n].ClockDiffers {
			return n
		}
	}
	leader := s.Nodes[p.State.Leader]
	if leader == nil || !leader.Draining && !slices.Contains(leaving, leader.ID) {
		return 0
	}
	urgent := leader.Draining || s.Goes(id) == leader.ID
	for _, n := range p.State.Replicas {
		if n == leader.ID || !inSync(s, p, n) || s.Nodes[n].Draining || slices.Contains(leaving, n) {
			continue
		}
		if s.Nodes[n].Disk == meta.DiskGood || urgent && !hangs(s.Nodes[n]) {
			return n
		}
	}
	return 0
}
