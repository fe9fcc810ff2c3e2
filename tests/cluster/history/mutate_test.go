package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"
)

// model is an engine that does everything right, with partitions, two channels, faults, unanswered and refused
// publishes. Its histories are what the checker must accept, and what the mutations below start from.
type model struct {
	rnd    *rand.Rand
	at     time.Duration
	events []Event
	ends   [3]uint64 // of the partitions' logs
	conn   uint64
	fault  uint64
}

func (m *model) add(e Event) Event {
	m.at += time.Duration(1 + m.rnd.IntN(int(time.Millisecond)))
	e.At = m.at
	m.events = append(m.events, e)
	return e
}

// stored is a message in the log.
type stored struct {
	from      string
	seq       uint64
	partition uint64
	id        uint64
}

func goodHistory(seed uint64) []Event {
	m := &model{rnd: rand.New(rand.NewPCG(seed, 7)), conn: 1}
	m.add(Event{Client: "admin", Op: Channel, Topic: "t", Channel: "a", First: true})
	m.add(Event{Client: "admin", Op: Exists, Topic: "t", Channel: "a", First: true})
	channels := []string{"a"}
	seqs := map[string]uint64{}
	for round := range 12 {
		if round == 5 {
			m.add(Event{Client: "admin", Op: Channel, Topic: "t", Channel: "b"})
			m.add(Event{Client: "admin", Op: Exists, Topic: "t", Channel: "b"})
			channels = append(channels, "b")
		}
		faulty := m.rnd.IntN(3) == 0
		if faulty {
			m.fault++
			m.conn++
			m.add(Event{Client: "nemesis", Op: Fault, Seq: m.fault, Detail: "kill"})
		}
		msgs := m.publishes(seqs, faulty)
		if faulty {
			m.add(Event{Client: "nemesis", Op: Heal, Seq: m.fault})
		}
		for _, ch := range channels {
			m.deliveries(ch, msgs)
		}
		m.at += 2 * time.Second // the next round's faults excuse nothing of this one
	}
	return m.events
}

// publishes lets several producers overlap; each message is stored between its Publish and its outcome.
func (m *model) publishes(seqs map[string]uint64, faulty bool) []stored {
	var msgs []stored
	for range 6 {
		open := []stored{}
		for i := range 1 + m.rnd.IntN(3) {
			p := fmt.Sprintf("p%d", i)
			seqs[p]++
			m.add(Event{Client: p, Op: Publish, Topic: "t", Seq: seqs[p], Conn: m.conn})
			open = append(open, stored{from: p, seq: seqs[p]})
		}
		m.rnd.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
		for _, o := range open {
			op := OK
			if faulty && m.rnd.IntN(3) == 0 {
				op = Unknown
			} else if m.rnd.IntN(10) == 0 {
				op = Fail
			}
			if op == OK || op == Unknown && m.rnd.IntN(2) == 0 {
				o.partition = m.rnd.Uint64N(uint64(len(m.ends)))
				o.id = o.partition<<partitionShift | m.ends[o.partition]
				m.ends[o.partition]++
				msgs = append(msgs, o)
			}
			m.add(Event{Client: o.from, Op: op, Seq: o.seq, Detail: string(op)})
		}
	}
	return msgs
}

func (m *model) deliveries(ch string, msgs []stored) {
	for _, s := range msgs {
		c := "c-" + ch
		m.add(Event{
			Client: c, Op: Deliver, Topic: "t", Channel: ch, From: s.from, Seq: s.seq, Message: s.id, Attempts: 1, Conn: m.conn,
		})
		if m.rnd.IntN(10) == 0 {
			m.add(Event{
				Client: c, Op: Deliver, Topic: "t", Channel: ch, From: s.from, Seq: s.seq, Message: s.id, Attempts: 2, Conn: m.conn,
			})
		}
		m.add(Event{Client: c, Op: Fin, Topic: "t", Channel: ch, Message: s.id, Conn: m.conn})
	}
}

func TestTheModelIsRight(t *testing.T) {
	var acked, surfaced, failed int
	for seed := range uint64(300) {
		r := Check(goodHistory(seed), Options{})
		if !r.OK() {
			t.Fatalf("seed %d: %v", seed, r.Violations)
		}
		acked, surfaced, failed = acked+r.Acked, surfaced+r.Surfaced, failed+r.Failed
	}
	if acked < 10000 || surfaced == 0 || failed == 0 {
		t.Errorf("%d acknowledged, %d surfaced, %d failed: the model shows too little", acked, surfaced, failed)
	}
}

// pick returns a random event that wanted likes, by its place; -1: there is none.
func pick(rnd *rand.Rand, events []Event, wanted func(e *Event) bool) int {
	var all []int
	for i := range events {
		if wanted(&events[i]) {
			all = append(all, i)
		}
	}
	if len(all) == 0 {
		return -1
	}
	return all[rnd.IntN(len(all))]
}

// outcomeOf finds the outcome of a value.
func outcomeOf(events []Event, client string, seq uint64) *Event {
	for i := range events {
		if e := &events[i]; e.Client == client && e.Seq == seq && (e.Op == OK || e.Op == Fail || e.Op == Unknown) {
			return e
		}
	}
	return nil
}

// firstTry likes first deliveries.
func firstTry(e *Event) bool { return e.Op == Deliver && e.Attempts == 1 }

// mutations damage a right history, each in one way that a broken engine could cause; nil: this history has nothing to
// damage.
var mutations = map[string]func(rnd *rand.Rand, events []Event) []Event{
	"an acknowledged message is on a channel no more": func(rnd *rand.Rand, events []Event) []Event {
		i := pick(rnd, events, func(e *Event) bool {
			return firstTry(e) && e.Channel == "a" && outcomeOf(events, e.From, e.Seq).Op == OK
		})
		gone := events[i]
		return slices.DeleteFunc(events, func(e Event) bool {
			return e.Op == Deliver && e.Channel == "a" && e.From == gone.From && e.Seq == gone.Seq
		})
	},
	"a refused message is delivered": func(rnd *rand.Rand, events []Event) []Event {
		i := pick(rnd, events, func(e *Event) bool { return e.Op == Fail })
		if i < 0 {
			return nil
		}
		e := events[i]
		return append(events, Event{
			At: events[len(events)-1].At + 1, Client: "c-a", Op: Deliver, Topic: "t", Channel: "a", From: e.Client, Seq: e.Seq,
			Message: 1 << 40, Attempts: 1, Conn: 99,
		})
	},
	"a delivery names another message": func(rnd *rand.Rand, events []Event) []Event {
		i := pick(rnd, events, firstTry)
		j := pick(rnd, events, func(e *Event) bool {
			return firstTry(e) && (e.From != events[i].From || e.Seq != events[i].Seq)
		})
		events[i].From, events[i].Seq = events[j].From, events[j].Seq
		return events
	},
	"a message has another id": func(rnd *rand.Rand, events []Event) []Event {
		i := pick(rnd, events, func(e *Event) bool { return firstTry(e) && e.Channel == "b" })
		events[i].Message += 1 << 40
		return events
	},
	"an acknowledged message comes from nobody": func(rnd *rand.Rand, events []Event) []Event {
		events[pick(rnd, events, firstTry)].From = "nobody"
		return events
	},
	"two messages change their places in the log": swapIDs,
	"a confirmed message comes back": func(rnd *rand.Rand, events []Event) []Event {
		last := events[len(events)-1].At
		i := pick(rnd, events, func(e *Event) bool { return e.Op == Fin && quiet(events, e.At) })
		if i < 0 {
			return nil
		}
		d := pick(rnd, events, func(e *Event) bool {
			return firstTry(e) && e.Message == events[i].Message && e.Channel == events[i].Channel
		})
		e := events[d]
		e.At, e.Attempts, e.Conn = last+1, 2, 99
		return append(events, e)
	},
	"a message is delivered before it is sent": func(rnd *rand.Rand, events []Event) []Event {
		i := pick(rnd, events, firstTry)
		events[i].At = 0
		sortByTime(events)
		return events
	},
	"nothing is acknowledged after a fault": func(_ *rand.Rand, events []Event) []Event {
		last := events[len(events)-1].At
		return append(events,
			Event{At: last + 1, Client: "nemesis", Op: Fault, Seq: 1000, Detail: "kill"}, Event{
				At: last + 2, Client: "nemesis", Op: Heal, Seq: 1000,
			},
			Event{At: last + 3, Client: "p0", Op: Publish, Topic: "t", Seq: 1000}, Event{
				At: last + 11*time.Second, Client: "p0", Op: Unknown, Seq: 1000,
			})
	},
}

func TestMutations(t *testing.T) {
	for name, mutate := range mutations {
		t.Run(name, func(t *testing.T) {
			done := 0
			for seed := range uint64(200) {
				rnd := rand.New(rand.NewPCG(seed, 11))
				events := mutate(rnd, goodHistory(seed))
				if events == nil {
					continue
				}
				done++
				if Check(events, Options{}).OK() {
					t.Fatalf("seed %d is not found", seed)
				}
			}
			if done < 150 {
				t.Errorf("only %d histories could be damaged", done)
			}
		})
	}
}

// quiet says that no fault is near.
func quiet(events []Event, at time.Duration) bool {
	for i := range events {
		if e := &events[i]; (e.Op == Fault || e.Op == Heal) && at > e.At-time.Second && at < e.At+1500*time.Millisecond {
			return false
		}
	}
	return true
}

// swapIDs exchanges the ids of two messages of a partition, of which one was acknowledged before the other was sent.
func swapIDs(rnd *rand.Rand, events []Event) []Event {
	type span struct {
		id         uint64
		from, done time.Duration
	}
	var spans []span
	for i := range events {
		e := &events[i]
		if e.Op != Deliver || e.Attempts != 1 || e.Channel != "a" {
			continue
		}
		if o := outcomeOf(events, e.From, e.Seq); o.Op == OK {
			p := pick(rnd, events, func(x *Event) bool { return x.Op == Publish && x.Client == e.From && x.Seq == e.Seq })
			spans = append(spans, span{e.Message, events[p].At, o.At})
		}
	}
	sort.Slice(spans, func(i, j int) bool { return spans[i].id < spans[j].id })
	for range 1000 {
		a, b := spans[rnd.IntN(len(spans))], spans[rnd.IntN(len(spans))]
		if a.id>>partitionShift != b.id>>partitionShift || a.done >= b.from {
			continue
		}
		for i := range events {
			switch e := &events[i]; {
			case e.Op != Deliver && e.Op != Fin:
			case e.Message == a.id:
				e.Message = b.id
			case e.Message == b.id:
				e.Message = a.id
			}
		}
		return events
	}
	return nil
}
