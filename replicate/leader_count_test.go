package replicate

import (
	"slices"
	"testing"
)

// P6 P8: an ISR below its minimum commits nothing, even if all of its members and the proposed members hold everything.
// A proposed member counts toward the minimum only once the store has accepted it.
func TestLeaderBelowMinISR(t *testing.T) {
	r := newLeaderRig(t, Config{}, 2, 2)
	r.state.Epoch, r.state.ISR = 2, []Member{testMember(1)}
	r.l = NewLeader(Config{}, testMember(1), r.state.Boot, Log{}, &r.state, r.now)
	r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
	r.append(0)
	if r.durable(1); r.l.Committed() != 0 {
		t.Fatal("one replica commits, and two are demanded")
	}
	r.exchange(2, 0)
	r.append(1)
	r.durable(2)
	r.ack(2, 2)
	if !r.l.isr.open || !slices.Contains(r.l.isr.proposed, testMember(2)) {
		t.Fatal("node 2 is not proposed")
	}
	r.append(1)
	r.durable(3)
	if r.ack(2, 3); r.l.Committed() != 0 {
		t.Fatalf("committed %d with a member that the store has not accepted", r.l.Committed())
	}
	if r.accept(testMember(1), testMember(2)); r.l.Committed() != 3 {
		t.Fatalf("committed %d with both", r.l.Committed())
	}
}

// A member that cannot read what it stored does not count, even though it acknowledges.
func TestLeaderDamagedMember(t *testing.T) {
	r := newLeaderRig(t, Config{}, 2, 2)
	r.serve()
	r.append(1)
	r.durable(2)
	ack := Message{Kind: MsgAck, Position: 2, Offset: r.log.stateAt(2).End, Damaged: true}
	if r.say(2, ack); r.l.Committed() != 1 {
		t.Fatalf("committed %d by a damaged copy", r.l.Committed())
	}
	r.ack(2, 2) // the leader asks whether that is true
	if r.exchange(2, 2); r.l.Committed() != 2 {
		t.Fatalf("committed %d after its repair", r.l.Committed())
	}
}

// P5: a sync that was requested before a cut says nothing about the log after the cut.
func TestLeaderDurableOfAnOlderLog(t *testing.T) {
	r := newLeaderRig(t, Config{}, 1, 1)
	r.state.Epoch = 2
	r.l = NewLeader(Config{}, testMember(1), r.state.Boot, Log{Generation: 3}, &r.state, r.now)
	r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
	r.append(0)
	if r.step(Event{Kind: EvDurable, Position: 1, Generation: 2}); r.l.Committed() != 0 {
		t.Fatal("a sync of the log before the cut counts")
	}
	if r.step(Event{Kind: EvDurable, Position: 1, Generation: 3}); r.l.Committed() != 1 {
		t.Fatal("a sync of this log does not count")
	}
}

// A proposed member may be in the ISR by now, so it is not told to begin its log anew either.
func TestLeaderKeepsAProposedCopy(t *testing.T) {
	r := newLeaderRig(t, Config{}, 3, 1)
	r.serve()
	r.step(Event{Kind: EvPeerDown, Node: 3})
	r.accept(testMember(1), testMember(2))
	for range 4 {
		r.append(1)
		r.durable(r.log.next())
		r.ack(2, r.log.next())
	}
	r.exchangeAgain(3)
	r.ack(3, r.log.next())
	if !slices.Contains(r.l.isr.proposed, testMember(3)) {
		t.Fatal("node 3 is not proposed")
	}
	r.step(Event{Kind: EvTrimmed, Log: r.log.stateAt(4)})
	r.say(3, Message{Kind: MsgResync})
	report := Message{Kind: MsgReport, Store: testMember(3).Store, Log: r.log.stateAt(2), Epochs: table(1, 0)}
	if sent(r.say(3, report), 3, MsgReset) != nil {
		t.Fatal("a member that was proposed is told to forget its log")
	}
}
