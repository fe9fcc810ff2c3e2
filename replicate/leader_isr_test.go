package replicate

import (
	"errors"
	"slices"
	"testing"

	"penstock/segment"
)

// B11 P6: a removal counts once the store has accepted it, an addition as soon as it is proposed. At most one proposal
// is open at a time. The ISR never goes below its minimum.
func TestLeaderISR(t *testing.T) {
	r := newLeaderRig(t, Config{LagMaxNs: 100 * ms, RetryNs: 50 * ms}, 3, 2)
	r.serve()
	r.append(1)
	r.durable(2)
	r.ack(2, 2)
	r.pass(101)
	p := find(r.step(Event{Kind: EvTick}), ActPropose)
	if p == nil || len(p.State.ISR) != 2 || slices.Contains(p.State.ISR, testMember(3)) || p.State.Version != 1 ||
		p.State.Epoch != 1 {
		t.Fatalf("proposal: %+v", p)
	}
	if r.l.Committed() != 1 {
		t.Fatal("a proposal counts like an answer")
	}
	if find(r.step(Event{Kind: EvTick}), ActPropose) != nil {
		t.Fatal("two proposals at once")
	}
	r.pass(50)
	if find(r.step(Event{Kind: EvTick}), ActPropose) == nil {
		t.Fatal("a proposal without an answer is not repeated")
	}
	stale := r.state // the old state, read again
	if r.step(Event{Kind: EvState, State: &stale}); r.l.Committed() != 1 {
		t.Fatal("a stale state settles the proposal")
	}
	if find(r.accept(testMember(1), testMember(2)), ActCommit) == nil || r.l.Committed() != 2 {
		t.Fatal("an accepted shrink does not commit")
	}

	r.pass(101) // node 2 is overdue now, too, but without it the ISR would be too small
	r.append(1)
	r.durable(3)
	r.pass(101)
	if a := find(r.step(Event{Kind: EvTick}), ActPropose); a != nil || !r.l.blocked {
		t.Fatalf("the ISR would be too small: %+v", a)
	}
	r.exchange(3, 2)
	if p = find(r.acts.List, ActPropose); p == nil || !slices.Contains(p.State.ISR, testMember(3)) ||
		slices.Contains(p.State.ISR, testMember(2)) {
		t.Fatalf("who came back replaces who is gone: %+v", p)
	}
	r.ack(3, 3)
	if r.l.Committed() != 2 {
		t.Fatal("committed without node 2, which is in the ISR")
	}
	if r.accept(testMember(1), testMember(3)); r.l.Committed() != 3 {
		t.Fatal("the new ISR holds all")
	}

	r.exchangeAgain(2)
	acts := r.ack(2, 3)
	if find(acts, ActPropose) == nil {
		t.Fatal("node 2 is not proposed")
	}
	r.append(1)
	r.durable(4)
	if r.ack(3, 4); r.l.Committed() != 3 {
		t.Fatal("a pending add does not hold Committed back")
	}
	if r.ack(2, 4); r.l.Committed() != 4 {
		t.Fatal("it holds it back for ever")
	}
}

func (r *leaderRig) exchangeAgain(n NodeID) {
	r.t.Helper()
	r.say(n, Message{Kind: MsgResync})
	r.exchange(n, r.l.peer(n).Match)
}

// A process that is gone, or a disk that was replaced, is proposed for removal at once.
func TestLeaderRemovesAtOnce(t *testing.T) {
	r := newLeaderRig(t, Config{}, 3, 1)
	r.serve()
	p := find(r.step(Event{Kind: EvPeerDown, Node: 3}), ActPropose)
	if p == nil || slices.Contains(p.State.ISR, testMember(3)) {
		t.Fatalf("a closed connection: %+v", p)
	}
	r.accept(testMember(1), testMember(2))
	r.say(2, Message{Kind: MsgResync})
	other := Member{Node: 2, Store: simUUID('s', 2, 99)}
	acts := r.say(2, Message{Kind: MsgReport, Store: other.Store})
	if p = find(acts, ActPropose); p == nil || len(p.State.ISR) != 1 {
		t.Fatalf("another disk: %+v", p)
	}
	r.append(1)
	r.durable(2)
	r.ack(2, 0)
	if r.ack(2, 2); r.l.Committed() != 1 {
		t.Fatal("the ack of a new disk counts for the old one")
	}
}

// A member whose disk was replaced takes the place of its former self also while too few others are there to remove
// anybody: the node has one place in the ISR, and the store refuses two.
func TestLeaderNewDiskTakesItsOwnPlace(t *testing.T) {
	r := newLeaderRig(t, Config{}, 3, 3)
	r.serve()
	r.step(Event{Kind: EvPeerDown, Node: 3})
	r.say(2, Message{Kind: MsgResync})
	other := Member{Node: 2, Store: simUUID('s', 2, 99)}
	if p := find(r.say(2, Message{Kind: MsgReport, Store: other.Store}), ActPropose); p != nil {
		t.Fatalf("a new disk that has nothing yet: %+v", p)
	}
	p := find(r.ack(2, 1), ActPropose)
	if p == nil || len(p.State.ISR) != 3 || !slices.Contains(p.State.ISR, other) ||
		slices.Contains(p.State.ISR, testMember(2)) {
		t.Fatalf("a new disk that has all: %+v", p)
	}
}

// P4: a new leader's Committed lags behind, so a follower that joins must hold everything that the leader began with,
// and more.
func TestLeaderJoinFloor(t *testing.T) {
	r := newLeaderRig(t, Config{}, 3, 1)
	for range 4 {
		r.log.append(sealSim(r.log.end(), 1, []uint64{1}))
	}
	r.state.Epoch, r.state.ISR = 2, []Member{testMember(1), testMember(2)}
	r.l = NewLeader(Config{}, testMember(1), r.state.Boot, Log{
		End: r.log.end(), Durable: 4, Committed: 1, Epochs: r.log.table.Entries(),
	}, &r.state, r.now)
	r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
	r.append(0)
	r.durable(5)
	r.exchange(3, 2) // beyond the known Committed
	read := find(r.acts.List, ActRead)
	r.step(Event{Kind: EvRead, Node: 3, Request: read.Request, Position: 2, Until: 5, Offset: r.log.stateAt(5).End})
	for at := segment.Position(3); at <= 4; at++ {
		if find(r.ack(3, at), ActPropose) != nil {
			t.Fatalf("proposed at %d", at)
		}
	}
	if p := find(r.ack(3, 5), ActPropose); p == nil || !slices.Contains(p.State.ISR, testMember(3)) {
		t.Fatalf("not proposed: %+v", p)
	}
	if r.l.Committed() != 1 {
		t.Fatal("committed without node 2") // P12
	}
}

// B75: under a load in which Committed always runs ahead of its acks, a follower still joins, and Committed moves on.
func TestLeaderJoinUnderLoad(t *testing.T) {
	r := newLeaderRig(t, Config{JoinNs: 20 * ms}, 3, 2)
	r.serve()
	r.step(Event{Kind: EvPeerDown, Node: 3})
	r.accept(testMember(1), testMember(2))
	for range 10 {
		r.append(1)
		r.durable(r.log.next())
		r.ack(2, r.log.next())
	}
	r.exchangeAgain(3)
	for i := range 200 {
		r.now += ms
		r.append(1)
		end := r.log.next()
		r.durable(end)
		r.ack(2, end)
		if i > 0 && r.l.Committed() < end-1 {
			t.Fatalf("committed %d of %d", r.l.Committed(), end)
		}
		acts := r.ack(3, end-1) // always one behind
		if p := find(acts, ActPropose); p != nil {
			if r.l.Committed() > end-1 {
				t.Fatalf("proposed at %d, committed is %d", end-1, r.l.Committed())
			}
			return
		}
	}
	t.Fatal("it never joins")
}

// Only a higher version of this epoch tells something new. Another incarnation, or an ISR without this node, ends the
// leader.
func TestLeaderLearns(t *testing.T) {
	for name, c := range map[string]struct {
		change func(st *State)
		stops  error
	}{
		"an older epoch":       {func(st *State) { st.Epoch--; st.Version += 5; st.ISR = nil }, nil},
		"the same version":     {func(st *State) { st.ISR = nil }, nil},
		"a newer epoch":        {func(st *State) { st.Epoch++ }, ErrFenced},
		"another leader":       {func(st *State) { st.Leader = 2 }, ErrFenced},
		"another process":      {func(st *State) { st.Boot = simUUID('b', 1, 9) }, ErrFenced},
		"an ISR without it":    {func(st *State) { st.Version++; st.ISR = []Member{testMember(2)} }, ErrFenced},
		"another disk of ours": {func(st *State) { st.Version++; st.ISR = []Member{{1, simUUID('s', 1, 9)}} }, ErrFenced},
	} {
		r := newLeaderRig(t, Config{}, 2, 1)
		r.serve()
		st := r.state
		c.change(&st)
		acts := r.step(Event{Kind: EvState, State: &st})
		if down := find(acts, ActStepDown); !errors.Is(r.l.Err(), c.stops) || (down != nil) != (c.stops != nil) ||
			c.stops == nil && len(r.l.ISR()) != 2 {
			t.Errorf("%s: %v, %+v", name, r.l.Err(), acts)
		}
	}
}

// B89 P23: when replicas come and go, the leader keeps what it knows of those that stay.
func TestLeaderReplicasChange(t *testing.T) {
	r := newLeaderRig(t, Config{}, 3, 2)
	r.serve()
	r.state.Replicas = []NodeID{1, 3, 4}
	r.accept(testMember(1), testMember(2), testMember(3))
	if n := len(r.l.Progress()); n != 2 || r.l.peer(2) != nil || r.l.peer(3).Match != 1 || r.l.peer(4).Match != 0 {
		t.Fatalf("%+v", r.l.Progress())
	}
	acts := r.step(Event{Kind: EvTick})
	p := find(r.acts.List, ActPropose)
	if sent(acts, 4, MsgProbe) == nil {
		t.Fatalf("the new one is not asked: %+v", acts)
	}
	if !r.l.isr.open || slices.Contains(r.l.isr.next, testMember(2)) {
		t.Fatalf("who is no replica stays in the ISR: %+v", p)
	}
}

// A follower that lost acknowledged batches leaves the ISR, and counts again when it has them again.
func TestLeaderLostAcks(t *testing.T) {
	r := newLeaderRig(t, Config{}, 3, 1)
	r.serve()
	r.append(1)
	r.durable(2)
	r.ack(2, 2)
	r.ack(3, 2)
	r.say(2, Message{Kind: MsgResync})
	r.exchange(2, 1)
	if !r.l.isr.open || slices.Contains(r.l.isr.next, testMember(2)) {
		t.Fatal("it stays in the ISR")
	}
	r.append(1)
	r.durable(3)
	r.ack(3, 3)
	if r.l.Committed() != 2 {
		t.Fatalf("committed %d without it", r.l.Committed())
	}
	if r.ack(2, 3); r.l.peer(2).lost || r.l.Committed() != 3 {
		t.Fatalf("it does not count again: %+v", r.l.peer(2))
	}
}

// A follower that has heard of no exchange is probed again at once, without waiting for a retry: the first probe came
// before it had a copy. It may be the same exchange, so a follower that has the probe by now answers twice, which does
// no harm. A Resync that names an exchange waits.
func TestLeaderAsksNewcomer(t *testing.T) {
	r := newLeaderRig(t, Config{}, 3, 2)
	acts := r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
	asked := sent(acts, 2, MsgProbe)
	if asked == nil {
		t.Fatal("nobody is asked")
	}
	call := Message{Kind: MsgResync, Epoch: 1}
	first := asked.Request
	again := sent(r.step(Event{Kind: EvMessage, Node: 2, Message: &call}), 2, MsgProbe)
	if again == nil || again.Request != first {
		t.Fatalf("a newcomer waits for the retry: %+v", again)
	}
	call.Request = first
	if m := sent(r.step(Event{Kind: EvMessage, Node: 2, Message: &call}), 2, MsgProbe); m != nil {
		t.Fatalf("a late call begins another exchange: %+v", m)
	}
	r.append(0)
	r.durable(1)
	r.exchange(2, 1)
	if r.ack(2, 1); r.l.Committed() != 0 {
		t.Fatal("node 3 holds nothing")
	}
	r.exchange(3, 1)
	if r.ack(3, 1); r.l.Committed() != 1 {
		t.Fatalf("committed %d", r.l.Committed())
	}
}

// A node that was no replica for a while has removed its copy, and begins with an empty one when it comes back. A
// leader that missed the row's versions in between must not take an ack of the old copy for one of the new copy.
func TestLeaderDoubtsWhoMayHaveBegunAnew(t *testing.T) {
	for _, c := range []struct {
		what    string
		skipped uint64
		joins   bool
	}{
		{"the next version of the row", 0, true},
		{"versions were skipped", 1, false},
	} {
		r := newLeaderRig(t, Config{}, 3, 1)
		r.serve()
		old := r.l.peer(3).request
		r.state.Version += c.skipped
		p := find(r.accept(testMember(1), testMember(2)), ActPropose)
		acts := r.say(3, Message{Kind: MsgAck, Position: 1, Offset: r.log.stateAt(1).End, Request: old})
		if p == nil {
			p = find(acts, ActPropose)
		}
		if joins := p != nil && slices.Contains(p.State.ISR, testMember(3)); joins != c.joins {
			t.Errorf("%s: an ack of the exchange before lets node 3 join: %v", c.what, joins)
		}
		if c.joins {
			continue
		}
		if acts = r.say(3, Message{
			Kind: MsgReport, Store: testMember(3).Store, Log: segment.State{},
		}); sent(acts, 3, MsgMatch) == nil || find(acts, ActPropose) != nil {
			t.Errorf("%s: a new exchange begins with what the copy has now", c.what)
		}
		r.ack(3, 0)
		if p = find(r.ack(3, 1), ActPropose); p == nil || !slices.Contains(p.State.ISR, testMember(3)) {
			t.Errorf("%s: it does not join when it has caught up", c.what)
		}
	}
}

// A tick brings how long a member may lag, and how fast one catches up, from then on.
func TestTickChangesRates(t *testing.T) {
	r := newLeaderRig(t, Config{LagMaxNs: 100 * ms, RetryNs: 50 * ms}, 3, 2)
	r.serve()
	r.append(1)
	r.durable(2)
	r.ack(2, 2)
	tick := Event{Kind: EvTick, LagMaxNs: 1000 * ms, CatchUpBytesPerSec: 64 << 20}
	if r.step(tick); r.l.rangeBytes() >= r.l.cfg.MaxRangeBytes {
		t.Errorf("at 64 MiB a second, ranges of %d bytes", r.l.rangeBytes())
	}
	r.pass(101)
	if a := find(r.step(tick), ActPropose); a != nil {
		t.Fatalf("it may lag for a second now: %+v", a)
	}
	tick.LagMaxNs, tick.CatchUpBytesPerSec = 50*ms, 0
	a := find(r.step(tick), ActPropose)
	if a == nil || slices.Contains(a.State.ISR, testMember(3)) {
		t.Errorf("it may lag for 50 ms: %+v", a)
	}
	if r.l.rangeBytes() != r.l.cfg.MaxRangeBytes {
		t.Errorf("without a limit, ranges of %d bytes", r.l.rangeBytes())
	}
}
