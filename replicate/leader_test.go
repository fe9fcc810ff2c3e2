package replicate

import (
	"errors"
	"slices"
	"testing"

	"penstock/segment"
)

const ms = 1_000_000

// leaderRig drives one Leader by hand: node 1 leads, and the test plays the other nodes.
type leaderRig struct {
	t     testing.TB
	l     *Leader
	acts  Actions
	now   int64
	log   simLog
	state State
}

func testMember(n NodeID) Member { return Member{Node: n, Store: simUUID('s', n, int(n))} }

func newLeaderRig(t testing.TB, cfg Config, nodes, minISR int) *leaderRig {
	r := &leaderRig{t: t, now: 1000 * ms}
	r.state = State{Epoch: 1, Version: 1, Leader: 1, Boot: simUUID('b', 1, 1), MinISR: minISR}
	for n := NodeID(1); int(n) <= nodes; n++ {
		r.state.Replicas = append(r.state.Replicas, n)
		r.state.ISR = append(r.state.ISR, testMember(n))
	}
	r.l = NewLeader(cfg, testMember(1), r.state.Boot, Log{}, &r.state, r.now)
	return r
}

// serve gives the leader a lease, appends its epoch-start batch and brings every follower in step.
func (r *leaderRig) serve() {
	r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
	r.append(0)
	r.durable(1)
	for _, p := range r.l.Progress() {
		r.exchange(p.Node, 0)
		r.ack(p.Node, 1)
	}
}

func (r *leaderRig) step(ev Event) []Action {
	r.l.Step(r.now, &ev, &r.acts)
	return r.acts.List
}

// pass lets time pass in ticks. Their actions are dropped, except those of the last tick, which pass returns.
func (r *leaderRig) pass(d int64) {
	for ; d > 10; d -= 10 {
		r.now += 10 * ms
		r.step(Event{Kind: EvTick})
	}
	r.now += d * ms
}

func (r *leaderRig) append(count int) []Action {
	b := sealSim(r.log.end(), r.l.Epoch(), make([]uint64, count))
	r.log.append(b)
	return r.step(Event{Kind: EvAppended, Batches: []Batch{b.Batch}})
}

func (r *leaderRig) durable(p segment.Position) []Action {
	return r.step(Event{Kind: EvDurable, Position: p})
}

// say is a message from a follower, in the current exchange.
func (r *leaderRig) say(n NodeID, m Message) []Action {
	m.Epoch = r.l.Epoch()
	if m.Request == 0 {
		m.Request = r.l.peer(n).request
	}
	return r.step(Event{Kind: EvMessage, Node: n, Message: &m})
}

func (r *leaderRig) ack(n NodeID, p segment.Position) []Action {
	return r.say(n, Message{Kind: MsgAck, Position: p, Offset: r.log.stateAt(p).End})
}

// exchange plays the part of a follower whose log equals the leader's up to end.
func (r *leaderRig) exchange(n NodeID, end segment.Position) {
	r.t.Helper()
	var table EpochTable
	for p := r.log.start.Next; p < end; p++ {
		b := r.log.at(p)
		table.Note(EpochStart{Epoch: b.Epoch, Position: p, Offset: b.Offset})
	}
	acts := r.say(n, Message{
		Kind: MsgReport, Store: testMember(n).Store, Log: r.log.stateAt(end), Epochs: table.Entries(),
	})
	if m := sent(acts, n, MsgMatch); m == nil || m.Position != end {
		r.t.Fatalf("match for node %d at %d: %+v", n, end, m)
	}
	r.ack(n, end)
}

func (r *leaderRig) accept(isr ...Member) []Action {
	r.state.ISR = isr
	r.state.Version++
	st := r.state
	return r.step(Event{Kind: EvState, State: &st})
}

func sent(acts []Action, n NodeID, kind MessageKind) *Message {
	for i := range acts {
		if a := &acts[i]; a.Kind == ActSend && a.Node == n && a.Message.Kind == kind {
			return &a.Message
		}
	}
	return nil
}

func find(acts []Action, kind ActionKind) *Action {
	for i := range acts {
		if acts[i].Kind == kind {
			return &acts[i]
		}
	}
	return nil
}

// B2 B3 B5 B12 B19 B20
func TestLeaderRefusals(t *testing.T) {
	r := newLeaderRig(t, Config{LagMaxNs: 100 * ms}, 3, 2)
	want := func(what string, want error) {
		t.Helper()
		if got := r.mayAppend(); !errors.Is(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	want("without a lease", ErrLeaseLost)
	r.step(Event{Kind: EvLease, DeadlineNs: r.now + 500*ms})
	want("before the epoch-start batch", ErrNotYet)
	r.append(0)
	want("when it is appended", nil)
	for _, n := range []NodeID{2, 3} {
		r.exchange(n, 0)
		r.ack(n, 1)
	}
	r.durable(1)
	want("in order", nil)
	r.append(1)
	r.durable(2)

	r.pass(150) // both followers are silent
	r.step(Event{Kind: EvTick})
	want("too few are in sync", ErrNoQuorum)
	r.now += 500 * ms
	want("the lease ended, and nothing else has told the machine", ErrLeaseLost)

	r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
	newer := Message{Kind: MsgReject, Code: RejectEpoch, Epoch: 2}
	acts := r.step(Event{Kind: EvMessage, Node: 2, Message: &newer})
	if find(acts, ActStepDown) == nil || find(acts, ActRefresh) == nil || r.l.Log().Epoch != 2 {
		t.Errorf("a fenced leader does %+v", acts)
	}
	want("fenced", ErrFenced)
}

// mayAppend asks the leader, and returns its refusal.
func (r *leaderRig) mayAppend() error {
	if a := find(r.step(Event{Kind: EvPut}), ActRefuse); a != nil {
		return a.Err
	}
	return nil
}

// B15: the number of batches that are appended and not committed is bounded.
func TestLeaderPendingBound(t *testing.T) {
	for _, cfg := range []Config{{MaxPendingCount: 3}, {MaxPendingBytes: 3 * (segment.HeaderBytes + 8)}} {
		r := newLeaderRig(t, cfg, 2, 2)
		r.serve()
		for i := range 3 {
			if err := r.mayAppend(); err != nil {
				t.Fatalf("%+v: put %d: %v", cfg, i, err)
			}
			r.append(1)
		}
		if err := r.mayAppend(); !errors.Is(err, ErrNotYet) {
			t.Fatalf("%+v: the fourth put: %v", cfg, err)
		}
		r.durable(4)
		r.ack(2, 3)
		if err := r.mayAppend(); err != nil {
			t.Fatalf("%+v: after a commit: %v", cfg, err)
		}
	}
}

// Only acks of this epoch and the current exchange count, and only for batches that were sent (invariant 4, P5, P7).
func TestLeaderCountsOnlyTrueAcks(t *testing.T) {
	r := newLeaderRig(t, Config{}, 2, 2)
	r.serve()
	r.append(1)
	r.durable(2)
	valid := r.l.peer(2).request
	for name, m := range map[string]Message{
		"another exchange": {Kind: MsgAck, Epoch: 1, Request: valid + 1, Position: 2, Offset: r.log.end().End},
		"an older one":     {Kind: MsgAck, Epoch: 1, Request: valid - 1, Position: 2, Offset: r.log.end().End},
		"an older epoch":   {Kind: MsgAck, Epoch: 0, Request: valid, Position: 2, Offset: r.log.end().End},
	} {
		if acts := r.step(Event{Kind: EvMessage, Node: 2, Message: &m}); r.l.Committed() != 1 || len(acts) != 0 {
			t.Errorf("%s: committed %d, %+v", name, r.l.Committed(), acts)
		}
	}
	if r.say(9, Message{Kind: MsgAck, Request: valid, Position: 2}); r.l.Committed() != 1 {
		t.Error("the ack of a stranger counts")
	}
	if acts := r.ack(2, 2); find(acts, ActCommit) == nil || r.l.Committed() != 2 {
		t.Errorf("the true ack does not count: %+v", acts)
	}
	r.append(1)
	m := Message{Kind: MsgAck, Position: 4}
	if acts := r.say(2, m); sent(acts, 2, MsgProbe) == nil || r.l.Committed() != 2 {
		t.Errorf("an ack of what was never sent: %+v", acts)
	}
}

// Invariant 5: batches in flight are bounded by count and bytes; only a single batch may be larger.
func TestLeaderWindow(t *testing.T) {
	one := int64(segment.HeaderBytes + 8)
	for _, c := range []struct {
		cfg     Config
		batches []int // messages in each batch
		want    []segment.Position
	}{
		{Config{MaxWindowCount: 3}, []int{1, 1, 1, 1, 1}, []segment.Position{2, 3, 4, 4, 4}},
		{Config{MaxWindowBytes: 2 * one}, []int{1, 1, 1, 1}, []segment.Position{2, 3, 3, 3}},
		{Config{MaxWindowBytes: 2*one - 1}, []int{1, 1, 1}, []segment.Position{2, 2, 2}},
		{Config{MaxWindowBytes: 10}, []int{100, 1}, []segment.Position{2, 2}},
	} {
		r := newLeaderRig(t, c.cfg, 2, 1)
		r.serve()
		for i, n := range c.batches {
			r.append(n)
			if p := r.l.peer(2); p.Next != c.want[i] || p.Match != 1 {
				t.Errorf("%+v: after batch %d next is %d, want %d", c.cfg, i, p.Next, c.want[i])
			}
		}
		p := r.l.peer(2)
		next := p.Next
		if m := sent(r.ack(2, next), 2, MsgAppend); p.Next < r.log.next() && (m == nil || m.Position != next) {
			t.Errorf("%+v: an ack opens nothing: %+v", c.cfg, m)
		}
	}
}

// A frame carries as many batches as fit.
func TestLeaderSendBytes(t *testing.T) {
	one := int64(segment.HeaderBytes + 8)
	r := newLeaderRig(t, Config{MaxWindowCount: 1, MaxSendBytes: 3 * one}, 2, 1)
	r.serve()
	for range 8 {
		r.append(1)
	}
	r.l.cfg.MaxWindowCount = 7
	var frames []segment.Position
	for _, a := range r.ack(2, 2) {
		if a.Kind == ActSend {
			frames = append(frames, a.Message.Position, a.Message.Until)
		}
	}
	if want := []segment.Position{2, 5, 5, 8, 8, 9}; len(frames) != len(want) || frames[1] != 5 || frames[5] != 9 {
		t.Errorf("frames %v, want %v", frames, want)
	}
}

// An ack names its exchange and not its process, so an exchange belongs to one process. A late report of the previous
// process, from a disk that had been replaced, once took the place of the present process's report.
func TestLeaderOneProcessAnExchange(t *testing.T) {
	r := newLeaderRig(t, Config{}, 2, 1)
	r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
	r.append(0)
	old := Message{Kind: MsgReport, Boot: simUUID('b', 2, 1), Store: testMember(2).Store, Request: r.l.peer(2).request}
	present := Message{Kind: MsgReport, Boot: simUUID('b', 2, 2), Store: simUUID('s', 2, 99)}
	if sent(r.say(2, present), 2, MsgMatch) == nil {
		t.Fatal("the first report gets no answer")
	}
	if acts := r.say(2, old); sent(acts, 2, MsgMatch) != nil || sent(acts, 2, MsgProbe) == nil {
		t.Fatalf("two processes in one exchange: %+v", acts)
	}
	if r.say(2, Message{Kind: MsgAck, Request: old.Request, Position: 1}); r.l.peer(2).Match != 0 {
		t.Fatal("the ack of the exchange that was given up counts")
	}
	if sent(r.say(2, present), 2, MsgMatch) == nil || r.l.peer(2).Store != present.Store {
		t.Fatal("the present process gets no exchange")
	}
}

// B73 B76 B77: a follower that is far behind gets ranges, several in flight, not faster than allowed.
func TestLeaderCatchUp(t *testing.T) {
	one := int64(segment.HeaderBytes + 8)
	cfg := Config{
		MaxWindowCount: 100, MaxRangeBytes: 5 * one, MaxRangesInFlight: 3, CatchUpBytesPerSec: 10*one - 8, RetryNs: 50 * ms,
	}
	r := newLeaderRig(t, cfg, 2, 1)
	r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
	for range 201 {
		r.append(1 - int(1/(r.log.next()+1))) // the first batch is the epoch start
		r.durable(r.log.next())
		r.step(Event{Kind: EvPeerDown, Node: 2})
		if r.l.isr.open {
			r.accept(testMember(1))
		}
	}
	r.l.cfg.MaxPendingCount = 16
	r.exchange(2, 0)
	read := func(acts []Action) *Action {
		a := find(acts, ActRead)
		if a == nil {
			return nil
		}
		c := *a
		return &c
	}
	if p := r.l.peer(2); p.State != CatchUp {
		t.Fatalf("%+v", p)
	}
	// A limit of ten batches a second: the first range may go at once; each later one waits until the previous one is
	// paid for.
	a := read(r.acts.List)
	for i := range 6 {
		if a == nil || a.Bytes != cfg.MaxRangeBytes || a.Position != r.l.peer(2).Next {
			t.Fatalf("read %d: %+v", i, a)
		}
		want := int64(500)
		switch i {
		case 0:
			want = 0
		case 4:
			// Five batches were appended. They are allowed on top of the limit, or a follower would never catch up with
			// a log that grows as fast.
			want = 0
		}
		if d := a.DelayNs / ms; d < want-10 || d > want+10 {
			t.Fatalf("read %d comes after %d ms, want %d", i, d, want)
		}
		r.now += a.DelayNs
		if i == 3 {
			for range 5 {
				r.append(1)
			}
		}
		until := a.Position + 5
		acts := r.step(Event{
			Kind: EvRead, Node: 2, Request: a.Request, Position: a.Position, Until: until, Offset: r.log.stateAt(until).End,
		})
		if m := sent(acts, 2, MsgAppend); m == nil || m.Position != a.Position || m.Until != until {
			t.Fatalf("range %+v", m)
		}
		if a = read(acts); a == nil { // three are in flight
			a = read(r.ack(2, until))
		}
	}
	// An answer to another exchange has no effect.
	if acts := r.step(Event{Kind: EvRead, Node: 2, Request: 1, Position: 10, Until: 15}); len(acts) != 0 {
		t.Fatalf("%+v", acts)
	}
	r.now += 1000 * ms
	acts := r.step(Event{Kind: EvTick})
	if m := read(acts); m == nil && sent(acts, 2, MsgProbe) == nil {
		t.Fatalf("nothing goes on: %+v", acts)
	}
}

// A member in step that knows everything gets nothing: an idle partition is silent. A follower that is to join gets
// heartbeats.
func TestLeaderHeartbeats(t *testing.T) {
	r := newLeaderRig(t, Config{}, 3, 2)
	r.serve()
	for n := NodeID(2); n <= 3; n++ {
		r.say(n, Message{Kind: MsgAck, Position: 1, Offset: r.log.end().End, Committed: 1})
	}
	r.now += 1000 * ms
	if acts := r.step(Event{Kind: EvTick}); len(acts) != 0 {
		t.Fatalf("not silent: %+v", acts)
	}
	r.accept(testMember(1), testMember(2))
	r.now += 5000 * ms
	acts := r.step(Event{Kind: EvTick})
	if sent(acts, 3, MsgHeartbeat) == nil || sent(acts, 2, MsgHeartbeat) != nil {
		t.Fatalf("%+v", acts)
	}
	r.now += DefaultRetryNs // an open proposal may be replaced now
	if p := find(r.ack(3, 1), ActPropose); p == nil || !slices.Contains(p.State.ISR, testMember(3)) {
		t.Fatal("its answer does not bring it in")
	}
}

// B74: retention overtook a follower that is otherwise in step: the follower is probed again, and begins anew.
func TestLeaderTrimmedWhileSending(t *testing.T) {
	r := newLeaderRig(t, Config{}, 2, 1)
	r.serve()
	r.step(Event{Kind: EvPeerDown, Node: 2})
	r.accept(testMember(1))
	for range 5 {
		r.append(1)
		r.durable(r.log.next())
	}
	r.exchange(2, 1) // everything is sent
	r.step(Event{Kind: EvTrimmed, Log: r.log.stateAt(4)})
	gap := r.say(2, Message{Kind: MsgGap, Position: 2, Offset: r.log.stateAt(2).End})
	if sent(gap, 2, MsgProbe) == nil || sent(gap, 2, MsgAppend) != nil {
		t.Fatalf("%+v", gap)
	}
	m := sent(r.say(2, Message{Kind: MsgReport, Store: testMember(2).Store, Log: r.log.stateAt(2), Epochs: table(1, 0)}),
		2, MsgReset)
	if m == nil || m.Log != r.log.stateAt(4) || len(m.Epochs) != 1 {
		t.Fatalf("%+v", m)
	}
	mustPanic(t, func() { r.step(Event{Kind: EvTrimmed, Log: segment.State{Next: 99}}) })
}

// A leader waits for no disk: batches that memory no longer has are read like older ones, and later batches are sent
// from memory again. F6.
func TestLeaderSendsWhatMemoryGaveUp(t *testing.T) {
	r := newLeaderRig(t, Config{MaxWindowCount: 4}, 2, 1)
	r.serve()
	for range 8 {
		r.append(1)
		r.durable(r.log.next())
	}
	p := r.l.peer(2) // has acknowledged batch 0; the next four are on their way
	request := p.request
	evicted := func(from, until segment.Position) []Action {
		return r.step(Event{Kind: EvEvicted, Node: 2, Request: request, Position: from, Until: until})
	}
	read := func(from segment.Position) {
		t.Helper()
		a := find(r.acts.List, ActRead)
		if a == nil || a.Flag || a.Position != from || p.State != CatchUp || sent(r.acts.List, 2, MsgAppend) != nil {
			t.Fatalf("batch %d is not read: %+v", from, r.acts.List)
		}
		acts := r.step(Event{
			Kind: EvRead, Node: 2, Request: request, Position: from, Until: from + 1, Offset: r.log.stateAt(from + 1).End,
		})
		if m := sent(acts, 2, MsgAppend); m == nil || m.Position != from || m.Until != from+1 {
			t.Fatalf("batch %d is not sent: %+v", from, acts)
		}
	}
	r.ack(2, 3)
	if m := sent(r.acts.List, 2, MsgAppend); m == nil || m.Position != 5 || m.Until != 7 {
		t.Fatalf("%+v", m)
	}
	evicted(5, 6)
	read(5)
	if m := sent(r.acts.List[1:], 2, MsgAppend); p.State != Replicate || m == nil || m.Position != 6 || m.Until != 7 {
		t.Fatalf("the batches in memory do not follow at once: %v, %+v", p.State, r.acts.List)
	}
	// An answer about another exchange, another node, or batches that are acknowledged or not sent yet, causes no
	// resend.
	for _, ev := range []Event{
		{Request: request + 1, Position: 6},
		{Node: 3, Request: request, Position: 6},
		{Request: request, Position: 2},
		{Request: request, Position: 7},
	} {
		ev.Kind, ev.Node, ev.Until = EvEvicted, max(ev.Node, 2), ev.Position+1
		if acts := r.step(ev); len(acts) != 0 || p.Next != 7 {
			t.Errorf("%+v: %+v", ev, acts)
		}
	}
	mustPanic(t, func() { evicted(6, 6) })
	// If the machine does not remember the batches any more, it begins again behind the acknowledged ones.
	r.l.recent.restart(r.log.next(), r.log.end().End)
	evicted(6, 7)
	read(3)
}

// A mistake of the caller panics as a BUG.
func TestLeaderBugs(t *testing.T) {
	cfg, st := Config{}, State{Epoch: 3, Leader: 1, ISR: []Member{testMember(1)}, Replicas: []NodeID{1}}
	newLeader := func(log Log, st State) { NewLeader(cfg, testMember(1), st.Boot, log, &st, 0) }
	mustPanic(t, func() { newLeader(Log{Epochs: table(3, 0)}, st) })
	mustPanic(t, func() { newLeader(Log{End: segment.State{Epoch: 3}}, st) })
	mustPanic(t, func() { newLeader(Log{Epoch: 4}, st) })
	mustPanic(t, func() { newLeader(Log{}, State{Epoch: 3, ISR: []Member{testMember(2)}}) })
	r := newLeaderRig(t, cfg, 1, 1)
	mustPanic(t, func() { r.append(1) })
	r = newLeaderRig(t, cfg, 1, 1)
	mustPanic(t, func() { r.durable(1) })
	mustPanic(t, func() { r.step(Event{Kind: EvTruncated}) })
	mustPanic(t, func() { r.step(Event{Kind: EvCorrupt, Position: 2, Until: 2}) })
	r.append(0)
	mustPanic(t, func() { r.step(Event{Kind: EvAppended, Batches: []Batch{r.log.at(0).Batch}}) })
}

// B18: after a fault nothing is accepted or committed.
func TestLeaderFault(t *testing.T) {
	r := newLeaderRig(t, Config{}, 2, 1)
	r.serve()
	r.append(1)
	cause := errors.New("EIO")
	a := find(r.step(Event{Kind: EvFault, Err: cause}), ActStepDown)
	if a == nil || !errors.Is(a.Err, ErrDisk) || !errors.Is(a.Err, cause) || r.l.Serving() {
		t.Fatalf("%+v", a)
	}
	for _, ev := range []Event{{Kind: EvDurable, Position: 2}, {Kind: EvTick}, {Kind: EvLease, DeadlineNs: 1 << 61}} {
		if acts := r.step(ev); len(acts) != 0 {
			t.Errorf("%+v: %+v", ev, acts)
		}
	}
	if acts := r.ack(2, 2); len(acts) != 0 || r.l.Committed() != 1 {
		t.Errorf("%+v", acts)
	}
	if err := r.mayAppend(); !errors.Is(err, ErrDisk) {
		t.Error(err)
	}
}

// Batches that were appended together go to each follower in as few frames as their sizes and its window allow.
func TestLeaderSendsTogether(t *testing.T) {
	r := newLeaderRig(t, Config{MaxWindowCount: 12}, 3, 2)
	r.serve()
	group := func(count int) []Action {
		var all []Batch
		for range count {
			b := sealSim(r.log.end(), r.l.Epoch(), make([]uint64, 1))
			r.log.append(b)
			all = append(all, b.Batch)
		}
		return r.step(Event{Kind: EvAppended, Batches: all})
	}
	check := func(acts []Action, n NodeID, from, until segment.Position) {
		t.Helper()
		var frames []Message
		for i := range acts {
			if a := &acts[i]; a.Kind == ActSend && a.Node == n {
				frames = append(frames, a.Message)
			}
		}
		if len(frames) != 1 || frames[0].Kind != MsgAppend || frames[0].Position != from || frames[0].Until != until {
			t.Errorf("node %d: want batches %d to %d, got %+v", n, from, until, frames)
		}
	}
	acts := group(10)
	for _, n := range []NodeID{2, 3} {
		check(acts, n, 1, 11)
	}
	r.ack(2, 11)
	acts = group(8)
	check(acts, 2, 11, 19)
	check(acts, 3, 11, 13) // its window
	check(r.ack(3, 11), 3, 13, 19)
}

func TestLeaderStepAllocs(t *testing.T) {
	r := newLeaderRig(t, Config{}, 3, 2)
	r.serve()
	ack := Message{Kind: MsgAck, Epoch: 1}
	end, batches := r.log.end(), make([]Batch, 1)
	run := func() {
		batches[0] = Batch{
			Position: end.Next, FirstID: end.NextID, Offset: end.End, Epoch: 1, Bytes: 200, Count: 1, PrevCRC: end.LastCRC,
			CRC: 7,
		}
		advance(&end, &batches[0])
		r.step(Event{Kind: EvPut})
		r.step(Event{Kind: EvAppended, Batches: batches})
		r.durable(end.Next)
		for n := NodeID(2); n <= 3; n++ {
			ack.Request, ack.Position, ack.Offset = r.l.peer(n).request, end.Next, end.End
			r.step(Event{Kind: EvMessage, Node: n, Message: &ack})
		}
		if r.l.Committed() != end.Next {
			t.Fatalf("committed %d of %d", r.l.Committed(), end.Next)
		}
	}
	for range 100 {
		run()
	}
	if n := testing.AllocsPerRun(1000, run); n != 0 {
		t.Errorf("%v allocations for a write", n)
	}
}
