package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"penstock/internal/meta"
	"penstock/replicate"
)

// Redundancy is what would be lost or stop if one more node failed: the node whose failure would be the worst. The zero
// value: nothing would.
type Redundancy struct {
	Node string // that would fail; "": nothing would be lost or stop
	// Store says that the metadata store would have no majority: after a lease, no node would serve anything.
	Store bool
	// Only counts the partitions of which no other live node has a copy that is in sync; if the node's disk is lost, too,
	// so are their messages. Stop counts the others that would have fewer in-sync replicas than min_isr.
	Only, Stop int
}

// redundancy computes what the failure of one more node would do. c.inSync and c.Serves must work already.
func (c *Cluster) redundancy(s *meta.Snapshot) Redundancy {
	if len(s.Nodes) < 2 {
		return Redundancy{} // with its only node, everything stops
	}
	of := map[replicate.NodeID]*Redundancy{}
	for id, n := range s.Nodes {
		if c.IsLive(n) {
			of[id] = &Redundancy{Node: n.Name, Store: c.storeNeeds(s, n.Name)}
		}
	}
	for _, t := range s.Topics {
		for n := range t.Partitions {
			p := s.Partitions.Get(meta.PartitionID{Topic: t.ID, Partition: uint32(n)})
			if !c.Serves(s, p) {
				continue // it stands already
			}
			inSync := c.inSync(s, p)
			for _, m := range p.State.ISR {
				switch r := of[m.Node]; {
				case r == nil:
				case inSync == 1:
					r.Only++
				case inSync-1 < p.State.MinISR:
					r.Stop++
				}
			}
		}
	}
	worst := Redundancy{}
	for _, r := range of {
		if r.worse(&worst) {
			worst = *r
		}
	}
	if !worst.Store && worst.Only == 0 && worst.Stop == 0 {
		return Redundancy{}
	}
	return worst
}

// worse says whether the failure of r's node would be worse than that of o's; of two that are as bad, the first by
// name.
func (r *Redundancy) worse(o *Redundancy) bool {
	if r.Store != o.Store {
		return r.Store
	}
	return cmp.Or(cmp.Compare(r.Only, o.Only), cmp.Compare(r.Stop, o.Stop), cmp.Compare(o.Node, r.Node)) > 0 ||
		o.Node == ""
}

// storeNeeds says whether the metadata store would have no majority without a node, by the nodes that are live and that
// this one's member reaches. It has none without two of three, if one is gone already.
func (c *Cluster) storeNeeds(s *meta.Snapshot, name string) bool {
	if !slices.Contains(c.StoreNodes, name) || c.isApart(name) {
		return false
	}
	left := 0
	for _, n := range s.Nodes {
		if n.Name != name && c.IsLive(n) && slices.Contains(c.StoreNodes, n.Name) &&
			!c.isApart(n.Name) {
			left++
		}
	}
	return left < len(c.StoreNodes)/2+1
}

// isApart says whether this node's member of the metadata store cannot reach that of a node.
func (c *Cluster) isApart(name string) bool {
	return slices.ContainsFunc(c.Store.Apart, func(member string) bool { return strings.HasPrefix(member, name+" (") })
}

// words says what would be lost or stop if one more node failed, for the end of a sentence; "": nothing would.
func (r *Redundancy) words() string {
	if r.Node == "" {
		return ""
	}
	var what []string
	if r.Store {
		what = append(what, "the metadata store would have no majority, and nothing would be served")
	}
	if r.Only > 0 {
		what = append(what, fmt.Sprintf("%s would not be served, and lost with its disk: no other node has them in sync",
			plural(r.Only, "partition")))
	}
	if r.Stop > 0 {
		what = append(what, plural(r.Stop, "partition")+" would take no messages: too few replicas for min_isr")
	}
	return fmt.Sprintf("; if one more node failed (%s), %s", r.Node, strings.Join(what, ", and "))
}

// wanted returns how many replicas a partition of the topic should have now: those that the topic wants, as far as
// there are nodes, or those that it has, while they are more.
func wanted(s *meta.Snapshot, t *meta.Topic, p *meta.Partition) int {
	if t == nil {
		return len(p.State.Replicas)
	}
	return max(len(p.State.Replicas), min(t.Replicas, len(s.Nodes)))
}

// Lacks says whether a partition has fewer replicas than its topic wants and than there are nodes, as one has that was
// made while a node was dead.
func Lacks(s *meta.Snapshot, p *meta.Partition) bool {
	return wanted(s, s.Topics[p.ID.Topic], p) > len(p.State.Replicas)
}

// FullyInSync says whether every replica of a partition is in the ISR with its present disk, and none is damaged.
func FullyInSync(s *meta.Snapshot, row *meta.Partition) bool {
	for _, id := range row.State.Replicas {
		n := s.Nodes[id]
		if n == nil {
			return false
		}
		if m := (replicate.Member{Node: id, Store: n.Store}); !slices.Contains(row.State.ISR, m) ||
			slices.Contains(row.Damaged, m) {
			return false
		}
	}
	return len(row.State.Replicas) > 0 && len(row.State.ISR) >= row.State.MinISR
}
