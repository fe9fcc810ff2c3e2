package world

import (
	"fmt"
	"slices"

	"penstock/internal/meta"
	"penstock/internal/node/partition"
	"penstock/replicate"
)

// The third rule for copies that forgot: two of three nodes do not stand still for ever.

// twoOfThree keeps one node off for a while: the other two go on, if one of them is whole and in sync.
func (w *World) twoOfThree() bool {
	f := &w.forget
	if len(w.nodes) != 3 || f.r.IntN(2) == 0 || w.cfg.script != nil {
		return true
	}
	lacking := 0
	n := w.nodes[f.r.IntN(3)]
	for _, o := range w.nodes {
		if o != n && o.forgot.lacks {
			lacking++
		}
	}
	if lacking > 1 {
		return true
	}
	f.away = n
	w.tracef("%s stays away", n.name)
	n.halt()
	stands := func() string { return w.standsWithout(n) }
	if !w.runTo(w.now+30_000*ms, stands) && w.Violation == "" {
		w.broken(3, "%s is away, %d of the others lacks something, and %s (%s)", n.name, lacking, stands(), w.reason())
	}
	n.power = true
	n.boot()
	f.away = nil
	return w.Violation == ""
}

// standsWithout says what stands still although a member that is in sync lives, and has all that was acknowledged, and
// was not ended in the middle of a write. A partition may also stand still where damaged commit logs, damaged copies
// and nodes that do not start leave fewer than min_isr nodes: an operator may not replace them while they may have what
// nobody else has (attendForgot).
func (w *World) standsWithout(away *host) string {
	for _, id := range w.store.snap.Partitions.IDs() {
		row := w.store.snap.Partitions.Get(id)
		must, damaged := false, 0
		for _, n := range w.nodes {
			switch {
			case n == away:
			case n.e == nil && w.forget.refused[n] != "", n.e != nil && (n.e.CommitStats().Failed ||
				slices.ContainsFunc(row.Damaged, func(m replicate.Member) bool { return w.nodeOf(m.Node) == n })):
				damaged++
			}
		}
		for _, m := range row.State.ISR {
			n, now := w.nodeOf(m.Node), w.store.snap.Nodes[m.Node]
			if n != away && !n.forgot.lacks && !w.forget.behind[nodePart{n, id}] && !n.shortened(id) &&
				now != nil && now.Store == m.Store { // or it has another disk since
				must = true
			}
		}
		served := false
		for _, n := range w.nodes {
			if n.e == nil || !n.running() {
				continue
			}
			for _, v := range n.inside.Partitions() {
				served = served || v.ID == id && v.Serves
			}
		}
		if must && !served && len(w.nodes)-1-damaged >= row.State.MinISR {
			return w.partName(id) + " is not served, in sync " + fmt.Sprint(members(row.State.ISR))
		}
	}
	return ""
}

// shortened says whether the node runs and does not know whether its copy has all that it acknowledged, because a crash
// tore its last group, for instance. Such a copy proves nothing.
func (n *host) shortened(id meta.PartitionID) bool {
	return n.e != nil && n.running() && slices.ContainsFunc(n.inside.Partitions(), func(v partition.View) bool {
		return v.ID == id && v.Shortened
	})
}
