package replicate

import "penstock/segment"

// damage is the range of stored batches that do not read back. Several are kept as the one that covers them all:
// sending a few good batches again costs less than a list that must be bounded.
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

// remove takes a repaired range away if it is at one of the ends; repairs go from front to back.
func (d *damage) remove(from, until segment.Position) {
	if from <= d.from {
		d.from = max(d.from, until)
	}
	d.askedAt = noTime
}

// trim forgets what retention removed.
func (d *damage) trim(start segment.Position) { d.from = max(d.from, start) }

// cut forgets what was cut off.
func (d *damage) cut(end segment.Position) { d.until = min(d.until, end) }

// tell says whether the replica is electable, when that changed.
func (d *damage) tell(acts *Actions) {
	if d.told == d.any() {
		return
	}
	d.told = d.any()
	a := acts.add(ActDamaged)
	if d.told {
		a.Err = ErrCorrupt
	}
}

const noTime = -1 << 62

// due says whether to ask (again).
func (d *damage) due(now int64, cfg *Config) bool {
	if !d.any() || now-d.askedAt < cfg.RetryNs {
		return false
	}
	d.askedAt = now
	return true
}

// usable says whether batches begin the damaged range and are what the log had there. Their chain is checked against the
// neighbours by whoever writes them; their epochs must be those of the table.
func (d *damage) usable(m *Message, table *EpochTable) bool {
	if !d.any() || len(m.Batches) == 0 || m.Batches[0].Position != d.from {
		return false
	}
	for i := range m.Batches {
		b := &m.Batches[i]
		if e, ok := table.At(b.Position); b.Position != d.from+segment.Position(i) || b.Position >= d.until || ok && e != b.Epoch {
			return false
		}
		if i > 0 && (b.PrevCRC != m.Batches[i-1].CRC || b.Offset != m.Batches[i-1].End()) {
			return false
		}
	}
	return true
}

// repair asks one follower after the other for what this leader cannot read.
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

func (l *Leader) takeRange(m *Message, acts *Actions) {
	if l.damage.usable(m, &l.table) {
		acts.add(ActRepair).Message = *m
	}
}
