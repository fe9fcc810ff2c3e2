package health

import (
	"slices"

	"penstock/internal/meta"
	"penstock/replicate"
)

// Giver returns the leader that the row before names, if that node gave the leadership to self while the store had
// nothing against it: the node was alive, the same process, not draining, in the ISR, not damaged, and its disk and its
// clock were good. Otherwise Giver returns nil.
func Giver(
	self replicate.NodeID, before, row *meta.Partition, nodes map[replicate.NodeID]*meta.Node,
) *meta.Node {
	if before == nil || row.State.Leader != self || before.State.Leader == self || before.State.Leader == 0 ||
		row.State.Epoch <= before.State.Epoch {
		return nil
	}
	if r := row.State.Replicas; len(r) > 0 && r[0] == self {
		return nil // it gave way to the preferred leader; a newer row may prefer another node again
	}
	n := nodes[before.State.Leader]
	if n == nil || !n.Live || n.Boot != before.State.Boot || n.Draining || n.Rank() != 0 {
		return nil
	}
	if m := (replicate.Member{Node: n.ID, Store: n.Store}); !slices.Contains(row.State.ISR, m) ||
		slices.Contains(row.Damaged, m) {
		return nil
	}
	return n
}
