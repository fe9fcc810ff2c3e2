package replicate

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"penstock/segment"
)

// followerState says what a follower may do.
type followerState uint8

const (
	idle      followerState = iota // no exchange in this epoch: the log may differ from the leader's
	reporting                      // it has reported; its log does not change until the leader answers
	cutting                        // the disk is cutting or resetting the log
	following                      // its log is a prefix of the leader's
)

func (s followerState) String() string {
	return [...]string{"idle", "reporting", "cutting", "following"}[s]
}

// Follower is the machine of a replica that does not lead. It has one owner, which passes in every event in the order
// in which it happened and carries out every action in the order in which it was returned. A Step allocates nothing
// once its buffers have grown.
//
//	Committed <= Durable <= End, Committed <= the leader's Committed
//
// An ack from it means: everything below is on stable storage here and equals the log of this epoch's leader.
//
// It takes Tick, Message, State, Durable, Trimmed, Fault, Corrupt, Repaired, Truncated, Unusable and Read.
type Follower struct {
	cfg  Config
	self Member
	boot uuid.UUID

	epoch   segment.Epoch // the newest heard of; messages of older epochs are refused (P7)
	leader  NodeID        // of that epoch; 0: unknown, or this node
	state   followerState
	request uint64 // number of the current exchange; 0: none in this epoch
	askedOf int    // number of repair requests: the leader and the other replicas are asked in turn
	asking  uint64 // while cutting: number of the leader's newest exchange

	log       Log // Epochs is unused; table has them
	table     EpochTable
	recent    recent
	matchedAt segment.Position // the end of the common part, from the exchange
	said      segment.Position // the leader's Committed, as it last said
	cutTo     segment.Position
	replicas  []NodeID
	askedAt   int64
	damage    damage
	anew      bool // the log is given up; see anew.go
	bare      bool // and this epoch's leader knows where it ended: reports show an empty log
	spared    bool // and a leader, of this epoch or an earlier one, needs nothing of it
	waits     bool // anew && !bare: it waits, because its device may read the log again
	// The store counts this replica as damaged, and has an ISR without it. The mark is needed because an older row may
	// be from before this replica joined the ISR.
	outside bool
	forced  segment.Epoch // State.Forced, as far as it was heard of
	err     error
}

// NewFollower starts a replica on its log as it stands. boot is new for every process, so that this process ignores
// answers to its predecessor.
func NewFollower(cfg Config, self Member, boot uuid.UUID, log Log) *Follower {
	f := &Follower{
		cfg: cfg.withDefaults(), self: self, boot: boot, log: log, epoch: max(log.Epoch, log.End.Epoch), askedAt: noTime,
	}
	f.table.Reset(log.Epochs)
	f.log.Committed = max(log.Committed, log.Start.Next)
	f.log.Epochs = nil
	f.recent = newRecent(log.End.Next, log.End.End, f.cfg.MaxWindowCount)
	return f
}

// Err returns why the replica refuses to follow, or nil.
func (f *Follower) Err() error { return f.err }

// Electable says whether this replica may be made leader if the store has it in the ISR: it can read everything that it
// holds.
func (f *Follower) Electable() bool      { return f.err == nil && !f.damaged() && f.state != cutting }
func (f *Follower) Epoch() segment.Epoch { return f.epoch }

// Committed returns the mark below which batches are visible on this replica.
func (f *Follower) Committed() segment.Position { return f.log.Committed }

// Exchange returns the number of the current exchange, in which the follower learned, or learns, where its log agrees
// with its leader's. Messages of other exchanges are dropped.
func (f *Follower) Exchange() uint64 { return f.request }

// Log returns the state that a successor machine of this replica starts from. It must not be called while a cut is
// under way. Epochs is borrowed until the next Step.
func (f *Follower) Log() Log {
	log := f.log
	log.Epoch, log.Epochs = f.epoch, f.table.Entries()
	return log
}

// Step takes one event at time now (ns, monotonic) and replaces the contents of acts by the actions to carry out.
func (f *Follower) Step(now int64, ev *Event, acts *Actions) {
	acts.reset()
	switch ev.Kind {
	case EvTick:
		f.tick(now, acts)
	case EvMessage:
		f.message(now, ev.Node, ev.Message, acts)
	case EvState:
		f.learn(now, ev.State, ev.Damaged, acts)
	case EvDurable:
		f.durable(ev, acts)
	case EvTrimmed:
		trimmable(ev, f.log.Committed)
		f.log.Start = ev.Log
		f.table.Trim(ev.Log.Next)
		f.damage.trim(ev.Log.Next)
	case EvFault:
		f.fail(errors.Join(ErrDisk, ev.Err), acts)
	case EvCorrupt:
		f.corrupt(ev)
		f.tellLeader(acts)
	case EvRepaired:
		f.damage.remove(ev.Position, ev.Until)
		f.tellLeader(acts)
	case EvTruncated:
		f.truncated(ev, acts)
	case EvRead:
		f.read(ev, acts)
	case EvUnusable:
		f.unusable(now, ev.Again, acts)
	default:
		panic(fmt.Sprintf("BUG: follower event %d", ev.Kind))
	}
	if f.err == nil {
		f.damage.tell(f.damaged(), acts)
		f.repair(now, acts)
	}
}

// learn takes a row from the store. It tells a replica that comes back which leader to ask.
func (f *Follower) learn(now int64, st *State, damaged bool, acts *Actions) {
	if f.forced = max(f.forced, st.Forced); errors.Is(f.err, ErrContested) && f.overruled() {
		f.err, f.state, f.askedAt = nil, idle, noTime
	}
	if st.Epoch >= f.epoch {
		f.replicas = append(f.replicas[:0], st.Replicas[:min(len(st.Replicas), MaxReplicaCount)]...)
		f.outside = damaged && len(st.ISR) > 0 && !slices.Contains(st.ISR, f.self)
	}
	if st.Epoch < f.epoch || st.Epoch == f.epoch && f.leader != 0 {
		return
	}
	f.adopt(st.Epoch, st.Leader)
	f.tick(now, acts)
}

// adopt turns to a newer epoch. Agreements with the previous leader are void, and so is the contest with it: the log of
// the new leader may have what the other one's lacked.
func (f *Follower) adopt(epoch segment.Epoch, leader NodeID) {
	if leader == f.self.Node {
		leader = 0
	}
	f.epoch, f.leader, f.request, f.said, f.askedAt = epoch, leader, 0, 0, noTime
	f.asking, f.bare = 0, false
	if errors.Is(f.err, ErrContested) {
		f.err = nil
	}
	if f.state != cutting {
		f.state = idle
	}
}

// tick asks the leader for an exchange, and repeats that every RetryNs: messages get lost, and a leader whose followers
// have everything is silent.
func (f *Follower) tick(now int64, acts *Actions) {
	if f.err != nil || f.leader == 0 || f.state == following || f.state == cutting || now-f.askedAt < f.cfg.RetryNs {
		return
	}
	f.askedAt = now
	f.send(MsgResync, acts)
}

// send begins a message to the leader.
func (f *Follower) send(kind MessageKind, acts *Actions) *Message {
	return f.sendTo(f.leader, kind, acts)
}

func (f *Follower) sendTo(node NodeID, kind MessageKind, acts *Actions) *Message {
	a := acts.add(ActSend)
	a.Node = node
	a.Message = Message{Kind: kind, Epoch: f.epoch, Request: f.request}
	return &a.Message
}

// fail ends following, for good or (ErrContested) while this leader leads. The data stays as it is.
func (f *Follower) fail(err error, acts *Actions) {
	if f.err != nil {
		return
	}
	f.err, f.damage.told = err, true
	acts.add(ActDamaged).Err = err
	if f.leader != 0 {
		f.refuse(acts)
	}
}

func (f *Follower) refuse(acts *Actions) {
	m := f.send(MsgReject, acts)
	m.Code, m.Position = RejectDamaged, f.log.End.Next
}

// message handles a message from another replica. A leader of an older epoch is told that there is a newer one (B6). A
// leader of a newer epoch is followed from now on, after an exchange (B7). A leader that cannot read its whole log does
// not lead yet: it asks for batches outside any exchange, as request 0, like any other replica.
func (f *Follower) message(now int64, from NodeID, m *Message, acts *Actions) {
	fromLeader := m.Kind >= MsgProbe && m.Kind <= MsgHeartbeat
	switch {
	case (m.Kind == MsgFetch || m.Kind == MsgRange) && m.Epoch == f.epoch && (from != f.leader || m.Request == 0):
		f.fromPeer(from, m, acts)
		return
	case !fromLeader && (m.Epoch != f.epoch || f.leader == 0 || from != f.leader):
		if m.Epoch > f.epoch {
			acts.add(ActRefresh)
		}
		return // an answer to a question that this node asked as leader
	case m.Epoch < f.epoch:
		r := f.sendTo(from, MsgReject, acts)
		r.Code, r.Request = RejectEpoch, m.Request
		return
	case m.Epoch > f.epoch || f.leader == 0:
		acts.add(ActRefresh)
		f.adopt(m.Epoch, from)
	case from != f.leader:
		return // the store grants an epoch once; no other node that claims it is followed
	}
	if f.err != nil {
		f.request = m.Request
		f.refuse(acts)
		return
	}
	switch {
	case m.Kind == MsgProbe:
		f.probe(m, now, acts)
	case m.Kind == MsgMatch || m.Kind == MsgReset:
		f.answer(now, m, acts)
	case m.Kind == MsgRange && (f.state == reporting && m.Request == f.request ||
		f.state == cutting && m.Request == f.asking):
		f.takeRange(m, acts)
	case f.state != following || m.Request != f.request:
		f.askAgain(m, now, acts)
	case m.Kind == MsgAppend:
		f.append(m, acts)
	case m.Kind == MsgHeartbeat:
		f.heartbeat(m, acts)
	case m.Kind == MsgFetch:
		f.fetch(from, m, acts)
	case m.Kind == MsgRange:
		f.takeRange(m, acts)
	}
}

// askAgain answers a frame of an exchange that this process does not know: the leader has not heard that it restarted.
// Frames of an older exchange are merely late and get no answer.
func (f *Follower) askAgain(m *Message, now int64, acts *Actions) {
	if f.state == cutting || f.state == reporting || m.Request < f.request {
		return
	}
	f.askedAt = now
	f.send(MsgResync, acts).Request = m.Request
}

// probe reports the log, which does not change from now on until the leader answers.
func (f *Follower) probe(m *Message, now int64, acts *Actions) {
	switch {
	case m.Request < f.request:
		return // late
	case f.state == cutting:
		f.asking = max(f.asking, m.Request) // the leader asks again when the cut is done
		return
	case m.Request == f.request && f.state == following:
		f.ack(acts) // the ack that followed Match or Reset was lost
		return
	}
	f.state, f.request, f.askedAt = reporting, m.Request, now
	r := f.send(MsgReport, acts)
	r.Boot, r.Store, r.Generation = f.boot, f.self.Store, f.log.Generation
	r.Start, r.Log, r.Epochs, r.Damaged = f.log.Start.Next, f.log.End, f.table.Entries(), f.damaged()
	r.Committed, r.Until, r.Shortened = f.log.Committed, f.log.Durable, f.log.Shortened
	if f.bare {
		r.bareReport()
	}
}

// answer acts on MsgMatch or MsgReset once, and only on the log that was reported (P5).
func (f *Follower) answer(now int64, m *Message, acts *Actions) {
	if f.state != reporting || m.Request != f.request || m.Boot != f.boot || m.Generation != f.log.Generation {
		return
	}
	to := m.Position
	if m.Kind == MsgReset {
		if !beginnable(m) {
			return
		}
		to = m.Log.Next
	}
	if f.anew {
		f.beginAnew(now, m, acts)
		return
	}
	switch {
	case m.Kind == MsgMatch && to > f.log.End.Next:
		f.fail(ErrDamaged, acts)
		return
	case to >= f.log.Committed && !f.cutsTooMuch(m, to):
	case f.overruled():
		f.state, f.askedAt = idle, now
		acts.add(ActDiscard).Err = ErrContested
		return
	default:
		// No replica ever cuts below the Committed that it knows (P1). One of the two lost acknowledged batches.
		f.fail(ErrContested, acts)
		return
	}
	switch {
	case m.Kind == MsgReset:
		f.reset(m, acts)
	case to == f.log.End.Next:
		f.follow(acts)
	default:
		f.log.Generation++ // completions of syncs that were asked for before do not count (P5)
		f.state, f.cutTo, f.asking = cutting, to, f.request
		f.log.Durable = min(f.log.Durable, to)
		f.table.Truncate(to)
		f.damage.cut(to)
		a := acts.add(ActTruncate)
		a.Position, a.Generation = to, f.log.Generation
	}
}

// cutsTooMuch says whether a cut to the position to takes more than leaders may have left uncommitted. Each epoch in
// the part that is cut had a leader of its own. What is above the mark that this replica knows may have been committed
// all the same, for example if the leader came back with an older disk.
func (f *Follower) cutsTooMuch(m *Message, to segment.Position) bool {
	if m.Kind != MsgMatch || to == f.log.End.Next {
		return false
	}
	epochs := 1 // the one that the first batch of that part may continue
	for _, e := range f.table.Entries() {
		if e.Position > to {
			epochs++
		}
	}
	return f.log.End.Next-to > segment.Position(epochs*f.cfg.uncommittedCount())
}

// uncommittedCount bounds the batches that one leader can leave uncommitted. Batches that were sealed together are
// admitted together, and those with confirmations are not counted: hence the factor.
func (c *Config) uncommittedCount() int { return 4*c.MaxPendingCount + 16 }

// overruled says that an operator has chosen a leader since this log was written, whatever that leader lacks.
func (f *Follower) overruled() bool { return f.forced > f.log.End.Epoch }

// beginnable says whether a log can begin as m says: its leader-epoch table is in order and ends before the log's first
// batch.
func beginnable(m *Message) bool {
	n := len(m.Epochs)
	if n > MaxEpochCount || !ordered(m.Epochs) || m.Log.End < 0 {
		return false
	}
	return n == 0 || m.Epochs[n-1].Position < m.Log.Next && m.Epochs[n-1].Epoch <= m.Epoch && m.Log.Epoch <= m.Epoch
}

// reset begins the log anew where the leader's log begins. Everything that this replica knows to be committed lies
// below that, where the leader's retention removed it. Nothing is acknowledged before the reset is on stable storage: a
// crash would bring back the old log, which holds nothing of what the ack would claim.
func (f *Follower) reset(m *Message, acts *Actions) {
	had := f.leaderHad(m)
	f.log.Generation++
	f.state, f.cutTo, f.asking = cutting, m.Log.Next, 0
	f.anew, f.bare, f.spared = false, false, false
	f.table.Reset(m.Epochs)
	f.damage.cut(0)
	f.log.Start, f.log.End, f.log.Durable, f.log.Committed = m.Log, m.Log, m.Log.Next, m.Log.Next
	f.log.Shortened = true // until it has what is committed
	a := acts.add(ActReset)
	a.Log, a.Generation, a.Flag = m.Log, f.log.Generation, had
}

// leaderHad says whether the leader that sends MsgReset once had all of this log. Then its retention removed that on
// purpose. If the two tables do not show it, the leader's log may have been another one, and what this log has may be
// nowhere else.
func (f *Follower) leaderHad(m *Message) bool {
	common, err := f.table.Common(f.log.End.Next, m.Epochs, m.Log.Next)
	return err == nil && common == f.log.End.Next
}

func (f *Follower) truncated(ev *Event, acts *Actions) {
	if f.state != cutting || ev.Generation != f.log.Generation {
		return
	}
	if ev.Log.Next != f.cutTo {
		panic(fmt.Sprintf("BUG: the log was to be cut to %d and ends at %d", f.cutTo, ev.Log.Next))
	}
	f.log.End = ev.Log
	f.recent.restart(ev.Log.Next, ev.Log.End)
	if f.request == 0 || f.err != nil {
		f.state = idle // a newer epoch came while the log was cut
		return
	}
	f.follow(acts)
}

func (f *Follower) follow(acts *Actions) {
	f.state, f.matchedAt = following, f.log.End.Next
	f.ack(acts)
}

// ack tells the leader what is durable. Acks are cumulative: a later one says at least as much. An ack also carries the
// offset of Durable, which is unknown below recent.first. So batches from before the exchange that are not synced yet
// are acknowledged only when all of them are.
func (f *Follower) ack(acts *Actions) {
	if f.log.Durable < f.recent.first {
		return
	}
	m := f.send(MsgAck, acts)
	m.Position, m.Committed, m.Damaged = f.log.Durable, f.log.Committed, f.damaged()
	m.Offset = f.recent.offset(f.log.Durable)
}

// tellLeader tells the leader at once that this replica is damaged, or healthy again: until it knows, the leader counts
// this replica wrongly.
func (f *Follower) tellLeader(acts *Actions) {
	if f.state == following && f.err == nil {
		f.ack(acts)
	}
}

func (f *Follower) durable(ev *Event, acts *Actions) {
	if ev.Generation != f.log.Generation || f.err != nil {
		return
	}
	end := f.log.End.Next
	if f.state == cutting {
		end = f.cutTo
	}
	if ev.Position > end {
		panic(fmt.Sprintf("BUG: durable %d beyond the end %d", ev.Position, end))
	}
	if ev.Position <= f.log.Durable {
		return
	}
	f.log.Durable = ev.Position
	if f.state == following {
		f.commit()
		f.ack(acts)
	}
}

// commit advances Committed to the leader's Committed, as far as the log is durable here.
func (f *Follower) commit() {
	f.log.Committed = max(f.log.Committed, min(f.said, f.log.Durable))
	f.whole()
}
