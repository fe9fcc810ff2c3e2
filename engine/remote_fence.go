package engine

import (
	"slices"

	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// A new leader must not deliver the next message of an ordered channel while a delivery of the leader before it may be
// on its way through another node. It can become leader before those are too late: the other handed over, or its
// process is gone. So its ordered channels wait (core: EvUnfence) until every other node with a lease has answered a
// Fence. From then on those nodes drop deliveries of older epochs. A node that does not answer is waited for only as
// long as a delivery can be under way. A node without a lease hands nothing over.

// fenceKey names the beginning of one leadership.
type fenceKey struct {
	id    segment.Identity
	epoch segment.Epoch
}

// fencing is a fence that waits for answers. remotes.mu guards it; a crash ends the leadership and the fence with it.
type fencing struct {
	pt       *partition
	answered []replicate.NodeID
	since    int64 // when it began, by clusterNode.now
}

// fence starts a fence for an epoch of this node, unless it was started before.
func (rs *remotes) fence(pt *partition, epoch segment.Epoch) {
	key := fenceKey{pt.identity(), epoch}
	rs.mu.Lock()
	known := rs.fences[key] != nil
	if !known && !rs.shut {
		rs.fences[key] = &fencing{pt: pt, since: rs.cn.now()}
	}
	rs.mu.Unlock()
	if !known {
		rs.cn.spawn(func() { rs.sendFence(key) })
	}
}

// sendFence sends a Fence to the nodes that have not answered. It ends the fence when all have, or when its time is
// over.
func (rs *remotes) sendFence(key fenceKey) {
	var missing []replicate.NodeID
	snap := rs.cn.store.Snapshot()
	rs.mu.Lock()
	f := rs.fences[key]
	if f == nil {
		rs.mu.Unlock()
		return
	}
	for id, n := range snap.Nodes {
		if n.Live && id != rs.cn.self.ID && !slices.Contains(f.answered, id) {
			missing = append(missing, id)
		}
	}
	late := rs.cn.now()-f.since > int64(remoteHoldTime+remoteHoldDrift)
	if len(missing) == 0 || late {
		delete(rs.fences, key)
	}
	rs.mu.Unlock()
	switch {
	case len(missing) == 0:
		rs.fencePassed(f.pt, key.epoch)
	case late:
		rs.counts.fencesLate.Add(1)
	default:
		slices.Sort(missing)
		for _, to := range missing {
			frame := netproto.Frame{Type: netproto.TypeFence, Head: wire.AppendFence(nil, key.wire())}
			_ = rs.send(to, &frame) // the next tick asks again
		}
	}
}

func (k fenceKey) wire() *wire.Fence {
	return &wire.Fence{Topic: k.id.Topic, Partition: k.id.Partition, Epoch: k.epoch}
}

// fencePassed lets the ordered channels of the partition deliver.
func (rs *remotes) fencePassed(pt *partition, epoch segment.Epoch) {
	pt.endFence(epoch)
}

// tickFences repeats the unanswered Fence frames.
func (rs *remotes) tickFences() {
	rs.mu.Lock()
	var keys []fenceKey
	for key := range rs.fences {
		keys = append(keys, key)
	}
	rs.mu.Unlock()
	slices.SortFunc(keys, func(a, b fenceKey) int {
		return slices.Compare(wire.AppendFence(nil, a.wire()), wire.AppendFence(nil, b.wire()))
	})
	for _, key := range keys {
		rs.sendFence(key)
	}
}

// handleFence handles a Fence. It answers if no client's output holds a delivery of an older leader. Otherwise it stays
// silent, and the leader asks again.
func (rs *remotes) handleFence(from replicate.NodeID, p []byte) error {
	f, err := wire.DecodeFence(p)
	if err != nil {
		return err
	}
	pt := rs.cn.partition(segment.Identity{Topic: f.Topic, Partition: f.Partition})
	if pt == nil {
		return nil // the topic is not known here yet: the leader asks again
	}
	pt.noteFence(f.Epoch)
	for _, r := range rs.all() {
		if &r.t.partTopic == pt.t && !r.drained() {
			return nil
		}
	}
	answer := netproto.Frame{Type: netproto.TypeFenced, Head: wire.AppendFence(nil, &f)}
	_ = rs.send(from, &answer)
	return nil
}

// handleFenced handles the answer to a Fence.
func (rs *remotes) handleFenced(from replicate.NodeID, p []byte) error {
	w, err := wire.DecodeFence(p)
	if err != nil {
		return err
	}
	key := fenceKey{segment.Identity{Topic: w.Topic, Partition: w.Partition}, w.Epoch}
	rs.mu.Lock()
	f := rs.fences[key]
	if f != nil && !slices.Contains(f.answered, from) {
		f.answered = append(f.answered, from)
	}
	rs.mu.Unlock()
	if f != nil {
		rs.cn.spawn(func() { rs.sendFence(key) })
	}
	return nil
}

// fenceMs returns how long, at most, the partition's ordered channels wait for an EvUnfence when they begin now, in an
// epoch of this node.
func fenceMs(pt *partition, epoch segment.Epoch) int64 {
	if epoch <= 1 || pt.e.feature() < heldLevel || pt.fenceEnded(epoch) {
		return 0 // no earlier leader; or the cluster's level has no deadlines; or all nodes have answered
	}
	return holdMs
}
