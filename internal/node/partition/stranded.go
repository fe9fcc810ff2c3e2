package partition

import (
	"cmp"
	"errors"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/health"
	"penstock/replicate"
)

// handOverStranded asks the store to make another member of the ISR the leader, because this node reaches too few
// members. replicate/stranded.go decides that, and repeats the action. Publishers of batches that were appended and not
// committed learn that the outcome is unknown, as after a failover. mu is held.
func (r *Replica) handOverStranded(a *replicate.Action) {
	cn, st, to := r.node, a.State, a.Node
	if a.Flag {
		if others, may := cn.isrLogs.stranded.Allow(cn.Now(), isrLogInterval); may {
			cn.Log.Warn("this node leads a partition and hears nothing of its in-sync replicas, which are alive: the "+
				"network between them is broken. Another of them is made the leader; nothing that was answered OK is lost, "+
				"publishers of the last seconds hear that the outcome is unknown",
				"topic", r.pt.topic.Name, "partition", r.pt.number, "epoch", st.Epoch, "others", others)
		}
	}
	cn.Spawn(func() {
		ctx, cancel := cn.store.host.WithTimeout(cn.Ctx, StoreTimeout)
		defer cancel()
		err := cn.Rows.HandOver(ctx, r.pt.Identity(), &st, to)
		if err == nil || errors.Is(err, meta.ErrConflict) || cn.Ctx.Err() != nil {
			return
		}
		if others, may := cn.isrLogs.strandedFailed.Allow(cn.Now(), isrLogInterval); may {
			cn.Log.Warn("a partition whose in-sync replicas this node does not reach could not be given away; it is tried again",
				"topic", r.pt.topic.Name, "partition", r.pt.number, "others", others, "error", err)
		}
	})
}

// strandedLeader is the former leader of a partition that gave the leadership to this node because it was stranded. It
// is recognized by two facts: the store had nothing against the former leader, and that node is the preferred leader.
// It may still be in the ISR, because min_isr needs it and another replica reaches it. Then balance would return the
// leadership to it, only for it to be stranded again for minutes. A leader that gives way to the preferred leader, in
// balance or because its replica moves, is not stranded.
type strandedLeader struct {
	node  replicate.NodeID
	boot  uuid.UUID
	until int64 // it does not get the leadership back before this time, by Lease.Now
}

// strandedBarFactor is how long a stranded leader does not get the leadership back, in multiples of StrandedEveryNs. A
// time is needed, because no event tells the new leader that the network has been repaired.
const strandedBarFactor = 10

// storeRow stores the newest row, and the stranded leader if the row made this node the leader. Only Learn calls it,
// without mu: both fields are atomic. A crash forgets the stranded leader. Then that node may get the leadership back,
// and gives it away once more.
func (r *Replica) storeRow(row *meta.Partition) {
	before := r.row.Swap(row)
	snap := r.node.Rows.Snapshot()
	if snap == nil {
		return
	}
	n := health.Giver(r.node.Self.ID, before, row, snap.Nodes)
	if n != nil && r.node.preferredLeader != nil && r.node.preferredLeader(snap, r.pt.Identity()) == n.ID {
		until := r.node.Now() +
			strandedBarFactor*cmp.Or(r.node.replication.StrandedEveryNs, replicate.DefaultStrandedEveryNs)
		r.formerLeader.Store(&strandedLeader{n.ID, n.Boot, until})
	}
}

// WasStranded says whether the present process of node gave the leadership away because it was stranded, and should not
// have it back yet. Any goroutine may call it.
func (r *Replica) WasStranded(node replicate.NodeID, nodes map[replicate.NodeID]*meta.Node) bool {
	g := r.formerLeader.Load()
	return g != nil && g.node == node && nodes[node] != nil && nodes[node].Boot == g.boot && r.node.Now() < g.until
}
