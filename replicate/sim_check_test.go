package replicate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"penstock/segment"
)

// fate says what became of a value.
type fate uint8

const (
	offered  fate = iota
	accepted      // some leader has appended it or is about to: it may surface
	acked         // its write was answered OK: it must stay for ever
	refusedFate
)

func (s *sim) refused(value uint64, err error) {
	if s.fate[value] == accepted || s.fate[value] == acked {
		s.fail("value %d was refused after it was accepted", value)
	}
	s.fate[value] = refusedFate
	s.tracef("put %d refused: %s", value, shortErr(err))
	if errors.Is(err, ErrFenced) && !errors.Is(err, ErrNotLeader) {
		s.fail("%v is not ErrNotLeader", err)
	}
	s.lastTold = err
}

// commit is called when a leader says that everything below to is committed. That must agree with everything that was
// committed before and continue it, and the leader's own puts are answered.
func (s *sim) commit(n *simNode, to segment.Position) {
	if len(n.leader.ISR()) < s.opt.min { // B2, B12
		s.fail("n%d commits %d with an ISR of %d, min is %d", n.id, to, len(n.leader.ISR()), s.opt.min)
	}
	s.tracef("n%d commits %d", n.id, to)
	for p := max(n.verified, n.disk.log.start.Next); p < to; p++ {
		b := n.disk.log.at(p)
		if int(p) < len(s.truth) {
			s.same(n, b)
		} else if int(p) == len(s.truth) {
			s.truth = append(s.truth, *b)
		} else {
			s.fail("n%d commits %d without what is before it", n.id, p)
		}
		if b.by != (process{n.id, n.process}) || b.Epoch != n.leader.Epoch() {
			continue
		}
		for _, v := range b.values {
			if s.fate[v] != accepted {
				s.fail("value %d is answered twice, or was never accepted", v)
			}
			s.fate[v] = acked
			s.tracef("put %d answered", v)
			s.stats.acks++
		}
	}
	n.verified = max(n.verified, to)
}

// same demands that a committed batch equals the batch committed at its position, wherever and whenever (invariant 8).
func (s *sim) same(n *simNode, b *simBatch) {
	if int(b.Position) >= len(s.truth) {
		s.fail("n%d shows position %d, which no leader has committed", n.id, b.Position)
		return
	}
	if t := &s.truth[b.Position]; t.CRC != b.CRC || t.Epoch != b.Epoch || t.Offset != b.Offset {
		s.fail("n%d has epoch %d crc %x at committed position %d, it was epoch %d crc %x",
			n.id, b.Epoch, b.CRC, b.Position, t.Epoch, t.CRC)
	}
}

// checkNode checks a node's marks after every step (invariants 1 and 5).
func (s *sim) checkNode(n *simNode) {
	var committed, durable, end segment.Position
	if l := n.leader; l != nil {
		committed, durable, end = l.log.Committed, l.log.Durable, l.log.End.Next
		for i := range l.peers {
			p := &l.peers[i]
			if p.Match > p.Next || p.Next > p.Match+segment.Position(l.cfg.MaxWindowCount) || p.Next > end {
				s.fail("n%d: follower %d: match %d next %d end %d window %d",
					n.id, p.Node, p.Match, p.Next, end, l.cfg.MaxWindowCount)
			}
			largest := int64(segment.HeaderBytes + 24)
			if in := int64(p.nextOffset - p.matchOffset); p.State == Replicate && p.Match < p.Next &&
				in > max(largest, l.cfg.MaxWindowBytes)+l.cfg.MaxRangeBytes*int64(l.cfg.MaxRangesInFlight+1)+largest {
				s.fail("n%d: %d bytes in flight to %d", n.id, in, p.Node)
			}
		}
	} else {
		f := n.follower
		committed, durable, end = f.log.Committed, f.log.Durable, f.log.End.Next
		if f.state == cutting {
			end = max(end, durable)
		}
		for p := max(n.verified, n.disk.log.start.Next); p < committed; p++ {
			s.same(n, n.disk.log.at(p))
		}
		n.verified = max(n.verified, committed)
	}
	if committed > durable || durable > end {
		s.fail("n%d: committed %d durable %d end %d", n.id, committed, durable, end)
	}
	if committed < n.committed {
		s.fail("n%d: committed moves back from %d to %d", n.id, n.committed, committed)
	}
	n.committed = committed
}

// checkSend demands that an ack covers only batches that are stable here (invariant 4).
func (s *sim) checkSend(n *simNode, to NodeID, p *packet) {
	if p.Kind != MsgAck {
		return
	}
	d := &n.disk
	if p.Position > d.stable.next() || p.Position > d.log.next() {
		s.fail("n%d acknowledges %d to n%d, only %d is stable", n.id, p.Position, to, d.stable.next())
		return
	}
	if at := p.Position; at > 0 && d.stable.holds(at-1) && d.log.holds(at-1) &&
		d.stable.at(at-1).CRC != d.log.at(at-1).CRC {
		s.fail("n%d acknowledges %d to n%d, another batch is stable there", n.id, at, to)
	}
}

// checkElectable is the central check: every replica that an election could choose now holds, on stable storage,
// everything that was ever committed. No acked message is lost while one ISR member's disk survives.
func (s *sim) checkElectable() {
	if len(s.truth) == 0 || s.violation != "" {
		return
	}
	last := &s.truth[len(s.truth)-1]
	for _, m := range s.store.state.ISR {
		n := s.nodes[m.Node-1]
		if n.disk.store != m.Store {
			continue // that disk is gone
		}
		if n.disk.lost || n.disk.forgot {
			continue // it compares its log before it uses it, or its leader has seen it
		}
		g := &n.disk.stable
		if s.dropHollow(g) {
			return
		}
		switch {
		case g.next() <= last.Position:
			s.fail("n%d is in the ISR and holds %d, committed is %d", n.id, g.next(), last.Position+1)
		case g.holds(last.Position) && g.at(last.Position).CRC != last.CRC:
			s.fail("n%d is in the ISR and holds crc %x at %d, committed is %x",
				n.id, g.at(last.Position).CRC, last.Position, last.CRC)
		}
	}
}

// dropHollow forgets that batches were committed which a log lacks, if nothing but first batches of epochs are among
// them and behind them, and members have forgotten. Such batches carry nothing that is not in front of them, and count
// for less than another member's batches, which may be what the others have forgotten (Leader.hasMore).
func (s *sim) dropHollow(g *simLog) bool {
	at := 0
	for at < len(s.truth) {
		t := &s.truth[at]
		if g.next() <= t.Position || g.holds(t.Position) && g.at(t.Position).CRC != t.CRC {
			break
		}
		at++
	}
	if at == len(s.truth) || s.stats.forgets == 0 || slices.ContainsFunc(s.truth[at:], func(b simBatch) bool {
		return len(b.values) > 0
	}) {
		return false
	}
	s.tracef("first batches of epochs from %d are no longer committed", at)
	s.truth = s.truth[:at]
	return true
}

// whole says whether the cluster has recovered: a leader commits new puts, all replicas are in the ISR, all logs are
// equal.
func (s *sim) whole(mark int) bool {
	l := s.leaderNode()
	if l == nil || len(s.truth) <= mark || len(s.store.state.ISR) != len(s.nodes) || s.acksAfter(mark) == 0 {
		return false
	}
	for _, n := range s.nodes {
		if !n.up || n.paused || !n.disk.intact() || n.committed != l.committed || n.disk.log.next() != l.disk.log.next() ||
			len(n.disk.pending) > 0 {
			return false
		}
		if !slices.Contains(s.store.state.ISR, n.member()) {
			return false
		}
	}
	return l.committed == l.disk.log.next()
}

func (s *sim) acksAfter(mark int) int {
	k := 0
	for _, b := range s.truth[mark:] {
		k += len(b.values)
	}
	return k
}

func (s *sim) leaderNode() *simNode {
	for _, n := range s.nodes {
		if n.up && n.leader != nil && n.leader.Err() == nil && n.leader.Epoch() == s.store.state.Epoch {
			return n
		}
	}
	return nil
}

// expectProgress demands that the cluster is whole again within a bounded time after the faults (liveness, B75, C10).
func (s *sim) expectProgress() {
	if !s.anyElectable() {
		return // every disk of the ISR is gone or damaged: stopping is right, an operator decides (P9, P11)
	}
	mark := len(s.truth)
	// A repair of two damaged places repairs all between them, and some ranges have one batch: while the damage gets less,
	// the time does not count.
	left := s.damagedCount()
	for i := 0; i < 120; i++ {
		if now := s.damagedCount(); now < left {
			left, i = now, min(i, 100)
		}
		if l := s.leaderNode(); l != nil && l.leader.Blocked() != 0 && i >= 20 && !s.giveUp(l) {
			return
		}
		for range 3 {
			if l := s.leaderNode(); l != nil && s.acksAfter(min(mark, len(s.truth))) < 20 {
				s.put(l)
			}
		}
		if !s.runUntil(s.now + 50_000_000) {
			return
		}
		if s.whole(mark) {
			return
		}
	}
	s.fail("not whole again 6 s after the last fault")
}

// damagedCount counts the batches that all nodes' machines know to be damaged.
func (s *sim) damagedCount() (count segment.Position) {
	for _, n := range s.nodes {
		switch {
		case n.leader != nil:
			count += n.leader.damage.until - n.leader.damage.from
		case n.follower != nil:
			count += n.follower.damage.until - n.follower.damage.from
		}
	}
	return count
}

// giveUp plays an operator when a leader waits for a damaged copy that may have more and is not repaired. The operator
// makes the leader the only member, if that loses nothing that was acknowledged; otherwise the operator looks for a
// node that can read its disk.
func (s *sim) giveUp(l *simNode) bool {
	if n := len(s.truth); n > 0 && (l.disk.log.next() < segmentPosition(n) ||
		l.disk.log.holds(s.truth[n-1].Position) && l.disk.log.at(s.truth[n-1].Position).CRC != s.truth[n-1].CRC) {
		return false
	}
	s.tracef("an operator makes n%d the only member", l.id)
	s.stats.forced++
	s.store.state.ISR, s.store.state.Short = []Member{l.member()}, nil
	s.store.state.Forced = s.store.state.Epoch
	s.store.state.Version++
	for _, n := range s.nodes {
		s.store.tell(n)
	}
	return true
}

func (s *sim) anyElectable() bool {
	for _, m := range s.store.state.ISR {
		if d := &s.nodes[m.Node-1].disk; d.store == m.Store && d.intact() {
			return true
		}
	}
	return false
}

// checkEnd compares all logs with the committed batches, and these with the puts (B1, B14, B94).
func (s *sim) checkEnd() {
	seen := make([]int, len(s.fate))
	for i := range s.truth {
		for _, v := range s.truth[i].values {
			seen[v]++
			if s.fate[v] == refusedFate {
				s.fail("value %d was refused and is committed", v)
			}
		}
	}
	for v, f := range s.fate {
		if seen[v] > 1 || f == acked && seen[v] != 1 {
			s.fail("value %d is committed %d times, fate %d", v, seen[v], f)
		}
	}
	for _, n := range s.nodes {
		for i := range n.disk.log.batches {
			if b := &n.disk.log.batches[i]; b.Position < n.committed {
				s.same(n, b)
			}
		}
	}
}

func (a *simStats) add(b *simStats) {
	a.steps += b.steps
	a.elections += b.elections
	a.acks += b.acks
	a.crashes += b.crashes
	a.cuts += b.cuts
	a.resets += b.resets
	a.repairs += b.repairs
	a.wipes += b.wipes
	a.trims += b.trims
	a.joins += b.joins
	a.tears += b.tears
	a.handovers += b.handovers
	a.strandings += b.strandings
	a.drops += b.drops
	a.forced += b.forced
	a.evictions += b.evictions
	a.forgets += b.forgets
	a.resumed += b.resumed
	a.quiet += b.quiet
	a.shorts += b.shorts
}

func membersText(ms []Member) string {
	var words []string
	for _, m := range ms {
		words = append(words, fmt.Sprintf("%d.%d", m.Node, int(m.Store[2])<<8|int(m.Store[3])))
	}
	return "{" + strings.Join(words, " ") + "}"
}

func shortText(ms []Member) string {
	if len(ms) == 0 {
		return ""
	}
	return " short " + membersText(ms)
}

func shortErr(err error) string {
	if err == nil {
		return "none"
	}
	text, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "replicate: "), ":")
	return text
}

var messageNames = [...]string{
	"", "probe", "match", "reset", "append", "heartbeat", "report", "ack", "gap", "reject", "resync", "fetch", "range",
}

func messageText(m *Message) string {
	text := fmt.Sprintf("%s e%d r%d", messageNames[m.Kind], m.Epoch, m.Request)
	switch m.Kind {
	case MsgAppend, MsgRange:
		text += fmt.Sprintf(" [%d,%d) committed %d", m.Position, m.Until, m.Committed)
	case MsgHeartbeat:
		text += fmt.Sprintf(" sent %d committed %d", m.Position, m.Committed)
	case MsgReport:
		text += fmt.Sprintf(" log [%d,%d) generation %d epochs", m.Start, m.Log.Next, m.Generation)
		for _, e := range m.Epochs {
			text += fmt.Sprintf(" %d@%d", e.Epoch, e.Position)
		}
	case MsgMatch, MsgGap:
		text += fmt.Sprintf(" %d", m.Position)
	case MsgReset:
		text += fmt.Sprintf(" begin at %d", m.Log.Next)
	case MsgAck:
		text += fmt.Sprintf(" %d committed %d", m.Position, m.Committed)
	case MsgReject:
		text += [...]string{"", " epoch", " argument", " damaged"}[m.Code]
	case MsgFetch:
		text += fmt.Sprintf(" [%d,%d)", m.Position, m.Until)
	}
	if m.Damaged {
		text += " damaged"
	}
	return text
}

func (s *sim) dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "store: epoch %d version %d leader %d isr %s; %d committed\n",
		s.store.state.Epoch, s.store.state.Version, s.store.state.Leader, membersText(s.store.state.ISR), len(s.truth))
	for _, n := range s.nodes {
		fmt.Fprintf(&b, "n%d %s up %v paused %v stable [%d,%d) log end %d committed %d pending %d electable %v failed %v",
			n.id, membersText([]Member{n.member()}), n.up, n.paused,
			n.disk.stable.start.Next, n.disk.stable.next(), n.disk.log.next(), n.committed, len(n.disk.pending), n.electable,
			n.disk.failed)
		if n.leader != nil {
			l := n.leader
			fmt.Fprintf(&b, " leads e%d serving %v blocked %v open %v damage [%d,%d) waiting %d\n",
				l.epoch, l.serving, l.blocked, l.isr.open, l.damage.from, l.damage.until, len(n.waiting))
			for i := range l.peers {
				p := &l.peers[i]
				fmt.Fprintf(&b, "   %d %v match %d next %d request %d damaged %v down %v lost %v joining %v reading %v budget %d\n",
					p.Node, p.State, p.Match, p.Next, p.request, p.Damaged, p.Down, p.lost, p.joining, p.reading, p.budget)
			}
		} else if n.follower != nil {
			f := n.follower
			fmt.Fprintf(&b, " follows %d e%d %v request %d err %v damage [%d,%d)\n",
				f.leader, f.epoch, f.state, f.request, shortErr(f.err), f.damage.from, f.damage.until)
		}
	}
	return b.String()
}
