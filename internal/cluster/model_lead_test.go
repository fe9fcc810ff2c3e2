package cluster

import (
	"context"
	"slices"

	"penstock/internal/meta"
	"penstock/replicate"
)

// lead lets a node do what it does as the leader of partitions, by what it has heard: append, change the ISR, hand
// over. It ends at the first change of a partition's row, of which it has to hear first.
func (n *modelNode) lead() {
	st := n.s.cur.Load()
	for _, id := range st.snap.Partitions.IDs() {
		row := st.snap.Partitions.Get(id)
		if n.repair(id, row) {
			continue
		}
		if row.State.Leader != n.row.ID || row.State.Boot != n.row.Boot ||
			!slices.Contains(row.State.ISR, n.member()) {
			continue
		}
		if n.append(id, row) {
			n.tend(id, row)
		}
	}
}

// append appends a number to the log of a partition and sends the log to the replicas. What all members of the ISR have
// is acknowledged. It returns false if another replica has heard of a newer epoch.
func (n *modelNode) append(id meta.PartitionID, row *meta.Partition) bool {
	w, own, epoch := n.w, n.copyOf(id), uint64(row.State.Epoch)
	if own.epoch > epoch || !n.works() {
		return own.epoch <= epoch
	}
	if own.epoch < epoch {
		own.epoch = epoch
		if !prefix(w.acked[id], own.log) {
			w.fail("%s begins epoch %d of %v and lacks what was acknowledged", n.row.Name, epoch, id.Partition)
		}
	}
	w.number++
	own.log = append(slices.Clip(own.log), w.number)
	all := len(row.State.ISR) >= row.State.MinISR
	for _, m := range row.State.ISR {
		switch o := w.nodes[m.Node-1]; {
		case o == n:
		case !o.works() || o.row.Store != m.Store:
			all = false
		case !n.send(o, id, own):
			return false
		}
	}
	if all {
		w.acked[id] = own.log
	}
	return true
}

// send brings another copy to what the leader has.
func (n *modelNode) send(o *modelNode, id meta.PartitionID, own *modelCopy) bool {
	c := o.copyOf(id)
	if c.epoch > own.epoch {
		return false
	}
	c.epoch, c.log = own.epoch, own.log
	return true
}

// tend changes the ISR if members are silent or others have caught up, or hands the partition over.
func (n *modelNode) tend(id meta.PartitionID, row *meta.Partition) {
	w, ctx, snap := n.w, context.Background(), n.s.cur.Load().snap
	want := row.State
	if n.works() {
		want.ISR = n.wanted(id, row)
		if !slices.Equal(want.ISR, row.State.ISR) {
			_, err := n.s.ChangeISR(ctx, id, &want)
			w.say("%s: ISR of %d %v: %v %v", n.row.Name, id.Partition, row.State.Version, want.ISR, err)
			n.hear() // it appends nothing before it knows which row counts
			return
		}
	}
	to := PreferredLeader(snap, id)
	m := snap.Moves[id]
	stays := m.To
	if n.row.ID == m.To {
		stays = m.From
	}
	replaced := snap.Goes(id) == n.row.ID && replicate.HasNode(row.State.ISR, stays)
	hung := !n.works()
	if hung {
		to = 0
	}
	if hung || to != 0 && to != n.row.ID &&
		(row.TransferTo() == to || replaced || len(row.State.ISR) == len(row.State.Replicas) ||
			snap.Nodes[n.row.ID].Draining || snap.Nodes[n.row.ID].ClockDiffers) {
		err := n.s.HandOver(ctx, id, &row.State, to)
		if err == nil {
			w.say("%s hands %d over to %d", n.row.Name, id.Partition, to)
		}
		n.hear()
	}
}

// wanted returns the ISR that a leader wants, as replicate.Leader does: without silent members, unless too few would be
// left or its own copy is damaged, and with the replicas that have caught up.
func (n *modelNode) wanted(id meta.PartitionID, row *meta.Partition) (isr []replicate.Member) {
	w, snap := n.w, n.s.cur.Load().snap
	var joining []replicate.Member
	for _, r := range row.State.Replicas {
		o, known := w.nodes[r-1], snap.Nodes[r]
		if o.works() && known != nil && known.Store == o.row.Store && !slices.Contains(row.State.ISR, o.member()) &&
			!o.copyOf(id).damaged && (!w.faults || w.rng.IntN(3) == 0) && n.send(o, id, n.copyOf(id)) {
			joining = append(joining, o.member())
		}
	}
	for _, m := range row.State.ISR {
		if o := w.nodes[m.Node-1]; o.works() && o.row.Store == m.Store {
			isr = append(isr, m)
		}
	}
	if len(isr)+len(joining) < row.State.MinISR || n.copyOf(id).damaged {
		isr = slices.DeleteFunc(slices.Clone(row.State.ISR), func(m replicate.Member) bool {
			return replicate.HasNode(joining, m.Node)
		})
	}
	return append(isr, joining...)
}

// damage damages the node's copy of a partition, which says so.
func (n *modelNode) damage(id meta.PartitionID) {
	n.copyOf(id).damaged = true
	n.report(id, meta.CopyDamaged)
}

// repair mends a damaged copy after a while, and makes the row say what the copy is. It returns false if there is
// nothing to do.
func (n *modelNode) repair(id meta.PartitionID, row *meta.Partition) bool {
	own, is := n.copies[id], meta.CopyWhole
	if own != nil && own.damaged && n.w.faults && n.w.rng.IntN(4) != 0 {
		is = meta.CopyDamaged
	} else if own != nil {
		own.damaged = false
	}
	if !slices.Contains(row.State.Replicas, n.row.ID) || row.CopyOf(n.member()) == is {
		return false
	}
	n.report(id, is)
	return true
}

// report makes the row say what a copy is. If the store does not answer, repair tries again.
func (n *modelNode) report(id meta.PartitionID, is meta.CopyState) {
	err := n.s.ReportCopy(context.Background(), id, n.member(), is)
	n.w.say("%s: copy of %d is %v: %v", n.row.Name, id.Partition, is, err)
}

func prefix(a, b []int) bool { return len(a) <= len(b) && slices.Equal(a, b[:len(a)]) }
