package replicate

import (
	"slices"
	"testing"

	"penstock/segment"
)

// probe begins the next exchange and returns the follower's report.
func (r *followerRig) probe() Message {
	r.t.Helper()
	r.req++
	rep := sent(r.say(Message{Kind: MsgProbe}), 1, MsgReport)
	if rep == nil {
		r.t.Fatal("no report")
	}
	return *rep
}

// A log that cannot be repaired in place: first the leader hears how far the log reaches, then the log begins anew at
// the point where the leader would otherwise have cut it. B37 P18
func TestFollowerBeginsAnew(t *testing.T) {
	r := newFollowerRig(t, Config{RetryNs: 50 * ms}, leaderLog(1, 1, 1, 1, 1, 1), 6)
	r.say(Message{Kind: MsgHeartbeat, Position: 6, Committed: 5})
	before := r.probe()
	acts := r.step(Event{Kind: EvUnusable})
	if a := find(acts, ActDamaged); a == nil || a.Err == nil || sent(acts, 1, MsgResync) == nil || r.f.Electable() ||
		r.f.Following() || !r.f.Log().Shortened {
		t.Fatalf("%+v", acts)
	}
	if acts = r.step(Event{Kind: EvUnusable}); len(acts) != 0 {
		t.Fatalf("said twice: %+v", acts)
	}
	match := func(rep Message, to segment.Position) []Action {
		return r.say(Message{Kind: MsgMatch, Position: to, Boot: rep.Boot, Generation: rep.Generation})
	}
	r.req-- // the leader probes in the same exchange again; its answer to the first report is late
	if rep := r.probe(); rep.Generation == before.Generation || len(match(before, 6)) != 0 || r.f.Following() {
		t.Fatalf("an answer about the log before counts: %+v", rep)
	}
	for epoch := range segment.Epoch(3) { // each new leader must hear it again, because it may be comparing
		if epoch > 0 {
			r.epoch, r.req = 1+epoch, 0
		}
		rep := r.probe()
		if rep.Log.Next != 6 || !rep.Damaged || rep.isBare() {
			t.Fatalf("epoch %d: it does not say how far it goes: %+v", r.epoch, rep)
		}
		if unneeded := r.f.Unneeded(); unneeded != (epoch > 0) { // the first leader is still comparing
			t.Fatalf("epoch %d: nobody needs it: %v", r.epoch, unneeded)
		}
		if acts = match(rep, 4); find(acts, ActTruncate) != nil || sent(acts, 1, MsgResync) == nil || r.f.Err() != nil {
			t.Fatalf("%+v", acts)
		}
		if rep = r.probe(); !rep.isBare() || !r.f.Unneeded() {
			t.Fatalf("epoch %d: it does not say that it has nothing: %+v", r.epoch, rep)
		}
	}
	rep := r.probe()
	acts = r.say(Message{
		Kind: MsgReset, Log: r.leader.stateAt(2), Epochs: r.leader.table.before(2), Boot: rep.Boot,
		Generation: rep.Generation,
	})
	a := find(acts, ActReset)
	if a == nil || a.Log.Next != 2 || r.f.Committed() != 2 || !r.f.Shortened() {
		t.Fatalf("%+v, committed %d", acts, r.f.Committed())
	}
	acts = r.step(Event{Kind: EvTruncated, Generation: a.Generation, Log: r.leader.stateAt(2)})
	if m := sent(acts, 1, MsgAck); m == nil || m.Position != 2 || m.Damaged || !r.f.Electable() {
		t.Fatalf("%+v", acts)
	}
}

// Nothing is repaired in a log that is given up: it would be fetched twice.
func TestFollowerThatBeginsAnewRepairsNothing(t *testing.T) {
	r := newFollowerRig(t, Config{RetryNs: 50 * ms}, leaderLog(1, 1, 1, 1, 1, 1), 6)
	if sent(r.step(Event{Kind: EvCorrupt, Position: 2, Until: 4}), 1, MsgFetch) == nil {
		t.Fatal("it does not ask for what it cannot read")
	}
	r.step(Event{Kind: EvUnusable})
	for _, ev := range []Event{{Kind: EvTick}, {Kind: EvCorrupt, Position: 1, Until: 3}, {Kind: EvTick}} {
		r.probe() // a follower in an exchange may ask
		r.now += 50 * ms
		if m := sent(r.step(ev), 1, MsgFetch); m != nil {
			t.Errorf("it asks for what it will not need: %+v", m)
		}
	}
}

// A leader of an older version compares its log with an empty one, and both begin at the beginning.
func TestFollowerBeginsAnewAtTheBeginning(t *testing.T) {
	r := newFollowerRig(t, Config{}, leaderLog(1, 1, 1), 3)
	r.step(Event{Kind: EvUnusable})
	for range 2 {
		rep := r.probe()
		acts := r.say(Message{Kind: MsgMatch, Boot: rep.Boot, Generation: rep.Generation})
		if a := find(acts, ActReset); a != nil && a.Log == (segment.State{}) && rep.isBare() {
			return
		}
	}
	t.Fatal("it does not begin")
}

// Batches that a cut has to read and cannot are fetched while the log is being cut, also from a newer leader. Batches
// that are being cut off are not fetched.
func TestFollowerRepairsWhileCutting(t *testing.T) {
	r := newFollowerRig(t, Config{RetryNs: 50 * ms}, leaderLog(1, 1, 1, 1, 1, 1), 6)
	rep := r.probe()
	cut := find(r.say(Message{Kind: MsgMatch, Position: 4, Boot: rep.Boot, Generation: rep.Generation}), ActTruncate)
	if cut == nil {
		t.Fatal("no cut")
	}
	gen := cut.Generation
	fetch := sent(r.step(Event{Kind: EvCorrupt, Position: 2, Until: 6}), 1, MsgFetch)
	if fetch == nil || fetch.Position != 2 || fetch.Until != 4 || fetch.Request != r.req {
		t.Fatalf("%+v", fetch)
	}
	if acts := r.step(Event{Kind: EvCorrupt, Position: 4, Until: 6}); find(acts, ActSend) != nil {
		t.Fatalf("it asks for what is cut off: %+v", acts)
	}
	if acts := r.say(Message{Kind: MsgFetch, Position: 0, Until: 2}); find(acts, ActRead) != nil {
		t.Fatalf("it gives the leader what is being cut: %+v", acts)
	}
	ask := Message{Kind: MsgFetch, Epoch: r.epoch, Request: 77, Position: 0, Until: 2}
	if acts := r.step(Event{Kind: EvMessage, Node: 3, Message: &ask}); find(acts, ActRead) != nil {
		t.Fatalf("it gives another replica what is being cut: %+v", acts)
	}
	r.epoch, r.req = 2, 7
	r.now += 50 * ms
	if acts := r.say(Message{Kind: MsgProbe}); sent(acts, 1, MsgReport) != nil {
		t.Fatalf("it reports a log that is being cut: %+v", acts)
	}
	r.now += 50 * ms
	if fetch = sent(r.step(Event{Kind: EvTick}), 1, MsgFetch); fetch == nil || fetch.Request != 7 || fetch.Epoch != 2 {
		t.Fatalf("%+v", fetch)
	}
	m := r.frame(2, 4, 0)
	m.Kind = MsgRange
	if find(r.say(m), ActRepair) == nil {
		t.Fatal("the answer is not used")
	}
	r.step(Event{Kind: EvRepaired, Position: 2, Until: 4})
	if acts := r.step(Event{Kind: EvTruncated, Generation: gen, Log: r.leader.stateAt(4)}); sent(acts, 1, MsgAck) != nil {
		t.Fatalf("the answer of epoch 1 counts in epoch 2: %+v", acts)
	}
	if rep := r.probe(); rep.Log.Next != 4 || rep.Damaged {
		t.Fatalf("%+v", rep)
	}
}

// Batches that the leader's retention has removed are not asked for again, whatever this replica knows to be committed.
func TestFollowerForgetsWhatIsGone(t *testing.T) {
	r := newFollowerRig(t, Config{RetryNs: 50 * ms}, leaderLog(1, 1, 1, 1, 1, 1), 6)
	r.probe() // the leader is comparing: nothing of its log is known here
	if acts := r.step(Event{Kind: EvCorrupt, Position: 1, Until: 3}); sent(acts, 1, MsgFetch) == nil {
		t.Fatalf("%+v", acts)
	}
	acts := r.say(Message{Kind: MsgRange, Position: 1, Until: 1, Start: 2})
	if a := find(acts, ActTrim); a == nil || a.Position != 2 || r.f.Electable() {
		t.Fatalf("%+v", acts)
	}
	acts = r.say(Message{Kind: MsgRange, Position: 2, Until: 2, Start: 4})
	if a := find(acts, ActDamaged); a == nil || a.Err != nil || !r.f.Electable() {
		t.Fatalf("%+v", acts)
	}
	if rep := sent(r.say(Message{Kind: MsgProbe}), 1, MsgReport); rep == nil || rep.Damaged {
		t.Fatalf("%+v", rep)
	}
}

// bare is the report of a copy that gave its log up.
func (r *leaderRig) bare(n NodeID) []Action {
	return r.say(n, Message{Kind: MsgReport, Store: testMember(n).Store, Damaged: true})
}

// A member that gave its log up leaves the ISR before it begins anew. Where the ISR cannot shrink, it begins anew as a
// member. B74
func TestLeaderLetsACopyBeginAnew(t *testing.T) {
	again := func(r *leaderRig) {
		r.say(2, Message{Kind: MsgResync, Request: r.l.peer(2).request})
	}
	r := newLeaderRig(t, Config{RetryNs: 50 * ms}, 3, 2)
	r.serve()
	again(r)
	acts := r.bare(2)
	if a := find(acts, ActPropose); a == nil || slices.Contains(a.State.ISR, testMember(2)) ||
		sent(acts, 2, MsgReset) != nil ||
		sent(acts, 2, MsgMatch) != nil {
		t.Fatalf("%+v", acts)
	}
	r.accept(testMember(1), testMember(3))
	if m := sent(r.bare(2), 2, MsgReset); m == nil || m.Log != (segment.State{}) {
		t.Fatalf("it does not begin: %+v", m)
	}

	r = newLeaderRig(t, Config{RetryNs: 50 * ms}, 2, 2)
	r.serve()
	again(r)
	if sent(r.bare(2), 2, MsgReset) == nil {
		t.Fatal("the ISR cannot shrink, and nothing happens")
	}
	r.append(1)
	if r.durable(2); r.l.Committed() != 1 {
		t.Error("a copy that begins anew counts")
	}

	r = newLeaderRig(t, Config{RetryNs: 50 * ms}, 2, 2)
	r.serve()
	again(r)
	r.step(Event{Kind: EvCorrupt, Position: 0, Until: 1})
	if acts := r.bare(2); sent(acts, 2, MsgReset) != nil || sent(acts, 2, MsgMatch) != nil {
		t.Fatalf("a leader that cannot read its own log lets another copy go: %+v", acts)
	}
	r.step(Event{Kind: EvRepaired, Position: 0, Until: 1})
	if sent(r.bare(2), 2, MsgReset) == nil {
		t.Fatal("it can read it again")
	}
}

// A member whose log cannot be compared with the leader's, and which reaches beyond the leader's beginning, may be the
// last copy of a committed batch. It does not begin anew as a member, even where the ISR cannot shrink.
func TestLeaderKeepsAMemberWithAnotherLog(t *testing.T) {
	r := newLeaderRig(t, Config{RetryNs: 50 * ms}, 2, 2)
	r.serve()
	r.say(2, Message{Kind: MsgResync, Request: r.l.peer(2).request})
	acts := r.say(2, Message{
		Kind: MsgReport, Store: testMember(2).Store, Start: 5, Log: segment.State{Next: 8, Epoch: 1},
		Epochs: []EpochStart{{Epoch: 1, Position: 5}},
	})
	if sent(acts, 2, MsgReset) != nil || sent(acts, 2, MsgMatch) != nil {
		t.Fatalf("%+v", acts)
	}
}

// Replicas repair each other: another replica may have batches that the leader lacks, even a replica outside the ISR,
// and no leader is needed for that. P18
func TestFollowersRepairEachOther(t *testing.T) {
	r := newFollowerRig(t, Config{RetryNs: 50 * ms}, leaderLog(1, 1, 1, 1, 1, 1), 6)
	st := State{Epoch: 2, Leader: 1, Replicas: []NodeID{1, 2, 3, 4}}
	r.step(Event{Kind: EvState, State: &st})
	r.epoch, r.req = 2, 0
	from := func(n NodeID, m Message) []Action {
		m.Epoch = r.epoch
		return r.step(Event{Kind: EvMessage, Node: n, Message: &m})
	}
	asked := map[NodeID]int{}
	ask := func(times int) {
		for range times {
			r.now += 50 * ms
			for _, a := range r.step(Event{Kind: EvTick}) {
				if a.Kind == ActSend && a.Message.Kind == MsgFetch && a.Message.Position == 2 && a.Message.Until == 4 {
					asked[a.Node]++
				}
			}
		}
	}
	r.step(Event{Kind: EvCorrupt, Position: 2, Until: 4})
	if ask(8); asked[1] != 0 || asked[3] == 0 || asked[4] == 0 || asked[3]+asked[4] < 8 {
		t.Errorf("without an exchange it asked %v", asked)
	}
	rep := r.probe()
	clear(asked)
	if ask(8); asked[1] < 3 || asked[3] == 0 || asked[4] == 0 || asked[2] != 0 {
		t.Errorf("in an exchange it asked %v", asked)
	}
	m := r.frame(2, 4, 0)
	m.Kind, m.Request = MsgRange, r.req
	late, gone := m, Message{Kind: MsgRange, Request: r.req, Position: 2, Until: 2, Start: 5}
	late.Request--
	if find(from(3, late), ActRepair) != nil || find(from(3, gone), ActTrim) != nil || r.f.Electable() {
		t.Error("an answer of an older exchange is used, or what another follower has removed is given up")
	}
	if find(from(3, m), ActRepair) == nil {
		t.Error("the answer of another follower is not used")
	}
	// The other way round.
	for _, c := range []struct{ from, until, get segment.Position }{{0, 4, 2}, {2, 4, 0}, {4, 6, 6}} {
		m := r.afterRead(from(3, Message{Kind: MsgFetch, Request: 77, Position: c.from, Until: c.until}), 3)
		if (m != nil) != (c.get > 0) || m != nil && (m.Until != c.get || m.Request != 77) {
			t.Errorf("[%d,%d): %+v", c.from, c.until, m)
		}
	}
	// A batch that is not durable here is not handed out: this replica may lose it.
	if r.say(Message{Kind: MsgMatch, Position: 6, Boot: rep.Boot, Generation: rep.Generation}); !r.f.Following() {
		t.Fatal("it does not follow")
	}
	r.leader.append(sealSim(r.leader.end(), 1, []uint64{6}))
	r.say(r.frame(6, 7, 0))
	for durable := segment.Position(6); durable <= 7; durable++ {
		r.durable(durable)
		m := r.afterRead(from(3, Message{Kind: MsgFetch, Request: 78, Position: 4, Until: 7}), 3)
		if m == nil || m.Until != durable {
			t.Errorf("durable %v: %+v", durable, m)
		}
	}
}

// If the leader is the only other replica, nobody is asked before there is an exchange with it.
func TestFollowerAlone(t *testing.T) {
	r := newFollowerRig(t, Config{RetryNs: 50 * ms}, leaderLog(1, 1, 1), 3)
	st := State{Epoch: 2, Leader: 1, Replicas: []NodeID{1, 2}}
	r.step(Event{Kind: EvState, State: &st})
	acts := slices.Clone(r.step(Event{Kind: EvCorrupt, Position: 1, Until: 2}))
	for range 8 {
		r.now += 50 * ms
		acts = append(acts, r.step(Event{Kind: EvTick})...)
	}
	if sent(acts, 1, MsgFetch) != nil || sent(acts, 1, MsgResync) == nil {
		t.Fatalf("%+v", acts)
	}
}

// A member of the ISR whose device may read its log again does not begin anew as long as it counts, whatever leader
// asks. Outside the ISR it does, and so does a member that has only batches which the leader has removed.
func TestFollowerWaitsForItsDevice(t *testing.T) {
	state := func(r *followerRig, isr ...Member) *State {
		return &State{Epoch: r.epoch, Leader: 1, Replicas: []NodeID{1, 2, 3}, ISR: isr}
	}
	for name, c := range map[string]struct {
		isr   []Member
		known bool // the store knows that this replica is damaged
		again bool
		begin segment.Position // if > 0, it is told to begin there
		waits bool
	}{
		"it counts":                     {isr: []Member{testMember(1), testMember(2)}, again: true, waits: true},
		"nothing is known":              {again: true, waits: true},
		"it is outside":                 {isr: []Member{testMember(1), testMember(3)}, known: true, again: true},
		"it was outside, and may be in": {isr: []Member{testMember(1), testMember(3)}, again: true, waits: true},
		"it counts, and the store knows": {
			isr: []Member{testMember(1), testMember(2)}, known: true, again: true, waits: true,
		},
		"it counts, and is damaged":       {isr: []Member{testMember(1), testMember(2)}},
		"the leader begins in its middle": {isr: []Member{testMember(1), testMember(2)}, again: true, begin: 2, waits: true},
		"the leader begins at its end":    {isr: []Member{testMember(1), testMember(2)}, again: true, begin: 6},
	} {
		r := newFollowerRig(t, Config{RetryNs: 50 * ms}, leaderLog(1, 1, 1, 1, 1, 1), 6)
		if c.isr != nil {
			r.step(Event{Kind: EvState, State: state(r, c.isr...), Damaged: c.known})
		}
		r.step(Event{Kind: EvUnusable, Again: c.again})
		for range 3 {
			rep := r.probe()
			if rep.isBare() || !rep.Damaged || r.f.Electable() {
				t.Errorf("%s: reports %+v", name, rep)
			}
			answer := Message{Kind: MsgMatch, Position: 4, Boot: rep.Boot, Generation: rep.Generation}
			if c.begin > 0 {
				answer = Message{
					Kind: MsgReset, Log: r.leader.stateAt(c.begin), Epochs: r.leader.table.before(c.begin), Boot: rep.Boot,
					Generation: rep.Generation,
				}
			}
			acts := r.say(answer)
			if begins := find(acts, ActReset) != nil || sent(acts, 1, MsgResync) != nil; begins == c.waits ||
				r.f.Waits() != c.waits {
				t.Fatalf("%s: waits %v: %+v", name, r.f.Waits(), acts)
			}
			if !c.waits {
				break
			}
			r.now += 50 * ms
			if asks := sent(r.step(Event{Kind: EvTick}), 1, MsgResync) != nil; !asks {
				t.Errorf("%s: it does not ask again", name)
			}
		}
		if !c.waits {
			continue
		}
		if r.step(Event{Kind: EvUnusable}); r.f.Waits() { // the device reads now, and the bytes are wrong
			t.Errorf("%s: it waits still", name)
		}
		rep := r.probe()
		r.say(Message{Kind: MsgMatch, Position: 4, Boot: rep.Boot, Generation: rep.Generation})
		if !r.probe().Damaged || !r.f.Unneeded() {
			t.Errorf("%s: it is not given up", name)
		}
	}
}
