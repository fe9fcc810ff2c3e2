package replicate

import "penstock/segment"

// damage is the range of stored batches that do not read back. Several ranges are merged into one that covers them all:
// sending a few good batches again costs less than a list that would need a bound.
type damage struct {
	from, until segment.Position
	askedAt     int64
	told        bool
}

func (d *damage) any() bool { return d.from < d.until }

func (d *damage) add(from, until segment.Position) {
	if from >= until {
		panic("BUG: an empty range was reported corrupt")
	}
	if d.any() {
		from, until = min(from, d.from), max(until, d.until)
	}
	d.from, d.until, d.askedAt = from, until, noTime
}

// remove takes a repaired range out of the damage if the range reaches its front: repairs go from front to back.
func (d *damage) remove(from, until segment.Position) {
	if from <= d.from {
		d.from = max(d.from, until)
	}
	d.askedAt = noTime
}

// trim forgets damage that retention removed.
func (d *damage) trim(start segment.Position) { d.from = max(d.from, start) }

// cut forgets damage behind the new end of the log.
func (d *damage) cut(end segment.Position) { d.until = min(d.until, end) }

// tell reports whether the replica is damaged, and so not electable, when that has changed.
func (d *damage) tell(damaged bool, acts *Actions) {
	if d.told == damaged {
		return
	}
	d.told = damaged
	a := acts.add(ActDamaged)
	if d.told {
		a.Err = ErrCorrupt
	}
}

const noTime = -1 << 62

// due says whether it is time to ask for the damaged batches, for the first time or again.
func (d *damage) due(now int64, cfg *Config) bool {
	if !d.any() || now-d.askedAt < cfg.RetryNs {
		return false
	}
	d.askedAt = now
	return true
}

// usable says whether m's batches begin the damaged range and are those that the log had there. Their epochs must be
// those of the table; the engine, when it writes them, checks their chain against the neighbours.
func (d *damage) usable(m *Message, table *EpochTable) bool {
	if !d.any() || len(m.Batches) == 0 || m.Batches[0].Position != d.from {
		return false
	}
	for i := range m.Batches {
		b := &m.Batches[i]
		if e, ok := table.At(b.Position); b.Position != d.from+segment.Position(i) || b.Position >= d.until ||
			ok && e != b.Epoch {
			return false
		}
		if i > 0 && (b.PrevCRC != m.Batches[i-1].CRC || b.Offset != m.Batches[i-1].End()) {
			return false
		}
	}
	return true
}

// repair asks the followers in turn for the batches that this leader cannot read.
func (l *Leader) repair(now int64, acts *Actions) {
	if !l.damage.due(now, &l.cfg) {
		return
	}
	for range l.peers {
		l.repairer = (l.repairer + 1) % len(l.peers)
		p := &l.peers[l.repairer]
		if (p.State == Replicate || p.State == CatchUp) && !p.Damaged && p.Match > l.damage.from {
			m := l.send(p, MsgFetch, now, acts)
			m.Position, m.Until = l.damage.from, min(l.damage.until, p.Match)
			return
		}
	}
}

// fetch reads the batches that a follower cannot read itself; EvRead brings them. If retention has removed them here,
// the answer tells the follower not to ask for them again.
func (l *Leader) fetch(p *Progress, m *Message, now int64, acts *Actions) {
	until := min(m.Until, l.log.End.Next)
	switch {
	case m.Position >= until:
	case m.Position < l.log.Start.Next:
		l.sendRange(p, m.Position, m.Position, now, acts)
	default:
		readForRepair(p.Node, m, until, &l.cfg, acts)
	}
}

// readForRepair asks the engine for batches that node cannot read, as many as one message holds.
func readForRepair(node NodeID, m *Message, until segment.Position, cfg *Config, acts *Actions) {
	a := acts.add(ActRead)
	a.Node, a.Request, a.Position, a.Purpose = node, m.Request, m.Position, ReadRepair
	a.Bytes, a.Count = cfg.MaxRangeBytes, int(min(until-m.Position, segment.Position(cfg.MaxWindowCount)))
}

// sendRange answers MsgFetch. An answer without batches only says where the log begins.
func (l *Leader) sendRange(p *Progress, from, until segment.Position, now int64, acts *Actions) {
	if from == until && from >= l.log.Start.Next {
		return // the read failed: another replica may have the batches
	}
	r := l.send(p, MsgRange, now, acts)
	r.Position, r.Until, r.Start = from, until, l.log.Start.Next
}

func (l *Leader) takeRange(m *Message, acts *Actions) {
	if l.damage.usable(m, &l.table) {
		acts.add(ActRepair).Message = *m
	}
}

// A follower asks the leader and the other replicas in turn for batches that it cannot read. A replica outside the ISR
// may have what the leader's log lacks, and every copy may be damaged somewhere else, so that none can lead. Epoch and
// position identify a batch, so it does not matter who sends it, nor whether the two logs are known to agree. A cut may
// have to read damaged batches, so they may be asked for during the cut.

// fetch reads batches for another replica that cannot read them itself; EvRead brings them. It serves only batches that
// are durable here.
func (f *Follower) fetch(to NodeID, m *Message, acts *Actions) {
	until := min(m.Until, f.log.Durable)
	if f.damage.any() && f.damage.from < until && f.damage.until > m.Position {
		until = f.damage.from
	}
	if m.Position < f.log.Start.Next || m.Position >= until {
		return // another replica may have them
	}
	readForRepair(to, m, until, &f.cfg, acts)
}

// read takes the answer to ActRead.
func (f *Follower) read(ev *Event, acts *Actions) {
	if f.err != nil || ev.Purpose != ReadRepair || ev.Until == ev.Position {
		return
	}
	r := f.sendTo(ev.Node, MsgRange, acts)
	r.Request, r.Position, r.Until, r.Start = ev.Request, ev.Position, ev.Until, f.log.Start.Next
}

// fromPeer handles a request or an answer from a replica that does not lead.
func (f *Follower) fromPeer(from NodeID, m *Message, acts *Actions) {
	switch {
	case f.err != nil:
	case m.Kind == MsgFetch && f.state != cutting:
		f.fetch(from, m, acts)
	case m.Kind == MsgRange && m.Request == f.exchange() && f.damage.usable(m, &f.table):
		acts.add(ActRepair).Message = *m
	}
}

// exchange returns the number of the exchange that the leader answers in.
func (f *Follower) exchange() uint64 {
	if f.state == cutting {
		return f.asking
	}
	return f.request
}

// repair asks for the batches that this replica cannot read.
func (f *Follower) repair(now int64, acts *Actions) {
	if !f.damage.due(now, &f.cfg) {
		return
	}
	f.askedOf++
	to, peer, alone := f.leader, f.peer(f.askedOf/2), f.state == idle || f.exchange() == 0
	switch {
	case peer != 0 && (f.askedOf%2 == 0 || alone):
		to = peer
	case alone:
		return
	}
	m := f.sendTo(to, MsgFetch, acts)
	m.Request, m.Position, m.Until = f.exchange(), f.damage.from, f.damage.until
}

// peer returns a replica other than this one and the leader, in turn; 0 if there is none.
func (f *Follower) peer(turn int) NodeID {
	for i := range f.replicas {
		if n := f.replicas[(turn+i)%len(f.replicas)]; n != f.self.Node && n != f.leader {
			return n
		}
	}
	return 0
}

// corrupt takes EvCorrupt. Batches that are being cut off are not needed.
func (f *Follower) corrupt(ev *Event) {
	until := ev.Until
	if f.state == cutting {
		until = min(until, f.cutTo)
	}
	if !f.anew && (ev.Position < until || ev.Until <= ev.Position) {
		f.damage.add(ev.Position, until)
	}
}

// takeRange handles the leader's answer to MsgFetch.
func (f *Follower) takeRange(m *Message, acts *Actions) {
	if f.damage.any() && m.Start > f.damage.from {
		// The leader's retention has removed these batches, and it removes only what was committed. So this replica
		// does not need them either and stops asking. Its own retention may take a while to remove the bytes.
		f.damage.trim(m.Start)
		acts.add(ActTrim).Position = m.Start
		f.tellLeader(acts)
		return
	}
	if f.damage.usable(m, &f.table) {
		acts.add(ActRepair).Message = *m
	}
}
