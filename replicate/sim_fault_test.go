package replicate

import (
	"slices"

	"penstock/segment"
)

// mischief causes one fault of a machine, a disk or the network, or a retention.
func (s *sim) mischief() {
	if !s.faults || s.opt.forget > 0 && slices.ContainsFunc(s.nodes, s.unseen) {
		return // of a machine that forgot unseen, only its leader can tell
	}
	if s.onlyOthersKnow() {
		return
	}
	s.quiet = nil
	n := s.nodes[s.rng.IntN(len(s.nodes))]
	o := &s.opt
	switch {
	case s.chance(o.crash * 0.5):
		if s.rng.IntN(12) == 0 { // all nodes at once
			for _, m := range s.nodes {
				s.crash(m)
			}
			return
		}
		s.crash(n)
	case s.chance(o.pause * 0.3):
		s.pause(n, s.between(5_000, 250_000))
	case s.chance(o.cut * 0.3):
		s.partition()
	case s.chance(o.wipe):
		s.crashAndWipe(n)
	case s.chance(o.rot):
		s.rot(n)
	case s.chance(o.tear):
		s.crashAndTear(n)
	case s.chance(o.ruin):
		s.ruin(n)
	case s.chance(o.forget):
		s.forget(n)
	case s.chance(o.trim):
		if n.up && !n.paused && n.committed > 0 {
			n.do(n.process, func() { n.trim(n.committed - min(n.committed, segmentPosition(s.rng.IntN(10)))) })
			s.stats.trims++
		}
	}
}

// crash is kill -9 and a power cut in one: records that were not synced may be lost. The process comes back, sometimes
// before anybody has noticed.
func (s *sim) crash(n *simNode) {
	if !n.up {
		return
	}
	kept := s.rng.IntN(len(n.disk.pending) + 1)
	if s.opt.tear > 0 && kept < len(n.disk.pending) && s.rng.IntN(2) == 0 {
		n.disk.short = true // recovery can see that the log was cut short
	}
	s.kill(n, kept)
	if s.rng.IntN(2) == 0 { // its address refuses connections now
		for _, m := range s.nodes {
			m.later(s.between(500, 5000), func() {
				if m != n && m.leader != nil {
					m.push(Event{Kind: EvPeerDown, Node: n.id})
				}
			})
		}
	}
	wait := s.between(1000, 40_000)
	if s.rng.IntN(3) == 0 {
		wait = s.between(50_000, 250_000)
	}
	s.after(wait, func() { s.restart(n) })
}

func (s *sim) kill(n *simNode, keep int) {
	if !n.up {
		return
	}
	s.stats.crashes++
	n.up = false
	n.disk.crash(keep)
	s.tracef("n%d is killed; [%d,%d) is left", n.id, n.disk.stable.start.Next, n.disk.stable.next())
}

func (s *sim) restart(n *simNode) {
	if !n.up {
		s.tracef("n%d starts", n.id)
		n.start()
	}
}

// pause is SIGSTOP, and SIGCONT later: the disk goes on while the process does not.
func (s *sim) pause(n *simNode, us int64) {
	if !n.up || n.paused {
		return
	}
	n.paused = true
	process := n.process
	s.tracef("n%d stops for %d ms", n.id, us/1000)
	s.after(us, func() {
		if n.process == process {
			s.resume(n)
		}
	})
}

func (s *sim) resume(n *simNode) {
	if !n.up || !n.paused {
		return
	}
	n.paused = false
	s.tracef("n%d goes on", n.id)
	backlog, process := n.backlog, n.process
	n.backlog = nil
	for _, fn := range backlog {
		n.do(process, fn)
	}
}

// partition cuts links for a while, one way or both, between nodes or to the store: one link, all links of a node, or
// any set of links, so that a node may be cut off from some nodes that know more.
func (s *sim) partition() {
	all := len(s.nodes) + 1
	a := s.rng.IntN(all)
	switch s.rng.IntN(4) {
	case 3: // the leader from the store and from one other node, so that some node hears two leaders
		if a = int(s.store.state.Leader); a == 0 {
			return
		}
		b := 1 + s.rng.IntN(len(s.nodes))
		for _, i := range []int{0, b} {
			s.cutOff[a][i], s.cutOff[i][a] = true, true
		}
		s.after(s.between(150_000, 300_000), func() { s.cutOff = [8][8]bool{} })
		return
	case 0:
		b := s.rng.IntN(all)
		s.cutOff[a][b], s.cutOff[b][a] = true, s.rng.IntN(2) == 0
	case 1:
		for i := range all {
			s.cutOff[a][i], s.cutOff[i][a] = true, true
		}
	case 2:
		for i := range all {
			for j := range i {
				if s.rng.IntN(2) == 0 {
					s.cutOff[i][j], s.cutOff[j][i] = true, s.rng.IntN(4) != 0
				}
			}
		}
	}
	s.after(s.between(10_000, 250_000), func() { s.cutOff = [8][8]bool{} })
}

// crashAndWipe replaces a node's disk if the ISR has another intact one; otherwise no check could demand anything. A
// proposal that is on its way could make the lost disk the only one of the ISR.
func (s *sim) crashAndWipe(n *simNode) {
	if !n.up || !s.othersIntact(n) || n.leader != nil && n.leader.isr.open {
		return
	}
	s.crash(n)
	n.disk.wipe(s.newStore(n.id))
	s.stats.wipes++
	s.tracef("n%d has a new disk", n.id)
}

// crashAndTear kills nodes, most often all of them, and changes the end of the log on one of their disks. It damages
// one copy at a time, so each of the others has everything.
func (s *sim) crashAndTear(n *simNode) {
	if !n.up || !slices.Contains(s.store.state.ISR, n.member()) || !s.othersIntact(n) || s.now-s.store.asked < maxDelayNs {
		return // a proposal on its way may leave n as the only member
	}
	for _, m := range s.nodes {
		if m.disk.lost || m.disk.forgot || !m.disk.intact() {
			return
		}
	}
	if len(s.store.state.ISR) > 1 {
		all := s.rng.IntN(4) != 0
		for _, m := range s.nodes {
			if all && m != n {
				s.crash(m)
			}
		}
		s.crash(n)
		n.disk.tear(1 + s.rng.IntN(3))
		s.stats.tears++
		s.tracef("n%d lost the end of its log; [%d,%d) is left", n.id, n.disk.stable.start.Next, n.disk.stable.next())
	}
}

func (s *sim) othersIntact(n *simNode) bool {
	for _, m := range s.store.state.ISR {
		o := s.nodes[m.Node-1]
		if o != n && o.disk.store == m.Store && o.disk.intact() && !o.disk.lost && !o.disk.forgot &&
			!o.dropping && !slices.Contains(s.store.state.Short, m) {
			return true
		}
	}
	return false
}

// rot makes a stored batch unreadable. The damage is found when the batch is read, or at once by a scrub.
func (s *sim) rot(n *simNode) {
	d := &n.disk
	if !n.up || n.paused || len(d.stable.batches) == 0 || !s.othersIntact(n) {
		return
	}
	p := d.stable.start.Next + segmentPosition(s.rng.IntN(len(d.stable.batches)))
	if !d.log.holds(p) || int(p) >= len(s.truth) || d.log.at(p).CRC != d.stable.at(p).CRC {
		return
	}
	d.mark(p, true)
	s.stats.repairs++
	s.tracef("n%d: batch %d rots", n.id, p)
	if s.rng.IntN(2) == 0 {
		n.do(n.process, func() { n.push(Event{Kind: EvCorrupt, Position: p, Until: p + 1}) })
	}
}

// ruin damages a log so that it cannot be repaired in place, if another member of the ISR has everything. The engine
// finds that out when it is asked to repair the log.
func (s *sim) ruin(n *simNode) {
	if n.up && !n.paused && n.follower != nil && !n.dropping && s.othersIntact(n) {
		n.do(n.process, func() {
			if n.follower != nil {
				n.drop()
			}
		})
	}
}

// heal ends all faults.
func (s *sim) heal() {
	s.tracef("peace")
	s.faults = false
	s.cutOff = [8][8]bool{}
	for _, n := range s.nodes {
		s.resume(n)
		if n.up && n.disk.failed {
			s.kill(n, 0)
		}
		s.restart(n)
		var corrupt []segment.Position
		for i := range n.disk.log.batches {
			if b := &n.disk.log.batches[i]; b.corrupt {
				corrupt = append(corrupt, b.Position)
			}
		}
		for _, p := range corrupt { // a scrub finds damage that no read has found; the first find may cut the log
			n.do(n.process, func() { n.push(Event{Kind: EvCorrupt, Position: p, Until: p + 1}) })
		}
	}
}
