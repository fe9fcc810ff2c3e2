package replicate

import (
	"fmt"

	"github.com/google/uuid"

	"penstock/segment"
)

// ProgressState says what the leader does about a follower.
type ProgressState uint8

// The states of a follower, as its leader sees them.
//
//	Probe      it is asked what it has; nothing is sent
//	Replicate  it gets each batch as it is appended
//	CatchUp    it gets ranges of the past, read from segments, at a limited rate
//	Snapshot   it was told to begin anew where the leader's log begins
//
// Every state goes to Probe when an answer does not fit or does not come.
const (
	Probe ProgressState = iota
	Replicate
	CatchUp
	Snapshot
)

func (s ProgressState) String() string {
	return [...]string{"probe", "replicate", "catch-up", "snapshot"}[s]
}

// Progress is what the leader knows of one follower. The Leader owns it; users borrow it until the next Step. A crash
// loses it: the next leader begins with Probe and Match 0.
//
//	Match <= Next <= Match + MaxWindowCount; what lies between the two is in flight
//
// Times are those of Step's now, in ns. A group of fields means something only in the states that stand above it.
type Progress struct {
	Node    NodeID
	Store   uuid.UUID // its disk, once it has reported
	State   ProgressState
	Damaged bool             // it said so: its acks do not count
	Down    bool             // its process is gone; until it is heard of again
	Match   segment.Position // it holds everything below, durably, in this epoch
	Next    segment.Position // the first batch not sent yet

	// Every state.
	request     uint64           // number of the newest exchange: answers to older ones are ignored (P5)
	heard       bool             // Store is known
	compared    bool             // end and endEpoch are those of its last report
	end         segment.Position // of its log, in that report
	endEpoch    segment.Epoch    // likewise
	matchOffset segment.Offset   // Match and Next in bytes
	nextOffset  segment.Offset
	committed   segment.Position // the commit mark that it knows; 0 after a report
	sentAt      int64            // last message to it
	heardAt     int64            // last message from it in this epoch and exchange

	// Probe and Snapshot: the exchange.
	boot    uuid.UUID // of the process that reported in this exchange; zero until one has
	matched bool      // the report was answered: the next ack ends the exchange
	probeAt int64     // when it was asked last; again after RetryNs, or later: see absence
	absent  absence   // it says that it has no copy

	// Replicate and CatchUp: what is on its way.
	movedAt   int64            // when Match moved last, or the first batch in flight was sent
	rewound   segment.Position // the gap that was answered last; not again within HeartbeatNs of rewoundAt
	rewoundAt int64
	reading   bool           // CatchUp: an ActRead is not answered; not longer than RetryNs after readAt
	readAt    int64          // when that read may begin: later than it was asked for, if the budget was used up
	budget    int64          // bytes that may be read for it now; below 0 if a range was larger
	budgetAt  int64          // when budget was computed last
	budgetEnd segment.Offset // the end of the log then

	// Whether it belongs into the ISR: see Leader.propose. It is behind if it lacked something for LagMaxNs. Each answer
	// that reaches markEnd, the end of the log at the answer before (at markAt), shows that it lacked nothing then.
	caughtUpAt int64 // the last time at which it lacked nothing, as far as that is known
	markEnd    segment.Position
	markAt     int64
	lost       bool             // it lacks what it had acknowledged, until it holds it again: it should not be in the ISR
	stuck      bool             // it was removed for its lag, and Match has not passed stuckAt since: it may not join
	stuckAt    segment.Position // Match when it was proposed for removal
	joining    bool             // outside the ISR and close: it holds Committed back as a member does (see mayJoin)
	joinUntil  int64            // joining: when that ends; else not before this time again
}

func (p *Progress) member() Member { return Member{Node: p.Node, Store: p.Store} }

// send begins a message to p.
func (l *Leader) send(p *Progress, kind MessageKind, now int64, acts *Actions) *Message {
	a := acts.add(ActSend)
	a.Node = p.Node
	a.Message = Message{Kind: kind, Epoch: l.epoch, Request: p.request, Committed: l.log.Committed}
	p.sentAt = now
	return &a.Message
}

// probe begins a new exchange: whatever p says from now on about an older one is not listened to (P5).
func (l *Leader) probe(p *Progress, now int64, acts *Actions) {
	l.request++
	p.boot = uuid.UUID{}
	p.State, p.request, p.matched, p.reading, p.joining = Probe, l.request, false, false, false
	p.Next, p.nextOffset = p.Match, p.matchOffset
	l.askAgain(p, now, acts)
}

func (l *Leader) askAgain(p *Progress, now int64, acts *Actions) {
	p.probeAt = now
	l.send(p, MsgProbe, now, acts)
}

// tick sends what is due. A follower that has everything and knows it gets nothing: an idle partition is silent.
func (l *Leader) tick(now int64, acts *Actions) {
	for i := range l.peers {
		p := &l.peers[i]
		switch {
		case p.State == Probe || p.State == Snapshot:
			if now-p.probeAt >= p.absent.pause(l.cfg.RetryNs) {
				l.askAgain(p, now, acts)
			}
		case p.Match < p.Next && now-max(p.movedAt, p.heardAt) >= l.cfg.RetryNs:
			l.probe(p, now, acts)
		default:
			if p.reading && now-p.readAt >= l.cfg.RetryNs {
				p.reading = false
			}
			l.pump(p, now, acts)
			if l.owes(p) && now-p.sentAt >= l.cfg.HeartbeatNs {
				l.send(p, MsgHeartbeat, now, acts).Position = p.Next
			}
		}
	}
	l.repair(now, acts)
}

// owes says whether p lacks something or has yet to join: only then are there heartbeats.
func (l *Leader) owes(p *Progress) bool {
	return p.Match < l.log.End.Next || p.committed < l.log.Committed || p.Damaged || !l.isr.member(p.member())
}

// catchUp begins to send p the past. What was allowed before is gone: it would come as a burst.
func (l *Leader) catchUp(p *Progress, now int64) {
	p.State, p.budget, p.budgetAt, p.budgetEnd = CatchUp, 0, now, l.log.End.End
}

// pump sends p what its window has room for.
func (l *Leader) pump(p *Progress, now int64, acts *Actions) {
	if p.State == CatchUp && !p.reading && l.inMemory(p.Next) {
		p.State = Replicate
	}
	if p.State == Replicate && !l.inMemory(p.Next) {
		l.catchUp(p, now)
	}
	switch {
	case p.State != Replicate && p.State != CatchUp:
	case p.Next < l.log.Start.Next:
		l.probe(p, now, acts) // retention was faster: the exchange will say so
	case p.State == Replicate:
		l.pumpRecent(p, now, acts)
	default:
		l.pumpPast(p, now, acts)
	}
}

// inMemory says whether batches from pos on can be sent without a read, as far as this machine knows.
func (l *Leader) inMemory(pos segment.Position) bool { return pos >= l.recent.first && pos >= l.memory }

func (l *Leader) pumpRecent(p *Progress, now int64, acts *Actions) {
	for p.Next < l.log.End.Next {
		count := l.cfg.MaxWindowCount - int(p.Next-p.Match)
		bytes := l.cfg.MaxWindowBytes - int64(p.nextOffset-p.matchOffset)
		if count <= 0 || bytes <= 0 {
			return
		}
		until := l.recent.reach(p.Next, min(bytes, l.cfg.MaxSendBytes), count)
		end := l.recent.offset(until)
		if p.Match < p.Next && int64(end-p.nextOffset) > bytes {
			return // one batch alone, and it has no room beside what is in flight
		}
		l.sendBatches(p, until, end, now, acts)
	}
}

func (l *Leader) sendBatches(p *Progress, until segment.Position, end segment.Offset, now int64, acts *Actions) {
	if p.Match == p.Next {
		p.movedAt = now
	}
	m := l.send(p, MsgAppend, now, acts)
	m.Position, m.Until = p.Next, until
	p.Next, p.nextOffset = until, end
}

// pumpPast asks for the next range. Reads follow one another, what was read is in flight at the same time.
func (l *Leader) pumpPast(p *Progress, now int64, acts *Actions) {
	inFlight := int64(p.nextOffset - p.matchOffset)
	count := l.cfg.MaxWindowCount - int(p.Next-p.Match)
	if p.reading || count <= 0 || inFlight >= l.cfg.MaxRangeBytes*int64(l.cfg.MaxRangesInFlight) {
		return
	}
	wait := l.refill(p, now)
	p.reading, p.readAt = true, now+wait
	a := acts.add(ActRead)
	a.Node, a.Request, a.Position, a.Bytes, a.Count, a.DelayNs = p.Node, p.request, p.Next, l.rangeBytes(), count, wait
}

// minRangeBytes is worth a read however low the limit is.
const minRangeBytes = 64 << 10

// rangeBytes is the size of the next range: with a limit no more than a burst.
func (l *Leader) rangeBytes() int64 {
	if rate := l.cfg.CatchUpBytesPerSec; rate != 0 {
		return min(max(bytesIn(burstNs, rate), minRangeBytes), l.cfg.MaxRangeBytes)
	}
	return l.cfg.MaxRangeBytes
}

// burstNs is how much of the rate may come at once: commits wait behind a burst on a disk that several share.
const burstNs = 10_000_000

// refill adds what the rate limit allows since the last time and says how long the next read has to wait. What was
// appended meanwhile is allowed beside the rate: a follower would never catch up with a log that grows faster than its
// limit.
func (l *Leader) refill(p *Progress, now int64) (waitNs int64) {
	rate := l.cfg.CatchUpBytesPerSec
	if rate == 0 {
		return 0
	}
	elapsed := min(max(now-p.budgetAt, 0), 1_000_000_000)
	p.budget = min(p.budget+bytesIn(elapsed, rate), bytesIn(burstNs, rate))
	p.budget += min(max(int64(l.log.End.End-p.budgetEnd), 0), l.cfg.MaxPendingBytes)
	p.budgetAt, p.budgetEnd = now, l.log.End.End
	return max(-p.budget, 0) * 1_000_000_000 / rate
}

// bytesIn is what a rate makes of a time of at most a second, without overflow.
func bytesIn(ns, rate int64) int64 {
	return rate/1_000_000*(ns/1000) + rate%1_000_000*(ns/1000)/1_000_000
}

// read takes the answer to ActRead.
func (l *Leader) read(now int64, ev *Event, acts *Actions) {
	p := l.peer(ev.Node)
	switch {
	case p == nil || ev.Request != p.request:
		return // p has another exchange by now
	case ev.Repair:
		l.sendRange(p, ev.Position, ev.Until, now, acts)
		return
	case p.State != CatchUp || !p.reading || ev.Position != p.Next:
		return // or other batches are its next ones
	}
	p.reading = false
	if ev.Until == ev.Position {
		p.reading, p.readAt = true, now // not again before RetryNs
		return
	}
	p.budget -= int64(ev.Offset - p.nextOffset)
	l.sendBatches(p, ev.Until, ev.Offset, now, acts)
	l.pump(p, now, acts)
}

// evicted takes the answer to an ActSend whose batches memory does not have any more: p gets them from segments, like a
// follower that catches up.
func (l *Leader) evicted(now int64, ev *Event, acts *Actions) {
	if ev.Until <= ev.Position {
		panic(fmt.Sprintf("BUG: batch %d is not in memory, which begins at %d", ev.Position, ev.Until))
	}
	l.memory = max(l.memory, ev.Until)
	p := l.peer(ev.Node)
	if p == nil || p.State != Replicate || ev.Request != p.request || ev.Position < p.Match || ev.Position >= p.Next {
		return // what was not sent is not wanted any more, or is to be sent again anyway
	}
	p.Next, p.nextOffset = p.Match, p.matchOffset
	if l.recent.first <= ev.Position {
		p.Next, p.nextOffset = ev.Position, l.recent.offset(ev.Position)
	}
	l.pump(p, now, acts)
}
