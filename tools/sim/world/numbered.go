package world

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// Publishers that cannot seal batches name a producer beside their puts, and publish at any node, which forwards the
// puts to the leader. So an answer may be lost although the put was stored and the next one was answered. What they
// send again is stored once all the same, and in order.

// leapNs is more than the age at which unused producers are forgotten (7 days, internal/node/fold). A process that
// begins with such a clock makes nobody older than an hour.
const leapNs = 8 * 24 * 3600 * 1000 * ms

// prepareLeaps lets wall clocks leap in some worlds with FeatureNumbered: those in which nothing else is judged by
// them. Nobody delays a message there, because a delay that a clock so far ahead has set may last for days: see
// docs/contribute/decisions.md.
func (w *World) prepareLeaps() {
	r := rand.New(rand.NewPCG(w.Seed, 0xd6e8feb86659fd93))
	if w.has(FeatureNumbered) && !w.has(FeatureKeep|FeatureSettings|FeatureClocks) && r.IntN(2) == 0 {
		w.leaps, w.opt.jump = r, 0.1
	}
}

// leap sets a node's clock forward by leapNs, or back; its next process begins with that.
func (w *World) leap(n *host) {
	switch {
	case w.leaps == nil || w.leaps.IntN(2) == 0:
	case n.skew < leapNs/2:
		n.setSkew(n.skew + leapNs)
	default:
		n.setSkew(n.skew - leapNs)
	}
}

// submit sends a batch as a numbered put.
func (p *producer) submit(topic *node.Topic, b *sealedBatch, answer func(node.Produced)) {
	n := &node.Numbered{Name: []byte(p.name), Tenure: p.p.Tenure, Sequence: b.base}
	put := &node.Put{Messages: b.bodies}
	put.Done = func(put *node.Put) {
		answer(node.Produced{First: put.First, Duplicate: n.Duplicate(), Err: put.Err})
	}
	submit := func() error { return topic.SubmitNumbered(int(p.partition), put, n) }
	if p.w.cfg.Break == MutantUnnumbered {
		put.Done = func(put *node.Put) { answer(node.Produced{First: put.First, Err: put.Err}) }
		submit = func() error { return topic.SubmitTo(int(p.partition), put) }
	}
	if err := submit(); err != nil {
		answer(node.Produced{Err: err})
	}
}

// hearPut is the answer to a numbered put. A node that forwards does not know whether the put was stored before.
func (p *producer) hearPut(b *sealedBatch, first node.ID, repeat bool, err error) {
	w := p.w
	wrong := func(why string) {
		w.fail("publisher %q of %s/%d, put %d+%d %s: %v %v %v",
			p.name, p.t.name, p.partition, b.base, b.count, why, first, repeat, err)
	}
	switch {
	case err == nil && b.stored:
		if w.Stats.Repeats++; first != b.id {
			wrong(fmt.Sprintf("was stored as %v before", b.id))
		}
	case err == nil:
		if repeat {
			w.Stats.Repeats++
		}
		b.stored, b.id = true, first
		for i := range int(b.count) {
			v := &w.book.values[b.value+i]
			v.fate, v.answered = acked, w.now
			w.book.place(b.value+i, first+node.ID(i))
		}
		w.Stats.Acked += int(b.count)
		for len(p.sent) > 0 && p.sent[0].stored {
			p.last, p.sent = p.sent[0], p.sent[1:]
			p.told = p.last.base + p.last.count
		}
	case errors.Is(err, errs.ErrFenced):
		p.open = false // an opening whose answer was lost may have been carried out later
	case errors.Is(err, errs.ErrUnknownProducer):
		if !p.t.doomed {
			wrong("is refused")
		}
	case errors.Is(err, errs.ErrQuota) && !w.loaded:
		p.forget()
	}
}
