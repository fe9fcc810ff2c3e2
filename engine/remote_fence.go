package engine

import (
	"slices"

	"penstock/engine/core"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// A leader that begins while deliveries of the one before may be on their way through other nodes would overtake them: it was made leader at once because the
// other handed over, or its process is gone. So its ordered channels wait (core: fence) until all nodes whose lease lives have answered a Fence: from then on
// they drop what is of an older epoch. Who does not answer is waited for no longer than a delivery can be on its way. A node whose lease is over
// hands over nothing.

// fenceKey is one beginning.
type fenceKey struct {
	id    segment.Identity
	epoch segment.Epoch
}

// fencing is a fence that was asked for. remotes.mu guards it.
type fencing struct {
	pt       *partition
	answered []replicate.NodeID
	since    int64 // by now()
}

// newestEpoch is the newest epoch that this node has heard of: what an older leader delivered is not handed over.
func (r *replica) newestEpoch() segment.Epoch {
	epoch := segment.Epoch(r.fenced.Load())
	if row := r.row.Load(); row != nil {
		epoch = max(epoch, row.State.Epoch)
	}
	return epoch
}

// fencedAbove says that a newer leader asked for a fence: it may deliver by now, though this node has not heard of it by the store.
func (r *replica) fencedAbove(epoch segment.Epoch) bool {
	return segment.Epoch(r.fenced.Load()) > epoch
}

// fenceMs is how long the ordered channels of a partition wait that begin now, in an epoch of this node's.
func (pt *partition) fenceMs(epoch segment.Epoch) int64 {
	if pt.rep == nil || epoch <= 1 || pt.t.e.Level() < heldLevel || segment.Epoch(pt.rep.fenceCleared.Load()) == epoch {
		return 0 // nobody led before, or nobody is left who knows of deadlines, or all have answered
	}
	return holdMs
}

// fence asks the others, unless they were asked before.
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

// sendFence asks those who have not answered, and ends the fence when nobody is left or its time is over.
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

// fencePassed lets the channels go on.
func (rs *remotes) fencePassed(pt *partition, epoch segment.Epoch) {
	pt.rep.fenceCleared.Store(uint64(epoch))
	pt.post(&post{Event: core.Event{Kind: core.EvUnfence}, epoch: epoch})
}

// tickFences asks again.
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

// handleFence takes a Fence. It is answered when no client's output holds a message that an older leader delivered; else the leader asks again.
func (rs *remotes) handleFence(from replicate.NodeID, p []byte) error {
	f, err := wire.DecodeFence(p)
	if err != nil {
		return err
	}
	pt := rs.cn.partition(segment.Identity{Topic: f.Topic, Partition: f.Partition})
	if pt == nil {
		return nil // this node has not heard of the topic: it is asked again
	}
	for old := pt.rep.fenced.Load(); uint64(f.Epoch) > old; old = pt.rep.fenced.Load() {
		if pt.rep.fenced.CompareAndSwap(old, uint64(f.Epoch)) {
			break
		}
	}
	for _, r := range rs.all() {
		if r.t == pt.t && !r.drained() {
			return nil
		}
	}
	answer := netproto.Frame{Type: netproto.TypeFenced, Head: wire.AppendFence(nil, &f)}
	_ = rs.send(from, &answer)
	return nil
}

// handleFenced takes a Fenced.
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
