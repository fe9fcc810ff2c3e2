package engine

import (
	"errors"
	"slices"
	"sync/atomic"

	"penstock/engine/core"
	"penstock/engine/meta"
	"penstock/internal/failpoint"
	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/segment"
)

// replica is one partition's part in the cluster: the machine that leads or follows, and what its actions set in motion.
//
// mu puts events into order. It is held while a machine steps and its actions are done, which never block: frames go into a
// queue, whatever touches a disk or the metadata store goes to a goroutine and comes back as an event. partition.machine, fold and epochs are
// written by the committer alone, with mu held: it may read them freely, others with mu. Answers leave after mu.
//
//	committer: seal ─► EvAppended ─► frames to followers        connection: ack ─► ActCommit ─► visible, answers
//	committer: group durable ─► EvDurable ─► ActCommit           connection: batches ─► ActAppend ─► incoming ─► committer
type replica struct {
	cn *clusterNode
	pt *partition

	// What producers and channels look at without mu.
	leads        atomic.Bool                    // puts go to the inbox; changed with partition.mu held, too
	serves       atomic.Bool                    // channels may deliver: it leads, and all that came before is committed
	serveEpoch   atomic.Uint64                  // see serving
	serveFrom    segment.Position               // channels begin with what the log says up to here: it has to be committed first
	parked       atomic.Bool                    // puts wait in the forwarder: later ones queue behind them
	target       atomic.Uint32                  // replicate.NodeID of the leader; 0: nobody is known
	row          atomic.Pointer[meta.Partition] // the newest row of the store
	fenced       atomic.Uint64                  // the newest epoch of a Fence
	fenceCleared atomic.Uint64                  // the epoch of this node's whose Fence all have answered

	mu       lock.Mutex[lock.Replica]
	leader   *replicate.Leader
	follower *replicate.Follower // one of the two; both nil: this node has no copy
	ev       replicate.Event
	acts     replicate.Actions
	feed     []replicate.Event // what actions led to
	out      replicaOutput
	ledEpoch segment.Epoch // the newest epoch that this process led
	state    replicate.State
	closed   bool // the topic was deleted, or the engine closes, or the copy is not needed
	ended    bool // closed for good: a copy that began anew would not know what is committed, and its log may not be written any more
	// removing: this node is no replica any more, and its bytes go; see removeBytes.
	removing         bool
	leftoversRemoved bool // what a process before this one left of the partition is gone

	generation      uint64           // of the log: raised by every cut
	durable         segment.Position // below it everything is on stable storage here
	shortened       bool             // see shortenedCopies
	yieldedEpoch    segment.Epoch    // the last in which another leader was asked for because of that
	leaderStart     atomic.Uint64    // segment.Position: the leader's log begins there, and what is damaged below is not repaired; 0: not known
	discardedBefore bool             // the copy was given up in this process, at discardedAt; see drop
	discardedAt     int64
	unwritten       unwritten                       // what it does about segments that cannot be written
	discarded       atomic.Bool                     // it was dropped, and has not begun anew yet
	waitsForDevice  bool                            // discarded, and not for good: its device may read it again; see replica_wait_device.go
	discardMu       lock.Mutex[lock.ReplicaDiscard] // held while discarded goes down, and while the files that it needs are given up; inside of nothing else
	loggedDiscard   atomic.Bool                     // see mayReleaseFiles
	loggedRepairAt  atomic.Int64                    // see notRepaired
	discards        int
	blocked         replicate.NodeID // see Leader.Blocked
	comparing       int64            // since when it has waited for others' logs, by now(); -1: it was told

	// Leader.
	pending      pendingQueue
	startEpoch   bool                           // the batch that begins the epoch is due
	granted      bool                           // the partition machine knows the epoch
	stalled      error                          // why what waits in the inbox may not be appended now
	refused      error                          // the answer of the machine to EvPut
	counted      replicate.LeaderCounts         // of the leader, as far as the engine's counters have them
	writesPaused bool                           // no more writes: the leadership is being handed over
	handedOver   uint64                         // the version of the row by which it was; see handed
	formerLeader atomic.Pointer[strandedLeader] // see storeRow
	reads        map[replicate.NodeID]*rangeRead

	// Follower.
	frame    *receivedFrame // the message that is being handled came in it
	incoming []incomingBatch
	cut      *logCut
	damaged  error // what the machine said last
	sent     netproto.Frame
	batches  []replicate.Batch
	batch    replicate.Batch
}

// replicaOutput is what is done after mu was released.
type replicaOutput struct {
	done    putList // committed
	failed  putList // not stored, or unknown:
	failure error   // this
	wake    bool    // new messages are visible
	work    bool    // the committer has something to do
	role    bool    // the partition began or ended to serve
	reroute bool    // the inbox belongs to another node now
}

// incomingBatch is a batch from the leader on its way to the committer. frame keeps data.
type incomingBatch struct {
	frame      *netproto.RecvBuf
	data       []byte
	offset     segment.Offset
	segment    uint32
	base       segment.Offset
	capacity   int64
	generation uint64
}

// logCut is a truncation or a new beginning of the log.
type logCut struct {
	reset      bool
	generation uint64
	to         segment.Position
	ready      bool // the rest is known: the committer can write it
	stays      bool // it was ready: its record is written, so it is made, whatever is found to be damaged meanwhile
	state      segment.State
	fold       *core.Cursors
	unread     error // why fold is not known
	epochs     []replicate.EpochStart
	payload    []byte
	committed  segment.Position
	durable    chan error
	pinFiles   bool   // the commit log's files stay from the record on, until release is called
	release    func() // set before durable
	failed     bool   // it has ended, and the log is not what the machine was told
}

// run does something with mu held, and afterwards what came of it.
func (r *replica) run(f func()) {
	r.mu.Lock()
	f()
	r.unlock()
}

// unlock ends what holds mu. Answers, wake-ups and the committer's work come after it.
func (r *replica) unlock() {
	out := r.out
	r.out = replicaOutput{}
	r.mu.Unlock()
	out.perform(r)
}

func (o *replicaOutput) perform(r *replica) {
	o.done.answer(nil)
	o.failed.answer(o.failure)
	if o.wake {
		r.pt.wake()
	}
	if o.reroute {
		r.cn.reroute(r.pt)
	}
	if o.role {
		r.cn.syncChannels(r.pt.t)
	}
	if o.work {
		r.pt.announce(false)
	}
}

// step passes one event to the machine and does what it says, then the events that this led to. mu is held.
func (r *replica) step(ev *replicate.Event) {
	r.stepOne(ev)
	for len(r.feed) > 0 {
		next := r.feed[0]
		r.feed = r.feed[:copy(r.feed, r.feed[1:])]
		r.stepOne(&next)
	}
}

func (r *replica) stepOne(ev *replicate.Event) {
	now := r.cn.now()
	switch {
	case r.leader != nil:
		r.leader.Step(now, ev, &r.acts)
	case r.follower != nil && followerHandles(ev.Kind):
		r.follower.Step(now, ev, &r.acts)
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

// followerHandles: what is meant for a leader that is no more goes nowhere.
func followerHandles(k replicate.EventKind) bool {
	switch k {
	case replicate.EvAppended, replicate.EvPut, replicate.EvLease, replicate.EvRead, replicate.EvPeerDown:
		return false
	}
	return true
}

func (r *replica) perform(a *replicate.Action) {
	switch a.Kind {
	case replicate.ActSend:
		r.send(a.Node, &a.Message)
	case replicate.ActCommit:
		r.commit(a.Position)
	case replicate.ActRefresh:
		r.refresh()
	case replicate.ActDamaged:
		r.damaged = a.Err
		r.cn.reportDamaged(r.pt, a.Err)
	case replicate.ActRepair:
		r.repair(&a.Message)
	case replicate.ActTrim:
		r.leaderStart.Store(max(r.leaderStart.Load(), uint64(a.Position)))
		r.cn.trimTo(r.pt, a.Position)
	case replicate.ActStartEpoch:
		r.startEpoch, r.out.work = true, true
	case replicate.ActRead:
		r.readRange(a)
	case replicate.ActPropose:
		r.cn.propose(r, &a.State)
	case replicate.ActRefuse:
		r.refused = a.Err
	case replicate.ActServe:
		r.setServing()
		r.retryStalled()
	case replicate.ActHandOver:
		r.handOverShortened(a)
	case replicate.ActGiveUp:
		r.handOverStranded(a)
	case replicate.ActStepDown: // after the other actions
	case replicate.ActAppend:
		r.enqueueIncoming(a)
	case replicate.ActTruncate, replicate.ActReset:
		r.beginCut(a)
	}
}

// retryStalled lets the committer look again at what it may not have been allowed to append.
func (r *replica) retryStalled() {
	if r.stalled != nil {
		r.stalled, r.out.work = nil, true
	}
}

// committed is the mark of the machine, a lower bound for the next life. mu is held, or it is the committer.
func (r *replica) committed() segment.Position {
	switch {
	case r.leader != nil:
		return r.leader.Committed()
	case r.follower != nil:
		return r.follower.Committed()
	}
	return 0
}

// committedMark is what a checkpoint says to be committed.
func (pt *partition) committedMark() segment.Position {
	if pt.rep == nil {
		return pt.machine.Committed()
	}
	pt.rep.mu.Lock()
	defer pt.rep.mu.Unlock()
	return pt.rep.committed()
}

// refresh passes on what the store said last; what is newer comes by the watch.
func (r *replica) refresh() {
	if row := r.row.Load(); row != nil {
		r.feed = append(r.feed, r.stateEvent(row))
	}
}

// stateEvent is what the machine hears of a row.
func (r *replica) stateEvent(row *meta.Partition) replicate.Event {
	return replicate.Event{Kind: replicate.EvState, State: &row.State, Damaged: slices.Contains(row.Damaged, r.cn.member())}
}

// learn takes a row of the store.
func (r *replica) learn(row *meta.Partition) {
	r.storeRow(row)
	r.target.Store(uint32(row.State.Leader))
	r.run(func() {
		r.state = row.State
		if r.closed {
			return
		}
		r.correctDamaged(row)
		ev := r.stateEvent(row)
		r.step(&ev)
		r.retryStalled()
	})
}

// correctDamaged tells the store that this copy reads back if it says otherwise: an earlier process said so, or an earlier machine whose damage was repaired
// when it was no more, or an older report came last.
func (r *replica) correctDamaged(row *meta.Partition) {
	if row != nil && r.damaged == nil && r.pt.whyUnread() == nil && slices.Contains(row.Damaged, r.cn.member()) {
		r.cn.reportDamaged(r.pt, nil)
	}
}

// changeRole makes this replica the leader when the store says so.
func (r *replica) changeRole() {
	st := &r.state
	if r.leader != nil || r.follower == nil || st.Leader != r.cn.self.ID || st.Boot != r.cn.self.Boot || st.Epoch <= r.ledEpoch {
		return
	}
	if r.follower.Epoch() > st.Epoch || !r.follower.Electable() || r.pt.epochs.Last() >= st.Epoch || r.pt.whyUnread() != nil || !slices.Contains(st.ISR, r.cn.member()) {
		return
	}
	log := r.follower.Log()
	if n := len(log.Epochs); n > 0 && log.Epochs[n-1].Epoch >= st.Epoch {
		return
	}
	r.ledEpoch = st.Epoch
	r.counted = replicate.LeaderCounts{}
	r.leader = replicate.NewLeader(r.cn.opts.Replication, r.cn.member(), r.cn.self.Boot, log, st, r.cn.now())
	r.follower = nil
	r.pending.clear()
	r.startEpoch, r.granted, r.stalled, r.writesPaused = false, false, nil, false
	r.setLeads(true)
	r.feed = append(r.feed, replicate.Event{Kind: replicate.EvLease, DeadlineNs: r.cn.lease.Load()}, replicate.Event{Kind: replicate.EvTick})
	for _, m := range st.ISR { // most often the leader before: nobody has to wait until its silence is proven
		if m.Node != r.cn.self.ID && (r.cn.hasExited(m.Node) || !r.cn.isLive(m.Node)) {
			r.feed = append(r.feed, replicate.Event{Kind: replicate.EvPeerDown, Node: m.Node})
		}
	}
	r.cn.log.Info("leads a partition", "topic", r.pt.t.name, "partition", r.pt.number, "epoch", st.Epoch, "isr", len(st.ISR))
}

// setLeads opens or closes the inbox: whoever looks at leads holds the inbox's lock.
func (r *replica) setLeads(on bool) {
	r.pt.mu.Lock()
	r.pt.pipelined = false // the batches before went with the leadership
	r.leads.Store(on)
	r.pt.mu.Unlock()
}

// setServing says whether channels may deliver from here.
func (r *replica) setServing() {
	epoch := segment.Epoch(0)
	switch {
	case r.leader == nil || !r.leader.Serving() || !r.pending.opened:
		r.serveFrom = 0
	case r.serving() == 0 && r.serveFrom == 0:
		r.serveFrom = r.pt.machine.State().Next
		fallthrough
	default:
		if r.committed() >= r.serveFrom {
			epoch = r.leader.Epoch()
		}
	}
	r.serves.Store(epoch != 0)
	if segment.Epoch(r.serveEpoch.Swap(uint64(epoch))) != epoch {
		r.out.role = true
	}
}

// serving is the epoch in which channels may deliver from here, 0 if they may not.
func (r *replica) serving() segment.Epoch { return segment.Epoch(r.serveEpoch.Load()) }

// stepDown turns a leader that stopped into a follower. What was appended and not committed is unknown; what waits in the inbox was not
// stored and goes to the new leader.
func (r *replica) stepDown() {
	why := r.leader.Err()
	r.cn.log.Info("leads a partition no more", "topic", r.pt.t.name, "partition", r.pt.number, "epoch", r.leader.Epoch(), "why", why)
	r.count()
	disk := errors.Is(why, replicate.ErrDisk)
	r.cn.forward.freeze(r.pt)
	r.setLeads(false)
	r.fail(r.pending.drain(), unknownBecause(disk))
	log := r.leader.Log()
	r.leader, r.reads = nil, nil
	r.follower = replicate.NewFollower(r.cn.opts.Replication, r.cn.member(), r.cn.self.Boot, log)
	r.startEpoch, r.stalled, r.writesPaused = false, nil, false
	r.setServing()
	r.out.reroute = true
	r.damaged = nil
	bad := r.isolated()
	if r.feed = append(r.feed, bad...); len(bad) == 0 {
		r.correctDamaged(r.row.Load())
	}
	if disk {
		r.feed = append(r.feed, replicate.Event{Kind: replicate.EvFault, Err: why})
	}
	r.feed = append(r.feed, replicate.Event{Kind: replicate.EvState, State: &r.state})
}

func unknownBecause(disk bool) error {
	if disk {
		return ErrDisk
	}
	return ErrUnknown
}

// fail answers puts with err, after mu.
func (r *replica) fail(puts putList, err error) {
	if !puts.empty() {
		r.out.failed.prepend(puts)
		r.out.failure = err
	}
}

// commit makes everything below to visible and answers those who wait for it. Control entries' callbacks run here, in the order of the log.
func (r *replica) commit(to segment.Position) {
	failpoint.Pass("engine/before-commit")
	pt := r.pt
	for b := r.pending.front(); b != nil && b.position < to; b = r.pending.front() {
		if len(b.deferred) != 0 {
			pt.postDeferred(b.deferred)
		}
		pt.visible.Store(uint64(b.nextID))
		if b.count > 0 {
			pt.t.countedBytes(b.count, b.bodyBytes)
			r.out.wake = true
		}
		if b.position == r.pending.epochStart {
			r.pending.opened = true
		}
		b.puts.committed()
		r.out.done.append(b.puts)
		r.pending.pop()
	}
	if r.leader != nil && r.serving() == 0 {
		r.setServing() // it may have waited for this
	}
	r.retryStalled()
	failpoint.Pass("engine/after-commit")
}

// durableUpTo says that the batch at pos is on stable storage, if the log was not cut since. A copy that takes no part remembers it: it may be needed
// again. mu is held.
func (r *replica) durableUpTo(pos segment.Position, generation uint64) {
	if generation != r.generation {
		return
	}
	r.durable = max(r.durable, pos+1)
	if r.closed {
		return
	}
	r.ev = replicate.Event{Kind: replicate.EvDurable, Position: r.durable, Generation: generation}
	r.step(&r.ev)
}

// admits asks the leader whether a batch may be appended now.
func (r *replica) admits() bool {
	if r.leader == nil || r.closed {
		return false
	}
	if r.writesPaused {
		r.stalled = ErrNoLeader
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

// whyStalled is what a put is told that waited in the inbox until its deadline.
func (r *replica) whyStalled() error {
	r.mu.Lock()
	defer r.unlock()
	if r.stalled == nil || errors.Is(r.stalled, errPipelined) {
		r.admits() // what it waits for may not come any more: then there is a better reason
	}
	switch {
	case errors.Is(r.stalled, replicate.ErrNoQuorum):
		return ErrNoQuorum
	case errors.Is(r.stalled, replicate.ErrLeaseLost), errors.Is(r.stalled, ErrNoLeader):
		return ErrNoLeader
	}
	return ErrDeadline
}

// tick is called about every tickInterval, with the nodes that live by the store's word.
func (r *replica) tick(lease int64, live []replicate.NodeID) {
	r.mu.Lock()
	if r.closed || r.leader == nil && r.follower == nil {
		r.mu.Unlock()
		return
	}
	if r.leader != nil {
		r.ev = replicate.Event{Kind: replicate.EvLease, DeadlineNs: lease}
		r.step(&r.ev)
	}
	r.ev = replicate.Event{Kind: replicate.EvTick, Live: live}
	r.step(&r.ev)
	if r.damaged == nil { // who met it may have been a channel
		for _, ev := range r.isolated() {
			r.step(&ev)
		}
	}
	r.yieldUnwritten(r.cn.now())
	r.noteDiscarded()
	r.noteWhole()
	r.logComparing(r.cn.now())
	if r.leader != nil {
		r.count()
		r.fail(r.pending.expire(r.cn.now()-int64(r.cn.e.opts.PublishTimeout)), ErrUnknown)
		r.retryStalled() // a follower that is back says nothing that changes a mark
	}
	r.unlock()
}

// fault says that the commit log failed.
func (r *replica) fault(err error) {
	r.run(func() {
		r.fail(r.pending.drain(), ErrDisk)
		r.releaseIncoming()
		if r.cut != nil && r.cut.durable != nil {
			select {
			case r.cut.durable <- err:
			default: // its record is durable, and doCut has not taken the news yet
			}
			r.cut = nil
		}
		r.step(&replicate.Event{Kind: replicate.EvFault, Err: err})
	})
}

func (r *replica) releaseIncoming() {
	for i := range r.incoming {
		releaseBuf(r.incoming[i].frame)
	}
	clear(r.incoming)
	r.incoming = r.incoming[:0]
}
