package partition

import (
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/logread"
	"penstock/replicate"
	"penstock/segment"
)

// HasLog says whether this node has a log of the partition. It takes mu, so a caller that got true may read pt.log
// without mu.
func (r *Replica) HasLog() bool {
	return r.holds(func() bool { return r.pt.log != nil })
}

// Present says whether this node has a copy that takes part in replication. It takes mu.
func (r *Replica) Present() bool {
	return r.holds(func() bool { return r.active() })
}

// newReplica returns the replica of a copy that recovery found. OpenRecovered opens it when the node joins.
func (cn *Env) newReplica(pt *Partition) *Replica {
	r := &Replica{node: cn, pt: pt}
	r.pending.Clear()
	if cn.Shortened.IsDiscarded(pt.Identity()) {
		cn.Log.Warn("an earlier process dropped this copy of a partition, and it did not begin anew: it is fetched from "+
			"its leader. What was acknowledged is on the other replicas", "topic", pt.topic.Name, "partition", pt.number)
		r.discarded.Store(true)
		cn.drops.Add(1)
	}
	return r
}

// Retire closes a copy that this node does not need any more. Its bytes stay, and the puts in its inbox go to the
// leader. The node's worker calls it, without a lock.
func (r *Replica) Retire() {
	r.node.above.Freeze(r.pt)
	r.shut(roleClosed)
	r.node.above.Reroute(r.pt)
}

// End closes the copy for the rest of this process, and answers the puts in its inbox with err. Until Close has stopped
// the worker, the worker may still try to open the copy again; OpenAgain refuses that. It takes Replica.mu.
func (r *Replica) End(err error) {
	r.shut(roleEnded)
	left := r.pt.TakeForReroute()
	left.Answer(err)
}

// shut closes the replica: from then on it sends and receives nothing. The outcome of batches that are in the log and
// not committed is unknown, because other replicas may have them. to is roleClosed or roleEnded; an ended replica stays
// ended. It takes mu.
func (r *Replica) shut(to role) {
	r.run(func() {
		r.setLeads(false)
		r.serves.Store(false)
		r.serveEpoch.Store(0)
		r.fail(r.pending.Drain(), errs.ErrUnknown)
		r.releaseIncoming()
		if r.leader != nil {
			r.count()
		}
		if to == roleClosed {
			r.retired++
		}
		r.role, r.leader, r.follower = max(r.role, to), nil, nil
		r.noteBlocked()
	})
	r.pt.Tell()
}

// open makes a follower for a copy whose log is open. mu is held, or no other goroutine knows the replica yet. The
// machine learns of damage that recovery found before open returns, because as soon as the node has joined, a row may
// name it the leader.
//
// At the first call, everything in the log is on stable storage: recovery found it there, or the log is empty. A copy
// that is opened again may have batches in groups that the commit log has not flushed yet. So its generation goes on,
// and only the batches that the commit log has reported count as durable.
func (r *Replica) open(committed segment.Position) error {
	pt := r.pt
	st := pt.machine.State()
	start, err := pt.startState()
	if err != nil && !r.discarded.Load() {
		return err
	}
	var epochs replicate.EpochTable // a copy: the committer may be reading the partition's own table for a checkpoint
	epochs.Reset(pt.epochs.Entries())
	epochs.Trim(start.Next)
	if r.generation == 0 {
		r.generation, r.durable = 1, st.Next
		r.shortened = r.node.Shortened.Has(pt.Identity())
	}
	r.follow(replicate.NewFollower(r.node.replication, r.node.member(), r.node.Self.Boot, replicate.Log{
		Start: start, End: st, Durable: min(r.durable, st.Next), Committed: min(committed, st.Next), Epoch: st.Epoch,
		Generation: r.generation, Epochs: epochs.Entries(), Shortened: r.shortened, Recovered: st.Next > 0,
	}))
	r.damaged = nil
	for _, ev := range r.isolated() { // before it can be asked to lead
		r.step(&ev)
	}
	if r.discarded.Load() {
		r.step(&replicate.Event{
			Kind: replicate.EvUnusable, Again: r.waitsForDevice && !r.node.Shortened.IsDiscarded(pt.Identity()),
		})
	}
	if err := r.node.store.poisoned.Load(); err != nil {
		r.step(&replicate.Event{Kind: replicate.EvFault, Err: *err})
	}
	return nil
}

// startState returns the state of the log in front of its first batch. It does not wait for the device, so the caller
// may hold Replica.mu. See logread.Start.State.
func (pt *Partition) startState() (segment.State, error) {
	return pt.start.State(pt.log, pt.machine.State(), &pt.epochs)
}

// readStart is startState for callers that do not hold Replica.mu. It may wait for the device.
func (pt *Partition) readStart() (segment.State, error) {
	if err := pt.start.Read(pt.log); err != nil {
		return segment.State{}, err
	}
	return pt.startState()
}

// pastAt computes the state of the log and the fold at a position. It may wait for the device. See logread.StateAt.
func (pt *Partition) pastAt(pos segment.Position) (logread.Past, error) {
	return logread.StateAt(pt.log, pt.store.folder, pos, pt.readStart)
}

// HasLed says whether this process has ever led the partition: other nodes may still send puts here. It takes mu.
func (r *Replica) HasLed() bool {
	return r.holds(func() bool { return r.ledEpoch != 0 })
}

// NewPartition returns a partition of which this node has no copy.
func (s *Store) NewPartition(t *Topic, n uint32) *Partition {
	pt := newPartition(s, t, n, segment.State{}, new(fold.Cursors))
	pt.replica = &Replica{node: s.replicas, pt: pt}
	pt.replica.pending.Clear()
	pt.publishFold(0)
	return pt
}

// OpenEmpty gives pt an empty log, and opens a copy on it. It takes Replica.mu.
func (s *Store) OpenEmpty(pt *Partition) error {
	log, err := segment.Open(s.disk, datadir.PartitionPath(pt.topic.ID, pt.number), pt.Identity(), segment.State{},
		s.segmentOptions())
	if err != nil {
		return err
	}
	r := pt.replica
	r.mu.Lock() // other nodes' frames may reach the replica already
	defer r.mu.Unlock()
	pt.log = log
	return r.open(0)
}

// OpenRecovered opens the copy that recovery found. No other goroutine runs yet.
func (r *Replica) OpenRecovered() {
	_ = r.pt.start.Read(r.pt.log) // open reports the failure
	if err := r.open(r.pt.recovered); err != nil {
		// The bytes of the copy can be fetched again from another replica, but the copy cannot lead.
		r.node.Log.Error("a copy of a partition cannot be read from its beginning: it does not take part",
			"topic", r.pt.topic.Name, "partition", r.pt.number, "error", err)
		r.role = roleClosed
	}
}

// OpenAgain opens a copy that was retired and still has its log. It may wait for the device before it takes mu.
func (r *Replica) OpenAgain() error {
	err := r.openAgain()
	if err != nil && needsRefetch(err) && !r.discarded.Load() { // its topic's metadata was gone when recovery looked
		if err = r.giveUpHead(err); err == nil {
			err = r.openAgain()
		}
	}
	return err
}

func (r *Replica) openAgain() error {
	return r.pt.start.With(r.pt.log, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.role == roleEnded {
			return errs.ErrClosed
		}
		r.role = roleIdle
		return r.open(0)
	})
}

// NewSolo returns a new partition of a single node, with an empty log.
func (s *Store) NewSolo(t *Topic, n uint32) (*Partition, error) {
	log, err := segment.Open(s.disk, datadir.PartitionPath(t.ID, n), segment.Identity{Topic: t.ID, Partition: n},
		segment.State{}, s.segmentOptions())
	if err != nil {
		return nil, err
	}
	pt := newPartition(s, t, n, segment.State{}, new(fold.Cursors))
	pt.log, pt.replica = log, newSolo(pt)
	pt.publishFold(0)
	return pt, nil
}
