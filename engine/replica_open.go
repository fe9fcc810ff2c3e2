package engine

import (
	"penstock/engine/core"
	"penstock/engine/dir"
	"penstock/replicate"
	"penstock/segment"
)

// hasLog says whether this node has a log of the partition. It takes mu, so a caller that got true may read pt.log
// without mu.
func (r *replica) hasLog() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pt.log != nil
}

// present says whether this node has a copy that takes part in replication. It takes mu.
func (r *replica) present() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.active()
}

// newReplica returns the replica of a copy that recovery found. join opens it.
func (cn *replicaNode) newReplica(pt *partition) *replica {
	r := &replica{cn: cn, pt: pt}
	r.pending.clear()
	if cn.shortened.IsDiscarded(pt.Identity()) {
		cn.log.Warn("an earlier process dropped this copy of a partition, and it did not begin anew: it is fetched from "+
			"its leader. What was acknowledged is on the other replicas", "topic", pt.t.name, "partition", pt.number)
		r.discarded.Store(true)
		cn.drops.Add(1)
	}
	return r
}

// retire closes a copy that is not needed any more. Its bytes stay; puts in its inbox go to the leader.
func (r *replica) retire() {
	r.cn.above.Freeze(r.pt)
	r.shut(roleClosed)
	r.cn.above.Reroute(r.pt)
}

// end closes the copy for the rest of this process, and answers the puts in its inbox with err. Until Close has stopped
// the worker, it may try to open the copy again.
func (r *replica) end(err error) {
	r.shut(roleEnded)
	left := r.pt.TakeForReroute()
	left.Answer(err)
}

// shut closes the replica: it sends and receives nothing any more. The outcome of batches that are in the log and not
// committed is unknown, because other replicas may have them. to is roleClosed or roleEnded; who has ended stays so. It
// takes mu.
func (r *replica) shut(to role) {
	r.run(func() {
		r.setLeads(false)
		r.serves.Store(false)
		r.serveEpoch.Store(0)
		r.fail(r.pending.drain(), ErrUnknown)
		r.releaseIncoming()
		if r.leader != nil {
			r.count()
		}
		r.role, r.leader, r.follower = max(r.role, to), nil, nil
		r.noteBlocked()
	})
}

// open makes a follower for a copy whose log is open. mu is held, or nobody else knows the replica yet. The machine
// learns of damage that recovery found before open returns, because a row may name this node the leader as soon as it
// has joined.
//
// At the first call everything in the log is on stable storage: recovery found it, or the log is empty. A copy that is
// opened again may have batches in groups that the commit log has not flushed yet. So its generation goes on, and only
// what the commit log has reported counts as durable.
func (r *replica) open(committed segment.Position) error {
	pt := r.pt
	st := pt.machine.State()
	start, err := pt.startState()
	if err != nil && !r.discarded.Load() {
		return err
	}
	var epochs replicate.EpochTable // a copy: the committer may be reading the partition's own for a checkpoint
	epochs.Reset(pt.epochs.Entries())
	epochs.Trim(start.Next)
	if r.generation == 0 {
		r.generation, r.durable = 1, st.Next
		r.shortened = r.cn.shortened.Has(pt.Identity())
	}
	r.follow(replicate.NewFollower(r.cn.replication, r.cn.member(), r.cn.self.Boot, replicate.Log{
		Start: start, End: st, Durable: min(r.durable, st.Next), Committed: min(committed, st.Next), Epoch: st.Epoch,
		Generation: r.generation, Epochs: epochs.Entries(), Shortened: r.shortened,
	}))
	r.damaged = nil
	for _, ev := range r.isolated() { // before it can be asked to lead
		r.step(&ev)
	}
	if r.discarded.Load() {
		r.step(&replicate.Event{
			Kind: replicate.EvUnusable, Again: r.waitsForDevice && !r.cn.shortened.IsDiscarded(pt.Identity()),
		})
	}
	if err := r.cn.e.poisoned.Load(); err != nil {
		r.step(&replicate.Event{Kind: replicate.EvFault, Err: *err})
	}
	return nil
}

// startState is the state of the log before its first batch. It may read that batch from the device.
func (pt *partition) startState() (segment.State, error) {
	off, pos, id := pt.log.Start()
	if s := pt.log.Segments(); len(s) > 0 && segment.DeviceFailed(s[0].Err) {
		return segment.State{}, s[0].Err // the log begins where that segment says
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

// hasLed says whether this process has ever led the partition: other nodes may still send puts here. It takes mu.
func (r *replica) hasLed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ledEpoch != 0
}

// newReplicaPartition returns a partition without a copy on this node.
func (e *store) newReplicaPartition(t *partTopic, n uint32) *partition {
	pt := newPartition(e, t, n, segment.State{}, new(core.Cursors))
	pt.rep = &replica{cn: e.replicas, pt: pt}
	pt.rep.pending.clear()
	pt.publishFold(0)
	return pt
}

// openEmpty gives pt an empty log.
func (e *store) openEmpty(pt *partition) error {
	log, err := segment.Open(e.disk, dir.PartitionPath(pt.t.uuid, pt.number), pt.Identity(), segment.State{},
		e.segmentOptions())
	if err != nil {
		return err
	}
	r := pt.rep
	r.mu.Lock() // frames of other nodes may reach the replica already
	defer r.mu.Unlock()
	pt.log = log
	return r.open(0)
}

// openRecovered opens the copy that recovery found. No goroutine runs yet.
func (r *replica) openRecovered() {
	if err := r.open(r.pt.recovered); err != nil {
		// Its bytes can be fetched again from another replica, but it cannot lead.
		r.cn.log.Error("a copy of a partition cannot be read from its beginning: it does not take part",
			"topic", r.pt.t.name, "partition", r.pt.number, "error", err)
		r.role = roleClosed
	}
}

// openAgain opens a copy that was retired, and still has its log. It takes mu.
func (r *replica) openAgain() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.role == roleEnded {
		return ErrClosed
	}
	r.role = roleIdle
	return r.open(0)
}

// newSoloPartition returns a new partition of a single node, with an empty log.
func (e *store) newSoloPartition(t *partTopic, n uint32) (*partition, error) {
	log, err := segment.Open(e.disk, dir.PartitionPath(t.uuid, n), segment.Identity{Topic: t.uuid, Partition: n},
		segment.State{}, e.segmentOptions())
	if err != nil {
		return nil, err
	}
	pt := newPartition(e, t, n, segment.State{}, new(core.Cursors))
	pt.log, pt.rep = log, newSolo(pt)
	pt.publishFold(0)
	return pt, nil
}
