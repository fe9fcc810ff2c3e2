package replicate

import (
	"slices"
	"testing"
)

// alive lets time pass in ticks, in which the store says that these nodes are alive, and returns the requests for
// another leader.
func (r *leaderRig) alive(d int64, nodes ...NodeID) (asked []Action) {
	for end := r.now + d*ms; r.now < end; {
		r.now += 10 * ms
		for _, a := range r.step(Event{Kind: EvTick, Live: nodes}) {
			if a.Kind == ActGiveUp {
				asked = append(asked, a)
			}
		}
	}
	return asked
}

// strandedRig is a leader with a batch that no other replica has.
func strandedRig(t *testing.T, nodes, minISR int) *leaderRig {
	r := newLeaderRig(t, Config{}, nodes, minISR)
	r.serve()
	r.now += 3600_000 * ms // idle: nobody sent or owed a message
	r.step(Event{Kind: EvTick, Live: []NodeID{1, 2, 3, 4}})
	r.append(1)
	r.durable(2)
	return r
}

// A leader that hears from none of its followers, although the store says that they are alive, asks for another leader:
// after StrandedNs, once per StrandedEveryNs, and as long as the store has not acted. If it follows in between, it
// still remembers when it may ask again.
func TestLeaderStranded(t *testing.T) {
	r := strandedRig(t, 3, 2)
	every, patience := int64(DefaultStrandedEveryNs/ms), int64(DefaultStrandedNs/ms)
	if a := r.alive(patience, 1, 2, 3); len(a) != 0 {
		t.Fatalf("it does not wait: %+v", a)
	}
	asked := r.alive(every-patience-2000, 1, 2, 3)
	if len(asked) < 2 || int64(len(asked)) > DefaultStrandedNs/DefaultRetryNs || !asked[0].Flag ||
		slices.ContainsFunc(asked[1:], func(a Action) bool { return a.Flag }) {
		t.Fatalf("asked %d times: %+v", len(asked), asked)
	}
	if s := &asked[0].State; asked[0].Node != 0 || s.Epoch != 1 || s.Version != 1 || s.Leader != 1 ||
		s.Boot != r.state.Boot {
		t.Fatalf("%+v", asked[0])
	}
	if n := r.l.Counts().Stranded; n != 1 || r.l.Committed() != 1 {
		t.Fatalf("counted %d times, committed %d", n, r.l.Committed())
	}
	f := NewFollower(Config{}, testMember(1), r.state.Boot, r.l.Log())
	r.state.Epoch, r.state.Version = 3, 3
	r.l = NewLeader(Config{}, testMember(1), r.state.Boot, f.Log(), &r.state, r.now)
	r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
	if a := r.alive(patience+1000, 1, 2, 3); len(a) != 0 {
		t.Fatalf("asked again too early: %+v", a)
	}
	if a := r.alive(2000, 1, 2, 3); len(a) == 0 {
		t.Fatal("it never asks again")
	}
}

// A leader that is not stranded does not give up: another leader would fare no better, or nothing is known to be wrong.
func TestLeaderNotStranded(t *testing.T) {
	for name, c := range map[string]struct {
		nodes, minISR int
		alive         []NodeID
		do            func(r *leaderRig)
	}{
		"nobody else lives":   {3, 2, []NodeID{1}, func(*leaderRig) {}},
		"one other lives":     {3, 2, []NodeID{1, 3}, func(*leaderRig) {}},
		"the two of two":      {2, 2, []NodeID{1, 2}, func(*leaderRig) {}},
		"it may commit alone": {3, 1, []NodeID{1, 2, 3}, func(*leaderRig) {}},
		"one other answers":   {3, 2, []NodeID{1, 2, 3}, func(r *leaderRig) { r.ack(2, 1) }},
		"one other has no copy": {
			3, 2, []NodeID{1, 2, 3}, func(r *leaderRig) { r.say(2, Message{Kind: MsgReject, Code: RejectAbsent}) },
		},
		"no lease":                      {3, 2, []NodeID{1, 2, 3}, func(r *leaderRig) { r.l.leaseNs = 0 }},
		"nothing waits, all is durable": {3, 2, []NodeID{1, 2, 3}, func(r *leaderRig) { r.ack(2, 2); r.ack(3, 2) }},
		"another disk came": {
			3, 2, []NodeID{1, 2, 3}, func(r *leaderRig) { r.say(3, Message{Kind: MsgReport, Store: simUUID('s', 3, 9)}) },
		},
	} {
		r := strandedRig(t, c.nodes, c.minISR)
		for range 20 {
			c.do(r)
			if asked := r.alive(1000, c.alive...); len(asked) > 0 {
				t.Errorf("%s: %+v", name, asked[0])
				break
			}
		}
	}
}

// If one member answers, but too few do, that member is asked to lead: it may reach those that this leader does not.
func TestLeaderStrandedBesideOne(t *testing.T) {
	r := strandedRig(t, 3, 3)
	var asked []Action
	for range 7 {
		r.ack(2, 1)
		asked = append(asked, r.alive(1000, 1, 2, 3)...)
	}
	if len(asked) == 0 || asked[0].Node != 2 {
		t.Errorf("%+v", asked)
	}
}

// One follower left the ISR before the other one fell silent, too: the next leader takes it in again.
func TestLeaderStrandedAfterOneLeft(t *testing.T) {
	r := strandedRig(t, 3, 2)
	r.step(Event{Kind: EvPeerDown, Node: 3})
	r.accept(testMember(1), testMember(2))
	if asked := r.alive(DefaultStrandedNs/ms+1000, 1, 2); len(asked) != 0 {
		t.Fatalf("nobody could join the other one, and it asked %d times", len(asked))
	}
	if asked := r.alive(1000, 1, 2, 3); len(asked) == 0 {
		t.Error("it does not give up")
	}
}

// A leader whose log was shortened waits for the others' logs and reaches nobody: another replica leads.
func TestLeaderStrandedWhileItCompares(t *testing.T) {
	r := shortRig(t, 3, 2)
	if asked := r.alive(DefaultStrandedNs/ms+1000, 1, 2, 3); len(asked) == 0 || !r.l.Comparing() {
		t.Errorf("%+v", asked)
	}
}

// A leader that was paused for longer than LagMax, but less than its lease, removes nobody when it goes on: the others'
// messages wait in its sockets. Lag from before the pause still counts.
func TestLeaderPaused(t *testing.T) {
	r := newLeaderRig(t, Config{LagMaxNs: 1000 * ms}, 3, 2)
	r.serve()
	r.alive(100, 1, 2, 3)
	r.append(1)
	r.durable(2)
	r.now += 5000 * ms
	for _, ev := range []Event{{Kind: EvLease, DeadlineNs: 1 << 60}, {Kind: EvTick}} {
		if p := find(r.step(ev), ActPropose); p != nil || r.l.blocked {
			t.Fatalf("it removes members that are healthy: %+v", p)
		}
	}
	r.ack(2, 2)
	if p := find(r.ack(3, 2), ActPropose); p != nil || r.l.Committed() != 2 {
		t.Fatalf("committed %d, %+v", r.l.Committed(), p)
	}
	r.append(1)
	r.durable(3)
	r.ack(2, 3)
	r.alive(900, 1, 2, 3)
	r.now += 5000 * ms
	if p := find(r.step(Event{Kind: EvTick}), ActPropose); p != nil {
		// A quarter of LagMax of the pause counts.
		if len(p.State.ISR) != 2 || slices.Contains(p.State.ISR, testMember(3)) {
			t.Fatalf("%+v", p.State.ISR)
		}
		return
	}
	t.Error("who was behind before the pause is forgiven")
}

// The time in which a leader was paused does not count against a member that said, just before, that it has no copy:
// the member may be opening one.
func TestLeaderPausedWithAnAbsentCopy(t *testing.T) {
	r := newLeaderRig(t, Config{LagMaxNs: 1000 * ms}, 3, 2)
	r.serve()
	r.alive(100, 1, 2, 3)
	absent := Message{Kind: MsgReject, Code: RejectAbsent}
	r.say(3, absent) // the leader first begins a new exchange
	r.say(3, absent)
	if r.l.peer(3).absent.count != 1 {
		t.Fatal("it does not count")
	}
	r.now += 5000 * ms
	if p := find(r.step(Event{Kind: EvTick}), ActPropose); p != nil {
		t.Fatalf("it removes a member for the time of its own pause: %+v", p)
	}
	for range 20 {
		r.now += 100 * ms
		if p := find(r.step(Event{Kind: EvTick}), ActPropose); p != nil && !slices.Contains(p.State.ISR, testMember(3)) {
			return
		}
	}
	t.Error("it stays a member for ever")
}
