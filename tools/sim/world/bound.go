package world

import (
	"errors"
	"math/bits"
	"slices"

	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/node/forward"
	"penstock/replicate"
)

// A healthy majority refuses nothing for long. A world is calm while at most one node is unwell in any way, the same
// one all the time, and the network and the store are well. What is published through a node that is well, when that
// has lasted for maxRefusal, is answered OK.

// maxRefusal is how long a majority may take to go on without one node that is unwell: a lease ends, another node is
// elected, who hangs gives its leaderships away, a member that does not answer leaves the ISR, and the one that is left
// catches up.
const maxRefusal = 3_500 * ms

// maxSparedRefusal is how long a topic whose leaders are well may be held up by a disk that hangs elsewhere: 3.5 s with
// the product's limits. Here the members of an ISR may lag for half a second (LagMaxNs) instead of two seconds.
const maxSparedRefusal = 1_500 * ms

// recovery is how long all are well before one falls ill for the rest of the time.
const recovery = 1000 * ms

// proving is how long a disk that hung has to answer well until its node says that it is good.
const proving = 6500 * ms

// calm is what the bound knows.
type calm struct {
	unwell  uint32 // nodes, by index
	since   int64
	waited  int64                // when a partition last had to wait for a member that is not well; see noteWaits
	from    int64                // nothing falls ill after it but one node; 0: there is no such time
	checked int                  // values below have been judged
	spared  map[*topicModel]bool // topics that the node whose disk hangs led nothing of
}

// boundApplies says whether any two of the nodes are enough to publish, and nobody forbids it.
func (w *World) boundApplies() bool {
	return w.has(FeatureBound) && w.opt.replicas == 3 && w.opt.min <= 2 && !w.has(FeatureTopics|FeatureMoves|FeatureNodes)
}

// mayFail says whether something else may go wrong now.
func (w *World) mayFail() bool {
	return w.faults && w.cfg.script == nil && w.now > w.opt.quiet && w.now >= w.gray.idle.stillUntil &&
		(w.gray.calm.from == 0 || w.now < w.gray.calm.from)
}

// beginCalm ends what goes on, and makes one node ill for the rest of the time, or none: its disk hangs, or its machine
// is off.
func (w *World) beginCalm() {
	w.healGray()
	o := &w.opt
	w.store.out, w.net.cut = 0, [8][8]bool{}
	o.drop, o.dup, o.full, o.slow, o.storeDrop = 0, 0, 0, 0, 0
	for _, n := range w.nodes {
		n.media.ClearRules()
		n.media.CrashAt(-1)
		if n.m != nil && n.suspect() { // what failed before stays closed until its process is started anew
			n.kill("it may have met a fault")
		}
	}
	n, kind := w.nodes[w.gray.r.IntN(len(w.nodes))], w.gray.r.IntN(3)
	w.after(recovery, func() { w.strike(n, kind) })
}

// strike makes one node ill as soon as all are well: one that others need to catch up from would be the last that has
// what they lack.
func (w *World) strike(n *host, kind int) {
	rest := w.opt.chaos - w.now
	switch {
	case !w.faults || rest < maxRefusal:
		w.tracef("there was no time at which all were well")
		return
	case !w.allWell(), kind == 0 && w.has(FeatureHung) && !w.disksAreGood():
		w.after(50*ms, func() { w.strike(n, kind) })
		return
	}
	if w.cfg.Break == MutantSecondHang {
		w.nodes[(n.index+1)%len(w.nodes)].secretly = true
	}
	switch {
	case kind == 0 && w.has(FeatureHung):
		w.gray.calm.spared = w.sparedBy(n)
		w.hangFor(n, rest)
		w.tracef("all others are well")
	case kind == 1:
		n.crashIfUp()
		n.power = false
		w.tracef("%s is off, and all others are well", n.name)
		w.after(rest-ms, func() { n.power = true })
	default:
		w.tracef("all are well")
	}
}

// allWell says that every node is well, and every replica in sync.
func (w *World) allWell() bool {
	for _, n := range w.nodes {
		if n.unwell() {
			return false
		}
	}
	for _, p := range w.store.snap.Partitions.All() {
		if !w.store.led(p) || len(p.State.ISR) < len(p.State.Replicas) {
			return false
		}
	}
	return true
}

// disksAreGood says that every disk is good by its own node's word. One that hung a while ago takes nothing over, and
// gives nothing away a second time.
func (w *World) disksAreGood() bool {
	for _, n := range w.store.snap.Nodes {
		if n.Disk != meta.DiskGood {
			return false
		}
	}
	return true
}

// sparedBy are the topics that a node leads nothing of.
func (w *World) sparedBy(n *host) map[*topicModel]bool {
	spared := map[*topicModel]bool{}
	for id := range w.store.snap.Topics {
		spared[w.models[id]] = true
	}
	for id, p := range w.store.snap.Partitions.All() {
		if p.State.Leader == n.replica() {
			delete(spared, w.models[id.Topic])
		}
	}
	return spared
}

// noteCalm looks at what is unwell; it is called after every event.
func (w *World) noteCalm() {
	b := &w.gray.calm
	unwell := uint32(0)
	for i, n := range w.nodes {
		if n.unwell() || w.lostItsLease(n) {
			unwell |= 1 << i
		}
	}
	if unwell != b.unwell || bits.OnesCount32(unwell) > 1 || w.now < w.store.out || w.net.cut != [8][8]bool{} {
		b.unwell, b.since = unwell, w.now
	}
}

// lostItsLease says that the store takes n for dead, and may do so because it did not get what n sent: the store is not
// well.
func (w *World) lostItsLease(n *host) bool {
	return w.opt.storeDrop > 0 && w.store.snap.Nodes[n.replica()] != nil && !w.store.live(n.replica())
}

// unwell says that something is wrong with a node or its machine.
func (n *host) unwell() bool {
	return n.e == nil || !n.running() || n.failed || n.closing || n.broken || n.isSlow() && !n.secretly ||
		len(n.ill.rules) > 0 || n.wiped || n.w.now < n.fullUntil ||
		n.e.CommitStats().Failed
}

// judgeRefusal looks at what a put was answered.
func (b *book) judgeRefusal(v *value, err error) {
	w := b.w
	if !w.boundApplies() || !w.withinBound(v) || errors.Is(err, errs.ErrQuota) ||
		v.deferred && errors.Is(err, errs.ErrDeferTooLong) { // of another node it comes without the kind
		return
	}
	if w.Stats.Bound++; err != nil {
		w.fail("a put on %s was answered %v after %.3f s, and a majority is well since %.3f: %s",
			v.by.name, err, float64(w.now-v.submitted)/1e9,
			float64(w.gray.calm.since)/1e6, w.unwellNames())
	}
}

// withinBound says that a value was published through a node that is well, in a world that was calm for long and is so
// still.
func (w *World) withinBound(v *value) bool {
	b := &w.gray.calm
	limit := maxRefusal
	if b.spared[v.topic] {
		limit = maxSparedRefusal
	}
	w.noteWaits()
	return v.submitted-max(b.since, b.waited) > limit && v.by.life == v.life && !v.by.unwell()
}

// noteWaits looks for partitions that no majority can serve although only one node is unwell. Too few members of the
// ISR are whole: what a damaged copy stores does not count until it is repaired, and that takes as long as it takes. Or
// a leader whose log was cut at recovery waits for a member that is unwell, until that is back or an operator decides
// (see force.go): the other may be the only one that has what was cut. It is called before a put is judged, and every
// 100 ms.
func (w *World) noteWaits() {
	for _, p := range w.store.snap.Partitions.All() {
		if len(p.Damaged) > 0 && w.wholeMembers(p) < w.opt.min {
			w.gray.calm.waited = w.now
		}
	}
	for _, n := range w.nodes {
		if n.e == nil || !n.running() || n.closing {
			continue
		}
		for _, v := range n.inside.Partitions() {
			p := w.store.snap.Partitions.Get(v.ID)
			if p != nil && v.Compares && slices.ContainsFunc(p.State.ISR, w.memberUnwell) {
				w.gray.calm.waited = w.now
			}
		}
	}
}

// wholeMembers counts the members of the ISR whose nodes are well and whose copies are not damaged.
func (w *World) wholeMembers(p *meta.Partition) (n int) {
	for _, m := range p.State.ISR {
		if !w.memberUnwell(m) && !slices.Contains(p.Damaged, m) {
			n++
		}
	}
	return n
}

func (w *World) memberUnwell(m replicate.Member) bool {
	n := w.nodeOf(m.Node)
	return n == nil || n.unwell()
}

// judgeSilence looks for puts that have no answer although they should.
func (w *World) judgeSilence() {
	for i := w.gray.calm.checked; i < len(w.book.values); i++ {
		v := &w.book.values[i]
		if w.now-v.submitted < int64(publishTimeout+forward.AnswerMargin)+500*ms {
			return
		}
		w.gray.calm.checked = i + 1
		if v.numbered && w.has(FeatureSettings) {
			continue // a quota may refuse it again and again, and its producer does not give it up
		}
		if v.fate == offered && w.withinBound(v) {
			w.fail("a put on %s has no answer after %.3f s, and a majority is well since %.3f: %s",
				v.by.name, float64(w.now-v.submitted)/1e9,
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
