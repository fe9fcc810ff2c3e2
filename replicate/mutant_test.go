package replicate

import (
	"strings"
	"testing"

	"penstock/segment"
)

// mutant is a mistake that systems of this kind have made. The simulation must find each of them; that shows that it
// can find mistakes at all.
type mutant uint8

const (
	mutantNone           mutant = iota
	mutantTruncateToMark        // KIP-101: a restarted replica cuts its log to the Committed it knows
	mutantEpochReuse            // P3: a restarted leader goes on in its epoch
	mutantLateTruncation        // P5: an answer acts on whatever log is there when it comes
	mutantAckBeforeSync         // an ack from memory
	mutantLaggingJoin           // KAFKA-7128: a follower joins at a Committed that the new leader does not know yet
	mutantNoFencing             // P7: a follower obeys older epochs
	mutantISRRace               // P6: a shrink counts before the store has accepted it
	mutantMinISR                // P8: Committed moves although the ISR is too small
	mutantPendingAdd            // P6: a follower does not count until the store's answer to its joining has arrived
	mutantEarlyReset            // a reset is acknowledged before it is on stable storage
	mutantStaleSync             // P5: the completion of a sync counts for a log that was cut since
	mutantNoCompare             // a leader whose log recovery shortened cuts the others to it
	mutantFlap                  // a member that is stuck joins again at once, as often as the store takes it
	mutantNoAsk                 // a log that was set back leads at once, as nothing on its disk says so
	mutantShortProof            // a shortened log counts as a proof that nothing is missing
)

var mutants = []struct {
	mutant mutant
	name   string
	seeds  uint64 // in so many at most it must be found
	from   uint64 // the first of them
}{
	{mutantTruncateToMark, "truncate to the mark", 200, 0},
	{mutantEpochReuse, "epoch reuse", 500, 0},
	{mutantLateTruncation, "late truncation", 2000, 0},
	{mutantAckBeforeSync, "ack before sync", 200, 0},
	{mutantLaggingJoin, "join at a lagging mark", 2000, 0},
	{mutantNoFencing, "no fencing", 2000, 0},
	{mutantISRRace, "ISR race", 2000, 0},
	{mutantMinISR, "min_isr ignored", 500, 0},
	{mutantPendingAdd, "pending add ignored", 2000, 0},
	{mutantEarlyReset, "reset acknowledged early", 500, 0},
	{mutantStaleSync, "stale sync", 2000, 0},
	{mutantNoCompare, "a shortened log leads", 500, 0},
	{mutantFlap, "a stuck member joins at once", 2000, 0},
	{mutantNoAsk, "a recovered log leads at once", 200, 24200},
	{mutantShortProof, "a shortened log testifies to absence", 2000, 0},
}

// The mutants are injected from outside, so that the machines have no switches for them.
func TestMutantsAreFound(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			for seed := m.from; seed < m.from+m.seeds; seed++ {
				if s := runSeed(seed, m.mutant, nil); s.violation != "" && !strings.Contains(s.violation, "not whole") {
					t.Logf("seed %d: %s", seed, s.violation)
					return
				}
			}
			t.Errorf("not found in %d seeds", m.seeds)
		})
	}
}

// mutateLeader is called before each step of a leader.
func (s *sim) mutateLeader(n *simNode) {
	l := n.leader
	switch s.mutant {
	case mutantNoCompare:
		l.comparing.open = false
	case mutantNoAsk:
		l.comparing.open = l.comparing.open && !l.comparing.recovered
		l.log.Recovered = false
	case mutantShortProof:
		for i := range l.peers {
			l.peers[i].report.shortened = false
		}
	case mutantPendingAdd:
		l.isr.proposed = nil
	case mutantFlap:
		l.isr.joins = newLimiter(l.cfg.MaxISRJoins, l.cfg.ISRWindowNs)
		for i := range l.peers {
			l.peers[i].stuck = false
		}
	case mutantLaggingJoin:
		l.joinFloor = 0
	case mutantISRRace:
		if l.isr.open {
			l.isr.members, l.isr.proposed = append([]Member(nil), l.isr.next...), nil
		}
	}
}

// mutateFollower is called before each step of a follower.
func (s *sim) mutateFollower(n *simNode, ev *Event) {
	f := n.follower
	switch {
	case s.mutant == mutantNoFencing && ev.Kind == EvMessage && ev.Message.Kind <= MsgHeartbeat &&
		ev.Message.Epoch < f.epoch && f.state != cutting:
		f.epoch, f.leader, f.request, f.state = ev.Message.Epoch, ev.Node, 0, idle
	case s.mutant == mutantLateTruncation && ev.Kind == EvMessage && ev.Message.Kind == MsgMatch && f.state == following &&
		ev.Message.Epoch == f.epoch:
		f.state, f.request = reporting, ev.Message.Request
		ev.Message.Boot, ev.Message.Generation = f.boot, f.log.Generation
	case s.mutant == mutantStaleSync && ev.Kind == EvDurable && f.state != cutting:
		ev.Generation = f.log.Generation
		ev.Position = min(ev.Position, f.log.End.Next)
	}
}

// newLeader makes a node the leader as the store has decided.
func (s *sim) newLeader(n *simNode, st *State) *Leader {
	grant := *st
	switch {
	case s.mutant == mutantMinISR:
		grant.MinISR = 1
	case s.mutant == mutantEpochReuse && n.disk.log.table.Last() >= st.Epoch:
		grant.Epoch = n.disk.log.table.Last() + 1
		l := NewLeader(s.opt.cfg, n.member(), n.boot, n.log(), &grant, n.now())
		l.epoch = st.Epoch
		return l
	}
	return NewLeader(s.opt.cfg, n.member(), n.boot, n.log(), &grant, n.now())
}

func segmentPosition(n int) segment.Position { return segment.Position(n) }
