package replicate

import (
	"fmt"

	"github.com/google/uuid"

	"penstock/segment"
)

// ProgressState says how the leader treats a follower.
type ProgressState uint8

// The states of a follower, as its leader sees them.
//
//	Probe      the leader asks what the follower has; it sends no batches
//	Replicate  the follower gets each batch as it is appended
//	CatchUp    the follower gets ranges of older batches, read from segments, at a limited rate
//	Snapshot   the follower was told to begin anew where the leader's log begins
//
// Every state returns to Probe when an answer does not fit or does not come.
const (
	Probe ProgressState = iota
	Replicate
	CatchUp
	Snapshot
)

func (s ProgressState) String() string {
	return [...]string{"probe", "replicate", "catch-up", "snapshot"}[s]
}

// Progress is what the leader knows of one follower. The Leader owns it; callers borrow it until the next Step. It is
// lost in a crash: the next leader begins with Probe and Match 0.
//
//	Match <= Next <= Match + MaxWindowCount; batches between the two are in flight
//
// Times are on the clock of Step's now, in ns. Each group of fields has a meaning only in the states named above it.
type Progress struct {
	Node    NodeID
	Store   uuid.UUID // its disk, as last reported
	State   ProgressState
	Damaged bool             // it said that its log is damaged: its acks do not count
	Down    bool             // its process is gone, and has not been heard since
	Match   segment.Position // it holds everything below, durably, in this epoch
	Next    segment.Position // the first batch not sent yet

	// Every state.
	request     uint64         // number of the newest exchange: answers to older ones are ignored (P5)
	heard       bool           // Store is known
	compared    bool           // report is set
	report      report         // its last one
	matchOffset segment.Offset // Match and Next as offsets
	nextOffset  segment.Offset
	committed   segment.Position // the Committed that it knows; 0 after a report
	sentAt      int64            // time of the last message to it
	heardAt     int64            // time of its last message in this epoch and exchange

	// Probe and Snapshot: the exchange.
	boot    uuid.UUID // process that reported in this exchange; zero until one has
	matched bool      // its report was answered: the next ack ends the exchange
	probeAt int64     // time of the last Probe; repeated after RetryNs or more: see absence
	absent  absence   // it says that it has no copy

	// Replicate and CatchUp: the batches on their way.
	movedAt   int64            // when Match last moved, or the first batch in flight was sent
	rewound   segment.Position // position of the last gap answered; not answered again within HeartbeatNs of rewoundAt
	rewoundAt int64
	reading   bool           // CatchUp: an ActRead is unanswered, for at most RetryNs after readAt
	readAt    int64          // when that read may begin: later than its request if the budget is used up
	budget    int64          // bytes that may be read for it now; negative after a range that was larger
	budgetAt  int64          // when budget was last computed
	budgetEnd segment.Offset // the end of the log at that time

	// Whether it belongs in the ISR: see Leader.propose. A follower is behind if it has lacked something for LagMaxNs.
	// markEnd is the end that the log had at its previous answer, at time markAt: an answer that reaches markEnd shows
	// that the follower now has everything that existed at markAt.
	caughtUpAt int64 // the last time at which it is known to have lacked nothing
	markEnd    segment.Position
	markAt     int64
	lost       bool             // it lacks batches that it had acknowledged: it should leave the ISR; see short.go
	stuck      bool             // removed for its lag, and Match has not passed stuckAt since: it may not join
	stuckAt    segment.Position // Match when it was proposed for removal
	joining    bool             // outside the ISR, but close: it holds Committed back as a member does (see mayJoin)
	joinUntil  int64            // joining: when that ends; otherwise the earliest time to join again
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

// probe begins a new exchange with p: from now on, messages of older exchanges are ignored (P5).
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

// owes says whether p lacks something or has yet to join the ISR: only then does it get heartbeats.
func (l *Leader) owes(p *Progress) bool {
	return p.Match < l.log.End.Next || p.committed < l.log.Committed || p.Damaged || !l.isr.member(p.member())
}

// catchUp begins to send p older batches. An unused budget is dropped, because it would allow a burst.
func (l *Leader) catchUp(p *Progress, now int64) {
	p.State, p.budget, p.budgetAt, p.budgetEnd = CatchUp, 0, now, l.log.End.End
}

// pump sends p as many batches as its window has room for.
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
		l.probe(p, now, acts) // retention was faster: a new exchange tells p where the log begins
	case p.State == Replicate:
		l.pumpRecent(p, now, acts)
	default:
		l.pumpPast(p, now, acts)
	}
}

// inMemory says whether batches from pos on can be sent without a read, as far as the machine knows.
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
			return // the batch does not fit beside those in flight
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

// pumpPast asks for the next range. One range is read at a time, while earlier ranges are in flight.
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

// minRangeBytes is the smallest range worth a read, however low the limit is.
const minRangeBytes = 64 << 10

// rangeBytes returns the size of the next range: with a rate limit, no more than a burst.
func (l *Leader) rangeBytes() int64 {
	if rate := l.cfg.CatchUpBytesPerSec; rate != 0 {
		return min(max(bytesIn(burstNs, rate), minRangeBytes), l.cfg.MaxRangeBytes)
	}
	return l.cfg.MaxRangeBytes
}

// burstNs is how much of the rate, as a time, may be sent at once: commits wait behind a burst on a shared disk.
const burstNs = 10_000_000

// refill adds what the rate limit has allowed since the last call and returns how long the next read has to wait. The
// bytes appended since then are allowed on top of the rate: otherwise a follower would never catch up with a log that
// grows faster than its limit.
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

// bytesIn returns the bytes that rate allows in ns, at most a second, without overflow.
func bytesIn(ns, rate int64) int64 {
	return rate/1_000_000*(ns/1000) + rate%1_000_000*(ns/1000)/1_000_000
}

// read takes the answer to ActRead.
func (l *Leader) read(now int64, ev *Event, acts *Actions) {
	p := l.peer(ev.Node)
	switch {
	case p == nil || ev.Request != p.request:
		return // p is in another exchange by now
	case ev.Purpose == ReadRepair:
		l.sendRange(p, ev.Position, ev.Until, now, acts)
		return
	case ev.Purpose == ReadCompare:
		l.identified(p, ev, now, acts)
		return
	case p.State != CatchUp || !p.reading || ev.Position != p.Next:
		return // or p's next batches are others by now
	}
	p.reading = false
	if ev.Until == ev.Position {
		p.reading, p.readAt = true, now // no other read before RetryNs
		return
	}
	p.budget -= int64(ev.Offset - p.nextOffset)
	l.sendBatches(p, ev.Until, ev.Offset, now, acts)
	l.pump(p, now, acts)
}

// evicted takes the answer to an ActSend whose batches are no longer in memory: p gets them from segments, as in
// catch-up.
func (l *Leader) evicted(now int64, ev *Event, acts *Actions) {
	if ev.Until <= ev.Position {
		panic(fmt.Sprintf("BUG: batch %d is not in memory, which begins at %d", ev.Position, ev.Until))
	}
	l.memory = max(l.memory, ev.Until)
	p := l.peer(ev.Node)
	if p == nil || p.State != Replicate || ev.Request != p.request || ev.Position < p.Match || ev.Position >= p.Next {
		return // the unsent batches are not wanted any more, or will be sent again anyway
	}
	p.Next, p.nextOffset = p.Match, p.matchOffset
	if l.recent.first <= ev.Position {
		p.Next, p.nextOffset = ev.Position, l.recent.offset(ev.Position)
	}
	l.pump(p, now, acts)
}
