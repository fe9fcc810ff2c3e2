package world

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"penstock/internal/meta"
	"penstock/replicate"
)

// move is what an operator wants of a partition; the controller does it, one step after the other. It is cluster's
// moveRow and what its planner makes of it.
type move struct {
	from, to      replicate.NodeID
	cancel, drain bool
}

// maxMoves is how many moves of drains go on at once.
const maxMoves = 4

// drawMoves chooses a cluster with room for moves.
func (w *World) drawMoves() {
	o := &w.opt
	if w.cfg.Nodes == 0 {
		o.nodes, o.replicas = 3, 2
		if w.more.IntN(3) == 0 {
			o.nodes, o.replicas = 4, 2+w.more.IntN(2)
		}
	} else {
		o.replicas = min(o.replicas, max(1, o.nodes-1))
	}
	o.min = 1 + w.more.IntN(o.replicas)
	if o.replicas == 3 {
		o.min = 2
	}
	w.extra.operateEvery = 100*ms + w.more.Int64N(400*ms)
	w.extra.lateNode = o.nodes == 4 && w.more.IntN(2) == 0 && !w.has(FeatureNodes)
}

// operate lets an operator move something, or change his mind.
func (w *World) operate() {
	s := w.store
	ids := s.snap.Partitions.IDs()
	if len(ids) == 0 {
		return
	}
	if w.chance(0.1) {
		w.drain()
		return
	}
	id := ids[w.rng.IntN(len(ids))]
	p := s.snap.Partitions.Get(id)
	if m, ok := s.moves[id]; ok {
		if w.chance(0.3) {
			w.movePartition(fmt.Sprintf("the operator does not want to move %s any more", w.partName(id)), id, m.from, m.from)
		}
		return
	}
	from := p.State.Replicas[w.rng.IntN(len(p.State.Replicas))]
	var free []replicate.NodeID
	for _, n := range slices.Sorted(maps.Keys(s.snap.Nodes)) {
		if !slices.Contains(p.State.Replicas, n) {
			free = append(free, n)
		}
	}
	if len(free) > 0 {
		to := free[w.rng.IntN(len(free))]
		w.movePartition(fmt.Sprintf("the operator moves %s from node %d to %d", w.partName(id), from, to), id, from, to)
	}
}

// drain empties a node for a while.
func (w *World) drain() {
	s := w.store
	for _, n := range s.snap.Nodes {
		if n.Draining {
			return
		}
	}
	ids := sortedNodes(s.snap)
	if len(ids) == 0 {
		return
	}
	id := ids[w.rng.IntN(len(ids))]
	w.drainNode(id, true)
	w.after(w.between(100*ms, 1500*ms), func() { w.drainNode(id, false) })
}

func (s *store) drain(id replicate.NodeID, on bool) {
	if old := s.snap.Nodes[id]; old == nil || old.Draining == on {
		return
	}
	next := s.edit()
	n := *next.Nodes[id]
	n.Draining = on
	next.Nodes[id] = &n
	s.w.tracef("store: node %d draining %v", id, on)
	s.publish(next)
}

func (s *store) movePartition(id meta.PartitionID, from, to replicate.NodeID) error {
	p := s.snap.Partitions.Get(id)
	if p == nil {
		return meta.ErrNotFound
	}
	m, moving := s.moves[id]
	target := s.snap.Nodes[to]
	switch {
	case !slices.Contains(p.State.Replicas, from), target == nil:
		return meta.ErrNotFound
	case to == from:
		if moving {
			m.cancel = true
			s.moves[id] = m
		}
		return nil
	case moving:
		return meta.ErrConflict
	case slices.Contains(p.State.Replicas, to):
		return meta.ErrExists
	case !target.Live:
		return meta.ErrTooFewNodes
	}
	s.moves[id] = move{from: from, to: to}
	return nil
}

// stepMoves takes each move one step further, and begins those of drains.
func (s *store) stepMoves() {
	for _, id := range s.snap.Partitions.IDs() {
		if m, ok := s.moves[id]; ok {
			s.stepMove(s.snap.Partitions.Get(id), m)
			continue
		}
		p := s.snap.Partitions.Get(id)
		for _, from := range p.State.Replicas {
			if to := s.spare(p); s.snap.Nodes[from].Draining && to != 0 && len(s.moves) < maxMoves {
				s.moves[id] = move{from: from, to: to, drain: true}
				s.w.tracef("store: %s is to go from draining node %d to %d", s.w.partName(id), from, to)
				break
			}
		}
	}
}

// spare is a node that may take one more replica of p; 0: none.
func (s *store) spare(p *meta.Partition) replicate.NodeID {
	for _, id := range slices.Sorted(maps.Keys(s.snap.Nodes)) {
		if n := s.snap.Nodes[id]; n.Live && !n.Draining && !slices.Contains(p.State.Replicas, id) {
			return id
		}
	}
	return 0
}

// stepMove is the planner's step: the new replica is in the ISR before the old one goes (B89).
func (s *store) stepMove(p *meta.Partition, m move) {
	replicas := p.State.Replicas
	hasFrom, hasTo := slices.Contains(replicas, m.from), slices.Contains(replicas, m.to)
	to := s.snap.Nodes[m.to]
	back := m.cancel || m.drain && !to.Live && s.spare(p) != 0
	row := cloneRow(p)
	switch {
	case !hasFrom, (to.Draining || back) && !hasTo:
		delete(s.moves, p.ID)
	case back && p.State.Leader != m.to:
		if !s.without(row, m.to) {
			return
		}
		row.State.Replicas = slices.DeleteFunc(slices.Clone(replicas), func(n replicate.NodeID) bool { return n == m.from })
		row.State.Replicas[slices.Index(row.State.Replicas, m.to)] = m.from
		s.leaves(row, m.to, "undoes a move")
		s.w.Stats.Undone++
	case !hasTo:
		if to.Live && len(replicas) < replicate.MaxReplicaCount {
			row.State.Replicas[slices.Index(replicas, m.from)] = m.to
			row.State.Replicas = append(row.State.Replicas, m.from)
			s.change(row, fmt.Sprintf("adds node %d", m.to))
			if s.left[nodePart{s.w.nodeOf(m.to), p.ID}] {
				s.w.Stats.Back++
			}
		}
	case !s.inSync(p, m.to), p.State.Leader == m.from:
		// It catches up, or the leader is the one to go and hands over.
	case s.without(row, m.from):
		s.leaves(row, m.from, "has moved")
		s.w.Stats.Moves++
	}
}

// without takes a replica out of row; false: too few in sync would remain.
func (s *store) without(row *meta.Partition, node replicate.NodeID) bool {
	before := len(row.State.ISR)
	isNode := func(m replicate.Member) bool { return m.Node == node }
	row.State.Replicas = slices.DeleteFunc(row.State.Replicas, func(n replicate.NodeID) bool { return n == node })
	row.State.ISR = slices.DeleteFunc(row.State.ISR, isNode)
	row.Damaged = slices.DeleteFunc(row.Damaged, isNode)
	return len(row.State.ISR) >= max(1, min(before, row.State.MinISR))
}

// leaves ends a move with a row that a node is out of.
func (s *store) leaves(row *meta.Partition, node replicate.NodeID, why string) {
	delete(s.moves, row.ID)
	key := nodePart{s.w.nodeOf(node), row.ID}
	s.left[key] = true
	s.w.checks.left[key] = true
	s.change(row, fmt.Sprintf("%s; node %d goes", why, node))
}

func (s *store) change(row *meta.Partition, why string) {
	row.State.Version++
	next := s.edit()
	next.Partitions = next.Partitions.With(row.ID, row)
	s.w.tracef("store: %s %s: version %d replicas %v isr %v",
		s.w.partName(row.ID), why, row.State.Version, row.State.Replicas, members(row.State.ISR))
	s.publish(next)
}

func (w *World) nodeOf(id replicate.NodeID) *host { return w.nodeIn(w.store.snap, id) }

// nodeIn is the machine that a snapshot means.
func (w *World) nodeIn(s *meta.Snapshot, id replicate.NodeID) *host {
	for _, n := range w.nodes {
		if row := s.Nodes[id]; row != nil && n.name == row.Name {
			return n
		}
	}
	panic(fmt.Sprintf("BUG: world: node %d is nobody", id))
}

// leftovers says what a node that is no replica of a partition still has of it.
func (w *World) leftovers(id meta.PartitionID) string {
	for _, n := range w.nodes {
		if slices.Contains(w.store.snap.Partitions.Get(id).State.Replicas, n.replica()) {
			continue
		}
		if files, err := n.media.ReadDir(path.Join("topics", id.Topic.String(), fmt.Sprint(id.Partition))); err == nil &&
			len(files) > 0 {
			return fmt.Sprintf("%s is no replica of it and still has %d files of it, the first is %s",
				n.name, len(files), files[0].Name())
		}
	}
	return ""
}
