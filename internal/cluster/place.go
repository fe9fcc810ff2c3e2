package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"penstock/internal/meta"
	"penstock/replicate"
)

// load counts replicas and leaderships per node.
type load struct {
	replicas map[replicate.NodeID]int
	leads    map[replicate.NodeID]int
}

func newLoad() load {
	return load{replicas: map[replicate.NodeID]int{}, leads: map[replicate.NodeID]int{}}
}

// loadOf counts the replicas and leaderships of all partitions in a snapshot, also those of nodes that are not alive.
func loadOf(s *meta.Snapshot) load {
	l := newLoad()
	for _, p := range s.Partitions.All() {
		l.count(&p.State, 1)
	}
	return l
}

// count adds a partition (by 1) or takes it away (by -1).
func (l load) count(st *replicate.State, by int) {
	for _, n := range st.Replicas {
		l.replicas[n] += by
	}
	l.leads[st.Leader] += by
}

// clone returns a copy that may be changed.
func (l load) clone() load {
	c := newLoad()
	maps.Copy(c.replicas, l.replicas)
	maps.Copy(c.leads, l.leads)
	return c
}

// majority is the default of min_isr: any two majorities share a replica, and one replica of three may fail.
func majority(replicas int) int { return replicas/2 + 1 }

// candidates returns the nodes that are alive, in order of id. They may be given replicas; place prefers those that are
// not draining.
func candidates(s *meta.Snapshot) []*meta.Node {
	var live []*meta.Node
	for _, id := range slices.Sorted(maps.Keys(s.Nodes)) {
		if n := s.Nodes[id]; n.Live {
			live = append(live, n)
		}
	}
	return live
}

// place chooses the replicas of count more partitions of a topic; the first replica of each is its leader. It first
// balances the topic's leaders (at most one more on a node than on another), then all leaders. It spreads the other
// replicas of each partition over the racks, and within that it balances the topic's replicas, then all replicas. Nodes
// with slow disks or clocks that differ come behind those, then draining nodes, then disks that hang. The result
// depends only on the arguments: all is the load of all topics, existing is the load of this topic's present
// partitions. nodes are in order of id.
func place(nodes []*meta.Node, count, replicas int, all, existing load) ([][]replicate.NodeID, error) {
	if replicas > len(nodes) {
		return nil, fmt.Errorf("%d replicas on %d live nodes: %w", replicas, len(nodes), meta.ErrTooFewNodes)
	}
	mine, total := existing.clone(), all.clone()
	order := slices.Clone(nodes)
	placed := make([][]replicate.NodeID, 0, count)
	for range count {
		slices.SortFunc(order, func(a, b *meta.Node) int {
			return cmp.Or(
				cmpBool(hangs(a), hangs(b)),
				cmpBool(a.Draining, b.Draining),
				cmp.Compare(a.Rank(), b.Rank()),
				cmp.Compare(mine.leads[a.ID], mine.leads[b.ID]),
				cmp.Compare(total.leads[a.ID], total.leads[b.ID]),
				cmp.Compare(mine.replicas[a.ID], mine.replicas[b.ID]),
				cmp.Compare(total.replicas[a.ID], total.replicas[b.ID]),
				cmp.Compare(a.ID, b.ID),
			)
		})
		leader, rest := order[0], slices.Clone(order[1:])
		row, racks := []replicate.NodeID{leader.ID}, map[string]int{leader.Rack: 1}
		for len(row) < replicas {
			n := slices.MinFunc(rest, func(a, b *meta.Node) int {
				return cmp.Or(
					cmpBool(hangs(a), hangs(b)),
					cmpBool(a.Draining, b.Draining),
					cmp.Compare(a.Rank(), b.Rank()),
					cmp.Compare(racks[a.Rack], racks[b.Rack]),
					cmp.Compare(mine.replicas[a.ID], mine.replicas[b.ID]),
					cmp.Compare(total.replicas[a.ID], total.replicas[b.ID]),
					cmp.Compare(a.ID, b.ID),
				)
			})
			rest = slices.DeleteFunc(rest, func(o *meta.Node) bool { return o == n })
			row = append(row, n.ID)
			racks[n.Rack]++
		}
		for _, l := range []load{mine, total} {
			l.leads[leader.ID]++
			for _, id := range row {
				l.replicas[id]++
			}
		}
		placed = append(placed, row)
	}
	return placed, nil
}

func cmpBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// newPartitions returns the rows of partitions first, first+1, … on the chosen replicas. All replicas are in the ISR,
// and their logs are empty.
func newPartitions(s *meta.Snapshot, t *meta.Topic, first int, placed [][]replicate.NodeID) []*meta.Partition {
	parts := make([]*meta.Partition, 0, len(placed))
	for i, nodes := range placed {
		p := &meta.Partition{
			ID: meta.PartitionID{Topic: t.ID, Partition: uint32(first + i)},
			State: replicate.State{
				Epoch: 1, Version: 1, Leader: nodes[0], Boot: s.Nodes[nodes[0]].Boot, MinISR: t.MinISR, Replicas: nodes,
			},
		}
		for _, n := range nodes {
			p.State.ISR = append(p.State.ISR, replicate.Member{Node: n, Store: s.Nodes[n].Store})
		}
		noteTerm(p)
		parts = append(parts, p)
	}
	return parts
}

// usedNodes lists each node of a placement once.
func usedNodes(placed [][]replicate.NodeID) []replicate.NodeID {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(placed...))))
}
