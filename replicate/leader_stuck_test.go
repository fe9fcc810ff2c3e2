package replicate

import (
	"slices"
	"testing"
)

// settle accepts every proposal as soon as it is made, as a fast store does, and returns the number of proposals.
func (r *leaderRig) settle(acts []Action) (changes int) {
	r.t.Helper()
	acts = slices.Clone(acts)
	for p := find(acts, ActPropose); p != nil; p = find(acts, ActPropose) {
		if changes++; changes > 1000 {
			r.t.Fatal("the leader and the store propose to each other for ever")
		}
		acts = slices.Clone(r.accept(slices.Clone(p.State.ISR)...))
	}
	return changes
}

// F1: a follower whose disk hangs still answers every heartbeat, but acknowledges nothing new. It leaves the ISR once
// and stays out, while the others go on committing. When its disk works again, it joins again by itself, once.
func TestLeaderStuckFollower(t *testing.T) {
	r := newLeaderRig(t, Config{LagMaxNs: 100 * ms, HeartbeatNs: 10 * ms, JoinNs: 20 * ms}, 3, 2)
	r.serve()
	r.append(1)
	r.durable(2)
	r.ack(2, 2)
	changes, waited, longest := 0, 0, 0
	for range 500 { // 5 s under load; node 3 never holds position 1
		r.now += 10 * ms
		changes += r.settle(r.step(Event{Kind: EvTick}))
		changes += r.settle(r.ack(3, 1))
		before := r.l.Committed()
		r.append(1)
		r.durable(r.log.next())
		changes += r.settle(r.ack(2, r.log.next()))
		if waited++; r.l.Committed() > before {
			waited = 0
		}
		longest = max(longest, waited)
	}
	if changes != 1 || r.l.isr.member(testMember(3)) || r.l.Committed() != r.log.next() {
		t.Fatalf("%d ISR changes, the ISR is %v, committed %d of %d", changes, r.l.ISR(), r.l.Committed(), r.log.next())
	}
	if longest > 12 {
		t.Errorf("nothing was committed for %d ms; a stuck member may hold it back for LagMax, 100 ms", longest*10)
	}
	if n := r.l.Counts().ISRChanges; n != 1 {
		t.Errorf("%d changes are counted", n)
	}

	r.say(3, Message{Kind: MsgResync}) // its disk works again
	r.exchange(3, 1)
	read := find(r.acts.List, ActRead)
	for read != nil {
		from := read.Position
		until := min(from+100, r.log.next())
		r.step(Event{
			Kind: EvRead, Node: 3, Request: read.Request, Position: from, Until: until, Offset: r.log.stateAt(until).End,
		})
		acts := slices.Clone(r.ack(3, until))
		read = find(acts, ActRead)
		changes += r.settle(acts)
	}
	changes += r.settle(r.ack(3, r.log.next()))
	if changes != 2 || !r.l.isr.member(testMember(3)) {
		t.Errorf("%d ISR changes, the ISR is %v: it does not come back", changes, r.l.ISR())
	}
}

// A member that was removed for its lag joins only when it holds more than it held then, whatever else would let it in.
// On an idle partition that is when its disk has the batches that it lacked.
func TestLeaderStuckFollowerComesBack(t *testing.T) {
	r := newLeaderRig(t, Config{LagMaxNs: 100 * ms, HeartbeatNs: 10 * ms, JoinNs: 20 * ms}, 3, 1)
	r.serve()
	r.append(1)
	r.durable(2)
	r.ack(2, 2)
	r.pass(101)
	if r.settle(r.step(Event{Kind: EvTick})) != 1 || r.l.Committed() != 2 {
		t.Fatalf("the ISR is %v, committed %d", r.l.ISR(), r.l.Committed())
	}
	for range 50 { // no load
		r.now += 10 * ms
		if n := r.settle(r.step(Event{Kind: EvTick})) + r.settle(r.ack(3, 1)); n != 0 || r.l.peer(3).joining {
			t.Fatalf("%d changes for a follower that has not moved", n)
		}
	}
	if r.settle(r.ack(3, 2)) != 1 || !r.l.isr.member(testMember(3)) {
		t.Errorf("the ISR is %v", r.l.ISR())
	}
}

// A follower that is stuck again and again leaves and joins no more often than the limits allow. Removals are never
// held back by earlier joins. After the limit's window the follower joins again.
func TestLeaderISRChangesAreLimited(t *testing.T) {
	r := newLeaderRig(t, Config{LagMaxNs: 100 * ms, HeartbeatNs: 10 * ms, JoinNs: 20 * ms}, 3, 2)
	r.serve()
	changes, begin, round := 0, r.now, 0
	for ; r.now-begin < DefaultISRWindowNs-ms; round++ {
		r.append(1)
		end := r.log.next()
		r.durable(end)
		changes += r.settle(r.ack(2, end))
		for range 12 { // node 3 is stuck for 120 ms, then it catches up
			r.now += 10 * ms
			changes += r.settle(r.step(Event{Kind: EvTick})) + r.settle(r.ack(3, end-1))
		}
		if r.l.Committed() != end {
			t.Fatalf("round %d: committed %d of %d", round, r.l.Committed(), end)
		}
		changes += r.settle(r.ack(3, end))
	}
	if want := 2*DefaultMaxISRJoins + 1; changes != want {
		t.Errorf("%d ISR changes, want %d: a removal for each join, and the first", changes, want)
	}
	// In each further round one join is held back.
	want := LeaderCounts{ISRChanges: uint64(changes), ISRHeldBack: uint64(round - changes/2)}
	if c := r.l.Counts(); c != want {
		t.Errorf("counted in %d rounds: %+v; want %+v", round, c, want)
	}
	r.append(1)
	r.durable(r.log.next())
	r.ack(2, r.log.next())
	for range 3000 {
		r.now += 10 * ms
		r.settle(r.step(Event{Kind: EvTick}))
		r.settle(r.ack(3, r.log.next()))
	}
	if !r.l.isr.member(testMember(3)) {
		t.Errorf("the ISR is %v: it never joins again", r.l.ISR())
	}
}

// While the leader's own disk is slow, a removal does not advance Committed either: the stuck follower then holds
// everything that is committed, and still stays out.
func TestLeaderStuckFollowerBesideASlowDisk(t *testing.T) {
	r := newLeaderRig(t, Config{LagMaxNs: 100 * ms, HeartbeatNs: 10 * ms, JoinNs: 20 * ms}, 3, 2)
	r.serve()
	r.append(1)
	r.ack(2, 2)
	changes := 0
	for range 50 {
		r.now += 10 * ms
		changes += r.settle(r.step(Event{Kind: EvTick})) + r.settle(r.ack(3, 1))
	}
	if changes != 1 {
		t.Errorf("%d ISR changes", changes)
	}
	if r.durable(2); r.l.Committed() != 2 {
		t.Errorf("committed %d of 2", r.l.Committed())
	}
}

// Batches that a smaller ISR allows to commit are committed before anybody is asked to join: a Match that was enough to
// join a moment before is not enough any more.
func TestLeaderCommitsBeforeItProposes(t *testing.T) {
	r := newLeaderRig(t, Config{}, 3, 2)
	r.serve()
	r.append(1)
	r.durable(2)
	r.ack(2, 2)
	if p := find(r.step(Event{Kind: EvPeerDown, Node: 3}), ActPropose); p == nil {
		t.Fatal("node 3 is not removed")
	}
	r.exchangeAgain(3) // the follower is back with what it had, before the store has answered
	r.say(3, Message{Kind: MsgAck, Position: 1, Offset: r.log.stateAt(1).End})
	acts := r.accept(testMember(1), testMember(2))
	if find(acts, ActPropose) != nil || find(acts, ActCommit) == nil || r.l.Committed() != 2 {
		t.Errorf("committed %d; %+v", r.l.Committed(), acts)
	}
}

// F10: a node that has no copy of the partition says so. It is probed ever more rarely, however often it says so. A
// member without a copy leaves the ISR even while nothing is published. Once the copy exists, its first message begins
// an exchange at once.
func TestLeaderAbsentCopy(t *testing.T) {
	r := newLeaderRig(t, Config{LagMaxNs: 100 * ms, HeartbeatNs: 10 * ms, RetryNs: 20 * ms}, 3, 1)
	r.serve()
	absent := Message{Kind: MsgReject, Code: RejectAbsent}
	if sent(r.say(3, absent), 3, MsgProbe) == nil || r.l.Counts().Absences != 0 {
		t.Fatal("a copy that had reported is not asked whether it is gone")
	}
	for range 50 { // frames that were already on their way
		if acts := r.say(3, absent); len(acts) != 0 {
			t.Fatalf("it is asked at once: %+v", acts)
		}
	}
	if n := r.l.Counts().Absences; n != 1 {
		t.Errorf("counted %d times", n)
	}
	questions, changes := 0, 0
	for range 200 { // 2 s
		r.now += 10 * ms
		acts := slices.Clone(r.step(Event{Kind: EvTick}))
		changes += r.settle(acts)
		if sent(acts, 3, MsgProbe) != nil {
			questions++
			changes += r.settle(r.say(3, absent))
		}
		if sent(acts, 3, MsgAppend) != nil || sent(acts, 3, MsgHeartbeat) != nil {
			t.Fatalf("more than questions is sent: %+v", acts)
		}
	}
	if questions < 4 || questions > 8 {
		t.Errorf("asked %d times in 2 s", questions)
	}
	if changes != 1 || r.l.isr.member(testMember(3)) {
		t.Errorf("%d changes, the ISR is %v", changes, r.l.ISR())
	}
	if n := r.l.Counts().Absences; n != uint64(questions)+1 {
		t.Errorf("counted %d times, asked %d times", n, questions)
	}
	if sent(r.say(3, Message{Kind: MsgResync}), 3, MsgProbe) == nil {
		t.Fatal("a copy that was opened waits")
	}
	r.exchange(3, 0)
	r.settle(r.ack(3, 1))
	if !r.l.isr.member(testMember(3)) {
		t.Errorf("the ISR is %v", r.l.ISR())
	}
}

// F10: the leader of a new topic probes before the copy is open. The answer that there was no copy may arrive after the
// copy's report, which has overtaken it. By then the copy follows, and would answer the same probe with an ack, for
// ever. So the leader begins a new exchange at once.
func TestLeaderHearsLateThatThereWasNoCopy(t *testing.T) {
	for name, acked := range map[string]bool{"before the ack": false, "after the ack": true} {
		r := newLeaderRig(t, Config{}, 2, 2)
		r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
		r.append(0)
		r.durable(1)
		followed := r.l.peer(2).request // the exchange in which the copy follows
		report := Message{Kind: MsgReport, Store: testMember(2).Store}
		if sent(r.say(2, report), 2, MsgMatch) == nil {
			t.Fatalf("%s: the report is not answered", name)
		}
		if acked {
			r.ack(2, 0)
		}
		acts := r.say(2, Message{Kind: MsgReject, Code: RejectAbsent, Request: followed})
		if sent(acts, 2, MsgProbe) == nil {
			t.Errorf("%s: it waits", name)
		}
		for range 1000 { // 10 s
			if m := sent(acts, 2, MsgProbe); m != nil && m.Request != followed {
				r.exchange(2, 0)
				r.ack(2, 1)
				break
			} else if m != nil {
				r.say(2, Message{Kind: MsgAck, Request: followed})
			}
			r.now += 10 * ms
			acts = r.step(Event{Kind: EvTick})
		}
		if r.l.Committed() != 1 || r.l.Counts().Absences != 0 {
			t.Errorf("%s: committed %d, counted %d times", name, r.l.Committed(), r.l.Counts().Absences)
		}
	}
}
