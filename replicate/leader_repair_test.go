package replicate

import (
	"testing"

	"penstock/segment"
)

// The leader reads batches that a follower cannot read; the follower need not ask again for those that retention has
// removed.
func TestLeaderRepairsAFollower(t *testing.T) {
	r := newLeaderRig(t, Config{MaxWindowCount: 3}, 2, 1)
	r.serve()
	for range 8 {
		r.append(1)
		r.durable(r.log.next())
		r.ack(2, r.log.next())
	}
	r.step(Event{Kind: EvTrimmed, Log: r.log.stateAt(2)})
	for _, c := range []struct{ from, until, read segment.Position }{
		{3, 5, 5}, {3, 9, 6}, {8, 20, 9}, {9, 10, 0}, {4, 4, 0},
	} {
		a := find(r.say(2, Message{Kind: MsgFetch, Position: c.from, Until: c.until}), ActRead)
		if (a != nil) != (c.read > 0) || a != nil && (a.Position != c.from || a.Count != int(c.read-c.from) ||
			a.Purpose != ReadRepair) {
			t.Errorf("[%d,%d): %+v", c.from, c.until, a)
		}
	}
	answer := func(request uint64, until segment.Position) *Message {
		return sent(r.step(Event{
			Kind: EvRead, Node: 2, Request: request, Position: 3, Until: until, Purpose: ReadRepair,
		}), 2, MsgRange)
	}
	request := r.l.peer(2).request
	if m := answer(request, 5); m == nil || m.Position != 3 || m.Until != 5 || m.Start != 2 || m.Request != request {
		t.Errorf("%+v", m)
	}
	if m := answer(request-1, 5); m != nil {
		t.Errorf("an answer of an older exchange is sent: %+v", m)
	}
	if m := answer(request, 3); m != nil {
		t.Errorf("an answer without batches is sent: %+v", m)
	}
	acts := r.say(2, Message{Kind: MsgFetch, Position: 1, Until: 4})
	if m := sent(acts, 2, MsgRange); m == nil || m.Position != 1 || m.Until != 1 || m.Start != 2 {
		t.Errorf("it does not say that batch 1 is gone: %+v", acts)
	}
}

// A leader that cannot read its own log removes no member, because that may be the last good copy. It does not send a
// reset to a member either.
func TestLeaderKeepsGoodCopies(t *testing.T) {
	r := newLeaderRig(t, Config{LagMaxNs: 100 * ms}, 3, 1)
	r.serve()
	for range 5 {
		r.append(1)
		r.durable(r.log.next())
		r.ack(2, r.log.next())
		r.ack(3, r.log.next())
	}
	acts := r.step(Event{Kind: EvCorrupt, Position: 2, Until: 3})
	if sent(acts, 2, MsgFetch) == nil && sent(acts, 3, MsgFetch) == nil || find(acts, ActDamaged) == nil {
		t.Fatalf("%+v", acts)
	}
	if find(r.step(Event{Kind: EvPeerDown, Node: 3}), ActPropose) != nil {
		t.Fatal("a damaged leader removes somebody")
	}
	if find(r.step(Event{Kind: EvRepaired, Position: 2, Until: 3}), ActPropose) == nil {
		t.Fatal("a healthy one does not")
	}
	r.step(Event{Kind: EvTrimmed, Log: r.log.stateAt(4)})
	r.say(2, Message{Kind: MsgResync})
	report := Message{Kind: MsgReport, Store: testMember(2).Store, Log: r.log.stateAt(2), Epochs: table(1, 0)}
	if sent(r.say(2, report), 2, MsgReset) != nil {
		t.Fatal("a member of the ISR is told to forget its log")
	}
	r.accept(testMember(1), testMember(3))
	if sent(r.say(2, report), 2, MsgReset) == nil {
		t.Fatal("nobody else can help it")
	}
}
