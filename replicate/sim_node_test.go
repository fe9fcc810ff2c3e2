package replicate

import (
	"errors"
	"slices"

	"github.com/google/uuid"

	"penstock/segment"
)

// packet is a message with the values of its batches, which stand for their bytes.
type packet struct {
	Message
	values [][]uint64
}

type nodeEvent struct {
	Event
	packet *packet
}

// simPut is a write that its node has not appended yet.
type simPut struct {
	value      uint64
	deadlineNs int64
}

// simNode is one process on one machine: the thinnest possible shell around the two state machines, on a modelled disk,
// network, store and clock.
type simNode struct {
	s    *sim
	id   NodeID
	disk simDisk

	up      bool
	process int // counts restarts; results for an older process are dropped
	boot    uuid.UUID
	paused  bool
	backlog []func()

	leader   *Leader
	follower *Follower
	acts     Actions
	events   []nodeEvent      // waiting for the machine
	packet   *packet          // of the event that the machine is handling
	hasRead  segment.Position // of the event that the machine is handling: EvRead has read from this position on
	waiting  []simPut
	refused  error // the answer of the leader to EvPut

	known      *State
	heard, led segment.Epoch // the newest epoch heard of, and led by this process
	gen        uint64
	durable    segment.Position
	cutting    uint64 // the generation that the log will have
	resetting  bool
	letGo      segment.Position // the leader's log begins here
	dropping   bool             // it has given its log up, and does not know yet where to begin
	recovered  bool             // Log.Recovered
	committed  segment.Position // the highest mark of this process
	verified   segment.Position // compared with the committed batches up to here
	electable  bool
	leaseNs    int64
	clockStart int64
	clockRate  int64 // per mille
}

func (n *simNode) now() int64 { return n.clockStart + n.s.now/1000*n.clockRate }

func (n *simNode) member() Member { return Member{Node: n.id, Store: n.disk.store} }

// do runs fn in the process that runs now, unless it is stopped, and lets the machine handle the resulting events.
func (n *simNode) do(process int, fn func()) {
	switch {
	case !n.up || n.process != process:
	case n.paused:
		n.backlog = append(n.backlog, fn)
	default:
		fn()
		n.run()
	}
}

// later calls do after a delay.
func (n *simNode) later(d int64, fn func()) {
	process := n.process
	n.s.after(d, func() { n.do(process, fn) })
}

func (n *simNode) push(ev Event) { n.events = append(n.events, nodeEvent{Event: ev}) }

func (n *simNode) run() {
	n.admit()
	for steps := 0; len(n.events) > 0 && n.up; steps++ {
		if steps > 10_000 {
			n.s.fail("n%d never comes to rest: event %d", n.id, n.events[0].Kind)
			return
		}
		ev := n.events[0]
		n.events = n.events[1:]
		n.packet, n.hasRead = ev.packet, unknownPosition
		if ev.Kind == EvRead {
			n.hasRead = ev.Position
		}
		if n.leader != nil {
			n.s.mutateLeader(n)
			n.leader.Step(n.now(), &ev.Event, &n.acts)
		} else if followerTakes(ev.Kind) {
			n.s.mutateFollower(n, &ev.Event)
			n.follower.Step(n.now(), &ev.Event, &n.acts)
		} else {
			continue // for a leader that has stopped
		}
		n.s.stats.steps++
		for i := range n.acts.List {
			n.act(&n.acts.List[i])
		}
		n.admit()
		if n.letGo > n.disk.log.start.Next { // as soon as it is allowed
			n.trim(n.letGo)
		}
		n.s.checkNode(n)
		n.disk.short = n.leader != nil && n.leader.Shortened() || n.follower != nil && n.follower.Shortened()
		n.recovered = n.leader != nil && n.leader.log.Recovered || n.follower != nil && n.follower.log.Recovered
		n.disk.lost = n.disk.lost && n.disk.short
		n.disk.forgot = n.disk.forgot && !n.s.remembers(n)
		n.changeRole()
	}
}

func followerTakes(k EventKind) bool {
	switch k {
	case EvAppended, EvPut, EvLease, EvEvicted, EvPeerDown:
		return false
	}
	return true
}

func (n *simNode) act(a *Action) {
	switch a.Kind {
	case ActSend:
		n.send(a)
	case ActCommit:
		n.s.commit(n, a.Position)
	case ActRefresh:
		n.refresh()
	case ActDamaged:
		n.electable = a.Err == nil
		n.s.tracef("n%d electable %v", n.id, n.electable)
		n.keepAlive()
	case ActRepair:
		n.repair(a)
	case ActTrim:
		n.letGo = max(n.letGo, a.Position)
	case ActStartEpoch:
		n.seal(nil)
	case ActRead:
		n.read(*a)
	case ActPropose:
		n.propose(&a.State)
	case ActRefuse:
		n.refused = a.Err
	case ActHandOver:
		n.handOver(*a)
	case ActGiveUp:
		n.giveUp(*a)
	case ActServe:
		n.s.tracef("n%d serving %v", n.id, a.Flag)
	case ActStepDown:
		n.s.tracef("n%d steps down: %v", n.id, shortErr(a.Err))
	case ActAppend:
		n.appendBatches(a)
	case ActDiscard:
		n.drop()
	case ActTruncate:
		n.s.stats.cuts++
		n.cut(diskOp{kind: 't', to: a.Position}, a.Generation)
	case ActReset:
		n.s.stats.resets++
		n.cut(diskOp{kind: 'r', log: a.Log, epochs: append([]EpochStart(nil), n.follower.table.Entries()...)}, a.Generation)
	}
}

// send puts a message on the network, with the batches that the machine named.
func (n *simNode) send(a *Action) {
	if m := &a.Message; m.Kind == MsgAppend && m.Position != n.hasRead && m.Position < n.durable &&
		n.s.chance(n.s.opt.evict) {
		n.s.stats.evictions++
		n.push(Event{
			Kind: EvEvicted, Node: a.Node, Request: m.Request, Position: m.Position, Until: min(m.Until, n.durable),
		})
		return
	}
	p := &packet{Message: a.Message}
	p.Epochs = append([]EpochStart(nil), p.Epochs...)
	if p.Kind == MsgAppend || p.Kind == MsgRange {
		if !n.fill(p) {
			return
		}
	}
	n.s.checkSend(n, a.Node, p)
	n.s.transmit(n.id, a.Node, p)
}

// fill reads the batches of p. A batch that does not read back ends the range.
func (n *simNode) fill(p *packet) bool {
	g := &n.disk.log
	until := min(p.Until, g.next())
	if !g.holds(p.Position) {
		return p.Kind == MsgRange && p.Position < p.Start
	}
	for at := p.Position; at < until; at++ {
		b := g.at(at)
		if b.corrupt {
			n.push(Event{Kind: EvCorrupt, Position: at, Until: at + 1})
			break
		}
		p.Batches, p.values = append(p.Batches, b.Batch), append(p.values, b.values)
	}
	if len(p.Batches) == 0 {
		return false
	}
	p.Until = p.Position + segment.Position(len(p.Batches))
	p.FirstID, p.NextID = p.Batches[0].FirstID, p.Batches[len(p.Batches)-1].NextID()
	return true
}

func (n *simNode) read(a Action) {
	n.later(n.s.between(50, 500), func() {
		g := &n.disk.log
		ev := Event{
			Kind: EvRead, Node: a.Node, Request: a.Request, Position: a.Position, Until: a.Position, Purpose: a.Purpose,
		}
		limit := segment.Offset(-1)
		for at := a.Position; g.holds(at) && int(at-a.Position) < a.Count; at++ {
			b := g.at(at)
			if b.corrupt {
				n.push(Event{Kind: EvCorrupt, Position: at, Until: at + 1})
				break
			}
			if limit < 0 {
				limit = b.Offset + segment.Offset(a.Bytes)
			} else if b.End() > limit {
				break
			}
			ev.Until, ev.Offset, ev.Epoch, ev.CRC = at+1, b.End(), b.Epoch, b.CRC
		}
		n.push(ev)
	})
}

// seal appends a batch for each list of values to the leader's log, sends them to the disk, and tells the leader of all
// of them at once.
func (n *simNode) seal(lists ...[]uint64) {
	var all []Batch
	for _, values := range lists {
		b := sealSim(n.disk.log.end(), n.leader.Epoch(), values)
		b.by = process{n.id, n.process}
		n.disk.do(diskOp{kind: 'a', batch: b})
		all = append(all, b.Batch)
	}
	n.push(Event{Kind: EvAppended, Batches: all})
	n.written()
}

// admit appends waiting writes if the leader allows it, and refuses writes that have waited too long, as an engine does
// with its inbox. run calls admit again after each event.
func (n *simNode) admit() {
	if len(n.waiting) == 0 || !n.up {
		return
	}
	err := n.mayAppend()
	if err == nil && len(n.waiting) < n.s.opt.group && n.s.chance(0.8) {
		return // let more writes come, so that a group has several batches
	}
	if err == nil {
		var lists [][]uint64
		for len(n.waiting) > 0 && len(lists) < max(1, n.s.opt.group) {
			lists = append(lists, n.take())
		}
		n.seal(lists...)
		return
	}
	final := !errors.Is(err, ErrNotYet) && !errors.Is(err, ErrNoQuorum)
	n.waiting = slices.DeleteFunc(n.waiting, func(w simPut) bool {
		if !final && w.deadlineNs > n.now() {
			return false
		}
		n.s.refused(w.value, err)
		return true
	})
}

// take takes waiting writes for one batch.
func (n *simNode) take() (values []uint64) {
	k := min(3, len(n.waiting))
	if !n.s.opt.scripted {
		k = 1 + n.s.rng.IntN(k)
	}
	for _, w := range n.waiting[:k] {
		n.s.fate[w.value] = accepted
		values = append(values, w.value)
	}
	n.waiting = n.waiting[k:]
	return values
}

// mayAppend asks the leader whether a batch may be appended.
func (n *simNode) mayAppend() error {
	if n.leader == nil {
		return ErrNotLeader
	}
	n.refused = nil
	n.leader.Step(n.now(), &Event{Kind: EvPut}, &n.acts)
	n.s.stats.steps++
	for i := range n.acts.List {
		n.act(&n.acts.List[i])
	}
	return n.refused
}

func (n *simNode) appendBatches(a *Action) {
	from := a.Position - a.Message.Position
	for i := int(from); i < len(a.Message.Batches); i++ {
		n.disk.do(diskOp{kind: 'a', batch: simBatch{Batch: a.Message.Batches[i], values: n.packet.values[i]}})
	}
	n.written()
}

// written asks for a sync, unless one is under way: then the next one covers it.
func (n *simNode) written() {
	if n.s.mutant == mutantAckBeforeSync {
		n.push(Event{Kind: EvDurable, Position: n.disk.log.next(), Generation: n.gen})
	}
	d := &n.disk
	if d.syncing || d.failed || len(d.pending) == 0 {
		return
	}
	d.syncing = true
	count, gen, end, process := len(d.pending), n.gen, d.log.next(), n.process
	us := n.s.between(80, n.s.opt.syncUs)
	if n.s.faults && n.s.chance(n.s.opt.hang) {
		us = n.s.between(80_000, 500_000) // the disk hangs, the process does not
		n.s.tracef("n%d: its disk hangs", n.id)
	}
	n.s.after(us, func() {
		if !n.up || n.process != process {
			return // a crash has decided the outcome of these records
		}
		d.syncing = false
		if n.s.chance(n.s.opt.syncFault) && n.s.faults && !n.s.onlyOthersKnow() {
			d.failed = true
			d.settle(n.s.rng.IntN(count + 1))
			n.s.tracef("n%d sync fails", n.id)
			n.do(process, func() { n.push(Event{Kind: EvFault, Err: errors.New("EIO")}) })
			n.s.after(n.s.between(20_000, 60_000), func() {
				if n.process == process {
					n.s.crash(n)
				}
			})
			return
		}
		d.settle(count)
		if n.s.opt.forget > 0 && n.s.chance(0.1) {
			n.s.remember(n)
		}
		if n.s.opt.scripted || n.s.chance(0.3) {
			d.committed = max(d.committed, min(n.committed, d.stable.next()))
		}
		if gen == n.gen {
			n.durable = end
			if n.resetting {
				n.resetting = false
				n.do(process, func() { n.push(Event{Kind: EvTruncated, Generation: gen, Log: n.disk.log.end()}) })
			}
		}
		n.do(process, func() { n.push(Event{Kind: EvDurable, Position: end, Generation: gen}) })
		n.written()
	})
}

func (n *simNode) cut(op diskOp, gen uint64) {
	if n.cutting = gen; op.kind == 't' {
		n.tryCut(op, gen, 0)
		return
	}
	if n.dropping { // its committed batches go, too
		n.dropping, n.disk.short, n.disk.lost = false, true, true
		n.committed, n.disk.committed, n.verified = min(n.committed, op.log.Next), 0, min(n.verified, op.log.Next)
	}
	n.doCut(op, gen)
}

// simSegment is the number of batches in a segment: a cut reads the segment of its position from the beginning.
const simSegment = 8

// tryCut waits until the batches that the cut has to read are repaired. If that is impossible, the log is given up.
func (n *simNode) tryCut(op diskOp, gen uint64, tries int) {
	g := &n.disk.log
	for p := op.to - 1; op.to > g.start.Next && p >= g.start.Next; p-- {
		if b := g.at(p); b.corrupt && tries > 100 && !n.follower.damage.any() {
			n.s.tracef("n%d cannot cut its log to %d", n.id, op.to)
			n.drop()
			return
		} else if b.corrupt {
			if tries%20 == 0 {
				n.push(Event{Kind: EvCorrupt, Position: p, Until: p + 1})
			}
			n.later(5000, func() {
				if n.cutting == gen && n.follower != nil {
					n.tryCut(op, gen, tries+1)
				}
			})
			return
		}
		if p%simSegment == 0 {
			break
		}
	}
	n.doCut(op, gen)
}

// drop gives the log up, because its damage is beyond what its engine can repair.
func (n *simNode) drop() {
	n.s.stats.drops++
	n.s.tracef("n%d gives its log up", n.id)
	n.dropping, n.cutting = true, 0
	n.push(Event{Kind: EvUnusable})
}

func (n *simNode) doCut(op diskOp, gen uint64) {
	n.gen = gen
	n.disk.do(op)
	n.durable = min(n.durable, n.disk.log.next())
	if op.kind == 'r' {
		n.durable = n.disk.log.next()
	}
	n.s.tracef("n%d cuts its log to %d", n.id, n.disk.log.next())
	n.resetting = op.kind == 'r'
	n.written()
	if n.resetting && n.s.mutant != mutantEarlyReset {
		return // the reset is not stable yet
	}
	n.later(n.s.between(50, 1000), func() {
		n.push(Event{Kind: EvTruncated, Generation: gen, Log: n.disk.log.end()})
	})
}

func (n *simNode) repair(a *Action) {
	for i := range a.Message.Batches {
		b := &a.Message.Batches[i]
		if n.disk.log.holds(b.Position) && n.disk.log.at(b.Position).CRC == b.CRC {
			n.disk.mark(b.Position, false)
		}
	}
	from, until := a.Message.Position, a.Message.Until
	n.s.tracef("n%d repairs [%d,%d)", n.id, from, until)
	n.later(n.s.between(100, 1000), func() { n.push(Event{Kind: EvRepaired, Position: from, Until: until}) })
}

func (n *simNode) trim(to segment.Position) {
	if to <= n.disk.log.start.Next || to > min(n.committed, n.disk.stable.next()) || to < n.disk.stable.start.Next {
		return
	}
	n.disk.do(diskOp{kind: 'm', to: to})
	n.push(Event{Kind: EvTrimmed, Log: n.disk.log.start})
	n.written()
}

// changeRole makes this node the leader when the store says so, and a follower when its leader has stopped.
func (n *simNode) changeRole() {
	st := n.known
	switch {
	case n.leader != nil && n.leader.Err() != nil:
		n.heard = n.leader.Log().Epoch
		n.leader = nil
		n.beFollower()
	case n.leader != nil || st == nil || st.Leader != n.id || st.Boot != n.boot || n.follower.Epoch() > st.Epoch ||
		n.led >= st.Epoch:
	case n.disk.log.table.Last() >= st.Epoch && n.s.mutant != mutantEpochReuse || !n.follower.Electable() ||
		!slices.Contains(st.ISR, n.member()):
	default:
		n.heard, n.led = n.follower.Epoch(), st.Epoch
		n.follower = nil
		n.leader = n.s.newLeader(n, st)
		n.push(Event{Kind: EvLease, DeadlineNs: n.leaseNs})
	}
}

func (n *simNode) log() Log {
	g := &n.disk.log
	return Log{
		Start: g.start, End: g.end(), Durable: n.durable, Committed: n.committed, Epoch: n.heard, Generation: n.gen,
		Epochs: g.table.Entries(), Shortened: n.disk.short, Recovered: n.recovered,
	}
}

func (n *simNode) beFollower() {
	n.follower = NewFollower(n.s.opt.cfg, n.member(), n.boot, n.log())
	n.electable = true // until the new machine says otherwise
	for i := range n.disk.log.batches {
		if b := &n.disk.log.batches[i]; b.corrupt {
			n.push(Event{Kind: EvCorrupt, Position: b.Position, Until: b.Position + 1})
		}
	}
	if n.disk.failed {
		n.push(Event{Kind: EvFault, Err: errors.New("EIO")})
	}
	if n.known != nil {
		n.push(Event{Kind: EvState, State: n.known})
	}
}

// start begins a process on the content of the disk, which is synced again before it counts (D12).
func (n *simNode) start() {
	n.up, n.paused, n.backlog = true, false, nil
	n.process++
	n.boot = simUUID('b', n.id, n.process)
	n.events, n.waiting, n.known, n.leader = nil, nil, nil, nil
	n.heard, n.led = 0, 0
	n.gen, n.electable, n.leaseNs, n.resetting, n.dropping, n.letGo = 0, true, 0, false, false, 0
	n.committed = max(n.disk.committed, n.disk.log.start.Next)
	n.recovered = n.disk.log.next() > 0
	if n.s.mutant == mutantTruncateToMark && n.disk.log.next() > n.committed {
		n.disk.do(diskOp{kind: 't', to: n.committed})
		n.disk.settle(len(n.disk.pending))
	}
	n.verified, n.durable = n.committed, n.disk.log.next()
	n.clockStart = n.s.rng.Int64N(1 << 40)
	n.clockRate = 1000
	if n.s.opt.clocksLie {
		n.clockRate = n.s.between(900, 1100)
	}
	n.s.remember(n)
	n.beFollower()
	n.keepAlive()
	n.run()
	n.loop(n.process)
}

// loop is the process's timer.
func (n *simNode) loop(process int) {
	ticks := 0
	var tick func()
	tick = func() {
		if !n.up || n.process != process {
			return
		}
		ticks++
		if !n.paused {
			n.do(process, func() {
				if ticks%3 == 0 {
					n.keepAlive()
				}
				n.push(Event{Kind: EvTick, Live: n.s.store.alive()})
			})
		}
		n.s.after(simTickNs/1000, tick)
	}
	n.s.after(n.s.between(int64(n.id)*100, simTickNs/1000), tick)
}
