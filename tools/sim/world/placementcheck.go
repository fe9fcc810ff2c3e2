package world

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"penstock/internal/cluster"
	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// These checks do not use the decisions of package cluster: they work out by themselves what placement has to achieve,
// by trying everything.

// forgiven is how long after the end of a drain a move away from the node may begin: it was decided before.
const forgiven = 3000 * ms

// rebalanceMoves is the setting of the same name; 0: the default.
func (w *World) rebalanceMoves() int {
	if w.cfg.Break == MutantManyMoves {
		return w.placing.copies + 3
	}
	return w.placing.copies
}

// lookAtRebalance: a rebalance begins moves only while one is wanted and not paused, and not more than rebalance-moves
// go on at once. before are the moves that there were.
func (w *World) lookAtRebalance(old, now *meta.Snapshot, before map[meta.PartitionID]move) {
	if !w.has(FeaturePlacement) {
		return
	}
	p := &w.placing
	for id, n := range old.Nodes {
		if is := now.Nodes[id]; n.Draining && is != nil && !is.Draining {
			p.drained[id] = w.now
		}
	}
	for _, id := range now.Partitions.IDs() {
		m, moves := w.store.moves[id]
		if !moves || before[id] == m || before[id].from == m.from && before[id].to == m.to {
			continue
		}
		delete(p.evening, id)
		from, ended := now.Nodes[m.from], p.drained[m.from]
		if !m.drain || from == nil || from.Draining || ended != 0 && w.now-ended < forgiven {
			continue // an operator's, or that of a drain
		}
		p.evening[id] = true
		w.Stats.Evened++
		if !old.Rebalance.Wanted || old.Rebalance.Paused || p.paused {
			w.fail("%s begins to move from node %d to %d: a rebalance is wanted %v, paused %v, and by the last answer %v",
				w.partName(id), m.from, m.to, old.Rebalance.Wanted, old.Rebalance.Paused, p.paused)
		}
	}
	copied := 0
	for id := range p.evening {
		m, moves := w.store.moves[id]
		if !moves {
			delete(p.evening, id)
			continue
		}
		row, to := now.Partitions.Get(id), now.Nodes[m.to]
		if row == nil || !wholeLeader(now, row) || to == nil || !to.Live || replicate.HasNode(row.State.ISR, m.to) {
			p.evening[id] = false // it stands, or has copied all: it holds no place, also if it goes on
		}
		if p.evening[id] {
			copied++
		}
	}
	if copied > p.copies {
		w.fail("a rebalance copies %d partitions at once, and may copy %d", copied, p.copies)
	}
}

// wholeLeader says whether a partition has a leader from which a new replica can copy everything: the process that took
// the leadership still runs, and its copy reads back and lacks nothing.
func wholeLeader(s *meta.Snapshot, p *meta.Partition) bool {
	n := s.Nodes[p.State.Leader]
	if n == nil || !n.Live || n.Boot != p.State.Boot {
		return false
	}
	of := func(m replicate.Member) bool { return m.Node == p.State.Leader }
	return !slices.ContainsFunc(p.Damaged, of) && !slices.ContainsFunc(p.State.Short, of)
}

// lookAtRow: replicas go only when others have what they had. was and is are a partition's rows; m is the move that
// there was, if any.
func (w *World) lookAtRow(now *meta.Snapshot, was, is *meta.Partition, m move) {
	if is.State.Epoch == was.State.Epoch+1 && was.TransferTo() != 0 && was.TransferTo() == is.State.Leader {
		w.Stats.Transferred++
	}
	gone := slices.DeleteFunc(slices.Clone(was.State.Replicas), func(n replicate.NodeID) bool {
		return slices.Contains(is.State.Replicas, n)
	})
	if len(gone) == 0 || !w.has(FeaturePlacement) {
		return
	}
	say := func(what string) {
		w.fail("%s loses its replicas on nodes %v, and %s: replicas %v, in sync %v, min_isr %d, leader %d; before %v, "+
			"in sync %v; move %+v", w.partName(is.ID), gone, what, is.State.Replicas, members(is.State.ISR),
			is.State.MinISR, is.State.Leader, was.State.Replicas, members(was.State.ISR), m)
	}
	t := now.Topics[is.ID.Topic]
	switch {
	case !slices.Contains(is.State.Replicas, is.State.Leader):
		say("its leader is one of them")
	case len(is.State.ISR) < min(len(was.State.ISR), is.State.MinISR):
		say("fewer than min_isr are left")
	case m.from == 0 && t != nil && len(is.State.Replicas) < t.Replicas:
		say(fmt.Sprintf("the topic wants %d", t.Replicas))
	case m.from != 0 && len(gone) > 1:
		say("only one moves")
	case m.from == 0 && len(is.State.ISR) < len(is.State.Replicas):
		say("not all that stay are in sync")
	}
}

// clockDiffers says whether a node is given no leadership because its clock is wrong, which nobody sets here.
func (w *World) clockDiffers(id replicate.NodeID) bool {
	n := w.store.snap.Nodes[id]
	return n != nil && n.ClockDiffers
}

// mayTake says whether a node may be given replicas, or a leadership that has to go. What counts is its row, by which
// its cluster decides: where a disk has begun to answer again, the row may say for half a minute that it hangs, since a
// node tells few changes of it.
func mayTake(n *meta.Node) bool { return n.Live && !n.Draining && n.Rank() < meta.DiskHung.Rank() }

// misplaced says what is missing until every partition has as many replicas as its topic wants, where they should be.
func (w *World) misplaced() string {
	if !w.has(FeaturePlacement) {
		return ""
	}
	s := w.store.snap
	holders := 0
	for _, n := range s.Nodes {
		if mayTake(n) {
			holders++
		}
	}
	for _, id := range s.Partitions.IDs() {
		p, t := s.Partitions.Get(id), s.Topics[id.Topic]
		want := w.placing.wanted[id.Topic]
		switch {
		case t == nil:
		case want != 0 && w.placing.open[id.Topic] == 0 && want != t.Replicas:
			return fmt.Sprintf("topic %s has %d replicas, and was answered that it has %d", t.Name, t.Replicas, want)
		case len(p.State.Replicas) != min(t.Replicas, max(holders, len(p.State.Replicas))):
			return fmt.Sprintf("%s has the replicas %v, and its topic wants %d", w.partName(id), p.State.Replicas, t.Replicas)
		case p.State.MinISR != min(t.MinISR, len(p.State.ISR)):
			return fmt.Sprintf("%s has min_isr %d, and its topic %d", w.partName(id), p.State.MinISR, t.MinISR)
		case p.TransferTo() != 0 && !w.clockDiffers(p.TransferTo()):
			return fmt.Sprintf("%s is led by node %d, and was given to node %d", w.partName(id), p.State.Leader, p.TransferTo())
		}
	}
	if s.Rebalance.Wanted || s.Rebalance.Paused {
		return fmt.Sprintf("a rebalance goes on: %+v", s.Rebalance)
	}
	if why := w.uneven(); why != "" {
		return why
	}
	if more := cluster.Rebalancing(s, s.GoneNode()); len(more) > 0 {
		return fmt.Sprintf("the cluster is even, and a rebalance would do %+v", more[0])
	}
	return ""
}

// layout is where the replicas are.
type layout struct {
	w      *World
	s      *meta.Snapshot
	takers []replicate.NodeID
	held   map[replicate.NodeID]int
	leads  map[replicate.NodeID]int // whose first replica it is
}

// uneven says what a rebalance has left to do, or "".
func (w *World) uneven() string {
	l := &layout{w: w, s: w.store.snap, held: map[replicate.NodeID]int{}, leads: map[replicate.NodeID]int{}}
	for _, id := range sortedNodes(l.s) {
		if n := l.s.Nodes[id]; n.Live && !n.Draining && n.Rank() == 0 {
			l.takers = append(l.takers, id)
		}
	}
	for _, p := range l.s.Partitions.All() {
		for _, n := range p.State.Replicas {
			l.held[n]++
		}
		l.leads[p.State.Replicas[0]]++
	}
	for _, look := range []func(id meta.PartitionID, replicas []replicate.NodeID) string{l.racks, l.shares, l.firsts} {
		for _, id := range l.s.Partitions.IDs() {
			if why := look(id, l.s.Partitions.Get(id).State.Replicas); why != "" {
				return w.partName(id) + ": " + why
			}
		}
	}
	return ""
}

// rack is where a node really stands.
func (l *layout) rack(id replicate.NodeID) string {
	if row := l.s.Nodes[id]; row == nil {
		return ""
	}
	return l.w.placing.racks[l.w.nodeOf(id).index]
}

func squares(counts map[string]int) (sum int) {
	for _, n := range counts {
		sum += n * n
	}
	return sum
}

// racks: no other choice of nodes spreads the replicas over more racks. The best one takes the rack that has the fewest
// of them so far, as long as that has nodes.
func (l *layout) racks(_ meta.PartitionID, replicas []replicate.NodeID) string {
	is, free, best := map[string]int{}, map[string]int{}, map[string]int{}
	for _, n := range replicas {
		is[l.rack(n)]++
		free[l.rack(n)]++
	}
	for _, n := range l.takers {
		if !slices.Contains(replicas, n) {
			free[l.rack(n)]++
		}
	}
	for range replicas {
		least := ""
		for _, r := range slices.Sorted(maps.Keys(free)) {
			if free[r] > best[r] && (free[least] <= best[least] || best[r] < best[least]) {
				least = r
			}
		}
		best[least]++
	}
	if squares(is) > squares(best) {
		return fmt.Sprintf("its replicas %v are in the racks %v, and could be in %v", replicas, is, best)
	}
	return ""
}

// shares: no replica can go to a node that holds two fewer, unless the racks forbid it.
func (l *layout) shares(_ meta.PartitionID, replicas []replicate.NodeID) string {
	racks := map[string]int{}
	for _, n := range replicas {
		racks[l.rack(n)]++
	}
	for _, from := range replicas {
		for _, to := range l.takers {
			if slices.Contains(replicas, to) || l.held[from] < l.held[to]+2 {
				continue
			}
			if a, b := l.rack(from), l.rack(to); a == b || racks[a] > racks[b] {
				return fmt.Sprintf("its replica on node %d, which holds %d, could be on node %d, which holds %d",
					from, l.held[from], to, l.held[to])
			}
		}
	}
	return ""
}

// firsts: no other replica is on a node that is preferred for two partitions fewer.
func (l *layout) firsts(_ meta.PartitionID, replicas []replicate.NodeID) string {
	for _, to := range replicas[1:] {
		if slices.Contains(l.takers, to) && l.leads[replicas[0]] >= l.leads[to]+2 {
			return fmt.Sprintf("node %d is preferred for %d partitions, node %d, which has a replica, for %d",
				replicas[0], l.leads[replicas[0]], to, l.leads[to])
		}
	}
	return ""
}

// falsified is what the store writes in place of ops: lies about placement.
func (w *World) falsified(ops []kv.Op) []kv.Op {
	lie := w.cfg.Break
	if lie != MutantHastyShrink && lie != MutantSameReplicas && lie != MutantDeafPause {
		return ops
	}
	ops = slices.Clone(ops)
	for i := range ops {
		key, _ := strings.CutPrefix(ops[i].Key, cluster.DefaultPrefix)
		row := map[string]any{}
		if ops[i].Value == nil || json.Unmarshal(ops[i].Value, &row) != nil {
			continue
		}
		switch {
		case lie == MutantDeafPause && key == "rebalance":
			delete(row, "paused")
		case lie == MutantSameReplicas && strings.HasPrefix(key, "topics/"):
			for _, t := range w.store.snap.Topics {
				if row["id"] == t.ID.String() {
					row["replicas"], row["min_isr"] = t.Replicas, t.MinISR
				}
			}
		case lie == MutantHastyShrink && strings.HasPrefix(key, "parts/"):
			w.shrinkMore(key, row)
		}
		ops[i].Value, _ = json.Marshal(row)
	}
	return ops
}

// shrinkMore takes another replica than the leader from a row that has fewer than before.
func (w *World) shrinkMore(key string, row map[string]any) {
	for id, p := range w.store.snap.Partitions.All() {
		replicas, _ := row["replicas"].([]any)
		if key != fmt.Sprintf("parts/%s/%06d", id.Topic, id.Partition) || len(replicas) >= len(p.State.Replicas) {
			continue
		}
		at := slices.IndexFunc(replicas, func(n any) bool { return n != row["leader"] })
		if at < 0 {
			return
		}
		isr, _ := row["isr"].([]any)
		row["isr"] = slices.DeleteFunc(isr, func(m any) bool { return m.(map[string]any)["node"] == replicas[at] })
		row["replicas"] = slices.Delete(slices.Clone(replicas), at, at+1)
	}
}
