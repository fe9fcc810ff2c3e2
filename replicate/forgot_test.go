package replicate

import (
	"errors"
	"slices"
	"testing"

	"penstock/segment"
)

// logOf makes a log with so many batches of each epoch.
func logOf(epochs map[segment.Epoch]int) (g simLog) {
	for e := segment.Epoch(1); e < 20; e++ {
		for range epochs[e] {
			g.append(sealSim(g.end(), e, nil))
		}
	}
	return g
}

// leadsWith is a leader of an epoch on this log.
func leadsWith(t *testing.T, nodes, minISR int, epoch segment.Epoch, g simLog, log Log) *leaderRig {
	r := newLeaderRig(t, Config{CompareNs: 1000 * ms, RetryNs: 100 * ms, ListShort: true}, nodes, minISR)
	r.log, r.state.Epoch = g, epoch
	log.End, log.Durable, log.Epoch, log.Epochs = g.end(), g.next(), g.end().Epoch, g.table.Entries()
	r.l = NewLeader(r.l.cfg, testMember(1), r.state.Boot, log, &r.state, r.now)
	r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
	return r
}

// reports is the report of another log.
func (r *leaderRig) reports(n NodeID, g simLog, committed segment.Position, shortened bool) []Action {
	r.t.Helper()
	return r.say(n, Message{
		Kind: MsgReport, Store: testMember(n).Store, Start: g.start.Next, Log: g.end(), Epochs: g.table.Entries(),
		Until: g.next(), Committed: committed, Shortened: shortened, Boot: simUUID('b', n, 1),
	})
}

// A log that may have forgotten proves nothing. If all that answer are such logs, the leader waits for every other
// member.
func TestShortenedLogProvesNothing(t *testing.T) {
	g := logOf(map[segment.Epoch]int{1: 5})
	started := func(acts []Action) bool { return find(acts, ActStartEpoch) != nil }
	r := leadsWith(t, 3, 2, 2, g, Log{Shortened: true})
	if started(r.reports(2, g, 5, true)) || started(r.later(5000)) || !r.l.Comparing() {
		t.Fatal("a log that forgot counts as a proof")
	}
	longer := logOf(map[segment.Epoch]int{1: 9})
	if a := find(r.reports(3, longer, 9, false), ActHandOver); a == nil || a.Node != 3 {
		t.Fatal("the member that has more does not lead")
	}

	r = leadsWith(t, 3, 2, 2, g, Log{Shortened: true})
	if started(r.reports(2, g, 5, true)) || !started(r.reports(3, g, 5, false)) {
		t.Error("a log that is certain of its end is no proof")
	}

	r = leadsWith(t, 3, 2, 2, g, Log{Shortened: true})
	if started(r.reports(2, g, 5, true)) || !started(r.reports(3, g, 3, true)) || r.l.Counts().Losses != 0 {
		t.Error("all members were heard, and it waits, or counts a loss")
	}
}

// The common prefix decides, not the newest epoch, and what the marks say is committed is kept.
func TestCommonPrefixDecides(t *testing.T) {
	old, elsewhere := logOf(map[segment.Epoch]int{1: 5}), logOf(map[segment.Epoch]int{1: 5, 2: 50})
	both := logOf(map[segment.Epoch]int{1: 5, 3: 2})
	alone := logOf(map[segment.Epoch]int{1: 5, 3: 1, 4: 1, 6: 1}) // led some epochs without the other
	for name, c := range map[string]struct {
		own       simLog
		committed segment.Position // of the leader
		other     simLog
		mark      segment.Position // of the other
		shortened bool             // the other, too
		yields    bool
		blocked   bool
	}{
		"only the other goes on":              {own: old, other: elsewhere, yields: true},
		"only the leader goes on":             {own: elsewhere, other: old},
		"both go on, the other has committed": {own: both, other: elsewhere, mark: 20, yields: true},
		"both go on, the leader has committed": {
			own: elsewhere, other: both, committed: 20,
		},
		"both have committed":                       {own: both, committed: 6, other: elsewhere, mark: 20, blocked: true},
		"both go on, no mark tells: newer epoch":    {own: elsewhere, other: both, shortened: true, yields: true},
		"both go on, no mark tells: older epoch":    {own: both, other: elsewhere, shortened: true},
		"both go on, only the leader may lack":      {own: both, other: elsewhere, yields: true},
		"only the leader wrote behind their epochs": {own: elsewhere, other: alone, shortened: true},
		"only the other wrote behind its epochs":    {own: alone, other: elsewhere, shortened: true, yields: true},
		"what the other did not write it committed": {
			own: elsewhere, other: alone, mark: 7, shortened: true, yields: true,
		},
		"the same log":                            {own: old, other: old},
		"the other is empty":                      {own: old, other: simLog{}},
		"the leader is empty":                     {own: simLog{}, other: old, yields: true},
		"the other began anew behind the leader":  {own: old, other: begun(elsewhere, 7), yields: true},
		"the leader began anew behind the other ": {own: begun(elsewhere, 7), other: old},
	} {
		t.Run(name, func(t *testing.T) {
			r := leadsWith(t, 2, 1, 9, c.own, Log{Start: c.own.start, Shortened: true, Committed: c.committed})
			acts := r.reports(2, c.other, c.mark, c.shortened)
			if yields := find(acts, ActHandOver) != nil; yields != c.yields {
				t.Errorf("yields %v", yields)
			}
			if c.yields || c.blocked {
				if r.later(5000); !r.l.Comparing() || (r.l.Blocked() != 0) != c.blocked {
					t.Errorf("comparing %v, blocked by %d", r.l.Comparing(), r.l.Blocked())
				}
			} else if r.l.Comparing() && find(r.later(5000), ActStartEpoch) == nil {
				t.Error("it does not go on")
			}
		})
	}
}

// begun is the part of a log from a position on.
func begun(g simLog, from segment.Position) simLog {
	c := g.clone()
	c.trim(from)
	return c
}

// A leader that took its log for whole hears that another member has committed more. It appends and commits nothing
// more, and hands over; what it has appended itself counts for nothing.
func TestLeaderIsOvertaken(t *testing.T) {
	old, elsewhere := logOf(map[segment.Epoch]int{1: 5}), logOf(map[segment.Epoch]int{1: 5, 2: 50})
	r := leadsWith(t, 2, 2, 9, old, Log{Committed: 5})
	r.append(0)
	r.durable(6)
	acts := r.reports(2, elsewhere, 30, false)
	if a := find(acts, ActHandOver); a == nil || a.Node != 2 || sent(acts, 2, MsgMatch) != nil || !r.l.Shortened() {
		t.Fatalf("%+v", acts)
	}
	if a := find(r.step(Event{Kind: EvPut}), ActRefuse); a == nil {
		t.Error("it takes writes")
	}

	// Both have committed: the leader goes on, and the member refuses the cut.
	r = leadsWith(t, 2, 1, 9, elsewhere, Log{Committed: 20})
	r.append(0)
	r.durable(56)
	other := logOf(map[segment.Epoch]int{1: 5, 3: 10})
	acts = r.reports(2, other, 9, false)
	m := sent(acts, 2, MsgMatch)
	if m == nil || m.Position != 5 || find(acts, ActHandOver) != nil || r.l.Shortened() {
		t.Fatalf("%+v", acts)
	}
	f := NewFollower(Config{}, testMember(2), m.Boot, Log{
		End: other.end(), Durable: other.next(), Committed: 9, Epochs: other.table.Entries(),
	})
	var toFollower Actions
	probe := Message{Kind: MsgProbe, Epoch: 9, Request: m.Request}
	f.Step(r.now, &Event{Kind: EvMessage, Node: 1, Message: &probe}, &toFollower)
	if f.Step(r.now, &Event{Kind: EvMessage, Node: 1, Message: m}, &toFollower); !errors.Is(f.Err(), ErrContested) {
		t.Fatalf("%v, %+v", f.Err(), toFollower.List)
	}
	acts = r.say(2, Message{Kind: MsgReject, Code: RejectDamaged})
	if p := find(acts, ActPropose); p == nil || len(p.State.ISR) != 1 {
		t.Errorf("the member that contradicts stays: %+v", acts)
	}

	// A member that has committed more asks for nothing once an operator has chosen this leader.
	r = leadsWith(t, 2, 2, 9, old, Log{Committed: 5})
	r.append(0)
	r.durable(6)
	r.state.Forced, r.state.Version = 9, r.state.Version+5
	r.accept(r.state.ISR...)
	if acts = r.reports(2, elsewhere, 30, false); find(acts, ActHandOver) != nil || sent(acts, 2, MsgMatch) == nil {
		t.Errorf("an operator's choice does not count: %+v", acts)
	}
}

// The same where the member's log begins behind the end of the leader's, because its retention has removed what they
// share: what it knows as committed is missing here. It does not hand over what it has committed itself.
func TestLeaderIsOvertakenFromBeyond(t *testing.T) {
	old, other := logOf(map[segment.Epoch]int{1: 5}), begun(logOf(map[segment.Epoch]int{1: 5, 2: 50}), 7)
	for name, c := range map[string]struct {
		other     simLog
		committed segment.Position // of the other
		own       segment.Position // what the leader commits
		yields    bool
	}{
		"the member has committed more":      {other, 30, 0, true},
		"up to where its log begins":         {other, 7, 0, true},
		"it knows of nothing":                {other, 0, 0, false},
		"the leader has committed as well":   {other, 30, 6, false},
		"its log begins in the leader's log": {begun(logOf(map[segment.Epoch]int{1: 3, 2: 50}), 4), 4, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := leadsWith(t, 3, 2, 9, old, Log{Committed: 5})
			r.append(0)
			r.durable(6)
			if c.own > 0 {
				r.exchange(3, 5)
				r.ack(3, 6)
				r.accept(testMember(1), testMember(2), testMember(3))
				r.l.log.Committed = c.own
			}
			acts := r.reports(2, c.other, c.committed, false)
			a := find(acts, ActHandOver)
			if (a != nil) != c.yields || r.l.Shortened() != c.yields {
				t.Fatalf("hands over %v, shortened %v: %+v", a != nil, r.l.Shortened(), acts)
			}
			if c.yields && (a.Node != 2 || sent(acts, 2, MsgReset) != nil || sent(acts, 2, MsgMatch) != nil) {
				t.Errorf("%+v", acts)
			}
		})
	}
}

// A copy is contested under one leader only: the next one may have all that the copy has.
func TestContestedUntilAnotherLeads(t *testing.T) {
	r := newFollowerRig(t, Config{RetryNs: 50 * ms}, leaderLog(1, 1, 1, 1, 1), 5)
	r.say(Message{Kind: MsgHeartbeat, Position: 5, Committed: 4})
	contest := func() []Action {
		r.req++
		rep := sent(r.say(Message{Kind: MsgProbe}), 1, MsgReport)
		if rep == nil {
			t.Fatal("it reports nothing")
		}
		return r.say(Message{Kind: MsgMatch, Position: 3, Boot: rep.Boot, Generation: rep.Generation})
	}
	if a := find(contest(), ActDamaged); a == nil || !errors.Is(a.Err, ErrContested) {
		t.Fatalf("%+v", a)
	}
	r.epoch, r.req = r.epoch+1, 0
	row := State{Epoch: r.epoch, Leader: 1, ISR: []Member{testMember(1)}, Replicas: []NodeID{1, 2}}
	acts := r.step(Event{Kind: EvState, State: &row})
	if a := find(acts, ActDamaged); a == nil || a.Err != nil || !r.f.Electable() || sent(acts, 1, MsgResync) == nil {
		t.Fatalf("the contest goes on under another leader: %+v", acts)
	}
	if a := find(contest(), ActDamaged); a == nil || !errors.Is(a.Err, ErrContested) {
		t.Errorf("a second leader that lacks it is not contested: %+v", a)
	}
}

// What a member has committed and its leader lacks is not given up either when the leader's retention has passed it.
func TestContestedBehindRetention(t *testing.T) {
	own, other := begun(logOf(map[segment.Epoch]int{1: 5, 3: 40}), 30), logOf(map[segment.Epoch]int{1: 5, 2: 10})
	own.table.Reset([]EpochStart{{1, 0, 0}, {3, 5, other.stateAt(5).End}})
	r := leadsWith(t, 2, 1, 9, own, Log{Start: own.start, Committed: 40})
	r.append(0)
	acts := r.reports(2, other, 12, false)
	if m := sent(acts, 2, MsgMatch); m == nil || m.Position != 5 || sent(acts, 2, MsgReset) != nil {
		t.Errorf("%+v", acts)
	}
}

// A copy that begins anew behind its end gives up nothing if its leader had all of it: the epochs of both logs tell. If
// they do not, another author may have written what the leader's retention has passed.
func TestBeginsAnewBehindTheSameLog(t *testing.T) {
	own := logOf(map[segment.Epoch]int{1: 5, 3: 5})
	for name, c := range map[string]struct {
		leader simLog
		from   segment.Position
		had    bool
	}{
		"the same epoch covers the end": {logOf(map[segment.Epoch]int{1: 5, 3: 40}), 30, true},
		"it ended there":                {logOf(map[segment.Epoch]int{1: 5, 3: 5, 4: 40}), 10, true},
		"it ended there, and is gone":   {logOf(map[segment.Epoch]int{1: 5, 3: 5, 4: 40}), 30, false},
		"another one followed earlier":  {logOf(map[segment.Epoch]int{1: 5, 3: 2, 4: 40}), 7, false},
		"it shares none":                {logOf(map[segment.Epoch]int{2: 60}), 30, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFollowerRig(t, Config{}, own, 10)
			r.epoch, r.req = 9, 1
			rep := sent(r.say(Message{Kind: MsgProbe}), 1, MsgReport)
			l := begun(c.leader, c.from)
			a := find(r.say(Message{
				Kind: MsgReset, Log: l.start, Epochs: l.table.before(c.from), Boot: rep.Boot, Generation: rep.Generation,
			}), ActReset)
			if a == nil || a.Flag != c.had {
				t.Errorf("%+v", a)
			}
		})
	}
}

// A follower that ends below what it had acknowledged is answered only when the store knows.
func TestShortBeforeAnswered(t *testing.T) {
	rig := func(minISR int) *leaderRig {
		r := newLeaderRig(t, Config{ListShort: true, RetryNs: 100 * ms}, 3, minISR)
		r.serve()
		r.say(2, Message{Kind: MsgGap, Position: 0}) // it forgot: a new exchange
		return r
	}
	forgot := func(r *leaderRig) []Action { return r.reports(2, simLog{}, 0, false) }

	r := rig(3) // the ISR cannot shrink
	acts := forgot(r)
	p := find(acts, ActPropose)
	if p == nil || len(p.State.Short) != 1 || p.State.Short[0] != testMember(2) || sent(acts, 2, MsgMatch) != nil {
		t.Fatalf("%+v", acts)
	}
	r.state.Short = []Member{testMember(2)}
	if acts = r.accept(r.state.ISR...); sent(acts, 2, MsgMatch) == nil {
		t.Fatalf("it is not answered although the store knows: %+v", acts)
	}
	r.ack(2, 0)
	if acts = r.ack(2, 1); find(acts, ActPropose) == nil || len(find(acts, ActPropose).State.Short) != 0 {
		t.Errorf("it has everything again, and stays short: %+v", acts)
	}

	r = rig(2) // the ISR can shrink
	acts = forgot(r)
	if p := find(acts, ActPropose); p == nil || len(p.State.ISR) != 2 || len(p.State.Short) != 0 ||
		sent(acts, 2, MsgMatch) != nil {
		t.Fatalf("%+v", acts)
	}
	if acts = r.accept(testMember(1), testMember(3)); sent(acts, 2, MsgMatch) == nil {
		t.Errorf("it is not answered although it is outside: %+v", acts)
	}
}

// Where the tables share no epoch because they have forgotten the oldest ones, the bytes tell whether the logs agree.
// The answer is never "cut everything".
func TestEpochsForgotten(t *testing.T) {
	g := logOf(map[segment.Epoch]int{1: 5})
	away := g.clone()
	for e := segment.Epoch(2); e < 2*MaxEpochCount; e++ {
		g.append(sealSim(g.end(), e, nil))
	}
	if g.table.Entries()[0].Epoch == 1 {
		t.Fatal("the table has everything")
	}
	for name, c := range map[string]struct {
		epoch segment.Epoch
		crc   uint32
		match bool
	}{
		"the same batch": {1, away.end().LastCRC, true},
		"another batch":  {1, away.end().LastCRC + 1, false},
		"another epoch":  {2, away.end().LastCRC, false},
	} {
		r := leadsWith(t, 2, 1, 5000, g, Log{})
		acts := r.reports(2, away, 5, false)
		a := find(acts, ActRead)
		if a == nil || a.Purpose != ReadCompare || a.Position != 4 || sent(acts, 2, MsgMatch) != nil {
			t.Fatalf("%s: %+v", name, acts)
		}
		read := Event{Kind: EvRead, Node: 2, Request: a.Request, Position: 4, Until: 4, Purpose: ReadCompare}
		if acts = r.step(read); sent(acts, 2, MsgMatch) != nil {
			t.Errorf("%s: a read that failed counts: %+v", name, acts)
		}
		read.Until, read.Epoch, read.CRC = 5, c.epoch, c.crc
		acts = r.step(read)
		if m := sent(acts, 2, MsgMatch); (m != nil) != c.match || m != nil && m.Position != 5 {
			t.Errorf("%s: %+v", name, acts)
		}
		if sent(acts, 2, MsgReset) != nil {
			t.Errorf("%s: a member of the ISR is reset: %+v", name, acts)
		}
	}
}

// Of two members that have both lost something, the short one may have more. It leads, once the row allows that.
func TestShortMemberHasMost(t *testing.T) {
	g, longer := logOf(map[segment.Epoch]int{1: 5}), logOf(map[segment.Epoch]int{1: 9})
	r := leadsWith(t, 3, 2, 2, g, Log{Shortened: true})
	r.state.Short, r.state.Version = []Member{testMember(2)}, 7
	r.accept(r.state.ISR...)
	if acts := r.reports(2, longer, 0, false); find(acts, ActHandOver) != nil || find(acts, ActPropose) != nil {
		t.Fatalf("it does not wait for the third: %+v", acts)
	}
	acts := r.reports(3, g, 0, true)
	p := find(acts, ActPropose)
	if p == nil || len(p.State.Short) != 0 || len(p.State.ISR) != 3 || find(acts, ActHandOver) != nil {
		t.Fatalf("%+v", acts)
	}
	r.state.Short = nil
	if a := find(r.accept(r.state.ISR...), ActHandOver); a == nil || a.Node != 2 {
		t.Error("it does not lead")
	}

	r = leadsWith(t, 3, 2, 2, g, Log{Shortened: true})
	r.state.Short, r.state.Version = []Member{testMember(2)}, 7
	r.accept(r.state.ISR...)
	r.reports(2, longer, 0, false)
	if acts := r.reports(3, g, 0, false); find(acts, ActStartEpoch) == nil {
		t.Error("a proof that nothing is missing does not count")
	}
}

// The only member is shortened, and a replica outside the ISR has all of its log and more: for instance the group that
// the crash tore. It is admitted, and leads. One that goes on elsewhere is not, and an operator decides.
func TestReplicaOutsideHasMost(t *testing.T) {
	g, longer := logOf(map[segment.Epoch]int{1: 5}), logOf(map[segment.Epoch]int{1: 6})
	alone := func(own simLog) *leaderRig {
		r := leadsWith(t, 2, 1, 9, own, Log{Shortened: true})
		r.state.Version = 7
		if acts := r.accept(testMember(1)); find(acts, ActStartEpoch) != nil {
			t.Fatal("it does not wait for the replica outside")
		}
		return r
	}
	r := alone(g)
	written := Message{
		Kind: MsgReport, Store: testMember(2).Store, Log: longer.end(), Epochs: longer.table.Entries(),
		Until: longer.next() - 1, Boot: simUUID('b', 2, 1),
	}
	if acts := r.say(2, written); find(acts, ActPropose) != nil || find(acts, ActStartEpoch) != nil {
		t.Error("it is admitted, or passed over, before what it has is on its disk")
	}
	r = alone(g)
	p := find(r.reports(2, longer, 0, false), ActPropose)
	if p == nil || len(p.State.ISR) != 2 {
		t.Fatal("it is not admitted")
	}
	if a := find(r.accept(testMember(1), testMember(2)), ActHandOver); a == nil || a.Node != 2 {
		t.Error("it does not lead")
	}
	for name, acts := range map[string][]Action{
		"no more":           alone(g).reports(2, g, 5, false),
		"shortened as well": alone(g).reports(2, longer, 0, true),
		"silent":            alone(g).later(1100),
	} {
		if find(acts, ActPropose) != nil || find(acts, ActStartEpoch) == nil {
			t.Errorf("%s: it does not go on", name)
		}
	}
	r = alone(logOf(map[segment.Epoch]int{1: 5, 2: 3}))
	if acts := r.reports(2, logOf(map[segment.Epoch]int{1: 5, 3: 9}), 12, false); find(acts, ActPropose) != nil {
		t.Error("a log that goes on elsewhere is admitted")
	}
	if r.later(1100); r.l.Blocked() != 2 {
		t.Errorf("blocked by %d", r.l.Blocked())
	}
	for mark, blocks := range map[segment.Position]NodeID{5: 0, 6: 2} {
		r = alone(logOf(map[segment.Epoch]int{1: 5, 2: 3}))
		acts := r.reports(2, logOf(map[segment.Epoch]int{1: 5, 3: 1}), mark, false)
		if r.later(1100); r.l.Blocked() != blocks || (find(acts, ActStartEpoch) != nil) != (blocks == 0) {
			t.Errorf("it has nothing but the first batch of an epoch, and knows %d as committed: blocked by %d", mark,
				r.l.Blocked())
		}
	}
	r = alone(logOf(map[segment.Epoch]int{1: 5, 2: 3}))
	if acts := r.reports(2, logOf(map[segment.Epoch]int{1: 9}), 5, false); find(acts, ActStartEpoch) == nil {
		t.Error("it waits for what a replica outside had when it left the ISR, and what nobody committed")
	}
}

// A cut that takes more than leaders can have left uncommitted is refused, until an operator has chosen.
func TestCutTooLarge(t *testing.T) {
	cfg := Config{MaxPendingCount: 4}
	most := cfg.uncommittedCount()
	rig := func(count int) (*followerRig, Message) {
		r := newFollowerRig(t, cfg, logOf(map[segment.Epoch]int{1: 5 + count}), segment.Position(5+count))
		r.req++
		rep := sent(r.say(Message{Kind: MsgProbe}), 1, MsgReport)
		return r, Message{Kind: MsgMatch, Position: 5, Boot: rep.Boot, Generation: rep.Generation}
	}
	r, m := rig(most)
	if find(r.say(m), ActTruncate) == nil {
		t.Error("a small cut is refused")
	}
	r, m = rig(most + 1)
	if acts := r.say(m); find(acts, ActTruncate) != nil || r.f.Err() == nil || find(acts, ActDamaged) == nil {
		t.Fatalf("%+v", acts)
	}
	r.epoch = 2
	st := State{Epoch: 2, Leader: 1, Forced: 2}
	if r.step(Event{Kind: EvState, State: &st}); r.f.Err() != nil {
		t.Fatal("an operator's choice does not count")
	}
	r.req++
	rep := sent(r.say(Message{Kind: MsgProbe}), 1, MsgReport)
	m.Generation = rep.Generation
	if acts := r.say(m); find(acts, ActDiscard) == nil || find(acts, ActTruncate) != nil {
		t.Errorf("%+v", acts)
	}
}

// A leader that only read its log back from its disk went on without a member that was away. That member comes with
// more, and nothing tells that it was not committed: the leader hands over, as long as it has committed nothing itself.
func TestRecoveredLeaderIsOvertaken(t *testing.T) {
	old, longer := logOf(map[segment.Epoch]int{1: 5}), logOf(map[segment.Epoch]int{1: 7})
	away := Event{Kind: EvPeerDown, Node: 2}
	for name, c := range map[string]struct {
		log    Log
		other  simLog
		proof  bool // a third member was heard, and has no more than the leader
		own    segment.Position
		yields bool
	}{
		"the member has more":                {log: Log{Recovered: true}, other: longer, yields: true},
		"it has the same":                    {log: Log{Recovered: true}, other: old},
		"it has less":                        {log: Log{Recovered: true}, other: logOf(map[segment.Epoch]int{1: 3})},
		"the leader has its log all along":   {log: Log{}, other: longer},
		"the leader has committed meanwhile": {log: Log{Recovered: true}, other: longer, own: 6},
		"a third member proves":              {log: Log{Recovered: true}, other: longer, proof: true},
	} {
		t.Run(name, func(t *testing.T) {
			c.log.Committed = 3
			r := leadsWith(t, 3, 2, 9, old, c.log)
			r.step(away)
			if c.proof {
				r.reports(3, old, 3, false)
			} else {
				r.step(Event{Kind: EvPeerDown, Node: 3})
			}
			r.later(2000)
			if r.l.Comparing() {
				t.Fatal("it waits for members whose processes are gone")
			}
			r.append(0)
			r.durable(6)
			if c.own > 0 {
				r.l.log.Committed = c.own
				r.l.whole()
			}
			acts := r.reports(2, c.other, 3, false)
			a := find(acts, ActHandOver)
			if (a != nil) != c.yields || r.l.Shortened() != c.yields || (sent(acts, 2, MsgMatch) != nil) == c.yields {
				t.Fatalf("hands over %v, shortened %v: %+v", a != nil, r.l.Shortened(), acts)
			}
			if c.yields && (a.Node != 2 || find(r.step(Event{Kind: EvPut}), ActRefuse) == nil) {
				t.Errorf("%+v", acts)
			}
		})
	}
}

// While the outcome of a proposal is not known, which may remove the member with more, that member is neither answered
// nor made the leader: a leader that hands over to a node outside the ISR would be refused for ever.
func TestOvertakenAfterProposal(t *testing.T) {
	for name, stays := range map[string]bool{"it stays in the ISR": true, "it was removed": false} {
		t.Run(name, func(t *testing.T) {
			old, longer := logOf(map[segment.Epoch]int{1: 5}), logOf(map[segment.Epoch]int{1: 7})
			r := leadsWith(t, 3, 2, 9, old, Log{Recovered: true, Committed: 3})
			r.step(Event{Kind: EvPeerDown, Node: 2})
			r.step(Event{Kind: EvPeerDown, Node: 3})
			r.later(2000)
			r.append(0)
			r.durable(6)
			r.l.isr.open = true
			acts := r.reports(2, longer, 3, false)
			if find(acts, ActHandOver) != nil || sent(acts, 2, MsgMatch) != nil || r.l.Comparing() {
				t.Fatalf("before the outcome is known: %+v", acts)
			}
			r.state.Version++
			if !stays {
				r.state.ISR = slices.DeleteFunc(r.state.ISR, func(m Member) bool { return m.Node == 2 })
			}
			st := r.state
			acts = r.step(Event{Kind: EvState, State: &st})
			if (find(acts, ActHandOver) != nil) != stays || (sent(acts, 2, MsgMatch) == nil) != stays {
				t.Fatalf("afterwards: %+v", acts)
			}
		})
	}
}

// The member to which such a leader hands over compares itself, too. What the other one has written in its newer epoch
// was not committed, since this member has not acknowledged it: it does not hand over in turn.
func TestShortenedNewerEpochDoesNotCount(t *testing.T) {
	own, newer := logOf(map[segment.Epoch]int{1: 7}), logOf(map[segment.Epoch]int{1: 5, 9: 3})
	for name, c := range map[string]struct{ own, other, yields bool }{
		"only the other is shortened": {false, true, false},
		"both are shortened":          {true, true, true},
		"none is shortened":           {false, false, true},
	} {
		r := leadsWith(t, 2, 2, 10, own, Log{Recovered: !c.own, Shortened: c.own, Committed: 5})
		acts := r.reports(2, newer, 5, c.other)
		if (find(acts, ActHandOver) != nil) != c.yields {
			t.Errorf("%s: %+v", name, acts)
		}
	}
}
