package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/internal/meta"
	"penstock/replicate"
)

// anyone returns a node that is alive, perhaps not up to date.
func (w *model) anyone() *modelNode {
	for {
		if n := w.nodes[w.rng.IntN(len(w.nodes))]; n.alive {
			return n
		}
	}
}

func (w *model) living() (count int) {
	for _, n := range w.nodes {
		if n.alive {
			count++
		}
	}
	return count
}

func (w *model) createTopic() {
	w.topics++
	t := meta.Topic{Name: fmt.Sprintf("t%d", w.topics), Partitions: 1 + w.rng.IntN(3)}
	if w.rng.IntN(2) == 0 {
		t.Replicas = 1 + w.rng.IntN(3)
	}
	_, err := w.anyone().s.CreateTopic(context.Background(), t)
	w.say("topic %s of %d partitions, %d replicas: %v", t.Name, t.Partitions, t.Replicas, err)
}

// order lets an operator do something, at any node.
func (w *model) order() {
	ctx, n := context.Background(), w.anyone()
	st := n.s.cur.Load()
	other := w.nodes[w.rng.IntN(len(w.nodes))]
	switch w.rng.IntN(12) {
	case 0:
		if w.topics < 3 {
			w.createTopic()
		}
		return
	case 1:
		on := w.rng.IntN(2) == 0
		w.say("drain %s %v: %v", other.row.Name, on, n.s.Drain(ctx, other.row.ID, on))
		return
	case 2:
		order := []meta.RebalanceOrder{
			meta.RebalanceStart, meta.RebalancePause, meta.RebalanceResume, meta.RebalanceCancel,
		}[w.rng.IntN(4)]
		w.say("rebalance %v: %v", order, n.s.Rebalance(ctx, order))
		return
	case 3:
		if len(w.nodes) < 7 {
			w.join()
		}
		return
	case 4:
		w.remove(n, other)
		return
	}
	ids := st.snap.Partitions.IDs()
	if len(ids) == 0 {
		return
	}
	id := ids[w.rng.IntN(len(ids))]
	w.orderOf(ctx, n, id, other.row.ID)
}

// remove removes a dead node from the cluster, if it has no replica.
func (w *model) remove(n, gone *modelNode) {
	if gone.alive || gone.removed {
		return
	}
	err := n.s.RemoveNode(context.Background(), gone.row.ID)
	n.hear()
	gone.removed = n.s.cur.Load().snap.Nodes[gone.row.ID] == nil
	w.say("remove %s: %v, gone: %v", gone.row.Name, err, gone.removed)
}

// orderOf lets an operator do something to a partition, or to its topic.
func (w *model) orderOf(ctx context.Context, n *modelNode, id meta.PartitionID, to replicate.NodeID) {
	st := n.s.cur.Load()
	row, t := st.snap.Partitions.Get(id), st.snap.Topics[id.Topic]
	from := row.State.Replicas[w.rng.IntN(len(row.State.Replicas))]
	var what string
	var err error
	switch w.rng.IntN(10) {
	case 0, 1, 2, 3:
		what, err = fmt.Sprintf("move of %d from %d to %d", id.Partition, from, to), n.s.MovePartition(ctx, id, from, to)
	case 4:
		what, err = fmt.Sprintf("cancel the move of %d", id.Partition), n.s.MovePartition(ctx, id, from, from)
	case 5:
		what = fmt.Sprintf("transfer of %d to %d", id.Partition, to)
		_, err = n.s.TransferLeader(ctx, id, to)
	case 6, 7:
		count := 1 + w.rng.IntN(4)
		what = fmt.Sprintf("%d replicas", count)
		_, err = n.s.SetReplicas(ctx, id.Topic, count)
	case 8:
		settings := t.Settings
		settings.MinISR, settings.Partitions = w.rng.IntN(t.Replicas+1), min(4, t.Partitions+w.rng.IntN(2))
		what = fmt.Sprintf("min_isr %d, %d partitions", settings.MinISR, settings.Partitions)
		_, err = n.s.ConfigureTopic(ctx, id.Topic, settings)
	case 9:
		if w.rng.IntN(4) == 0 {
			what, err = "delete "+t.Name, n.s.DeleteTopic(ctx, id.Topic)
		}
	}
	w.say("%s of %s: %v", what, t.Name, err)
}

// fault lets something fail.
func (w *model) fault() {
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	switch k := w.rng.IntN(11); {
	case n.removed:
	case !n.alive && k < 6:
		if k == 0 {
			n.replaceDisk()
			w.say("%s gets another disk", n.row.Name)
		}
		n.start()
	case !n.alive:
	case k < 4:
		if w.living() > 1 {
			n.kill()
		}
	case k < 6:
		n.disk = []meta.DiskState{meta.DiskGood, meta.DiskSlow, meta.DiskHung, meta.DiskFailed}[w.rng.IntN(4)]
		w.say("disk of %s: %v: %v", n.row.Name, n.disk, n.s.ReportDisk(context.Background(), n.disk))
	case k == 10:
		n.differs = !n.differs
		w.say("clock of %s: %v: %v", n.row.Name, n.differs, n.reportClock())
	case k < 8: // perhaps a wrong report
		o := w.anyone()
		w.say("%s reports %s: %v", o.row.Name, n.row.Name, o.s.ReportDown(context.Background(), n.row.ID, n.row.Boot))
	default:
		ids := n.s.cur.Load().snap.Partitions.IDs()
		if len(ids) == 0 {
			return
		}
		id := ids[w.rng.IntN(len(ids))]
		if slices.Contains(n.s.cur.Load().snap.Partitions.Get(id).State.ISR, n.member()) {
			n.damage(id)
		}
	}
}

// reportClock tells whether the node's clock differs.
func (n *modelNode) reportClock() error { return n.s.ReportData(context.Background(), 0, 0, n.differs) }

// endFaults ends the faults. Some of the dead nodes stay dead for good. It gives the rest the time to do what is to be
// done.
func (w *model) endFaults() {
	w.faults = false
	w.say("the faults end")
	for _, n := range w.nodes {
		switch {
		case n.removed:
		case !n.alive && w.rng.IntN(2) == 0:
			n.start()
		case n.alive:
			n.disk = meta.DiskGood
			n.differs = n.differs && w.rng.IntN(2) == 0 // some clocks stay wrong
			n.hear()
			if err := errors.Join(n.s.ReportDisk(context.Background(), n.disk), n.reportClock()); err != nil {
				w.fail("%s cannot say that its disk is good: %v", n.row.Name, err)
			}
		}
	}
	n := w.anyone()
	n.hear()
	if err := n.s.Rebalance(context.Background(), meta.RebalanceResume); err != nil {
		w.fail("the rebalance does not go on: %v", err)
	}
	w.second = 10 * time.Second
	for quiet, steps := 0, 0; quiet < 12; quiet, steps = quiet+1, steps+1 { // 2 minutes: longer than anything waits
		if steps == 1000 {
			w.fail("it goes on for ever")
		}
		rev := w.kv.rev
		if w.step(); w.kv.rev != rev {
			quiet = 0
		}
	}
}
