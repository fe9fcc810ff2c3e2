package partition

import (
	"errors"
	"slices"
	"sync/atomic"

	"penstock/internal/failpoint"
	"penstock/internal/lock"
	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/node/inbox"
	"penstock/internal/node/logread"
	"penstock/internal/node/platform"
	"penstock/internal/node/seal"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/segment"
)

// Replica is this node's replica of one partition: the state machine (replicate.Leader or replicate.Follower), and the
// work that the machine's actions start. The node's worker (clusterNode.work) opens and closes it. The committer tells
// it which batches were sealed and which became durable. The connections pass it the messages of other replicas, and
// runTicker passes it the time.
//
// mu orders the events of the machine. It is held while the machine steps and while the machine's actions are carried
// out. No action blocks: frames are put into a queue, and work on the disk or in the metadata store runs on a goroutine
// of its own, which reports back with an event. Only the committer writes Partition.machine, fold and epochs, and it
// holds mu when it does. So the committer may read them without mu; every other goroutine needs mu. Puts are answered
// after mu is released (replicaOutput), except those that the committer refuses while it seals (nextRun).
//
// A crash loses everything in this struct. Recovery rebuilds the log from the commit log, and open makes a follower for
// it.
//
//	committer:   seal ─► EvAppended ─► frames to followers
//	committer:   group durable ─► EvDurable ─► ActCommit
//	connection:  ack ─► ActCommit ─► visible, answers
//	connection:  batches ─► ActAppend ─► incoming ─► committer
type Replica struct {
	node *Env // nil on a single node
	pt   *Partition

	// The committer uses the fields of this group for every batch. They lie together, because with many partitions each
	// cache line of a replica is new to the processor. mu guards them and the structs that are embedded below, except
	// fields that say otherwise.
	mu         lock.Mutex[lock.Replica]
	role       role
	generation uint64              // of the log; a cut increments it, so that late reports on the old log are known
	durable    segment.Position    // everything below is on this node's stable storage
	stalled    error               // why the puts in the inbox may not be appended now; nil: they may
	leader     *replicate.Leader   // not nil exactly if role is roleLeader
	follower   *replicate.Follower // not nil exactly if role is roleFollower
	pending    seal.Pending        // of the leader
	out        replicaOutput

	changed platform.Notice // raised whenever unlock releases mu

	published
	state replicate.State // from the last row that Learn was called with
	leadership
	followed
	mistrust
	removal

	reading map[readerKey]*rangeReader // those whose goroutines run

	// Scratch of a step.
	ev   replicate.Event
	acts replicate.Actions
	feed []replicate.Event // events that actions produced; stepFeed handles them in order
	sent netproto.Frame
	read rangeRead
}

// published holds what producers, channels and the forwarder read of a replica without its mu.
type published struct {
	serves       atomic.Bool                    // channels may deliver, see setServing
	serveEpoch   atomic.Uint64                  // see serving
	target       atomic.Uint32                  // replicate.NodeID of the leader; 0: not known
	row          atomic.Pointer[meta.Partition] // the newest row that this node has from the store
	fenced       atomic.Uint64                  // the highest epoch of all Fence messages received
	fenceCleared atomic.Uint64                  // the epoch of this leader for which all nodes have answered Fence
}

// leadership is the state of a replica as the leader. changeRole begins it and stepDown ends it. Fields that outlive an
// epoch say so.
type leadership struct {
	startEpoch   bool                   // the committer must append the batch that begins the epoch
	granted      bool                   // the partition's machine (machine.Partition) knows the epoch
	serveFrom    segment.Position       // channels start to deliver when everything below is committed
	servedIn     segment.Epoch          // the newest epoch in which channels delivered from here
	refused      error                  // the machine's answer to the last EvPut; nil: accepted
	counted      replicate.LeaderCounts // the leader's counts that are already in the engine's counters
	writesPaused bool                   // nothing is appended: the leadership is being handed over
	handedOver   uint64                 // version of the row that was handed over from; see successorStored
	blocked      replicate.NodeID       // the value of Leader.Blocked that was logged last
	// comparing is the time since when the leader waits for the log of another replica, by Lease.Now. 0: it does not
	// wait. -1: it waits, and that was logged.
	comparing int64

	ledEpoch segment.Epoch // the highest epoch that this process led
	// yieldedEpoch is the last epoch in which this node asked for another leader because its own copy is shortened.
	yieldedEpoch segment.Epoch
	// refusedEpoch is the last epoch in which the store refused that, so that it is logged once.
	refusedEpoch atomic.Uint64
	formerLeader atomic.Pointer[strandedLeader] // see storeRow; read without mu
}

// followed is the state of a replica as a follower, and the cut of its log.
type followed struct {
	frame     *receivedFrame  // the frame of the message that the machine handles now
	incoming  []incomingBatch // batches that the committer has to append
	cut       *logCut         // nil: the log is not being cut
	damaged   error           // why the machine has reported this copy as damaged or contested; nil: it has not
	reporting bool            // the goroutine of reportDamage runs
	// leaderStart is the segment.Position at which the leader's log begins; 0: not known. Damage below that position is
	// not repaired, because the leader does not have those batches any more. It is read without mu.
	leaderStart atomic.Uint64
}

// mistrust says why a copy is not counted on: an earlier process shortened its log, or the copy is given up because it
// cannot be read or written. The atomics are read without mu.
type mistrust struct {
	shortened       bool        // see datadir.Shortened
	discarded       atomic.Bool // the copy is given up and has no new log yet
	discardedBefore bool        // this process has given the copy up; the last time at discardedAt, by Lease.Now
	discardedAt     int64
	discards        int       // how often this process has given the copy up
	unwritten       unwritten // times of a copy whose segments cannot be written
	waitsForDevice  bool      // discarded, but its log is kept: see replica_wait_device.go
	// discardMu is held while discarded becomes false, and while it is decided whether commit log files that a
	// discarded copy needs may be released. It is taken before mu.
	discardMu      lock.Mutex[lock.ReplicaDiscard]
	loggedDiscard  atomic.Bool  // see mayReleaseFiles
	loggedRepairAt atomic.Int64 // see rangeRepair.failed
}

// removal says how far the removal of a copy that moved to other nodes has got.
type removal struct {
	retired          int  // how often this process closed the copy because this node was not a replica any more
	removing         bool // the bytes are being removed: this node is not a replica any more; see removeBytes
	leftoversRemoved bool // the files that an earlier process left of this partition are gone
}

// replicaOutput collects the work that must wait until mu is released. mu guards it.
type replicaOutput struct {
	done    inbox.List // puts to answer with nil: they are committed
	failed  inbox.List // puts to answer with failure: they are not stored, or their outcome is unknown
	failure error
	wake    bool // new messages are visible: wake the channels
	work    bool // the committer has work for this partition
	role    bool // the partition has begun or stopped serving
	reroute bool // this node has stepped down: the puts in the inbox go to the next leader
	news    bool // unlock sets it: raise Engine.news for goroutines that wait for a hand-over or an election
}

// incomingBatch is a batch from the leader that the committer has to append. It holds a reference to frame, because
// data lies in that buffer.
type incomingBatch struct {
	frame      *netproto.RecvBuf
	data       []byte
	offset     segment.Offset
	segment    uint32 // the batch's segment at the leader: number, base and capacity, as in segment.Slice
	base       segment.Offset
	capacity   int64
	generation uint64 // of the log for which the batch came; after a cut, its durability does not count any more
}

// logCut is a cut of the log: a truncation at to, or a reset, after which the log is empty and begins at to. The
// goroutine that makes the cut (make, or remover.resetToEmpty for a copy that is removed) fills the logCut in, and
// writeCut writes its record. Replica.mu guards the fields that both use. replica_cut.go lists the steps, and says what
// a crash leaves.
type logCut struct {
	replica      *Replica
	reset        bool
	generation   uint64
	to           segment.Position
	leaderHad    bool // of a reset: see replicate.ActReset
	ready        bool // the cut is prepared: the committer can write the record
	stays        bool // it was ready once: the cut is made even if more damage is found meanwhile
	logread.Past      // what the cut leaves
	epochs       []replicate.EpochStart
	payload      []byte // payload of the record
	committed    segment.Position
	durable      chan error // receives nil when the record is durable, or the failure of the commit log
	pinFiles     bool       // from the record on, no commit log file is released until release is called
	release      func()     // set before durable receives a value
	failed       bool       // the cut ended with an error, and the log is not as the machine assumes
}

// run calls f with mu held. Then it releases mu and performs the work that f left in out.
func (r *Replica) run(f func()) {
	r.mu.Lock()
	f()
	r.unlock()
}

// holds returns what f, which only looks, returns with mu held.
func (r *Replica) holds(f func() bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return f()
}

// unlock releases mu, and then performs the work that was collected in out: answers, wake-ups, work for the committer.
// waiters is the number of goroutines that got their answer.
func (r *Replica) unlock() (waiters int) {
	out := r.out
	r.out = replicaOutput{}
	out.news = out.role || out.reroute || r.writesPaused
	r.mu.Unlock()
	r.changed.Raise()
	return out.perform(r)
}

// perform does the collected work, without mu. It returns the number of goroutines that waited for the puts that it
// answered.
func (o *replicaOutput) perform(r *Replica) (waiters int) {
	waiters = o.done.Answer(nil) + o.failed.Answer(o.failure)
	if o.wake {
		r.pt.wake()
	}
	if o.reroute {
		r.node.above.Reroute(r.pt)
	}
	if o.role {
		r.pt.Tell()
		r.pt.topic.ServingChanged()
	}
	if o.work {
		r.pt.Announce(false)
	}
	if o.news {
		r.node.above.News().Raise()
	}
	return waiters
}

// step passes one event to the machine and carries out the machine's actions. Then it does the same with the events
// that these actions produced. mu is held.
func (r *Replica) step(ev *replicate.Event) {
	r.stepOne(ev)
	r.stepFeed()
}

// stepFeed handles the events that actions have produced. mu is held.
func (r *Replica) stepFeed() {
	for len(r.feed) > 0 {
		next := r.feed[0]
		r.feed = r.feed[:copy(r.feed, r.feed[1:])]
		r.stepOne(&next)
	}
}

func (r *Replica) stepOne(ev *replicate.Event) {
	switch {
	case r.leader != nil:
		r.leader.Step(r.node.Now(), ev, &r.acts)
	case r.follower != nil && followerHandles(ev.Kind):
		r.follower.Step(r.node.Now(), ev, &r.acts)
	default:
		return
	}
	down := false
	for i := range r.acts.List {
		a := &r.acts.List[i]
		down = down || a.Kind == replicate.ActStepDown
		r.perform(a)
	}
	if down {
		r.stepDown()
	}
	r.changeRole()
}

// followerHandles says whether a follower handles this kind of event. The other kinds are for a leader. They are
// dropped if this replica does not lead any more.
func followerHandles(k replicate.EventKind) bool {
	switch k {
	case replicate.EvAppended, replicate.EvPut, replicate.EvLease, replicate.EvEvicted, replicate.EvPeerDown:
		return false
	}
	return true
}

func (r *Replica) perform(a *replicate.Action) {
	switch a.Kind {
	case replicate.ActSend:
		r.send(a.Node, &a.Message)
	case replicate.ActCommit:
		r.commit(a.Position)
	case replicate.ActRefresh:
		r.refresh()
	case replicate.ActDamaged:
		if r.damaged = a.Err; r.isContested() {
			r.logContested()
		}
		r.reportDamage()
	case replicate.ActRepair:
		r.repair(&a.Message)
	case replicate.ActTrim:
		r.leaderStart.Store(max(r.leaderStart.Load(), uint64(a.Position)))
		r.node.trimTo(r.pt, a.Position)
	case replicate.ActStartEpoch:
		r.startEpoch, r.out.work = true, true
	case replicate.ActRead:
		r.readRange(a)
	case replicate.ActPropose:
		r.node.propose(r, &a.State)
	case replicate.ActRefuse:
		r.refused = a.Err
	case replicate.ActServe:
		r.setServing()
		r.retryStalled()
	case replicate.ActHandOver:
		r.handOverShortened(a)
	case replicate.ActGiveUp:
		r.handOverStranded(a)
	case replicate.ActStepDown: // stepOne does it after the other actions
	case replicate.ActAppend:
		r.enqueueIncoming(a)
	case replicate.ActDiscard:
		why := a.Err
		r.node.Spawn(func() { r.discard(why, nil) })
	case replicate.ActTruncate, replicate.ActReset:
		r.beginCut(a)
	}
}

// retryStalled makes the committer try again to append the puts that it was not allowed to append. mu is held.
func (r *Replica) retryStalled() {
	if r.stalled != nil {
		r.stalled, r.out.work = nil, true
	}
}

// committed returns the commit mark, or 0 without an active copy. After a restart the mark may be lower than what is
// really committed. mu is held.
func (r *Replica) committed() segment.Position {
	switch {
	case r.role == roleSolo:
		return r.durable
	case r.leader != nil:
		return r.leader.Committed()
	case r.follower != nil:
		return r.follower.Committed()
	}
	return 0
}

// CommittedMark returns the end of the committed part of the log. It takes Replica.mu.
func (pt *Partition) CommittedMark() segment.Position {
	pt.replica.mu.Lock()
	defer pt.replica.mu.Unlock()
	return pt.replica.committed()
}

// refresh queues an event that passes the newest row of this node to the machine. Newer rows come through the watch of
// the store. mu is held.
func (r *Replica) refresh() {
	if row := r.row.Load(); row != nil {
		r.feed = append(r.feed, r.stateEvent(row))
	}
}

// stateEvent returns the event that passes a row of the store to the machine.
func (r *Replica) stateEvent(row *meta.Partition) replicate.Event {
	return replicate.Event{
		Kind: replicate.EvState, State: &row.State, Damaged: slices.Contains(row.Damaged, r.node.member()),
	}
}

// Learn passes a new row of the store to the machine. The node's worker calls it, and GiveAway. It takes mu.
func (r *Replica) Learn(row *meta.Partition) {
	r.storeRow(row)
	r.target.Store(uint32(row.State.Leader))
	r.run(func() {
		r.state = row.State
		if r.isClosed() {
			return
		}
		r.correctDamaged(row)
		ev := r.stateEvent(row)
		r.step(&ev)
		r.retryStalled()
	})
}

// fail makes unlock answer puts with err, after mu is released. mu is held.
func (r *Replica) fail(puts inbox.List, err error) {
	if !puts.Empty() {
		r.out.failed.Prepend(puts)
		r.out.failure = err
	}
}

// commit makes all batches below position to visible, and answers their puts. The OnCommit callbacks run here, in the
// order of the log. mu is held.
func (r *Replica) commit(to segment.Position) {
	failpoint.Pass("engine/before-commit")
	pt := r.pt
	for b := r.pending.Front(); b != nil && b.Position < to; b = r.pending.Front() {
		if len(b.Deferred) != 0 {
			pt.postDeferred(b.Deferred)
		}
		pt.visible.Store(uint64(b.NextID))
		if b.Count > 0 {
			pt.counted(b.Count, b.BodyBytes)
			r.out.wake = true
		}
		if b.Position == r.pending.EpochStart {
			r.pending.Opened = true
		}
		b.Puts.Committed()
		r.out.done.Append(b.Puts)
		r.pending.Pop()
	}
	if r.leader != nil && r.serving() == 0 {
		r.setServing() // serving may have waited for this commit
	}
	r.retryStalled()
	failpoint.Pass("engine/after-commit")
}

// durableUpTo records that the batch at pos is on stable storage, and tells the machine. generation is that of the log
// when the batch was appended. If the log has been cut since then, the report says nothing about the present log. A
// closed copy only records the position, because it may be opened again. The committer calls it; mu is held.
func (r *Replica) durableUpTo(pos segment.Position, generation uint64) {
	if generation != r.generation {
		return
	}
	r.durable = max(r.durable, pos+1)
	switch {
	case r.isClosed():
		return
	case r.role == roleSolo:
		r.commit(r.durable)
		return
	}
	r.ev = replicate.Event{Kind: replicate.EvDurable, Position: r.durable, Generation: generation}
	r.step(&r.ev)
}

// admits asks the machine whether a batch may be appended now. If not, stalled says why. mu is held.
func (r *Replica) admits() bool {
	if r.role != roleLeader {
		return false
	}
	if r.writesPaused {
		r.stalled = errs.ErrNoLeader
		return false
	}
	r.refused = nil
	r.ev = replicate.Event{Kind: replicate.EvPut}
	r.step(&r.ev)
	if r.refused != nil {
		r.stalled = r.refused
	}
	return r.refused == nil && r.leader != nil
}

// whyStalled returns the error for a put whose deadline passed while the put waited in the inbox. It takes mu.
func (r *Replica) whyStalled() error {
	if r.solo() {
		return errs.ErrDeadline
	}
	r.mu.Lock()
	defer r.unlock()
	if r.stalled == nil || errors.Is(r.stalled, errPipelined) {
		r.admits() // the machine may know a better reason than "batches are under way"
	}
	switch {
	case errors.Is(r.stalled, replicate.ErrNoQuorum):
		return errs.ErrNoQuorum
	case errors.Is(r.stalled, replicate.ErrLeaseLost), errors.Is(r.stalled, errs.ErrNoLeader):
		return errs.ErrNoLeader
	}
	return errs.ErrDeadline
}

// Tick passes the time to the machine. runTicker calls it about every tickInterval without mu. lease is the deadline of
// the node's lease; live are the nodes that the store says are alive.
func (r *Replica) Tick(lease int64, live []replicate.NodeID) {
	r.mu.Lock()
	if !r.active() {
		r.mu.Unlock()
		return
	}
	if r.leader != nil {
		r.ev = replicate.Event{Kind: replicate.EvLease, DeadlineNs: lease}
		r.step(&r.ev)
	}
	lag, catchUp := r.node.rates()
	r.ev = replicate.Event{Kind: replicate.EvTick, Live: live, LagMaxNs: lag, CatchUpBytesPerSec: catchUp}
	r.step(&r.ev)
	if r.damaged == nil { // who met it may have been a channel
		for _, ev := range r.isolated() {
			r.step(&ev)
		}
	}
	r.yieldUnwritten(r.node.Now())
	r.noteDiscarded()
	r.noteShortened()
	r.logComparing(r.node.Now())
	if r.leader != nil {
		r.count()
		r.fail(r.pending.Expire(r.node.Now()-int64(r.node.store.PublishTimeout())), errs.ErrUnknown)
		r.retryStalled() // a follower that returns changes no mark, so no other event would retry
	}
	r.unlock()
}

// fault tells the replica that the commit log failed. All pending puts are answered with ErrDisk, and a cut that waits
// for its record fails. mu is held.
func (r *Replica) fault(err error) {
	r.fail(r.pending.Drain(), diskRefusal(err))
	r.releaseIncoming()
	if r.cut != nil && r.cut.durable != nil {
		select {
		case r.cut.durable <- err:
		default: // the record is durable, and make has not received the value yet
		}
		r.cut = nil
	}
	r.step(&replicate.Event{Kind: replicate.EvFault, Err: err})
}

// releaseIncoming drops the batches of the leader that the committer has not appended. mu is held.
func (f *followed) releaseIncoming() {
	for i := range f.incoming {
		f.incoming[i].frame.Release()
	}
	clear(f.incoming)
	f.incoming = f.incoming[:0]
}

// await waits until reached returns true, and returns true then. It returns false when the engine stops. It calls
// reached whenever unlock has released mu; reached may take mu.
func (r *Replica) await(reached func() bool) bool {
	for {
		changed := r.changed.Next()
		if reached() {
			return true
		}
		if !r.node.store.host.Either(changed, r.node.store.stop) {
			return false
		}
	}
}

// CommittedEnd returns the offset up to which the log is committed, or 0 if that offset cannot be found. It takes
// Replica.mu.
func (pt *Partition) CommittedEnd() segment.Offset {
	end, _, _ := pt.log.End()
	at, err := pt.log.SeekPosition(pt.CommittedMark())
	switch {
	case err == nil:
		return at
	case errors.Is(err, segment.ErrAtEnd):
		return end
	}
	return 0
}

// PeerDown tells a leader that another node is down. A follower ignores it. It takes mu.
func (r *Replica) PeerDown(node replicate.NodeID) {
	r.run(func() { r.step(&replicate.Event{Kind: replicate.EvPeerDown, Node: node}) })
}
