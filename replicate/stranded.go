package replicate

import "slices"

// A leader may reach the store and not its followers, while they reach the store and each other: a network that is
// broken in one place, or in one direction. Its lease lives, so nobody else is elected, and it commits nothing for as
// long as that lasts. Such a leader is stranded: it asks for another leader.
//
//	1 fewer than MinISR replicas, itself included, have answered in StrandedNs what they owe
//	2 the store says that enough of the silent ones are alive: somebody else could commit
//	3 ActGiveUp, to a member that does answer if there is one, since that one may reach more; else to a member of the
//	  ISR that the store chooses
//
// Nothing rests on the judgement: the new leader comes from the ISR, so it holds everything that is committed, and if
// it reaches no more than this one it gives up as well. Each copy does so at most once in StrandedEveryNs, whatever its
// roles were meanwhile (Log.StrandedUntil): a bad network does not send a leadership round.
//
// A member that answers and stores nothing, because its disk hangs or reads back no more, is reached: another leader
// would fare no better with it.

// stranding is what a leader has asked for since it was stranded.
type stranding struct {
	count    uint64 // times that it began to ask
	askUntil int64  // the request is repeated until then
	askedAt  int64
}

// giveUp asks for another leader if this one is stranded. alive are the nodes that live by the store's word.
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

// heir says whether another leader could commit what this one cannot, and who: 0 is whom the store chooses. Only a
// member of the ISR can lead, and a replica outside of it can join such a leader.
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
			member = true // it was never heard in this epoch
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

// silent says that p owes an answer and has given none for StrandedNs, counted from when it began to lack something; a
// replica that is to join always owes one. A replica that said it has no copy has answered.
func (l *Leader) silent(p *Progress, member bool, now int64) bool {
	lacks := !member || p.Match < l.log.End.Next || l.comparing.open && !p.compared
	return lacks && p.absent.count == 0 && now-max(p.heardAt, p.caughtUpAt) > l.cfg.StrandedNs
}
