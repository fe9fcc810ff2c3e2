package world

import (
	"fmt"
	"slices"

	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/tests/support/faultaio"
)

// removal is what operators do about a machine that died: they drain it, so that its replicas are made anew elsewhere,
// and remove it when it has none. If that takes too long they bring it back as it was.
type removal struct {
	n       *host
	id      replicate.NodeID
	began   int64
	removed bool
}

// beginRemoval lets a machine die that the others can do without.
func (w *World) beginRemoval() {
	if !w.loaded || w.removal != nil || w.now < w.opt.quiet {
		return
	}
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	row := w.store.snap.Nodes[n.replica()]
	if row == nil || row.Name != n.name || !n.power {
		return
	}
	r := &removal{n: n, id: row.ID, began: w.now}
	w.removal = r
	n.power = false
	w.tracef("%s, node %d, dies", n.name, r.id)
	if n.m != nil {
		n.crash()
	}
	patience := w.between(1000*ms, 6000*ms)
	w.after(w.between(0, 500*ms), func() { w.goOn(r, patience) })
}

// goOn takes a removal further, until it is done or given up.
func (w *World) goOn(r *removal, patience int64) {
	switch {
	case w.removal != r || r.removed:
		return
	case w.now-r.began > patience:
		w.bringBack(r)
		return
	}
	if w.dismiss(r.id) {
		r.removed = true
		w.Stats.Removed++
		w.after(w.skewed(50*ms, 1500*ms), func() { w.bringBack(r) })
		return
	}
	w.after(w.between(20*ms, 100*ms), func() { w.goOn(r, patience) })
}

// bringBack lets the machine come again, mostly with another disk if it was removed: with its own it has copies of
// partitions that are not its.
func (w *World) bringBack(r *removal) {
	n := r.n
	if w.removal != r {
		return
	}
	w.removal = nil
	n.power = true
	if r.removed {
		w.Stats.Returned++
	} else {
		w.drainNode(r.id, false)
	}
	if r.removed && w.chance(0.7) {
		w.tracef("%s comes back with an empty disk", n.name)
		n.media = faultaio.New(faultaio.Options{Seed: w.rng.Uint64(), CapacityBytes: diskBytes})
		n.wipes++
		n.rotAtRest = false
		if n == w.gray.rotten {
			w.gray.flipped = false
		}
	} else {
		w.tracef("%s comes back, removed %v", n.name, r.removed)
	}
	n.boot()
}

// removeNode is package cluster's.
func (s *store) removeNode(id replicate.NodeID) error {
	n := s.snap.Nodes[id]
	switch {
	case s.w.now < s.out:
		return meta.ErrUnavailable
	case n == nil:
		return meta.ErrNotFound
	case n.Live:
		return meta.ErrConflict
	}
	for _, part := range s.snap.Partitions.IDs() {
		p := s.snap.Partitions.Get(part)
		if m, ok := s.moves[part]; ok && m.to == id || slices.Contains(p.State.Replicas, id) && !s.hasty(p, id) {
			return meta.ErrUnsafe
		}
	}
	next := s.edit()
	delete(next.Nodes, id)
	delete(s.lease, id)
	s.w.tracef("store: node %d, %s, is removed", id, n.Name)
	s.publish(next)
	return nil
}

// hasty is MutantHasty: another node takes the place of the one that goes in the ISR, without its messages.
func (s *store) hasty(p *meta.Partition, id replicate.NodeID) bool {
	to := s.spare(p)
	if s.w.cfg.Break != MutantHasty || to == 0 || len(s.moves) > 0 {
		return false
	}
	row := cloneRow(p)
	row.State.Replicas[slices.Index(row.State.Replicas, id)] = to
	for i, m := range row.State.ISR {
		if m.Node == id {
			row.State.ISR[i] = replicate.Member{Node: to, Store: s.snap.Nodes[to].Store}
		}
	}
	s.change(row, fmt.Sprintf("has node %d for node %d", to, id))
	return true
}
