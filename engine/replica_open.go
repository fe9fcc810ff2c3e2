package engine

import (
	"penstock/replicate"
	"penstock/segment"
)

// hasLog says whether there are bytes of the partition on this node. The log may be used by whoever was told so.
func (r *replica) hasLog() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pt.log != nil
}

// present says whether this node has a copy that takes part.
func (r *replica) present() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.closed && (r.leader != nil || r.follower != nil)
}

// retire ends a copy that is not needed any more; its bytes stay.
func (r *replica) retire() {
	r.cn.forward.freeze(r.pt)
	r.shut()
	r.cn.reroute(r.pt)
}

// end is retire for good: what waits in the inbox is answered with err.
func (r *replica) end(err error) {
	r.run(func() { r.ended = true }) // the worker may hear of the partition until Close has ended it, too
	r.shut()
	inbox := r.pt.drainForReroute()
	inbox.answer(err)
}

// shut ends the replica; nothing is sent or taken any more. What is in the log and not committed is unknown: it may be elsewhere, too.
func (r *replica) shut() {
	r.run(func() {
		r.closed = true
		r.setLeads(false)
		r.serves.Store(false)
		r.serveEpoch.Store(0)
		r.fail(r.pending.drain(), ErrUnknown)
		r.releaseIncoming()
		if r.leader != nil {
			r.count()
		}
		r.leader, r.follower = nil, nil
		r.noteBlocked()
	})
}

// open makes the machine of a copy whose log is open. Nothing else knows the replica yet, or mu is held. The machine knows at once what recovery found
// to be damaged: a row may name it the leader as soon as the node has joined.
//
// What recovery found, or an empty log, is on
// stable storage. A copy that took part before in this process is in the middle of its log's life: it may have batches in groups that its commit log
// has not flushed yet, or is just flushing, so its generation goes on, and what is durable is what the commit log has said.
func (r *replica) open(committed segment.Position) error {
	pt := r.pt
	st := pt.machine.State()
	start, err := pt.startState()
	if err != nil && !r.discarded.Load() {
		return err
	}
	var epochs replicate.EpochTable // a copy: the partition's own is the committer's, who may be writing a checkpoint
	epochs.Reset(pt.epochs.Entries())
	epochs.Trim(start.Next)
	if r.generation == 0 {
		r.generation, r.durable = 1, st.Next
		r.shortened = r.cn.shortened.has(pt.identity())
	}
	r.follower = replicate.NewFollower(r.cn.opts.Replication, r.cn.member(), r.cn.self.Boot, replicate.Log{
		Start: start, End: st, Durable: min(r.durable, st.Next), Committed: min(committed, st.Next), Epoch: st.Epoch, Generation: r.generation, Epochs: epochs.Entries(), Shortened: r.shortened,
	})
	r.damaged = nil
	for _, ev := range r.isolated() { // before it can be asked to lead
		r.step(&ev)
	}
	if r.discarded.Load() {
		r.step(&replicate.Event{Kind: replicate.EvUnusable, Again: r.waitsForDevice && !r.cn.shortened.isDiscarded(pt.identity())})
	}
	if err := r.cn.e.poisoned.Load(); err != nil {
		r.step(&replicate.Event{Kind: replicate.EvFault, Err: *err})
	}
	return nil
}

// startState is the state of the log before its first batch.
func (pt *partition) startState() (segment.State, error) {
	off, pos, id := pt.log.Start()
	if s := pt.log.Segments(); len(s) > 0 && segment.DeviceFailed(s[0].Err) {
		return segment.State{}, s[0].Err // it begins wherever that segment does
	}
	if off == 0 {
		return segment.State{}, nil
	}
	if end, _, _ := pt.log.End(); end == off {
		return pt.machine.State(), nil
	}
	st := segment.State{Next: pos, NextID: id, End: off}
	where, err := pt.log.Where(off)
	if err != nil {
		return st, err
	}
	st.Segment, st.SegmentBase, st.SegmentCapacity = where.Segment, where.SegmentBase, where.SegmentCapacity
	var v segment.View
	if err := pt.log.View(&v, off, 1); err != nil {
		return st, err
	}
	defer v.Release()
	var h segment.Header
	if err := h.Decode(v.Bytes()); err != nil {
		return st, err
	}
	st.LastCRC = h.PrevCRC
	if pos > 0 {
		if epoch, ok := pt.epochs.At(pos - 1); ok {
			st.Epoch = epoch
		}
	}
	return st, nil
}

func (cn *clusterNode) member() replicate.Member {
	return replicate.Member{Node: cn.self.ID, Store: cn.self.Store}
}

// hasLed says whether this process ever led the partition: others may still send puts here.
func (r *replica) hasLed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ledEpoch != 0
}
