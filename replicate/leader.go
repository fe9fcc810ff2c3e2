package replicate

import (
	"errors"
	"fmt"
	"math"

	"github.com/google/uuid"

	"penstock/segment"
)

// Leader is one incarnation of a partition's leader. It decides which batches go to whom, how far the log is committed,
// who is in the ISR, and what may be appended. It has one owner, which passes in every event in the order in which it
// happened and carries out every action in the order in which it was returned. A Step allocates nothing once its
// buffers have grown.
//
//	Committed <= own Durable <= End, and Committed <= Match of every other member of the ISR
//	per follower: Match <= Next <= Match + MaxWindowCount
//
// All marks are half-open: everything below is held. None moves back.
//
// It takes Tick, Message, State, Durable, Trimmed, Fault, Corrupt, Repaired, Appended, Put, Lease, Read, Evicted
// and PeerDown.
type Leader struct {
	cfg   Config
	self  Member
	boot  uuid.UUID
	epoch segment.Epoch

	log        Log // Epochs is unused; table has them
	table      EpochTable
	recent     recent
	memory     segment.Position // batches below are read from segments, even if recent remembers them
	begun      segment.State    // the end of the log when this leader began; what it appends itself is not compared
	epochStart segment.Position // of the epoch-start batch; unknownPosition until it is appended
	joinFloor  segment.Position // what a follower must hold to join, whatever Committed is (P4)
	asked      bool             // ActStartEpoch was returned

	isr       isrState
	peers     []Progress // all other replicas, in the order of the state's Replicas
	request   uint64     // of the newest exchange
	comparing comparison
	damage    damage
	repairer  int // index of the peer that was asked last
	leaseNs   int64
	serving   bool
	absences  uint64 // see Counts
	losses    uint64 // see Counts
	stranding stranding
	steppedAt int64          // time of the previous Step
	blocked   bool           // too few members are healthy: without the others the ISR would fall below MinISR
	commitEnd segment.Offset // the offset of Committed, or of the end that this leader began with
	err       error
}

const unknownPosition segment.Position = math.MaxUint64

// NewLeader starts the incarnation that st grants to self and boot. log is this replica's log as it stands. The first
// Step returns the actions that must come first. st.Epoch must be newer than everything in the log: a leader that
// continued an old epoch could write different batches under numbers that followers already hold. For the same reason a
// process never makes a second Leader of one epoch.
func NewLeader(cfg Config, self Member, boot uuid.UUID, log Log, st *State, now int64) *Leader {
	l := &Leader{cfg: cfg.withDefaults(), self: self, boot: boot, epoch: st.Epoch, log: log, begun: log.End}
	l.table.Reset(log.Epochs)
	l.log.Committed = max(log.Committed, log.Start.Next) // retention removes only what is committed
	l.log.Epochs, l.log.Epoch = nil, st.Epoch
	if l.table.Last() >= st.Epoch || log.End.Epoch >= st.Epoch || log.Epoch > st.Epoch {
		panic(fmt.Sprintf("BUG: epoch %d is led a second time: the log already knows epoch %d",
			st.Epoch, max(l.table.Last(), log.Epoch)))
	}
	l.recent = newRecent(log.End.Next, log.End.End, l.cfg.MaxPendingCount)
	l.isr.joins = newLimiter(l.cfg.MaxISRJoins, l.cfg.ISRWindowNs)
	l.isr.changes = newLimiter(changesPerWindow(&l.cfg), l.cfg.ISRWindowNs)
	l.commitEnd = log.End.End // batches from before this leader do not count as pending
	l.epochStart, l.joinFloor = unknownPosition, unknownPosition
	l.comparing = newComparison(&log, st, now)
	l.steppedAt = now
	l.adopt(st, now)
	if !l.isr.member(self) {
		panic("BUG: a replica outside the ISR was made leader")
	}
	return l
}

func (l *Leader) Err() error           { return l.err }
func (l *Leader) Epoch() segment.Epoch { return l.epoch }

// Committed returns the mark below which batches are visible.
func (l *Leader) Committed() segment.Position { return l.log.Committed }

// Serving says whether deliveries and confirmations are allowed.
func (l *Leader) Serving() bool { return l.serving }

// Progress returns what the leader knows of its followers; borrowed until the next Step.
func (l *Leader) Progress() []Progress { return l.peers }

// ISR returns the members that the store has accepted; borrowed until the next Step.
func (l *Leader) ISR() []Member { return l.isr.members }

// MinISR returns how many members the ISR must have, by the newest row that the leader knows.
func (l *Leader) MinISR() int { return l.isr.minISR }

// Log returns the state that a successor machine of this replica starts from. Epochs is borrowed until the next Step.
func (l *Leader) Log() Log {
	log := l.log
	log.Epochs = l.table.Entries()
	return log
}

// Step takes one event at time now (ns, monotonic) and replaces the contents of acts by the actions to carry out.
func (l *Leader) Step(now int64, ev *Event, acts *Actions) {
	acts.reset()
	if l.err != nil {
		l.stopped(ev, acts)
		return
	}
	l.discount(now)
	for i := range l.peers {
		if p := &l.peers[i]; p.request == 0 {
			l.probe(p, now, acts)
		}
	}
	l.watchLease(now, ev, acts)
	l.take(now, ev, acts)
	if l.err != nil {
		return
	}
	l.compare(now, acts)
	if l.serving && !l.asked && !l.comparing.open {
		l.asked = true
		acts.add(ActStartEpoch)
	}
	l.damage.tell(l.damage.any(), acts)
	l.commit(acts) // first: who joins must hold what is committed now, not what was before
	l.propose(now, acts)
}

func (l *Leader) take(now int64, ev *Event, acts *Actions) {
	switch ev.Kind {
	case EvTick:
		if ev.LagMaxNs != 0 {
			l.cfg.LagMaxNs, l.cfg.CatchUpBytesPerSec = ev.LagMaxNs, ev.CatchUpBytesPerSec
		}
		l.tick(now, acts)
		l.giveUp(now, ev.Live, acts)
	case EvMessage:
		l.message(now, ev.Node, ev.Message, acts)
	case EvState:
		l.learn(ev.State, now, acts)
	case EvDurable:
		l.durable(ev)
	case EvTrimmed:
		trimmable(ev, l.log.Committed)
		l.log.Start = ev.Log
		l.table.Trim(ev.Log.Next)
		l.damage.trim(ev.Log.Next)
	case EvFault:
		l.stop(errors.Join(ErrDisk, ev.Err), acts)
	case EvCorrupt:
		l.damage.add(ev.Position, ev.Until)
		l.repair(now, acts)
	case EvRepaired:
		l.damage.remove(ev.Position, ev.Until)
		l.repair(now, acts)
	case EvAppended:
		l.appended(now, ev.Batches, acts)
	case EvPut:
		l.admit(acts)
	case EvLease: // watchLease has handled it
	case EvRead:
		l.read(now, ev, acts)
	case EvEvicted:
		l.evicted(now, ev, acts)
	case EvPeerDown:
		if p := l.peer(ev.Node); p != nil {
			p.Down = true
			l.probe(p, now, acts)
		}
	default:
		panic(fmt.Sprintf("BUG: leader event %d", ev.Kind))
	}
}

// trimmable panics if retention removed batches that are not committed.
func trimmable(ev *Event, committed segment.Position) {
	if ev.Log.Next > committed {
		panic(fmt.Sprintf("BUG: retention removed what is below %d, committed is %d", ev.Log.Next, committed))
	}
}

// watchLease notices when the lease has run out, and when it is valid again.
func (l *Leader) watchLease(now int64, ev *Event, acts *Actions) {
	if ev.Kind == EvLease {
		l.leaseNs = max(l.leaseNs, ev.DeadlineNs)
	}
	serving := now < l.leaseNs
	if serving == l.serving {
		return
	}
	l.serving = serving
	acts.add(ActServe).Flag = serving
	if serving {
		// A process that was stopped sees old answers first. No follower counts as behind because of that.
		for i := range l.peers {
			l.peers[i].caughtUpAt = now
		}
	}
}

// appended takes batches that are now at the end of the log, and sends them to every follower that has room, without
// waiting for the local disk. Batches that were sealed together leave in as few frames as their sizes allow: a frame
// costs more than a small batch, and the first of several frames could begin a write of its own at the follower.
func (l *Leader) appended(now int64, batches []Batch, acts *Actions) {
	end, needed := l.log.End.Next, l.needed()
	for i := range batches {
		l.appendedOne(&batches[i], needed)
	}
	for i := range l.peers {
		p := &l.peers[i]
		if p.Match == end {
			p.caughtUpAt = now // until now it lacked nothing
		}
		l.pump(p, now, acts)
	}
}

func (l *Leader) appendedOne(b *Batch, needed segment.Position) {
	if b.Position != l.log.End.Next || b.Offset != l.log.End.End || b.Epoch != l.epoch || b.PrevCRC != l.log.End.LastCRC {
		panic(fmt.Sprintf("BUG: batch %d of epoch %d does not continue the leader's log", b.Position, b.Epoch))
	}
	if l.epochStart == unknownPosition {
		if b.Count != 0 {
			panic("BUG: the first batch of an epoch must be its epoch-start batch")
		}
		l.epochStart, l.joinFloor = b.Position, b.Position+1
	}
	l.table.Note(EpochStart{Epoch: b.Epoch, Position: b.Position, Offset: b.Offset})
	l.recent.add(b, needed)
	advance(&l.log.End, b)
}

// needed returns the first position that is not committed yet or that a follower in step has not acknowledged.
func (l *Leader) needed() segment.Position {
	n := l.log.Committed
	for i := range l.peers {
		if p := &l.peers[i]; p.State == Replicate {
			n = min(n, p.Match)
		}
	}
	return n
}

func (l *Leader) durable(ev *Event) {
	if ev.Generation != l.log.Generation {
		return // the log was cut since that sync began
	}
	if ev.Position > l.log.End.Next {
		panic(fmt.Sprintf("BUG: durable %d beyond the end %d", ev.Position, l.log.End.Next))
	}
	l.log.Durable = max(l.log.Durable, ev.Position)
}

// commit advances Committed. Without a lease it commits nothing. The followers would refuse a deposed leader anyway:
// safety never rests on the clock.
func (l *Leader) commit(acts *Actions) {
	if !l.serving || l.comparing.open {
		return
	}
	q := Quorum{MinISR: l.isr.minISR, EpochStart: l.epochStart}
	for _, m := range l.isr.members {
		q.Member(l.durableOf(m))
	}
	for _, m := range l.isr.proposed {
		q.Also(l.durableOf(m))
	}
	for i := range l.peers {
		if p := &l.peers[i]; p.joining {
			q.Also(p.Match)
		}
	}
	to := q.Committed(l.log.Committed)
	if to == l.log.Committed {
		return
	}
	l.log.Committed = to
	l.whole()
	l.commitEnd = l.recent.offset(max(to, l.recent.first))
	acts.add(ActCommit).Position = to
}

// durableOf returns how far m is known to hold this leader's log. It is 0 if the node has reported another disk than
// m's, and if the replica cannot read what it stored.
func (l *Leader) durableOf(m Member) segment.Position {
	if m == l.self {
		return l.log.Durable
	}
	if p := l.peer(m.Node); p != nil && p.Store == m.Store && !p.Damaged {
		return p.Match
	}
	return 0
}

func (l *Leader) peer(n NodeID) *Progress {
	for i := range l.peers {
		if l.peers[i].Node == n {
			return &l.peers[i]
		}
	}
	return nil
}

// stop ends the incarnation. Waiting writes are refused; the outcome of batches that were appended and not committed is
// unknown.
func (l *Leader) stop(err error, acts *Actions) {
	l.err = err
	if l.serving {
		l.serving = false
		acts.add(ActServe)
	}
	acts.add(ActStepDown).Err = err
}

// stopped refuses writes of callers that have not heard that the leader stopped.
func (l *Leader) stopped(ev *Event, acts *Actions) {
	if ev.Kind == EvPut {
		acts.add(ActRefuse).Err = l.err
	}
}
