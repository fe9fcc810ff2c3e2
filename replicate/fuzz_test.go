package replicate

import (
	"math/rand/v2"
	"testing"

	"penstock/segment"
)

// bytesReader turns bytes into small numbers, and returns 0 at the end.
type bytesReader []byte

func (r *bytesReader) next() int {
	if len(*r) == 0 {
		return 0
	}
	b := (*r)[0]
	*r = (*r)[1:]
	return int(b)
}

// message returns an arbitrary message, close to a valid one.
func (r *bytesReader) message(g *simLog) Message {
	m := Message{
		Kind: MessageKind(1 + r.next()%int(MsgRange)), Code: RejectCode(r.next() % 4), Damaged: r.next()%4 == 0,
		Epoch: segment.Epoch(1 + r.next()%4), Request: uint64(r.next() % 5), Generation: uint64(r.next() % 2),
		Position: segment.Position(r.next() % 12), Committed: segment.Position(r.next() % 12),
		Start: segment.Position(r.next() % 4),
	}
	if r.next()%4 != 0 {
		m.Boot = simUUID('b', 2, 0)
	}
	m.Store = simUUID('s', 2, 1+r.next()%2)
	m.Until = m.Position + segment.Position(r.next()%5)
	m.Offset = segment.Offset(r.next() * 10)
	m.Log = segment.State{
		Next: segment.Position(r.next() % 12), End: segment.Offset(r.next() * 10), Epoch: segment.Epoch(r.next() % 4),
	}
	for range r.next() % 4 {
		m.Epochs = append(m.Epochs, EpochStart{
			segment.Epoch(r.next() % 5), segment.Position(r.next() % 12), segment.Offset(r.next() * 10),
		})
	}
	for p := m.Position; p < m.Until; p++ {
		b := Batch{Position: p, Bytes: r.next(), Epoch: segment.Epoch(r.next() % 4)}
		if g.holds(p) {
			b = g.at(p).Batch
		}
		switch r.next() % 16 {
		case 0:
			b.CRC++
		case 1:
			b.PrevCRC++
		case 2:
			b.Offset++
		case 3:
			b.Position++
		}
		m.Batches = append(m.Batches, b)
	}
	if n := len(m.Batches); n > 0 && r.next()%8 != 0 {
		m.FirstID, m.NextID = m.Batches[0].FirstID, m.Batches[n-1].NextID()
	}
	return m
}

// Whatever messages a follower receives, it does not panic, its marks keep their order, and what it is told to write is
// a log.
func FuzzFollower(f *testing.F) {
	f.Add([]byte("\x00\x00\x01\x00\x01\x00"), uint8(3))
	f.Add([]byte("probe, match, append, heartbeat"), uint8(5))
	f.Fuzz(playFollower)
}

func playFollower(t *testing.T, data []byte, held uint8) {
	leader := leaderLog(1, 1, 2, 2, 2, 3, 3, 3, 3, 3)
	log := leader.clone()
	log.truncate(segment.Position(held) % (leader.next() + 1))
	fo := NewFollower(Config{MaxWindowCount: 4}, testMember(2), simUUID('b', 2, 0), Log{
		End: log.end(), Durable: log.next(), Epochs: log.table.Entries(),
	})
	var acts Actions
	in := bytesReader(data)
	gen, cutGen := uint64(0), uint64(0)
	for now := int64(0); len(in) > 0; now += 10 * ms {
		var ev Event
		switch what := in.next() % 16; {
		case what == 0:
			ev = Event{Kind: EvTick}
			now += 600 * ms
		case what == 1:
			ev = Event{Kind: EvDurable, Position: log.next(), Generation: gen}
		case what == 2 && cutGen != 0:
			ev = Event{Kind: EvTruncated, Generation: cutGen, Log: log.end()}
			cutGen = 0
		case what == 3 && log.next() > log.start.Next:
			ev = Event{Kind: EvCorrupt, Position: log.next() - 1, Until: log.next()}
		default:
			m := in.message(&leader)
			ev = Event{Kind: EvMessage, Node: NodeID(1 + in.next()%2*2), Message: &m}
		}
		before := fo.Committed()
		fo.Step(now, &ev, &acts)
		for _, a := range acts.List {
			switch a.Kind {
			case ActAppend:
				for _, b := range a.Message.Batches[a.Position-a.Message.Position:] {
					log.append(simBatch{Batch: b})
				}
			case ActTruncate:
				log.truncate(a.Position)
				gen, cutGen = a.Generation, a.Generation
			case ActReset:
				log.reset(a.Log, nil)
				gen, cutGen = a.Generation, a.Generation
			}
		}
		l := fo.Log()
		if fo.Committed() < before || l.Committed > l.Durable ||
			fo.state != cutting && (l.Durable > l.End.Next || l.End.Next != log.next()) {
			t.Fatalf("marks: %+v, the log ends at %d", l, log.next())
		}
	}
}

// The same for a leader, whose followers say anything.
func FuzzLeader(f *testing.F) {
	f.Add([]byte("\x00\x00\x01\x00\x01\x00"))
	f.Add([]byte("report, ack, gap, resync, fetch, reject"))
	f.Fuzz(playLeader)
}

func playLeader(t *testing.T, data []byte) {
	r := newLeaderRig(t, Config{MaxWindowCount: 4, MaxWindowBytes: 500, MaxPendingCount: 4, LagMaxNs: 100 * ms}, 3, 2)
	r.step(Event{Kind: EvLease, DeadlineNs: 1 << 60})
	r.append(0)
	in := bytesReader(data)
	for len(in) > 0 && r.l.Err() == nil {
		before, acts := r.l.Committed(), []Action(nil)
		switch what := in.next() % 16; what {
		case 0:
			r.now += int64(in.next()) * 5 * ms
			acts = r.step(Event{Kind: EvTick})
		case 1:
			acts = r.durable(r.log.next())
		case 2:
			acts = r.append(1)
		case 3:
			acts = r.accept(testMember(1), testMember(NodeID(2+in.next()%2)))
		case 4:
			acts = r.step(Event{Kind: EvPeerDown, Node: NodeID(in.next() % 4)})
		default:
			m := in.message(&r.log)
			m.Epoch = min(m.Epoch, 1)
			if p := r.l.peer(2); in.next()%4 != 0 {
				m.Request = p.request
			}
			acts = r.step(Event{Kind: EvMessage, Node: NodeID(in.next() % 4), Message: &m})
		}
		for _, a := range acts {
			if a.Kind == ActSend && a.Message.Kind == MsgAppend &&
				(a.Message.Position >= a.Message.Until || a.Message.Until > r.log.next()) {
				t.Fatalf("sends [%d,%d) of %d", a.Message.Position, a.Message.Until, r.log.next())
			}
		}
		if c := r.l.Committed(); c < before || c > r.l.Log().Durable {
			t.Fatalf("committed %d, was %d, durable %d", c, before, r.l.Log().Durable)
		}
		for _, p := range r.l.Progress() {
			if p.Match > p.Next || p.Next > r.log.next() || p.Next > p.Match+4 {
				t.Fatalf("%+v", p)
			}
		}
	}
}

// The same without a fuzzer: long sequences from a generator.
func TestMachinesTakeAnything(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		data := make([]byte, 600)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		playFollower(t, data, uint8(rng.Uint32()))
		playLeader(t, data)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
