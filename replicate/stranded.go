package replicate

import "slices"

// A leader may reach the store but not its followers, while the followers reach the store and each other: the network
// is broken in one place, or in one direction. The leader's lease lives, so nobody else is elected, and while that
// lasts the partition commits nothing. Such a leader is stranded, and asks for another leader:
//
//	1 fewer than MinISR replicas, itself included, have answered within StrandedNs when they owed an answer
//	2 the store says that enough of the silent ones are alive: another leader could commit
//	3 ActGiveUp, to a member that does answer if there is one, since that member may reach more; else to a member of
//	  the ISR that the store chooses
//
// Safety does not depend on this judgement: the new leader comes from the ISR, so it holds everything that is
// committed, and if it reaches no more replicas than this one did, it gives up as well. Each copy gives up at most once
// per StrandedEveryNs, whatever its roles were in between (Log.StrandedUntil), so a bad network does not send the
// leadership round in circles.
//
// A member that answers but stores nothing, because its disk hangs or no longer reads back, counts as reached: another
// leader would fare no better with it.

// stranding is the leader's request for another leader, from the time when it was first stranded.
type stranding struct {
	count    uint64 // times that the leader began to ask
	askUntil int64  // the request is repeated until then
	askedAt  int64
}

// giveUp asks for another leader if this one is stranded. alive are the nodes that the store says are alive.
func (l *Leader) giveUp(now int64, alive []NodeID, acts *Actions) {
	heir, better := l.heir(now, alive)
	if !better || !l.serving {
		return
	}
	s := &l.stranding
	first := now >= l.log.StrandedUntil
	switch {
	case first:
		l.log.StrandedUntil = now + l.cfg.StrandedEveryNs
		s.count, s.askUntil = s.count+1, now+l.cfg.StrandedNs
	case now >= s.askUntil, now-s.askedAt < l.cfg.RetryNs:
		return
	}
	s.askedAt = now
	a := acts.add(ActGiveUp)
	a.Node, a.Flag = heir, first
	a.State = State{Epoch: l.epoch, Version: l.isr.version, Leader: l.self.Node, Boot: l.boot}
}

// heir says whether another leader could commit what this one cannot, and which replica should lead: 0 leaves the
// choice to the store. Only a member of the ISR can lead, but a replica outside it can join under the new leader.
func (l *Leader) heir(now int64, alive []NodeID) (NodeID, bool) {
	reached, silent, mute := 1, 0, false
	var best *Progress
	for i := range l.peers {
		p := &l.peers[i]
		member, lives := l.isr.member(p.member()), slices.Contains(alive, p.Node)
		if !member && p.heard && l.isr.node(p.Node) {
			continue // the disk that is in the ISR is gone
		}
		if !p.heard && l.isr.node(p.Node) {
			member = true // it was not heard in this epoch: take its disk for the ISR's
		}
		switch {
		case !l.silent(p, member, now):
			reached++
			if member && lives && !p.Damaged && p.absent.count == 0 && (best == nil || p.Match > best.Match) {
				best = p
			}
		case lives && !p.Damaged:
			silent++
			mute = mute || member
		}
	}
	switch {
	case reached >= l.isr.minISR:
		return 0, false
	case best != nil:
		return best.Node, reached+silent >= l.isr.minISR
	}
	return 0, mute && silent >= l.isr.minISR
}

// silent says that p owes an answer and has given none for StrandedNs, counted from when it began to lack something. A
// replica that is to join always owes one. A replica that said that it has no copy has answered.
func (l *Leader) silent(p *Progress, member bool, now int64) bool {
	lacks := !member || p.Match < l.log.End.Next || l.comparing.open && !p.compared
	return lacks && p.absent.count == 0 && now-max(p.heardAt, p.caughtUpAt) > l.cfg.StrandedNs
}
