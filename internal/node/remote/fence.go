package remote

import (
	"maps"
	"slices"

	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// A new leader must not deliver the next message of an ordered channel while a delivery of the previous leader may
// still be on its way through another node. The new leader may take over before the deadlines of such deliveries have
// passed: because the previous leader handed over, or because its process is gone. So the ordered channels of the new
// leader wait (core: EvUnfence) until every other node with a lease has answered a Fence. From its answer on, a node
// drops deliveries of older epochs. The new leader waits for a node that does not answer only as long as a delivery can
// be on its way. A node without a lease hands nothing over.
//
// Native clients get the messages of ordered channels from the leader itself, and have permits instead of deadlines
// (package channel). A node answers a Fence when those of its native clients that had deliveries of the partition have
// dropped what they have not begun. No permit lasts longer than the lease of the leader that gave it.

// fenceKey names the leadership that a fence belongs to.
type fenceKey struct {
	id    segment.Identity
	epoch segment.Epoch
}

// fencing is a fence that waits for answers. Consumers.mu guards it. A crash ends the leadership, and with it the
// fence.
type fencing struct {
	pt       Partition
	answered []replicate.NodeID
	since    int64 // when it began, by Lease.Now
}

// Fence starts a fence for an epoch in which this node leads, unless it was started before. The caller may hold the
// lock of a channel.
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

// sendFence sends a Fence to the nodes that have not answered. It ends the fence when all nodes have answered, or when
// the fence has lasted too long.
func (rs *Consumers) sendFence(key fenceKey) {
	var missing []replicate.NodeID
	snap := rs.n.Snapshot()
	t, _ := rs.n.Above.Find(key.id)
	recalled := t == nil || t.Recall(key.id.Partition) // deliveries of this node's earlier epochs
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
	done := len(missing) == 0 && recalled
	if done || late {
		delete(rs.fences, key)
	}
	rs.mu.Unlock()
	switch {
	case done:
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
	keys := slices.Collect(maps.Keys(rs.fences))
	rs.mu.Unlock()
	slices.SortFunc(keys, func(a, b fenceKey) int {
		return slices.Compare(wire.AppendFence(nil, a.wire()), wire.AppendFence(nil, b.wire()))
	})
	for _, key := range keys {
		rs.peers.Spawn(func() { rs.sendFence(key) }) // Recall may wait for the disk
	}
}

// handleFence handles a Fence. It answers if no client's output holds a delivery with a deadline, and no client with a
// permit has a delivery that it has not begun. Otherwise it does not answer, and the leader asks again.
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
	rs.peers.Spawn(func() { // Recall may wait for the disk
		if t.Recall(f.Partition) {
			answer := netproto.Frame{Type: netproto.TypeFenced, Head: wire.AppendFence(nil, &f)}
			_ = rs.send(from, &answer)
		}
	})
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
