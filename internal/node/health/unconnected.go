package health

import (
	"fmt"
	"slices"
	"time"

	"penstock/internal/meta"
	"penstock/replicate"
)

// A lease says that a node reaches the metadata store, not that other nodes reach it. Two living nodes without a
// connection to each other do not replicate to each other, and each of them gives the other no replicas. Only these two
// know it, so each says it in its own health.

// Unreached returns the names of the living nodes in View.Unconnected, sorted, and the longest of their times.
func (v *View) Unreached(s *meta.Snapshot) (names []string, longest time.Duration) {
	for id, age := range v.Unconnected {
		if n := s.Nodes[id]; n != nil && v.IsLive(n) {
			names, longest = append(names, n.Name), max(longest, age)
		}
	}
	slices.Sort(names)
	return names, longest
}

// heldBack says whether a missing connection of this node explains why p is under-replicated: one of the two nodes
// leads it, and the other one, a replica, is not in sync; or p lacks a replica that this node would give to the other
// one.
func (v *View) heldBack(s *meta.Snapshot, p *meta.Partition) bool {
	outOfSync := func(id replicate.NodeID) bool {
		return slices.Contains(p.State.Replicas, id) &&
			!slices.ContainsFunc(p.State.ISR, func(m replicate.Member) bool { return m.Node == id })
	}
	for id := range v.Unconnected {
		n := s.Nodes[id]
		switch {
		case n == nil || !v.IsLive(n):
		case p.State.Leader == v.Self && outOfSync(id), p.State.Leader == id && outOfSync(v.Self),
			Lacks(s, p) && !n.Draining && !slices.Contains(p.State.Replicas, id):
			return true
		}
	}
	return false
}

// unconnectedWords says to which living nodes this node has no connection, what that means, and what to do; "": there
// is none.
func (c *Cluster) unconnectedWords() string {
	if len(c.NotConnected) == 0 {
		return ""
	}
	alive := "which is alive,"
	if len(c.NotConnected) > 1 {
		alive = "which are alive, the longest"
	}
	because := ""
	if n := c.HeldBack; n > 0 {
		because = fmt.Sprintf(" (%s under-replicated because of that)", are(n, "partition"))
	}
	return fmt.Sprintf("node %s has no connection to %s, %s since %s: neither side stores what the other leads, and no "+
		"replica is placed there from here%s; see whether they reach each other at their cluster-address, and have the "+
		"cluster's secret or certificates", c.Name, named(c.NotConnected), alive, Age(c.NotConnectedFor), because)
}
