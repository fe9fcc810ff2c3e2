package replicate

import (
	"testing"

	"penstock/segment"
)

// shortRig is a leader of epoch 2 whose log has five batches of epoch 1 and was shortened by recovery.
func shortRig(t *testing.T, nodes, minISR int) *leaderRig {
	r := newLeaderRig(t, Config{CompareNs: 1000 * ms, RetryNs: 100 * ms}, nodes, minISR)
	for range 5 {
		r.log.append(sealSim(r.log.end(), 1, nil))
	}
	r.again(Log{Shortened: true})
	if acts := r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60}); find(acts, ActStartEpoch) != nil || !r.l.Comparing() {
		t.Fatal("it goes on without asking anybody")
	}
	return r
}

// again makes the leader of epoch 2 on the log as it is, of which log says what its node knows.
func (r *leaderRig) again(log Log) {
	r.state.Epoch = 2
	log.End = r.log.end()
	log.Durable, log.Epoch, log.Epochs = log.End.Next, 1, r.log.table.Entries()
	r.l = NewLeader(r.l.cfg, testMember(1), r.state.Boot, log, &r.state, r.now)
}

// A log that was read back from a disk may lack its last seconds without a sign of it. Its leader asks the members that
// live before it begins, and waits for nobody who is gone.
func TestRecoveredLeaderAsks(t *testing.T) {
	const wait, begin, yield = "waits", "begins", "hands over"
	for _, c := range []struct {
		name  string
		log   Log
		count int // batches of the log
		do    func(*leaderRig)
		want  string
	}{
		{"nobody has answered", Log{Recovered: true}, 5, func(*leaderRig) {}, wait},
		{"one has no more", Log{Recovered: true}, 5, func(r *leaderRig) { r.ends(2, 5, 1, false) }, wait},
		{"both have no more", Log{Recovered: true}, 5, func(r *leaderRig) {
			r.ends(2, 5, 1, false)
			r.ends(3, 4, 1, false)
		}, begin},
		{"one has no more, one is gone", Log{Recovered: true}, 5, func(r *leaderRig) {
			r.ends(2, 5, 1, false)
			r.step(Event{Kind: EvPeerDown, Node: 3})
		}, begin},
		{"one has more", Log{Recovered: true}, 5, func(r *leaderRig) { r.ends(2, 7, 1, false) }, yield},
		{"the others are gone", Log{Recovered: true}, 5, func(r *leaderRig) {
			r.step(Event{Kind: EvPeerDown, Node: 2})
			r.step(Event{Kind: EvPeerDown, Node: 3})
		}, begin},
		{"one is gone", Log{Recovered: true}, 5, func(r *leaderRig) { r.step(Event{Kind: EvPeerDown, Node: 2}) }, wait},
		{"nobody answers in time", Log{Recovered: true}, 5, func(r *leaderRig) { r.later(1000) }, begin},
		{"who has more is gone", Log{Recovered: true}, 5, func(r *leaderRig) {
			r.ends(2, 7, 1, false)
			r.step(Event{Kind: EvPeerDown, Node: 2})
			r.later(500)
		}, yield},
		{"who has more is gone for long", Log{Recovered: true}, 5, func(r *leaderRig) {
			r.ends(2, 7, 1, false)
			r.step(Event{Kind: EvPeerDown, Node: 2})
			r.later(1000)
		}, begin},
		{"this process filled it", Log{}, 5, func(*leaderRig) {}, begin},
		{"it is empty in the second epoch", Log{}, 0, func(*leaderRig) {}, wait},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newLeaderRig(t, Config{CompareNs: 1000 * ms, RetryNs: 100 * ms}, 3, 2)
			for range c.count {
				r.log.append(sealSim(r.log.end(), 1, nil))
			}
			r.again(c.log)
			got := wait
			note := func() {
				switch {
				case find(r.acts.List, ActHandOver) != nil:
					got = yield
				case find(r.acts.List, ActStartEpoch) != nil:
					got = begin
				}
			}
			r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
			note()
			c.do(r)
			note()
			if got != c.want {
				t.Errorf("the leader %s; it should be: %s", got, c.want)
			}
		})
	}
}

// A leader that has committed, and a follower that has all its leader has committed, need not ask in a later epoch.
func TestRecoveredEnds(t *testing.T) {
	r := newLeaderRig(t, Config{}, 3, 2)
	for range 5 {
		r.log.append(sealSim(r.log.end(), 1, nil))
	}
	r.again(Log{Recovered: true})
	r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
	for n := NodeID(2); n <= 3; n++ {
		r.ends(n, 5, 1, false)
	}
	if !r.l.Log().Recovered {
		t.Fatal("it counts as proved before it has committed anything")
	}
	r.append(0)
	r.durable(6)
	for n := NodeID(2); n <= 3; n++ {
		r.exchange(n, 5)
		r.ack(n, 6)
	}
	if r.l.Log().Recovered {
		t.Fatalf("it has committed up to %d and still counts as only read back", r.l.Committed())
	}
}

// ends is a report of a log of epoch 1 with this many batches.
func (r *leaderRig) ends(n NodeID, count int, epoch segment.Epoch, damaged bool) []Action {
	r.t.Helper()
	st := segment.State{Next: segment.Position(count), Epoch: epoch, End: segment.Offset(100 * count)}
	acts := r.say(n, Message{
		Kind: MsgReport, Store: testMember(n).Store, Log: st, Epochs: r.log.table.Entries(), Damaged: damaged,
	})
	if r.l.Comparing() && (sent(acts, n, MsgMatch) != nil || sent(acts, n, MsgReset) != nil) {
		r.t.Fatal("somebody is cut before it is known that nothing is missing")
	}
	return acts
}

func (r *leaderRig) later(d int64) []Action {
	r.now += d * ms
	return r.step(Event{Kind: EvTick})
}

// The member with the latest end, by epoch and then by position, is to lead. The leader repeats its request, and does
// nothing else until then. P9, P18
func TestShortenedLeaderYields(t *testing.T) {
	r := shortRig(t, 3, 2)
	a := find(r.ends(2, 7, 1, false), ActHandOver)
	if a == nil || a.Node != 2 || a.Position != 7 || a.State.Epoch != 2 || a.State.Version != r.state.Version ||
		a.State.Boot != r.state.Boot {
		t.Fatalf("%+v", a)
	}
	if find(r.later(50), ActHandOver) != nil {
		t.Fatal("it asks again at once")
	}
	r.ends(3, 6, 2, false)
	if a := find(r.later(100), ActHandOver); a == nil || a.Node != 3 {
		t.Fatalf("the newer epoch does not count more: %+v", a)
	}
	for range 50 {
		if acts := r.later(100); find(acts, ActStartEpoch) != nil || find(acts, ActPropose) != nil {
			t.Fatalf("%+v", acts)
		}
	}
	st := r.state
	st.Epoch, st.Leader = 3, 3
	if r.step(Event{Kind: EvState, State: &st}); !r.l.Log().Shortened {
		t.Error("the copy is not known to be shortened any more")
	}
}

// The leader goes on when no other member has more, or when some have no more and the rest is gone or silent for
// CompareNs. It does not go on if no other member answers.
func TestShortenedLeaderGoesOn(t *testing.T) {
	started := func(acts []Action) bool { return find(acts, ActStartEpoch) != nil }

	r := shortRig(t, 3, 2)
	if started(r.ends(2, 5, 1, false)) || !started(r.ends(3, 4, 1, false)) {
		t.Error("all have answered, or not")
	}
	r.append(0)
	if m := r.ends(2, 5, 1, false); sent(m, 2, MsgMatch) == nil {
		t.Error("the logs are not compared afterwards")
	}
	r.ack(2, 6)
	r.durable(6)
	if r.l.Shortened() != (r.l.Committed() < 6) {
		t.Errorf("shortened %v, committed %d", r.l.Shortened(), r.l.Committed())
	}

	r = shortRig(t, 3, 2)
	r.ends(2, 5, 1, false)
	if !started(r.step(Event{Kind: EvPeerDown, Node: 3})) {
		t.Error("it waits for a process that is gone")
	}

	r = shortRig(t, 3, 2)
	r.ends(2, 5, 1, false)
	if started(r.later(900)) || !started(r.later(200)) {
		t.Error("it does not wait for a silent member, or for ever")
	}

	r = shortRig(t, 2, 1)
	r.step(Event{Kind: EvPeerDown, Node: 2})
	for range 100 {
		if acts := r.later(1000); started(acts) || find(acts, ActPropose) != nil {
			t.Fatal("it goes on although the only other member may have more")
		}
	}
	r.state.Forced = r.state.Epoch
	if !started(r.accept(testMember(1))) {
		t.Error("an operator made it the only member, and it waits")
	}

	r = shortRig(t, 2, 1)
	other := Message{Kind: MsgReport, Store: testMember(9).Store}
	if !started(r.say(2, other)) {
		t.Error("it waits for a disk that was replaced")
	}
}

// The leader waits for a member that has more and cannot read all of it, unless another member proves that its end does
// not matter.
func TestShortenedLeaderAndADamagedMember(t *testing.T) {
	r := shortRig(t, 3, 2)
	r.ends(2, 7, 1, true)
	for range 30 {
		if acts := r.later(100); find(acts, ActHandOver) != nil || find(acts, ActStartEpoch) != nil {
			t.Fatalf("%+v", acts)
		}
	}
	if a := find(r.ends(2, 7, 1, false), ActHandOver); a == nil || a.Node != 2 {
		t.Fatal("it was repaired and does not lead")
	}
	r = shortRig(t, 3, 2)
	r.ends(2, 7, 1, true)
	r.ends(3, 5, 1, false)
	if find(r.later(1100), ActStartEpoch) == nil || r.l.Counts().Losses != 0 {
		t.Error("node 3 has no more, so nothing committed is missing")
	}
}

// The only other member is damaged and has more: no rule gives up what it may have. The leader names the member it
// waits for, and goes on when that node is no longer a member or has a new disk.
func TestShortenedLeaderWaitsForADamagedMember(t *testing.T) {
	for name, answer := range map[string]func(r *leaderRig){
		"it has more":       func(r *leaderRig) { r.ends(2, 7, 1, true) },
		"it refuses to say": func(r *leaderRig) { r.say(2, Message{Kind: MsgReject, Code: RejectDamaged}) },
	} {
		r := shortRig(t, 2, 1)
		answer(r)
		for range 100 {
			if acts := r.later(100); find(acts, ActStartEpoch) != nil || find(acts, ActHandOver) != nil ||
				find(acts, ActPropose) != nil {
				t.Fatalf("%s: %+v", name, acts)
			}
		}
		if r.l.Blocked() != 2 {
			t.Errorf("%s: blocked by %d", name, r.l.Blocked())
		}
		if find(r.accept(testMember(1)), ActStartEpoch) == nil || r.l.Blocked() != 0 {
			t.Errorf("%s: an operator gave it up, and the leader waits", name)
		}
	}
}

// A member that lost batches which the leader still knows to be committed proves nothing.
func TestShortenedLeaderAndAMemberThatLostMore(t *testing.T) {
	for _, c := range []struct {
		down, goesOn bool
	}{{true, false}, {false, true}} {
		r := shortRig(t, 3, 2)
		r.l.log.Committed = 5
		r.ends(2, 3, 1, false)
		if c.down {
			r.step(Event{Kind: EvPeerDown, Node: 3})
		} else {
			r.ends(3, 4, 1, false)
		}
		if r.later(2000); r.l.Comparing() == c.goesOn || c.goesOn && r.l.Counts().Losses != 1 {
			t.Errorf("%+v: comparing %v, losses %d", c, r.l.Comparing(), r.l.Counts().Losses)
		}
	}
}

// After all nodes were restored from backups of different moments, the latest log leads. A leader waits for every
// member without limit, although its log is whole, and although others have no more: the one that is missing may.
func TestRestoredLeaderWaitsForAll(t *testing.T) {
	restored := func(shortened bool) *leaderRig {
		r := shortRig(t, 3, 2)
		st, log := r.state, r.l.Log()
		st.Epoch, st.Restored, log.Epoch, log.Shortened = 11, 10, 1, shortened
		r.state = st
		r.l = NewLeader(r.l.cfg, testMember(1), st.Boot, log, &r.state, r.now)
		r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
		return r
	}
	for _, shortened := range []bool{false, true} {
		r := restored(shortened)
		r.ends(2, 4, 1, false)
		r.step(Event{Kind: EvPeerDown, Node: 3})
		for range 100 {
			if acts := r.later(1000); find(acts, ActStartEpoch) != nil || find(acts, ActHandOver) != nil {
				t.Fatalf("it goes on without member 3: %+v", acts)
			}
		}
		if a := find(r.ends(3, 6, 1, false), ActHandOver); a == nil || a.Node != 3 {
			t.Fatalf("member 3 has more, and is not asked to lead: %+v", a)
		}
		r.step(Event{Kind: EvPeerDown, Node: 3})
		if r.later(10_000); !r.l.Comparing() {
			t.Fatal("member 3 has more and is away, and the leader goes on")
		}

		// All were heard, and the others have less than what this log knew to be committed: nothing more can come.
		r = restored(shortened)
		r.l.log.Committed = 5
		r.ends(2, 4, 1, false)
		if acts := r.ends(3, 3, 1, false); find(acts, ActStartEpoch) == nil || r.l.Counts().Losses != 0 {
			t.Fatalf("all were heard, and it waits, or counts a loss: %+v", acts)
		}
	}

	// A log from after the restore is compared by nobody.
	r := restored(false)
	r.state.Epoch = 13
	log := r.l.Log()
	log.End.Epoch, log.Epoch = 12, 12
	if l := NewLeader(r.l.cfg, testMember(1), r.state.Boot, log, &r.state, r.now); l.Comparing() {
		t.Error("a log that a leader wrote after the restore waits")
	}
}
