package remote

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

// fencing is a fence that waits for answers. Consumers.mu guards it; a crash ends the leadership and the fence with it.
type fencing struct {
	pt       Partition
	answered []replicate.NodeID
	since    int64 // when it began, by Lease.Now
}

// Fence starts a fence for an epoch of this node, unless it was started before. The lock of a channel may be held.
func (rs *Consumers) Fence(id segment.Identity, pt Partition, epoch segment.Epoch) {
	key := fenceKey{id, epoch}
	rs.mu.Lock()
	known := rs.fences[key] != nil
	if !known && !rs.shut {
		rs.fences[key] = &fencing{pt: pt, since: rs.lease.Now()}
	}
	rs.mu.Unlock()
	if !known {
		rs.peers.Spawn(func() { rs.sendFence(key) })
	}
}

// sendFence sends a Fence to the nodes that have not answered. It ends the fence when all have, or when its time is
// over.
func (rs *Consumers) sendFence(key fenceKey) {
	var missing []replicate.NodeID
	snap := rs.n.Snapshot()
	rs.mu.Lock()
	f := rs.fences[key]
	if f == nil {
		rs.mu.Unlock()
		return
	}
	for id, n := range snap.Nodes {
		if n.Live && id != rs.peers.Self && !slices.Contains(f.answered, id) {
			missing = append(missing, id)
		}
	}
	late := rs.lease.Now()-f.since > int64(holdTime+holdDrift)
	if len(missing) == 0 || late {
		delete(rs.fences, key)
	}
	rs.mu.Unlock()
	switch {
	case len(missing) == 0:
		f.pt.EndFence(key.epoch)
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

// tickFences repeats the unanswered Fence frames.
func (rs *Consumers) tickFences() {
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
func (rs *Consumers) handleFence(from replicate.NodeID, p []byte) error {
	f, err := wire.DecodeFence(p)
	if err != nil {
		return err
	}
	t, pt := rs.n.Above.Find(segment.Identity{Topic: f.Topic, Partition: f.Partition})
	if pt == nil {
		return nil // the topic is not known here yet: the leader asks again
	}
	pt.NoteFence(f.Epoch)
	for _, r := range rs.all() {
		if r.topic == t && !r.drained() {
			return nil
		}
	}
	answer := netproto.Frame{Type: netproto.TypeFenced, Head: wire.AppendFence(nil, &f)}
	_ = rs.send(from, &answer)
	return nil
}

// handleFenced handles the answer to a Fence.
func (rs *Consumers) handleFenced(from replicate.NodeID, p []byte) error {
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
		rs.peers.Spawn(func() { rs.sendFence(key) })
	}
	return nil
}
