package engine

import (
	"errors"
	"slices"

	"penstock/engine/meta"
	"penstock/replicate"
)

// liveNodes are the nodes that live by the store's word, in order. keepTime alone calls it; what it returns is not changed afterwards.
func (cn *clusterNode) liveNodes() []replicate.NodeID {
	snap := cn.store.Snapshot()
	if snap == nil || cn.live.of == snap {
		return cn.live.nodes
	}
	var nodes []replicate.NodeID
	for id, n := range snap.Nodes {
		if n.Live {
			nodes = append(nodes, id)
		}
	}
	slices.Sort(nodes)
	cn.live.of, cn.live.nodes = snap, nodes
	return nodes
}

// giveUp asks the store to make another member of the ISR the leader, because this node reaches too few of them: replicate/stranded.go decides that, and repeats it.
// What was appended and not committed is unknown to its publishers, as after a failover. mu is held.
func (r *replica) giveUp(a *replicate.Action) {
	cn, st, to := r.cn, a.State, a.Node
	if a.Flag {
		if others, may := cn.isrLogs.stranded.now(cn.now(), isrLogInterval); may {
			cn.log.Warn("this node leads a partition and hears nothing of its in-sync replicas, which are alive: the network between them is broken. Another of them is "+
				"made the leader; nothing that was answered OK is lost, publishers of the last seconds hear that the outcome is unknown",
				"topic", r.pt.t.name, "partition", r.pt.number, "epoch", st.Epoch, "others", others)
		}
	}
	cn.spawn(func() {
		ctx, cancel := cn.e.withTimeout(cn.ctx, storeTimeout)
		defer cancel()
		err := cn.store.HandOver(ctx, r.pt.identity(), &st, to)
		if err == nil || errors.Is(err, meta.ErrConflict) || cn.ctx.Err() != nil {
			return
		}
		if others, may := cn.isrLogs.kept.now(cn.now(), isrLogInterval); may {
			cn.log.Warn("a partition whose in-sync replicas this node does not reach could not be given away; it is tried again",
				"topic", r.pt.t.name, "partition", r.pt.number, "others", others, "error", err)
		}
	})
}
