package replicate

import (
	"slices"

	"penstock/segment"
)

// A disk that comes back in an earlier state: a snapshot that was restored, an older volume, files that were removed.
// Its log ends cleanly, and before what it had acknowledged.

// earlier is a state that a disk had.
type earlier struct {
	log       simLog
	committed segment.Position
}

// maxDelayNs is longer than any message takes.
const maxDelayNs = 260_000_000

// maxHistory bounds the earlier states that are kept of a disk.
const maxHistory = 6

// remember keeps the stable state of n's disk, to which a fault may set it back.
func (s *sim) remember(n *simNode) {
	d := &n.disk
	if s.opt.forget == 0 || d.forgot || d.lost || !d.intact() {
		return
	}
	now := earlier{d.stable.clone(), min(d.committed, d.stable.next())}
	if len(d.history) < maxHistory {
		d.history = append(d.history, now)
		return
	}
	d.history[1+s.rng.IntN(maxHistory-1)] = now // the first one, mostly the empty log, stays
}

// whole says whether the copy of n has everything that was ever committed, and knows it.
func (s *sim) wholeCopy(n *simNode) bool {
	d := &n.disk
	return !d.lost && !d.forgot && d.intact() && !n.dropping && s.holdsCommitted(n)
}

// holdsCommitted says whether n's disk stably holds everything that was ever committed.
func (s *sim) holdsCommitted(n *simNode) bool {
	if len(s.truth) == 0 {
		return true
	}
	g, last := &n.disk.stable, &s.truth[len(s.truth)-1]
	return g.next() > last.Position && (!g.holds(last.Position) || g.at(last.Position).CRC == last.CRC)
}

// remembers says whether n's disk, which forgot, holds again what it had acknowledged, as far as that counts.
func (s *sim) remembers(n *simNode) bool {
	end := n.disk.stable.end()
	had := n.disk.had
	return s.holdsCommitted(n) && (end.Epoch > had.Epoch || end.Epoch == had.Epoch && end.Next >= had.Next)
}

// unseen says that n forgot what it acknowledged, and that nobody has noticed it yet.
func (s *sim) unseen(n *simNode) bool {
	st := &s.store.state
	return n != s.quiet && n.disk.forgot && !n.disk.lost &&
		slices.Contains(st.ISR, n.member()) && !slices.Contains(st.Short, n.member()) &&
		(st.Epoch == n.disk.forgotIn || !s.holdsCommitted(n))
}

// forget sets disks back, at rest, as long as one member of the ISR is whole. Most often the nodes notice it: their
// directories do not know the process that was registered last, or the log's mark. A machine that is resumed from a
// snapshot goes on as the same process, and does not.
func (s *sim) forget(n *simNode) {
	var whole []*simNode
	for _, m := range s.store.state.ISR {
		if o := s.nodes[m.Node-1]; o.disk.store == m.Store && s.wholeCopy(o) &&
			!slices.Contains(s.store.state.Short, m) {
			whole = append(whole, o)
		}
	}
	if s.now-s.store.asked < maxDelayNs {
		return // a proposal on its way may remove the member that is to stay whole
	}
	if len(whole) < 2 || !slices.Contains(whole, n) || len(n.disk.history) == 0 {
		return
	}
	switch s.rng.IntN(5) {
	case 0:
		s.resumeEarlier(n)
		return
	case 1:
		s.forgetQuietly(n)
		return
	}
	back := []*simNode{n}
	for _, o := range whole {
		if o != n && len(back) < len(whole)-1 && len(o.disk.history) > 0 && s.rng.IntN(2) == 0 {
			back = append(back, o)
		}
	}
	if s.rng.IntN(2) == 0 {
		for _, o := range s.nodes {
			if !slices.Contains(back, o) && o.up {
				s.kill(o, s.rng.IntN(len(o.disk.pending)+1))
				s.after(s.between(1000, 400_000), func() { s.restart(o) })
			}
		}
	}
	for _, o := range back {
		s.crash(o)
		s.setBack(o)
		o.disk.short = true
	}
}

// forgetQuietly sets n's disk back, as far as nobody can see on it, for example because the device lost the last writes
// of its cache. All other members of the ISR are whole and stay up until n has everything again: so when n comes back
// as leader, it has to ask them.
func (s *sim) forgetQuietly(n *simNode) {
	for _, m := range s.store.state.ISR {
		o := s.nodes[m.Node-1]
		if o.disk.store != m.Store || !o.up || o.paused || o.disk.failed || !s.wholeCopy(o) || s.opt.scripted {
			return
		}
	}
	if len(s.store.state.ISR) < 2 || s.cutOff != [8][8]bool{} || !slices.Contains(s.store.state.ISR, n.member()) {
		return
	}
	s.kill(n, 0)
	s.setBack(n)
	n.disk.lost, n.disk.forgotIn = false, s.store.state.Epoch
	s.quiet = n
	s.stats.quiet++
	s.after(s.between(500, 5_000), func() { s.restart(n) })
}

// onlyOthersKnow says whether a disk that was set back still lacks something. Until then no other fault happens.
func (s *sim) onlyOthersKnow() bool { return s.quiet != nil && s.quiet.disk.forgot }

func (s *sim) setBack(n *simNode) {
	d := &n.disk
	at := d.history[s.rng.IntN(len(d.history))]
	d.had = d.stable.end()
	d.stable, d.log = at.log.clone(), at.log.clone()
	d.pending, d.failed = d.pending[:0], false
	d.committed = at.committed
	d.history, d.forgot, d.lost = nil, true, true
	s.stats.forgets++
	s.tracef("n%d has an earlier disk; [%d,%d) is left", n.id, d.stable.start.Next, d.stable.next())
}

// resumeEarlier goes on with n in the same process, on an earlier disk, as a snapshot of the whole machine does. Only
// its leader can notice it. So n is not elected before the row says that the leader has (unseen).
func (s *sim) resumeEarlier(n *simNode) {
	l := s.leaderNode()
	if !n.up || n.paused || l == nil || l == n || l.paused || !s.wholeCopy(l) || n.follower == nil ||
		n.follower.state != following || n.follower.epoch != l.leader.epoch {
		return
	}
	boot, led := n.boot, n.led
	s.kill(n, 0)
	s.setBack(n)
	n.disk.lost, n.disk.forgotIn = false, s.store.state.Epoch
	s.stats.resumed++
	n.start()
	n.boot, n.led, n.gen = boot, led, uint64(1000*n.process)
	n.events = nil
	n.beFollower()
	n.keepAlive()
	n.run()
	s.tracef("n%d is resumed from a snapshot", n.id)
	s.after(s.between(5_000, 60_000), func() { // the leader ends when it has told the store, at the worst moment
		if slices.Contains(s.store.state.Short, n.member()) && n.disk.forgot && s.faults && l.up && !l.paused &&
			!s.onlyOthersKnow() {
			s.crash(l)
		}
	})
}
