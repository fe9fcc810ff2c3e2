package cluster

import (
	"slices"
	"strings"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// checkWrite looks at a new row of a partition: what may never be, and what may never follow from the row before.
func (w *model) checkWrite(old []byte, e *kv.Entry) {
	key := strings.TrimPrefix(e.Key, DefaultPrefix)
	if !strings.HasPrefix(key, partsDir) {
		return
	}
	id, err := parsePart(strings.TrimPrefix(key, partsDir))
	if err != nil {
		w.fail("%v", err)
	}
	next, err := decodePartition(id, e.Value)
	if err != nil {
		w.fail("%v", err)
	}
	st := &next.State
	for i, n := range st.Replicas {
		if slices.Contains(st.Replicas[:i], n) {
			w.fail("partition %d has two replicas on one node: %+v", id.Partition, st)
		}
	}
	for i, m := range st.ISR {
		if !slices.Contains(st.Replicas, m.Node) || replicate.HasNode(st.ISR[:i], m.Node) {
			w.fail("partition %d: the ISR has who is no replica: %+v", id.Partition, st)
		}
	}
	if len(st.ISR) == 0 || len(st.Replicas) == 0 {
		w.fail("partition %d has nobody: %+v", id.Partition, st)
	}
	if old == nil {
		return
	}
	was, err := decodePartition(id, old)
	if err != nil {
		w.fail("%v", err)
	}
	switch {
	case st.Version != was.State.Version+1:
		w.fail("partition %d: version %d follows %d", id.Partition, st.Version, was.State.Version)
	case st.Epoch != was.State.Epoch && (st.Epoch != was.State.Epoch+1 || !replicate.HasNode(was.State.ISR, st.Leader)):
		w.fail("partition %d: who was not in sync leads: %+v follows %+v", id.Partition, st, was.State)
	case st.Epoch == was.State.Epoch && st.Leader != was.State.Leader:
		w.fail("partition %d has two leaders in an epoch: %+v follows %+v", id.Partition, st, was.State)
	case len(st.ISR) < min(len(was.State.ISR), was.State.MinISR):
		w.fail("partition %d: the ISR fell below min_isr: %+v follows %+v", id.Partition, st, was.State)
	}
	w.checkKept(id, next, was)
}

// checkKept looks whether a member of the new ISR has all that was acknowledged, if one of the old one has. Damage of
// which no row tells, as the store did not answer, is nothing that the controller can know.
func (w *model) checkKept(id meta.PartitionID, next, was *meta.Partition) {
	has := func(isr []replicate.Member) bool {
		return slices.ContainsFunc(isr, func(m replicate.Member) bool {
			n := w.nodes[m.Node-1]
			c := n.copies[id]
			return n.row.Store == m.Store && c != nil && prefix(w.acked[id], c.log) &&
				!(c.damaged && slices.Contains(was.Damaged, m))
		})
	}
	if len(w.acked[id]) > 0 && has(was.State.ISR) && !has(next.State.ISR) {
		w.fail("partition %d: the last one that has what was acknowledged left the ISR: %+v follows %+v", id.Partition,
			next.State, was.State)
	}
}

// checkEnd looks at what is left when the faults have ended and everybody had time.
func (w *model) checkEnd() {
	st := w.state()
	s := st.snap
	var lost map[replicate.NodeID]bool
	for _, n := range w.nodes {
		if n.alive && st.controller.Node == n.row.ID {
			lost = n.seen.lost(w.now, n.s.opts.MovePatience)
		}
	}
	if lost == nil {
		w.fail("there is no controller: %+v", st.controller)
	}
	commands, _ := plan(st, DefaultPrefix, w.now, DefaultRebalanceMoves, view{lost: lost})
	for i := range commands {
		w.fail("the controller still has to do: %s %+v", commands[i].why, commands[i].next)
	}
	p := &planner{st: st, prefix: DefaultPrefix, sees: view{lost: lost}, load: st.load.clone(), takers: candidates(s)}
	waits := false
	for _, id := range s.Partitions.IDs() {
		row, t := p.row(id), s.Topics[id.Topic]
		if !led(s, &row.Partition) {
			if len(electable(st, &row.Partition)) > 0 {
				w.fail("partition %d of %s has no leader: %+v", id.Partition, t.Name, row.State)
			}
			waits = true
			continue
		}
		waits = w.checkPartition(p, id) || waits
	}
	if s.Rebalance.Wanted && !waits {
		w.fail("the rebalance does not end: %v", Rebalancing(s, s.GoneNode()))
	}
	for id := range st.moves {
		if s.Partitions.Get(id) == nil {
			w.fail("a move of a partition that is not there is left: %+v", st.moves[id])
		}
	}
	for _, n := range st.nodes {
		if n.downRev != 0 {
			w.fail("the report of a lost process is left: %+v", n.row)
		}
	}
}

// checkPartition looks at a partition that is led. It returns true if it waits for somebody who is dead for good.
func (w *model) checkPartition(p *planner, id meta.PartitionID) (waits bool) {
	s, row, t := p.st.snap, p.row(id), p.st.snap.Topics[id.Topic]
	living := 0 // replicas that can be in sync
	for _, n := range row.State.Replicas {
		if s.Nodes[n] == nil || !s.Nodes[n].Live {
			continue
		}
		living++
		if !inSync(s, &row.Partition, n) {
			w.fail("partition %d of %s: %d is alive and not in sync: %+v", id.Partition, t.Name, n, row.State)
		}
	}
	if waits = living < len(row.State.Replicas); !waits && len(row.State.Replicas) > t.Replicas {
		w.fail("partition %d of %s has too many replicas: %+v", id.Partition, t.Name, row.State)
	}
	if m := p.st.moves[id]; m.rev != 0 {
		words, _ := MoveState(s, id)
		if !waits {
			w.fail("the move of partition %d of %s does not end: %+v: %s: %+v", id.Partition, t.Name, m, words, row.State)
		}
		return true
	}
	takers := func(goes replicate.NodeID) bool { return p.spare(row, goes) != 0 }
	if len(row.State.Replicas) < t.Replicas && takers(0) {
		w.fail("partition %d of %s has too few replicas: %+v", id.Partition, t.Name, row.State)
	}
	for _, n := range row.State.Replicas {
		if s.Nodes[n] != nil && s.Nodes[n].Draining && takers(n) {
			w.fail("partition %d of %s is still on node %d, which drains: %+v", id.Partition, t.Name, n, row.State)
		}
	}
	to := PreferredLeader(s, id)
	if to != 0 && to != row.State.Leader && (!waits || orNone(s.Nodes[row.State.Leader]).ClockDiffers) {
		w.fail("partition %d of %s should be led by %d: %+v", id.Partition, t.Name, to, row.State)
	}
	may := orNone(s.Nodes[row.TransferTo()])
	if row.TransferTo() != 0 && !waits && !may.Draining && !may.ClockDiffers { // else it is for when that ends
		w.fail("a transfer of partition %d of %s is left: %+v", id.Partition, t.Name, row.Transfer)
	}
	return waits
}
