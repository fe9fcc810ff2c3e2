package world

import (
	"math/rand/v2"
	"slices"
	"syscall"

	"penstock/tests/support/faultaio"
)

// Gray failures: what does not die, but is slow, hangs, fails or lies. An illness is the device's or the clock's, not
// the process's: it lasts for a drawn time, whatever happens to the process meanwhile. What a world needs for it is
// drawn from a stream of its own.

// gray is what only worlds with gray failures have.
type gray struct {
	r       *rand.Rand
	every   int64 // an illness begins about so often
	calm    calm
	rotten  *host              // FeatureRot: the only node whose bits rot, so that every ISR has a copy that does not
	flipped bool               // since its disk was new
	clean   bool               // all of it reads back
	asked   map[nodePart]int64 // since when a leader asks operators
	idle    idleness
}

// illness is what ails a disk.
type illness struct {
	slow      int64           // ns that each durable write takes longer
	hungUntil int64           // nothing completes before
	rules     []faultaio.Rule // that make it fail
}

// grayFeatures are all gray failures.
const grayFeatures = grayDisks | FeatureIdle | FeatureClocks | FeatureLevels | FeatureBound | FeatureCluster |
	FeatureStrict

// grayDisks are the features that make disks ill.
const grayDisks = FeatureSlow | FeatureHung | FeatureErrors | FeatureRot

// prepareGray makes the world one in which the promise can be kept: with a bit that rots in one copy, another member of
// each ISR must have the message.
func (w *World) prepareGray() {
	if !w.has(grayFeatures) {
		return
	}
	w.gray.r = rand.New(rand.NewPCG(w.Seed, 0x9fb21c651e98df25))
	w.gray.every = 150*ms + w.gray.r.Int64N(600*ms)
	w.opt.chaos += w.gray.span(0, 3000*ms)
	w.prepareIdle()
	if w.has(FeatureBound) {
		w.gray.calm.from = w.opt.chaos
		w.opt.chaos += recovery + maxRefusal + 4000*ms
		if w.has(FeatureHung) {
			w.opt.chaos += proving
		}
	}
	if w.has(FeatureRot) {
		w.opt.nodes, w.opt.replicas, w.opt.min = max(3, w.opt.nodes), 3, 2
		if w.has(FeatureMoves | FeatureNodes) {
			w.opt.nodes = 4
		}
	}
}

// span draws from [a, b].
func (g *gray) span(a, b int64) int64 { return a + g.r.Int64N(max(1, b-a+1)) }

// skewed draws from [a, b], mostly near a.
func (g *gray) skewed(a, b int64) int64 {
	f := g.r.Float64()
	return a + int64(f*f*float64(b-a))
}

// startGray lets illnesses begin, one after the other.
func (w *World) startGray() {
	if w.gray.r == nil {
		return
	}
	w.startLevels()
	w.startIdle()
	if w.has(FeatureRot) {
		w.gray.asked = map[nodePart]int64{}
		w.gray.rotten = w.nodes[w.gray.r.IntN(len(w.nodes))]
	}
	var again func()
	again = func() {
		if w.mayFail() {
			w.fallIll()
		}
		w.after(w.gray.span(w.gray.every/2, w.gray.every*3/2), again)
	}
	w.after(w.gray.every, again)
	if w.has(FeatureBound) {
		w.after(w.gray.calm.from, w.beginCalm)
	}
	if w.boundApplies() {
		w.every(100*ms, w.noteWaits)
		w.every(200*ms, w.judgeSilence)
	}
}

// fallIll makes something ill.
func (w *World) fallIll() {
	g := &w.gray
	n := w.nodes[g.r.IntN(len(w.nodes))]
	var kinds []func(*host)
	for _, one := range []struct {
		f  Feature
		do func(*host)
	}{
		{FeatureSlow, w.slowDown},
		{FeatureHung, w.hang},
		{FeatureErrors, w.failReads},
		{FeatureErrors, w.failWrites},
		{FeatureRot, w.rot},
		{FeatureClocks, w.setClock},
	} {
		if w.has(one.f) {
			kinds = append(kinds, one.do)
		}
	}
	if len(kinds) > 0 {
		kinds[g.r.IntN(len(kinds))](n)
	}
}

// slowDown makes every durable write of a disk take longer, up to seconds.
func (w *World) slowDown(n *host) {
	if n.ill.slow != 0 {
		return
	}
	w.Stats.Slow++
	n.ill.slow = w.gray.skewed(20*ms, 3000*ms)
	d := w.gray.span(200*ms, 4000*ms)
	w.tracef("the disk of %s is slow: %.3f ms for each write, for %.3f ms",
		n.name, float64(n.ill.slow)/1e6, float64(d)/1e6)
	w.after(d, func() { n.ill.slow = 0 })
}

// hang lets nothing complete on a disk for a while.
func (w *World) hang(n *host) {
	if n.hangs() {
		return
	}
	w.hangFor(n, w.gray.span(100*ms, 6000*ms))
}

func (w *World) hangFor(n *host, d int64) {
	w.Stats.Hung++
	n.ill.hungUntil = w.now + d
	w.tracef("the disk of %s hangs until %.3f", n.name, float64(n.ill.hungUntil)/1e6)
	w.after(d, n.poke)
}

func (n *host) hangs() bool { return n.w.now < n.ill.hungUntil || n.secretly && n.w.faults }

// isSlow says that a write of the disk takes longer than it should.
func (n *host) isSlow() bool { return n.hangs() || n.ill.slow > 0 }

// Hung implements stepped.World: what would wait for the disk, other than by a queue, does not begin.
func (n *host) Hung() bool { return n.hangs() }

// Slow implements stepped.World.
func (n *host) Slow() bool { return n.isSlow() && n.w.cfg.Break != MutantSpot }

// failReads makes all reads of a kind of file fail for a while.
func (w *World) failReads(n *host) {
	name := []string{"topics/*/*/*.seg", "clog/*.clog", "topics/*/*/*.idx", "topics/*/topic.json"}[w.gray.skewed(0, 3)]
	w.failFor(n, faultaio.Rule{Kind: faultaio.KindRead, Name: name, Count: -1, Err: syscall.EIO})
}

// failWrites makes all writes of a kind fail for a while.
func (w *World) failWrites(n *host) {
	kinds := []faultaio.Kind{
		faultaio.KindWriteSync, faultaio.KindWrite, faultaio.KindSync, faultaio.KindCreate, faultaio.KindRename,
		faultaio.KindSyncDir,
	}
	n.broken = true
	w.failFor(n, faultaio.Rule{Kind: kinds[w.gray.r.IntN(len(kinds))], Count: -1, Err: syscall.EIO})
}

// failFor injects a rule for a while. A new process on the same device meets it again.
func (w *World) failFor(n *host, rule faultaio.Rule) {
	if len(n.ill.rules) > 0 {
		return
	}
	w.Stats.Failing++
	d := w.gray.skewed(20*ms, 3000*ms)
	w.tracef("the disk of %s fails every %v of %q for %.3f ms", n.name, rule.Kind, rule.Name, float64(d)/1e6)
	n.ill.rules = []faultaio.Rule{rule}
	n.media.Inject(rule)
	w.after(d, func() {
		n.broken = n.broken || n.failsWrites() // also if the process that met it first has ended meanwhile
		n.ill.rules = nil
		n.media.ClearRules()
		// A process that met a failed write has closed what it could not write: only a restart helps.
		if rule.Kind != faultaio.KindRead {
			n.kill("its disk has failed")
		}
	})
}

func (n *host) failsWrites() bool {
	return slices.ContainsFunc(n.ill.rules, func(r faultaio.Rule) bool { return r.Kind != faultaio.KindRead })
}

// healGray ends all illnesses.
func (w *World) healGray() {
	if w.has(FeatureRot) {
		w.after(1000*ms, w.readAll)
		w.after(1000*ms, w.decide)
	}
	for _, n := range w.nodes {
		n.broken = n.broken || n.failsWrites()
		n.ill = illness{}
		n.poke()
	}
}

// setClock sets a wall clock by up to half a day, forward or back. Before a process starts somebody sets it right: what
// a process stores, it stores by the time that it found.
func (w *World) setClock(n *host) {
	w.Stats.ClockSteps++
	d := w.gray.skewed(100*ms, 12*3600*1000*ms)
	if w.gray.r.IntN(2) == 0 {
		d = -d
	}
	n.stepped += d
	if w.cfg.Break == MutantBothClocks {
		n.leapt += max(d, -d)
	}
	w.tracef("the clock of %s is set by %.3f s", n.name, float64(d)/1e9)
}
