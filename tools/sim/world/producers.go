package world

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/segment"
)

// Producers number their messages and send each batch again until its answer is sure, to whatever node leads then. So
// every message must be in its log at most once, and in the order of the numbers.

// producers is the state of FeatureProducers.
type producers struct {
	r   *rand.Rand // what only this feature draws
	all []*producer
}

// producer is a program that publishes to one partition with up to window batches on their way. If it has a name, it
// is started again now and then, and begins where the partition says.
type producer struct {
	w         *World
	index     int // of the topic's name
	name      string
	puts      bool        // it sends numbered puts, through any node: see numbered.go
	t         *topicModel // nil: it waits for its topic
	partition uint32
	p         node.Producer
	open      bool
	opening   bool
	session   int            // answers to an earlier one are not heard
	next      uint32         // number of the next message
	told      uint32         // all messages below are stored, as it was told
	sent      []*sealedBatch // without a sure answer, oldest first
	last      *sealedBatch   // the one before: the last that was answered
	values    map[int]bool   // all that it has published to t
}

type sealedBatch struct {
	base, count uint32
	value       int // of the first message
	bytes       []byte
	bodies      [][]byte
	stored      bool // it was answered, with
	id          node.ID
	waits       bool // for the answer of
	by          *host
	life        int
}

const window = 8

// firstProducerSeed is the first seed that may draw FeatureProducers: those below are histories that were written down
// before there was that feature.
const firstProducerSeed = 6_000_000

func (w *World) drawProducers() {
	r := rand.New(rand.NewPCG(w.Seed, 0xa0761d6478bd642f))
	if w.Seed >= firstProducerSeed && r.IntN(3) == 0 {
		w.features |= FeatureProducers
	}
}

func (w *World) startProducers() {
	if !w.has(FeatureProducers | FeatureNumbered) {
		return
	}
	w.producers.r = rand.New(rand.NewPCG(w.Seed, 0xe7037ed1a0b428db))
	begin := func(name string, puts bool) {
		p := &producer{w: w, index: len(w.producers.all) % len(w.topics), name: name, puts: puts}
		w.producers.all = append(w.producers.all, p)
		w.every(40*ms, p.act)
	}
	if w.has(FeatureProducers) {
		for i := range 4 {
			name := ""
			if i%2 == 0 {
				name = fmt.Sprint("producer ", i)
			}
			begin(name, false)
		}
	}
	if w.has(FeatureNumbered) {
		for i := range 3 {
			begin(fmt.Sprint("publisher ", i), true)
		}
	}
}

// act does one thing: it begins with a topic, opens the producer, or sends what has no sure answer.
func (p *producer) act() {
	w, r := p.w, p.w.producers.r
	if p.t == nil || p.t.doomed {
		p.begin()
		return
	}
	n := w.anyNode()
	if n == nil || p.opening || p.onTheWay() {
		return
	}
	topic, ok := n.topic(p.t)
	switch {
	case !ok:
	case !p.open, p.name != "" && w.busy() && r.IntN(30) == 0:
		p.openAt(n, topic)
	default:
		p.send(n, topic)
	}
}

func (p *producer) begin() {
	p.forget()
	if p.t = nil; p.w.topics[p.index].ready && !p.w.topics[p.index].doomed {
		p.t = p.w.topics[p.index]
		p.partition = uint32(p.w.producers.r.IntN(p.t.partitions))
		p.told, p.values = 0, map[int]bool{}
	}
}

// forget ends the session. What has no answer has none for ever.
func (p *producer) forget() {
	p.leave()
	for _, b := range p.sent {
		for i := range int(b.count) {
			if v := &p.w.book.values[b.value+i]; v.fate == offered {
				v.fate = unknown
			}
		}
	}
	p.open, p.opening, p.sent, p.last = false, false, nil, nil
	p.session++
}

// onTheWay says that a process which lives has not answered yet.
func (p *producer) onTheWay() bool {
	return slices.ContainsFunc(append(p.sent, p.last), func(b *sealedBatch) bool {
		return b != nil && b.waits && b.by.m != nil && b.by.life == b.life
	})
}

// openAt opens the producer: its program begins.
func (p *producer) openAt(n *host, topic *node.Topic) {
	w := p.w
	p.forget()
	p.opening = true
	t, session, life := p.t, p.session, n.life
	var got node.Producer
	n.task(func(*node.Engine) (err error) {
		if p.puts {
			got, err = topic.OpenNamed(context.Background(), int(p.partition), p.name)
		} else {
			got, err = topic.OpenProducer(context.Background(), int(p.partition), p.name)
		}
		return err
	}, func(err error) {
		w.tracef("producer %q of %s/%d: %+v %v", p.name, t.name, p.partition, got, err)
		if p.session != session {
			return
		}
		if p.opening = false; err != nil {
			return
		}
		if int32(got.Sequence-p.told) < 0 && p.name != "" || p.name == "" && got.Sequence != 0 {
			w.fail("producer %q of %s/%d begins at %d; it was told that %d are stored",
				p.name, p.t.name, p.partition, got.Sequence, p.told)
		}
		w.Stats.Opened++
		p.p, p.next, p.open = got, got.Sequence, true
	})
	w.after(3000*ms, func() { // its process may end before it answers
		if p.session == session && n.life != life {
			p.opening = false
		}
	})
}

// send sends everything without a sure answer again, perhaps with the batch before, and with new ones behind.
func (p *producer) send(n *host, topic *node.Topic) {
	r, list := p.w.producers.r, []*sealedBatch{}
	if p.last != nil && len(p.sent) < window && r.IntN(4) == 0 {
		list = append(list, p.last)
	}
	for p.w.busy() && len(p.sent) < r.IntN(window+1) {
		p.sent = append(p.sent, p.make(n))
	}
	failed := false
	for _, b := range append(list, p.sent...) {
		b.waits, b.by, b.life = true, n, n.life
		session, life := p.session, n.life
		answer := func(a node.Produced) {
			if n.life == life && p.session == session { // else nobody hears it
				p.hear(b, &failed, a.First, a.Duplicate, a.Err)
			}
		}
		if p.puts {
			p.submit(topic, b, answer)
		} else if err := topic.ProduceSealed(node.Sender{}, int(p.partition), b.bytes, false, answer); err != nil {
			answer(node.Produced{Err: err})
		}
	}
	n.poke()
}

// make makes the next batch.
func (p *producer) make(n *host) *sealedBatch {
	w, r := p.w, p.w.producers.r
	b := &sealedBatch{base: p.next, count: 1 + uint32(r.IntN(4)), value: len(w.book.values)}
	p.next += b.count
	s := batch.Builder{ProducerID: p.p.ID, ProducerEpoch: p.p.Epoch, BaseSequence: b.base}
	if w.cfg.Break == MutantNameless {
		s = batch.Builder{}
	}
	for i := range int(b.count) {
		v := b.value + i
		w.book.values = append(w.book.values, value{topic: p.t, by: n, life: n.life, submitted: w.now, numbered: true})
		p.values[v] = true
		body := w.book.body(v)
		b.bodies = append(b.bodies, body)
		if err := s.Add(&segment.Record{Body: body}); err != nil {
			panic("BUG: world: " + err.Error())
		}
	}
	bytes, err := s.Seal(1)
	if err != nil {
		panic("BUG: world: " + err.Error())
	}
	b.bytes = bytes
	return b
}

// hear is the answer to a batch. failed is set when one of the batches that were sent together was not stored.
func (p *producer) hear(b *sealedBatch, failed *bool, first node.ID, repeat bool, err error) {
	w := p.w
	w.tracef("producer %q of %s/%d, batch %d+%d: %v %v %v", p.name, p.t.name, p.partition, b.base, b.count, first, repeat,
		err)
	b.waits = false
	if p.puts {
		p.hearPut(b, first, repeat, err)
		return
	}
	wrong := func(why string) {
		w.fail("producer %q of %s/%d, batch %d+%d %s: %v %v %v",
			p.name, p.t.name, p.partition, b.base, b.count, why, first, repeat, err)
	}
	switch {
	case err == nil && b.stored:
		if w.Stats.Repeats++; first != b.id || !repeat {
			wrong(fmt.Sprintf("was stored as %v before", b.id))
		}
	case err == nil && (len(p.sent) == 0 || p.sent[0] != b):
		wrong("was stored, and one before it was not")
	case err == nil:
		if repeat {
			w.Stats.Repeats++
		}
		b.stored, b.id = true, first
		p.told, p.last, p.sent = b.base+b.count, b, p.sent[1:]
		for i := range int(b.count) {
			v := &w.book.values[b.value+i]
			v.fate, v.answered = acked, w.now
			w.book.place(b.value+i, first+node.ID(i))
		}
		w.Stats.Acked += int(b.count)
	case errors.Is(err, errs.ErrFenced), errors.Is(err, errs.ErrUnknownProducer):
		if !p.t.doomed {
			wrong("is refused")
		}
	case errors.Is(err, errs.ErrQuota) && !w.loaded:
		p.forget() // the quota may be less than one batch: it gives up
	case errors.Is(err, errs.ErrSequence) && !*failed:
		wrong("is refused, and all before it were stored")
	}
	*failed = *failed || err != nil
}

// unsure says which producer has batches without a sure answer.
func (w *World) unsure() string {
	for _, p := range w.producers.all {
		if len(p.sent) > 0 {
			return fmt.Sprintf("producer %q of %s/%d has %d batches without an answer",
				p.name, p.t.name, p.partition, len(p.sent))
		}
	}
	return ""
}

// checkProduced: the log of each partition has the messages of a producer once and in order.
func (w *World) checkProduced(logs logs) {
	for _, p := range w.producers.all {
		if p.t == nil || p.t.doomed {
			continue
		}
		var ids []node.ID
		for id, s := range logs[p.t] {
			if id.Partition() == p.partition && s.only == "" && p.values[s.value] {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		for i := 1; i < len(ids); i++ {
			if before, v := logs[p.t][ids[i-1]].value, logs[p.t][ids[i]].value; v <= before {
				w.fail("producer %q of %s/%d: value %d is stored as %v, behind value %d",
					p.name, p.t.name, p.partition, v, ids[i], before)
			}
		}
	}
}
