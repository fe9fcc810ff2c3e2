package replicate

import (
	"errors"
	"testing"

	"penstock/segment"
)

// followerRig drives one Follower by hand: node 2 follows, and the test plays node 1.
type followerRig struct {
	t      *testing.T
	f      *Follower
	acts   Actions
	now    int64
	leader simLog // the log of node 1
	log    simLog // the log that the follower was told to write
	epoch  segment.Epoch
	req    uint64
}

// newFollowerRig makes a follower that is in step and whose log is the first held batches of the leader's, all durable.
func newFollowerRig(t *testing.T, cfg Config, leader simLog, held segment.Position) *followerRig {
	t.Helper()
	r := &followerRig{t: t, leader: leader, log: leader.clone(), epoch: leader.end().Epoch}
	r.log.truncate(held)
	r.restart(cfg, 0)
	r.exchange(held)
	return r
}

func (r *followerRig) restart(cfg Config, committed segment.Position) {
	r.f = NewFollower(cfg, testMember(2), simUUID('b', 2, int(r.req)), Log{
		Start: r.log.start, End: r.log.end(), Durable: r.log.next(), Committed: committed, Epochs: r.log.table.Entries(),
	})
}

func (r *followerRig) exchange(to segment.Position) []Action {
	r.t.Helper()
	r.req++
	rep := sent(r.say(Message{Kind: MsgProbe}), 1, MsgReport)
	if rep == nil || rep.Log.Next != r.log.next() {
		r.t.Fatalf("report: %+v", rep)
	}
	return r.say(Message{Kind: MsgMatch, Position: to, Boot: rep.Boot, Generation: rep.Generation})
}

func (r *followerRig) step(ev Event) []Action {
	r.f.Step(r.now, &ev, &r.acts)
	for i := range r.acts.List {
		a := &r.acts.List[i]
		if a.Kind == ActAppend {
			for _, b := range a.Message.Batches[a.Position-a.Message.Position:] {
				r.log.append(simBatch{Batch: b})
			}
		}
	}
	return r.acts.List
}

func (r *followerRig) say(m Message) []Action {
	if m.Epoch == 0 {
		m.Epoch = r.epoch
	}
	if m.Request == 0 {
		m.Request = r.req
	}
	return r.step(Event{Kind: EvMessage, Node: 1, Message: &m})
}

// afterRead answers the ActRead in acts with all batches, and returns the range that the follower then sends to n; nil
// if nothing was to be read.
func (r *followerRig) afterRead(acts []Action, n NodeID) *Message {
	a := find(acts, ActRead)
	if a == nil || a.Node != n || a.Purpose != ReadRepair || a.DelayNs != 0 || a.Bytes == 0 {
		return nil
	}
	return sent(r.step(Event{
		Kind: EvRead, Node: n, Request: a.Request, Position: a.Position, Until: a.Position + segment.Position(a.Count),
		Purpose: ReadRepair,
	}), n, MsgRange)
}

// frame is a MsgAppend with the leader's batches [from, until).
func (r *followerRig) frame(from, until, committed segment.Position) Message {
	m := Message{Kind: MsgAppend, Position: from, Until: until, Committed: committed}
	for p := from; p < until; p++ {
		m.Batches = append(m.Batches, r.leader.at(p).Batch)
	}
	m.FirstID, m.NextID = m.Batches[0].FirstID, m.Batches[len(m.Batches)-1].NextID()
	return m
}

func (r *followerRig) durable(p segment.Position) []Action {
	return r.step(Event{Kind: EvDurable, Position: p, Generation: r.f.Log().Generation})
}

// leaderLog has batches of the given epochs, with one message each, except the first batch of an epoch, which has none.
func leaderLog(epochs ...segment.Epoch) simLog {
	var g simLog
	for i, e := range epochs {
		var values []uint64
		if i > 0 && epochs[i-1] == e {
			values = []uint64{uint64(i)}
		}
		g.append(sealSim(g.end(), e, values))
	}
	return g
}

// B1 B8 B15: batches that continue the log are appended once, and acknowledged cumulatively when they are durable.
func TestFollowerAppends(t *testing.T) {
	r := newFollowerRig(t, Config{}, leaderLog(1, 1, 1, 1, 1, 1), 2)
	acts := r.say(r.frame(2, 4, 1))
	if find(acts, ActAppend) == nil || sent(acts, 1, MsgAck) != nil {
		t.Fatalf("%+v", acts)
	}
	if m := sent(r.durable(3), 1, MsgAck); m == nil || m.Position != 3 || m.Offset != r.leader.stateAt(3).End {
		t.Fatalf("ack %+v", m)
	}
	for _, again := range []Message{r.frame(2, 4, 1), r.frame(2, 3, 1), r.frame(0, 1, 1), r.frame(3, 4, 1)} {
		acts = r.say(again)
		if m := sent(acts, 1, MsgAck); find(acts, ActAppend) != nil || m == nil || m.Position != 3 {
			t.Fatalf("[%d,%d) again: %+v", again.Position, again.Until, acts)
		}
	}
	acts = r.say(r.frame(1, 6, 1)) // some known, some new
	if a := find(acts, ActAppend); a == nil || a.Position != 4 || r.log.next() != 6 {
		t.Fatalf("%+v", acts)
	}
	if m := sent(r.durable(6), 1, MsgAck); m == nil || m.Position != 6 || m.Committed != 1 {
		t.Fatalf("ack %+v", m)
	}
	// A restart forgets the checksums, but not the epochs.
	r.restart(Config{}, 0)
	r.exchange(6)
	if acts = r.say(r.frame(3, 6, 6)); find(acts, ActAppend) != nil || sent(acts, 1, MsgAck) == nil ||
		r.f.Committed() != 6 {
		t.Fatalf("%+v", acts)
	}
}

// B10: nothing is written unless the frame's arguments fit its batches, and the batches fit each other.
func TestFollowerArguments(t *testing.T) {
	for name, spoil := range map[string]func(m *Message){
		"first id":              func(m *Message) { m.FirstID++ },
		"last id":               func(m *Message) { m.NextID-- },
		"position":              func(m *Message) { m.Position++ },
		"count":                 func(m *Message) { m.Until++ },
		"no batch":              func(m *Message) { m.Batches = nil; m.Until = m.Position },
		"a hole between them":   func(m *Message) { m.Batches[1].Position++ },
		"ids with a hole":       func(m *Message) { m.Batches[1].FirstID++; m.NextID++ },
		"offsets with a hole":   func(m *Message) { m.Batches[1].Offset++ },
		"the chain is broken":   func(m *Message) { m.Batches[1].PrevCRC++ },
		"epochs go back":        func(m *Message) { m.Batches[1].Epoch-- },
		"an epoch to come":      func(m *Message) { m.Batches[1].Epoch += 5 },
		"smaller than a header": func(m *Message) { m.Batches[1].Bytes = segment.HeaderBytes - 1 },
		"larger than a batch":   func(m *Message) { m.Batches[1].Bytes = segment.MaxBatchBytes + 1 },
		"negative":              func(m *Message) { m.Batches[0].Bytes = -1 },
	} {
		r := newFollowerRig(t, Config{}, leaderLog(1, 2, 2, 2), 2)
		m := r.frame(2, 4, 2)
		spoil(&m)
		acts := r.say(m)
		rej := sent(acts, 1, MsgReject)
		if rej == nil || rej.Code != RejectArgument || find(acts, ActAppend) != nil || r.f.Log().End != r.log.end() ||
			r.f.Committed() != 0 {
			t.Errorf("%s: %+v", name, acts)
		}
	}
}

// B9: a frame that would leave a hole is answered with the position to go on from; a batch that does not continue the
// log sends both replicas back to an exchange.
func TestFollowerRefusesWhatDoesNotContinue(t *testing.T) {
	r := newFollowerRig(t, Config{}, leaderLog(1, 1, 1, 1, 1, 1), 2)
	acts := r.say(r.frame(4, 5, 2))
	if m := sent(acts, 1, MsgGap); m == nil || m.Position != 2 || m.Offset != r.log.end().End ||
		find(acts, ActAppend) != nil {
		t.Fatalf("a hole: %+v", acts)
	}
	r.say(r.frame(2, 3, 2))
	for name, spoil := range map[string]func(b *Batch){
		"offset": func(b *Batch) { b.Offset++ },
		"chain":  func(b *Batch) { b.PrevCRC++ },
	} {
		m := r.frame(3, 4, 2)
		spoil(&m.Batches[0])
		acts = r.say(m)
		if sent(acts, 1, MsgResync) == nil || find(acts, ActAppend) != nil || r.f.Following() {
			t.Errorf("%s: %+v", name, acts)
		}
		r.exchange(3)
		r.say(r.frame(3, 4, 2))
		if !r.f.Following() || r.log.next() != 4 {
			t.Fatalf("after %s the exchange did not help", name)
		}
		r.log.truncate(3) // again
		r.restart(Config{}, 0)
		r.exchange(2)
		r.step(Event{Kind: EvTruncated, Generation: 1, Log: r.log.stateAt(2)})
		r.log.truncate(2)
		r.say(r.frame(2, 3, 2))
	}
	// If the logs differ right behind the agreed position, it is not a misunderstanding.
	r = newFollowerRig(t, Config{}, leaderLog(1, 1, 1), 2)
	m := r.frame(2, 3, 2)
	m.Batches[0].PrevCRC++
	acts = r.say(m)
	if rej := sent(acts, 1, MsgReject); rej == nil || rej.Code != RejectDamaged || !errors.Is(r.f.Err(), ErrDamaged) ||
		r.f.Electable() {
		t.Fatalf("%+v", acts)
	}
	// The same for another batch at a position that is taken.
	r = newFollowerRig(t, Config{}, leaderLog(1, 1, 1, 1), 2)
	r.say(r.frame(2, 3, 0))
	m = r.frame(2, 3, 2)
	m.Batches[0].CRC++
	if acts = r.say(m); sent(acts, 1, MsgResync) == nil || find(acts, ActAppend) != nil {
		t.Fatalf("%+v", acts)
	}
}

// B6 B7 P7
func TestFollowerEpochs(t *testing.T) {
	r := newFollowerRig(t, Config{}, leaderLog(1, 2, 2, 2), 2)
	m := r.frame(2, 3, 2)
	m.Epoch = 1
	acts := r.say(m)
	if rej := sent(acts, 1, MsgReject); rej == nil || rej.Code != RejectEpoch || rej.Epoch != 2 || len(acts) != 1 ||
		r.log.next() != 2 {
		t.Fatalf("an older epoch: %+v", acts)
	}
	m = r.frame(2, 3, 2)
	m.Epoch = 3
	acts = r.step(Event{Kind: EvMessage, Node: 3, Message: &m})
	if find(acts, ActRefresh) == nil || sent(acts, 3, MsgResync) == nil || find(acts, ActAppend) != nil ||
		r.f.Epoch() != 3 || r.f.Following() {
		t.Fatalf("a newer epoch: %+v", acts)
	}
	// Node 1 led earlier. An answer to a message of this node's own leadership is not a message of the leader.
	if acts = r.say(r.frame(2, 3, 2)); sent(acts, 1, MsgReject) == nil {
		t.Fatalf("%+v", acts)
	}
	for _, kind := range []MessageKind{MsgAck, MsgReport, MsgGap, MsgReject, MsgResync, MsgFetch, MsgRange} {
		m = Message{Kind: kind, Epoch: 9}
		if acts = r.step(Event{Kind: EvMessage, Node: 5, Message: &m}); r.f.Epoch() != 3 || find(acts, ActSend) != nil {
			t.Fatalf("message %d: %+v", kind, acts)
		}
	}
	// The store knows a newer epoch than the network has told.
	st := State{Epoch: 7, Leader: 4}
	if acts = r.step(Event{Kind: EvState, State: &st}); sent(acts, 4, MsgResync) == nil || r.f.Epoch() != 7 {
		t.Fatalf("%+v", acts)
	}
	st = State{Epoch: 6, Leader: 3}
	if acts = r.step(Event{Kind: EvState, State: &st}); len(acts) != 0 || r.f.Epoch() != 7 {
		t.Fatalf("%+v", acts)
	}
}

// P5: an answer acts once, on the log that was reported; a completed sync counts only for the log that was written.
func TestFollowerLateAnswers(t *testing.T) {
	g := leaderLog(1, 1, 1, 1, 1)
	r := newFollowerRig(t, Config{}, g, 3)
	r.say(r.frame(3, 5, 0))
	late := Message{Kind: MsgMatch, Position: 3, Boot: r.f.boot, Generation: 0}
	for name, m := range map[string]Message{
		"again": late, "of the exchange before": {Kind: MsgMatch, Position: 1, Request: r.req, Boot: r.f.boot},
	} {
		if acts := r.say(m); len(acts) != 0 {
			t.Errorf("an answer %s: %+v", name, acts)
		}
	}
	r.req++
	r.say(Message{Kind: MsgProbe}) // the follower reports again
	for name, m := range map[string]Message{
		"from before":          {Kind: MsgMatch, Position: 3, Request: r.req - 1, Boot: r.f.boot},
		"to another process":   {Kind: MsgMatch, Position: 3, Boot: simUUID('b', 2, 77)},
		"for another log":      {Kind: MsgMatch, Position: 3, Boot: r.f.boot, Generation: 4},
		"a reset from before":  {Kind: MsgReset, Request: r.req - 1, Boot: r.f.boot, Log: g.end()},
		"a reset with a table": {Kind: MsgReset, Boot: r.f.boot, Log: g.end(), Epochs: table(2, 5, 1, 6)},
	} {
		if acts := r.say(m); len(acts) != 0 || r.f.state != reporting {
			t.Errorf("an answer %s: %+v", name, acts)
		}
	}
	if acts := r.say(r.frame(2, 3, 0)); len(acts) != 0 {
		t.Errorf("a frame while reporting: %+v", acts)
	}
	if a := find(r.say(Message{Kind: MsgMatch, Position: 4, Boot: r.f.boot}), ActTruncate); a == nil || a.Position != 4 ||
		a.Generation != 1 {
		t.Fatalf("the true answer: %+v", a)
	}
	if r.f.Electable() {
		t.Error("electable while its log is cut")
	}
	r.step(Event{Kind: EvDurable, Position: 5, Generation: 0})
	r.step(Event{Kind: EvTruncated, Log: r.log.stateAt(4), Generation: 0})
	if r.f.Log().Durable != 3 || r.f.Following() {
		t.Fatalf("a completion from before the cut counts: %+v", r.f.Log())
	}
	acts := r.step(Event{Kind: EvTruncated, Log: r.log.stateAt(4), Generation: 1})
	if !r.f.Following() || len(acts) != 0 {
		t.Fatalf("batches from before the exchange are acknowledged when all are durable: %+v", acts)
	}
	if m := sent(r.durable(4), 1, MsgAck); m == nil || m.Position != 4 {
		t.Fatalf("%+v", m)
	}
}

// P1: no replica cuts below the Committed that it knows, whoever asks for it; the replica keeps its data and refuses.
func TestFollowerNeverCutsCommitted(t *testing.T) {
	for name, m := range map[string]Message{
		"a cut":                        {Kind: MsgMatch, Position: 3},
		"a reset":                      {Kind: MsgReset, Log: segment.State{Next: 3, End: 300}},
		"a match beyond what there is": {Kind: MsgMatch, Position: 6},
	} {
		r := newFollowerRig(t, Config{}, leaderLog(1, 1, 1, 1, 1), 5)
		if r.say(Message{Kind: MsgHeartbeat, Position: 5, Committed: 4}); r.f.Committed() != 4 {
			t.Fatal("not committed")
		}
		r.req++
		rep := sent(r.say(Message{Kind: MsgProbe}), 1, MsgReport)
		m.Boot, m.Generation = rep.Boot, rep.Generation
		acts, want := r.say(m), ErrContested
		if m.Position > 5 {
			want = ErrDamaged
		}
		if find(acts, ActTruncate) != nil || find(acts, ActReset) != nil || find(acts, ActDamaged) == nil ||
			!errors.Is(r.f.Err(), want) {
			t.Errorf("%s: %+v", name, acts)
		}
		if rej := sent(r.say(r.frame(2, 3, 2)), 1, MsgReject); rej == nil || rej.Code != RejectDamaged || r.f.Electable() ||
			r.f.Log().End != r.log.end() {
			t.Errorf("%s: afterwards %+v", name, rej)
		}
	}
}

// Invariant 1 P17: Committed is the leader's Committed, as far as the log is durable here and known to be the leader's.
func TestFollowerCommitted(t *testing.T) {
	r := newFollowerRig(t, Config{}, leaderLog(1, 1, 1, 1, 1), 2)
	r.say(r.frame(2, 5, 4))
	if r.f.Committed() != 2 {
		t.Fatalf("committed %d, durable is 2", r.f.Committed())
	}
	if m := sent(r.durable(3), 1, MsgAck); r.f.Committed() != 3 || m.Committed != 3 {
		t.Fatalf("committed %d", r.f.Committed())
	}
	if r.durable(5); r.f.Committed() != 4 {
		t.Fatalf("committed %d", r.f.Committed())
	}
	if r.say(Message{Kind: MsgHeartbeat, Position: 5, Committed: 3}); r.f.Committed() != 4 {
		t.Fatal("a late heartbeat moves Committed back")
	}
	if m := sent(r.say(Message{Kind: MsgHeartbeat, Position: 7, Committed: 5}), 1, MsgGap); m == nil || m.Position != 5 {
		t.Fatal("a heartbeat does not show that frames were lost")
	}
	// A newer leader's mark means nothing before the exchange.
	m := Message{Kind: MsgHeartbeat, Epoch: 2, Position: 9, Committed: 9}
	if r.step(Event{Kind: EvMessage, Node: 3, Message: &m}); r.f.Committed() != 5 {
		t.Fatalf("committed %d", r.f.Committed())
	}
}

// B18: after a fault nothing is acknowledged.
func TestFollowerFault(t *testing.T) {
	r := newFollowerRig(t, Config{}, leaderLog(1, 1, 1, 1), 2)
	r.say(r.frame(2, 3, 1))
	acts := r.step(Event{Kind: EvFault, Err: errors.New("EIO")})
	if a := find(acts, ActDamaged); a == nil || !errors.Is(a.Err, ErrDisk) || sent(acts, 1, MsgReject) == nil ||
		r.f.Electable() {
		t.Fatalf("%+v", acts)
	}
	for _, acts := range [][]Action{
		r.durable(3), r.say(r.frame(3, 4, 1)), r.say(Message{Kind: MsgHeartbeat, Position: 3}), r.step(Event{Kind: EvTick}),
	} {
		if sent(acts, 1, MsgAck) != nil || find(acts, ActAppend) != nil {
			t.Errorf("%+v", acts)
		}
	}
}

// Batches beyond the window are not taken: the amount that is not durable is bounded at a follower, too.
func TestFollowerWindow(t *testing.T) {
	r := newFollowerRig(t, Config{MaxWindowCount: 3}, leaderLog(1, 1, 1, 1, 1, 1, 1), 1)
	r.say(r.frame(1, 4, 0))
	if acts := r.say(r.frame(4, 5, 0)); len(acts) != 0 {
		t.Fatalf("%+v", acts)
	}
	r.durable(3)
	if find(r.say(r.frame(4, 6, 0)), ActAppend) == nil {
		t.Fatal("room is not used")
	}
}

// B18 B37 P18: a damaged replica says so, is not electable, and fetches the batches it lacks. P19: it uses only right
// ones.
func TestFollowerRepair(t *testing.T) {
	r := newFollowerRig(t, Config{RetryNs: 50 * ms}, leaderLog(1, 2, 2, 2, 2, 2), 6)
	acts := r.step(Event{Kind: EvCorrupt, Position: 2, Until: 4})
	fetch, ack := sent(acts, 1, MsgFetch), sent(acts, 1, MsgAck)
	if fetch == nil || fetch.Position != 2 || fetch.Until != 4 || ack == nil || !ack.Damaged || r.f.Electable() ||
		find(acts, ActDamaged) == nil {
		t.Fatalf("%+v", acts)
	}
	if acts = r.step(Event{Kind: EvTick}); len(acts) != 0 {
		t.Fatalf("asked twice: %+v", acts)
	}
	if r.now += 50 * ms; sent(r.step(Event{Kind: EvTick}), 1, MsgFetch) == nil {
		t.Fatal("not asked again")
	}
	for name, spoil := range map[string]func(m *Message){
		"another epoch":  func(m *Message) { m.Batches[0].Epoch = 1 },
		"another place":  func(m *Message) { m.Batches = m.Batches[1:] },
		"a broken chain": func(m *Message) { m.Batches[1].PrevCRC++ },
		"too much":       func(m *Message) { m.Batches = append(m.Batches, r.leader.at(4).Batch) },
		"nothing":        func(m *Message) { m.Batches = nil },
	} {
		m := r.frame(2, 4, 0)
		m.Kind = MsgRange
		spoil(&m)
		if find(r.say(m), ActRepair) != nil {
			t.Errorf("%s is used", name)
		}
	}
	m := r.frame(2, 3, 0)
	m.Kind = MsgRange
	if find(r.say(m), ActRepair) == nil {
		t.Fatal("a part is not used")
	}
	if acts = r.step(Event{Kind: EvRepaired, Position: 2, Until: 3}); r.f.Electable() ||
		sent(acts, 1, MsgFetch).Position != 3 {
		t.Fatalf("%+v", acts)
	}
	acts = r.step(Event{Kind: EvRepaired, Position: 3, Until: 4})
	if a := find(acts, ActDamaged); !r.f.Electable() || a == nil || a.Err != nil || sent(acts, 1, MsgAck).Damaged {
		t.Fatalf("%+v", acts)
	}
	// Batches that the leader's retention has removed need not be repaired.
	r.say(Message{Kind: MsgHeartbeat, Position: 6, Committed: 5})
	r.step(Event{Kind: EvCorrupt, Position: 1, Until: 2})
	if a := find(r.say(Message{Kind: MsgRange, Position: 1, Until: 1, Start: 4}), ActTrim); a == nil || a.Position != 4 {
		t.Fatalf("%+v", a)
	}
	if r.step(Event{Kind: EvTrimmed, Log: r.log.stateAt(4)}); !r.f.Electable() {
		t.Fatal("damaged by what is gone")
	}
	// The leader may ask for batches that this replica can read, and for no others.
	r.step(Event{Kind: EvCorrupt, Position: 5, Until: 6})
	if m := r.afterRead(r.say(Message{Kind: MsgFetch, Position: 4, Until: 6}), 1); m == nil || m.Position != 4 ||
		m.Until != 5 {
		t.Fatalf("%+v", m)
	}
	for _, p := range []segment.Position{0, 5, 6} {
		if m := r.afterRead(r.say(Message{Kind: MsgFetch, Position: p, Until: p + 1}), 1); m != nil {
			t.Errorf("batch %d is offered: %+v", p, m)
		}
	}
	// A read that failed is not answered, and a read for a follower of an epoch in which this replica led is dropped.
	for _, ev := range []Event{
		{Kind: EvRead, Node: 1, Position: 4, Until: 4, Purpose: ReadRepair}, {Kind: EvRead, Node: 1, Until: 4},
	} {
		if acts := r.step(ev); len(acts) != 0 {
			t.Errorf("%+v: %+v", ev, acts)
		}
	}
}

// B18 B37: a node that the row names as leader, and that cannot read a part of its log, does not lead yet. It asks
// outside any exchange, and gets an answer whatever exchange an earlier process of it left here.
func TestFollowerServesALeaderThatCannotLead(t *testing.T) {
	r := newFollowerRig(t, Config{RetryNs: 50 * ms}, leaderLog(1, 2, 2, 2, 2, 2), 6)
	ask := Message{Kind: MsgFetch, Epoch: r.epoch, Position: 2, Until: 4}
	for _, c := range []struct {
		name string
		come func()
	}{
		{"following", func() {}},
		{"reporting", func() { r.req++; r.say(Message{Kind: MsgProbe}) }},
		{"idle", func() { r.restart(Config{RetryNs: 50 * ms}, 0); r.say(Message{Kind: MsgHeartbeat, Position: 6}) }},
	} {
		c.come()
		m := r.afterRead(r.step(Event{Kind: EvMessage, Node: 1, Message: &ask}), 1)
		if m == nil || m.Position != 2 || m.Until != 4 || m.Request != 0 {
			t.Errorf("%s: %+v", c.name, m)
		}
	}
}

func TestFollowerBugs(t *testing.T) {
	r := newFollowerRig(t, Config{}, leaderLog(1, 1), 2)
	mustPanic(t, func() { r.durable(3) })
	mustPanic(t, func() { r.step(Event{Kind: EvPut}) })
	r.req++
	r.say(Message{Kind: MsgProbe})
	r.say(Message{Kind: MsgMatch, Position: 1, Boot: r.f.boot})
	mustPanic(t, func() { r.durable(2) })
	mustPanic(t, func() { r.step(Event{Kind: EvTruncated, Generation: 1, Log: r.log.stateAt(2)}) })
}

func TestFollowerStepAllocs(t *testing.T) {
	f := NewFollower(Config{}, testMember(2), simUUID('b', 2, 1), Log{})
	var acts Actions
	step := func(ev Event) { f.Step(0, &ev, &acts) }
	step(Event{Kind: EvMessage, Node: 1, Message: &Message{Kind: MsgProbe, Epoch: 1, Request: 1}})
	step(Event{Kind: EvMessage, Node: 1, Message: &Message{Kind: MsgMatch, Epoch: 1, Request: 1, Boot: f.boot}})
	var end segment.State
	m := Message{Kind: MsgAppend, Epoch: 1, Request: 1, Batches: make([]Batch, 1)}
	run := func() {
		b := &m.Batches[0]
		*b = Batch{
			Position: end.Next, FirstID: end.NextID, Offset: end.End, Epoch: 1, Bytes: 200, Count: 1, PrevCRC: end.LastCRC,
			CRC: 7,
		}
		m.Position, m.Until, m.FirstID, m.NextID, m.Committed = b.Position, b.Position+1, b.FirstID, b.NextID(), end.Next
		advance(&end, b)
		step(Event{Kind: EvMessage, Node: 1, Message: &m})
		step(Event{Kind: EvDurable, Position: end.Next})
		if sent(acts.List, 1, MsgAck) == nil {
			t.Fatal("no ack")
		}
	}
	for range 100 {
		run()
	}
	if n := testing.AllocsPerRun(1000, run); n != 0 {
		t.Errorf("%v allocations for a write", n)
	}
}

// Following says whether the log is known to be a prefix of the log of this epoch's leader. If not, a reader may go to
// Committed and no further (P17).
func (f *Follower) Following() bool { return f.state == following && f.err == nil }
