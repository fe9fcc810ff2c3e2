package world

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"penstock/internal/meta"
	"penstock/replicate"
)

// A leader whose log was cut at recovery may say that it waits for a replica which cannot lead, or cannot be asked, and
// that an operator has to decide (replicate/compare.go). This operator does what it says: he starts the node of the
// damaged replica anew, and if the partition still waits, he forces its leader. That may lose what was acknowledged
// only where the leader's own disk has rotted, and there he does not: bits rot on one node, and a member of the ISR
// whose disk has kept everything has all that was acknowledged. Whether that is so the checks at the end see.

// forceAfter is how long the operator waits for the node that he has started anew. That node may lead for a moment,
// until it finds again what it cannot read, and the same leader asks again: that is the same question.
const forceAfter = 5_000 * ms

// decide looks for leaders that wait for an operator.
func (w *World) decide() {
	for _, n := range w.nodes {
		if n.e == nil || !n.running() || n.closing {
			continue
		}
		for _, v := range n.inside.Partitions() {
			switch {
			case v.Leads && v.Asks:
				w.decideOn(n, v.ID)
			case v.Serves:
				maps.DeleteFunc(w.gray.asked, func(by nodePart, _ int64) bool { return by.id == v.ID })
			}
		}
	}
	w.after(500*ms, w.decide)
}

func (w *World) decideOn(n *host, id meta.PartitionID) {
	key := nodePart{n, id}
	since, known := w.gray.asked[key]
	switch {
	case !known:
		w.gray.asked[key] = w.now
		w.tracef("%s asks what to do about %s", n.name, w.partName(id))
		if o := w.gray.rotten; o != n {
			o.kill("an operator starts it anew")
		}
	case w.now-since < forceAfter || w.isRotten(n.replica()):
	default:
		w.gray.asked[key] = w.now
		w.Stats.Forced++
		w.forceLeader(fmt.Sprintf("%s is to lead %s, whatever others have", n.name, w.partName(id)), id, n.replica())
	}
}

// forceLeader is what `penstock cluster force-leader` does.
func (w *World) forceLeader(what string, id meta.PartitionID, to replicate.NodeID) {
	if a := w.agreement; a != nil {
		a.ask(w.anyNode(), what, func(ctx context.Context, s meta.Store) error { return s.ForceLeader(ctx, id, to) })
		return
	}
	w.tracef("%s: %v", what, w.store.forceLeader(id, to))
}

// forceLeader is package cluster's.
func (s *store) forceLeader(id meta.PartitionID, to replicate.NodeID) error {
	p := s.snap.Partitions.Get(id)
	switch {
	case p == nil || !slices.Contains(p.State.Replicas, to):
		return meta.ErrNotFound
	case !s.live(to):
		return meta.ErrTooFewNodes
	}
	m := replicate.Member{Node: to, Store: s.snap.Nodes[to].Store}
	row := cloneRow(p)
	row.State.ISR, row.State.Forced = []replicate.Member{m}, row.State.Epoch+1
	row.Contested = slices.DeleteFunc(row.Contested, func(o replicate.Member) bool { return o == m })
	row.Damaged = slices.DeleteFunc(row.Damaged, func(o replicate.Member) bool { return o == m })
	s.lead(row, to)
	return nil
}
