package world

import (
	"math/bits"

	"penstock/engine"
)

// A healthy majority refuses nothing for long. A world is calm while at most one node is unwell in any way, the same one all the time, and the network and
// the store are well. What is published through a node that is well, when that has lasted for maxRefusal, is answered OK.

// maxRefusal is how long a majority may take to go on without one node that is unwell: a lease ends, another node is elected, who hangs gives its leaderships
// away, a member that does not answer leaves the ISR, and the one that is left catches up.
const maxRefusal = 4_000 * ms

// recovery is how long all are well before one falls ill for the rest of the time.
const recovery = 1000 * ms

// calm is what the bound knows.
type calm struct {
	unwell  uint32 // nodes, by index
	since   int64
	from    int64 // nothing falls ill after it but one node; 0: there is no such time
	checked int   // values below have been judged
}

// boundApplies says whether any two of the nodes are enough to publish, and nobody forbids it.
func (w *World) boundApplies() bool {
	return w.has(FeatureBound) && w.opt.replicas == 3 && w.opt.min <= 2 && !w.has(FeatureTopics|FeatureMoves|FeatureNodes)
}

// mayFail says whether something else may go wrong now.
func (w *World) mayFail() bool {
	return w.faults && w.now > w.opt.quiet && w.now >= w.gray.idle.stillUntil && (w.gray.calm.from == 0 || w.now < w.gray.calm.from)
}

// beginCalm ends what goes on, and makes one node ill for the rest of the time, or none: its disk hangs, or its machine is off.
func (w *World) beginCalm() {
	w.healGray()
	o := &w.opt
	w.store.out, w.net.cut = 0, [8][8]bool{}
	o.drop, o.dup, o.full, o.slow, o.storeDrop = 0, 0, 0, 0, 0
	g, rest := &w.gray, w.opt.chaos-w.now
	n := w.nodes[g.r.IntN(len(w.nodes))]
	if w.cfg.Break == MutantSecondHang {
		w.nodes[(n.index+1)%len(w.nodes)].secretly = true
	}
	switch kind := g.r.IntN(3); {
	case kind == 0 && w.has(FeatureHung):
		w.after(recovery, func() { // a node gives its leaderships away once, and again only if its disk was good in between
			n.ill.hungUntil = w.now + rest - recovery
			w.Stats.Hung++
			w.tracef("the disk of %s hangs until %.3f, and all others are well", n.name, float64(n.ill.hungUntil)/1e6)
			w.after(rest-recovery, n.poke)
		})
	case kind == 1:
		n.crashIfUp()
		n.power = false
		w.tracef("%s is off, and all others are well", n.name)
		w.after(rest-ms, func() { n.power = true })
	default:
		w.tracef("all are well")
	}
}

// noteCalm looks at what is unwell; it is called after every event.
func (w *World) noteCalm() {
	b := &w.gray.calm
	unwell := uint32(0)
	for i, n := range w.nodes {
		if n.unwell() {
			unwell |= 1 << i
		}
	}
	if unwell != b.unwell || bits.OnesCount32(unwell) > 1 || w.now < w.store.out || w.net.cut != [8][8]bool{} {
		b.unwell, b.since = unwell, w.now
	}
}

// unwell says that something is wrong with a node or its machine.
func (n *node) unwell() bool {
	return n.e == nil || !n.running() || n.failed || n.closing || n.broken || n.isSlow() && !n.secretly || len(n.ill.rules) > 0 || n.wiped || n.w.now < n.fullUntil
}

// judgeRefusal looks at what a put was answered.
func (b *book) judgeRefusal(v *value, err error) {
	w := b.w
	if !w.boundApplies() || !w.withinBound(v) || err == engine.ErrQuota {
		return
	}
	if w.Stats.Bound++; err != nil {
		w.fail("a put on %s was answered %v after %.3f s, and a majority is well since %.3f: %s", v.by.name, err, float64(w.now-v.submitted)/1e9,
			float64(w.gray.calm.since)/1e6, w.unwellNames())
	}
}

// withinBound says that a value was published through a node that is well, in a world that was calm for long and is so still.
func (w *World) withinBound(v *value) bool {
	b := &w.gray.calm
	return v.submitted-b.since > maxRefusal && v.by.life == v.life && !v.by.unwell()
}

// judgeSilence looks for puts that have no answer although they should.
func (w *World) judgeSilence() {
	for i := w.gray.calm.checked; i < len(w.book.values); i++ {
		v := &w.book.values[i]
		if w.now-v.submitted < int64(publishTimeout)+500*ms {
			return
		}
		w.gray.calm.checked = i + 1
		if v.fate == offered && w.withinBound(v) {
			w.fail("a put on %s has no answer after %.3f s, and a majority is well since %.3f: %s", v.by.name, float64(w.now-v.submitted)/1e9,
				float64(w.gray.calm.since)/1e6, w.unwellNames())
		}
	}
}

func (w *World) unwellNames() string {
	for i, n := range w.nodes {
		if w.gray.calm.unwell&(1<<i) != 0 {
			return n.name + " is not"
		}
	}
	return "all are"
}
