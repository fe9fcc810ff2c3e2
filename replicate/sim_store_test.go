package replicate

import (
	"slices"

	"github.com/google/uuid"
)

// simStore models the metadata store: linearizable, compare-and-swap only, with sessions. Its answers travel over the
// same kind of network as everything else. The controller runs inside it, based on the sessions.
type simStore struct {
	s        *sim
	state    State
	sessions []session // by node index
	joins    []int64   // when the leader of this epoch added members
	asked    int64     // when a proposal was sent last
}

// checkJoins demands that no leader adds members more often than allowed. The leader counts its proposals. Only one is
// open at a time, so only the first of those that count may have been on its way for long.
func (st *simStore) checkJoins() {
	window := st.s.opt.cfg.ISRWindowNs
	if window == 0 || st.s.opt.clocksLie {
		return
	}
	st.joins = append(st.joins, st.s.now)
	const most = DefaultMaxISRJoins + 1
	if n := len(st.joins); n > most && st.s.now-st.joins[n-1-most] < window {
		st.s.fail("the leader of epoch %d added members %d times in less than %d ms",
			st.state.Epoch, most+1, window/1_000_000)
	}
}

type session struct {
	boot      uuid.UUID
	store     uuid.UUID
	electable bool
	until     int64
}

func (st *simStore) snapshot() *State {
	c := st.state
	c.ISR, c.Short = append([]Member(nil), c.ISR...), append([]Member(nil), c.Short...)
	c.Replicas = append([]NodeID(nil), c.Replicas...)
	return &c
}

func (st *simStore) live(i int) bool { return st.sessions[i].until > st.s.now }

// propose is a leader's compare-and-swap. New members must be registered with the disk that the proposal names (P10).
func (st *simStore) propose(p *State) bool {
	c := &st.state
	if p.Epoch != c.Epoch || p.Version != c.Version || p.Leader != c.Leader || p.Boot != c.Boot {
		return false
	}
	joins := st.s.stats.joins
	for _, m := range p.ISR {
		ss := &st.sessions[m.Node-1]
		if !slices.Contains(c.ISR, m) && (ss.store != m.Store || !st.live(int(m.Node-1))) {
			return false
		}
		if !slices.Contains(c.ISR, m) {
			st.s.stats.joins++
		}
	}
	if st.s.stats.joins > joins {
		st.checkJoins()
	}
	c.ISR, c.Short = append([]Member(nil), p.ISR...), append([]Member(nil), p.Short...)
	st.s.stats.shorts += len(p.Short)
	c.Version++
	st.s.tracef("store: version %d isr %s", c.Version, membersText(c.ISR))
	return true
}

// elect replaces a leader whose session is over, whose process is a new one, or that said that it cannot lead.
func (st *simStore) elect() {
	c := &st.state
	if c.Leader != 0 {
		ss := &st.sessions[c.Leader-1]
		if st.live(int(c.Leader-1)) && ss.boot == c.Boot && ss.electable {
			return
		}
		if st.s.mutant == mutantEpochReuse && ss.boot != c.Boot && st.live(int(c.Leader-1)) {
			c.Boot = ss.boot // the restarted process takes over the old lock, and nobody notices
			c.Version++
			return
		}
	}
	if n := st.choose(0); n != 0 {
		st.makeLeader(n)
	}
}

// choose returns a node other than not that may be elected; 0 if there is none.
func (st *simStore) choose(not NodeID) NodeID {
	var candidates []NodeID
	for _, m := range st.state.ISR {
		i := int(m.Node - 1)
		if ss := &st.sessions[i]; m.Node != not && st.live(i) && ss.store == m.Store && ss.electable &&
			!st.isShort(m) && !st.s.unseen(st.s.nodes[i]) {
			candidates = append(candidates, m.Node)
		}
	}
	switch {
	case len(candidates) == 0:
		return 0
	case st.s.opt.scripted:
		return candidates[0]
	}
	return candidates[st.s.rng.IntN(len(candidates))]
}

// alive returns the nodes whose sessions live.
func (st *simStore) alive() (nodes []NodeID) {
	for i := range st.sessions {
		if st.live(i) {
			nodes = append(nodes, NodeID(i+1))
		}
	}
	return nodes
}

// handOver gives the leadership to another member that could be elected.
func (st *simStore) handOver(from *State, to NodeID) {
	c, ss := &st.state, &st.sessions[to-1]
	if from.Epoch != c.Epoch || from.Version != c.Version || from.Leader != c.Leader || from.Boot != c.Boot {
		return
	}
	m := Member{Node: to, Store: ss.store}
	if slices.Contains(c.ISR, m) && st.live(int(to-1)) && ss.electable && !st.isShort(m) &&
		!st.s.unseen(st.s.nodes[to-1]) {
		st.makeLeader(to)
	}
}

// isShort says whether the row excludes m from elections.
func (st *simStore) isShort(m Member) bool {
	return slices.Contains(st.state.Short, m)
}

func (st *simStore) makeLeader(n NodeID) {
	c := &st.state
	c.Leader, c.Boot = n, st.sessions[n-1].boot
	c.Epoch++
	c.Version++
	st.joins = nil
	st.s.stats.elections++
	st.s.tracef("store: node %d leads epoch %d, version %d, isr %s", n, c.Epoch, c.Version, membersText(c.ISR))
	for _, node := range st.s.nodes {
		st.tell(node)
	}
}

// tell sends the state to a node, as a watch does.
func (st *simStore) tell(n *simNode) {
	state := st.snapshot()
	st.s.fromStore(n, func() { n.learn(state) })
}

func (n *simNode) propose(st *State) {
	p := *st
	p.ISR, p.Short = append([]Member(nil), st.ISR...), append([]Member(nil), st.Short...)
	n.s.tracef("n%d proposes isr %s%s on version %d", n.id, membersText(p.ISR), shortText(p.Short), p.Version)
	n.s.store.asked = n.s.now
	n.s.toStore(n, func() {
		n.s.store.propose(&p)
		n.s.store.tell(n)
	})
}

func (n *simNode) handOver(a Action) {
	n.s.stats.handovers++
	n.s.tracef("n%d hands over to n%d, whose log ends at %d", n.id, a.Node, a.Position)
	n.s.toStore(n, func() { n.s.store.handOver(&a.State, a.Node) })
}

func (n *simNode) giveUp(a Action) {
	n.s.stats.strandings++
	n.s.tracef("n%d reaches too few and gives up, to n%d", n.id, a.Node)
	n.s.toStore(n, func() {
		if a.Node == 0 {
			a.Node = n.s.store.choose(n.id)
		}
		if a.Node != 0 {
			n.s.store.handOver(&a.State, a.Node)
		}
	})
}

func (n *simNode) refresh() { n.s.toStore(n, func() { n.s.store.tell(n) }) }

// keepAlive renews the session and tells the store which process this is. The lease counts from the time of the
// request.
func (n *simNode) keepAlive() {
	asked := n.now()
	ss := session{boot: n.boot, store: n.disk.store, electable: n.electable && !n.disk.failed}
	process := n.process
	n.s.toStore(n, func() {
		if n.process != process {
			return // the process is gone, and its connection closes
		}
		ss.until = n.s.now + simSessionNs
		n.s.store.sessions[n.id-1] = ss
		n.s.store.tell(n)
		n.s.fromStore(n, func() {
			n.leaseNs = asked + simLeaseNs
			if n.s.opt.clocksLie {
				n.leaseNs = asked + 1000*simLeaseNs
			}
			if n.leader != nil {
				n.push(Event{Kind: EvLease, DeadlineNs: n.leaseNs})
			}
		})
	})
}

// learn takes a row of the store.
func (n *simNode) learn(st *State) {
	if n.known == nil || st.Version > n.known.Version {
		n.known = st
	}
	n.push(Event{Kind: EvState, State: st})
}
