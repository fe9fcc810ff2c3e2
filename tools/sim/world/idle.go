package world

import (
	"errors"
	"time"

	"penstock/clog"
	"penstock/internal/node"
	"penstock/internal/node/machine"
)

// With FeatureIdle the producers rest from time to time. Then commit logs promise their last group with a mark, and
// idle disks are asked whether they answer, as on real machines. Two things are demanded: damage to the last group of a
// log at rest is told as such by the next process, and a node whose disk hangs knows that, also when it has nothing to
// write.

// What the engines do, and by when a node knows: its watch looks every 250 ms, asks a disk after probeAfter, and waits
// for diskPatience.
const (
	markAfter  = 20 * time.Millisecond
	probeAfter = 500 * time.Millisecond
	maxUnaware = 3_000 * ms
	// rested is how long a log did nothing when it counts as at rest: some times markAfter.
	rested = 100 * ms
	// longRest is a rest that shows whether an idle node learns that its disk hangs.
	longRest = maxUnaware + 1_500*ms
)

// idleness is what only worlds with FeatureIdle have.
type idleness struct {
	lullUntil  int64 // nobody publishes or configures
	stillUntil int64 // nothing else may go wrong
	longFrom   int64 // when the long rest begins; 0: there is none
	tried      int   // rests in which a bit might have rotted
}

// marksAfter is how long a commit log rests before it writes a mark; 0: it never does.
func (w *World) marksAfter() time.Duration {
	if !w.has(FeatureIdle) || w.cfg.Break == MutantNoMarks {
		return 0
	}
	return markAfter
}

// probesAfter is node.Options.DiskProbeAfter. A disk that was slow or hung is good again only after some writes, and
// where nobody publishes any more these are the probes: without them a leader would keep for ever what it is to give
// away, for want of an heir.
func (w *World) probesAfter() time.Duration {
	switch {
	case w.has(FeatureIdle) && w.cfg.Break != MutantNoProbes:
		return probeAfter
	case !w.has(FeatureIdle) && w.has(FeatureSlow|FeatureHung|FeaturePlacement):
		return 0 // the engine's own
	}
	return -1
}

// prepareIdle makes time for a long rest, in some worlds.
func (w *World) prepareIdle() {
	if w.has(FeatureIdle) && w.has(FeatureHung) && w.gray.r.IntN(4) == 0 {
		w.gray.idle.longFrom = w.opt.chaos
		w.opt.chaos += longRest
	}
}

// startIdle lets producers rest.
func (w *World) startIdle() {
	if !w.has(FeatureIdle) {
		return
	}
	var again func()
	again = func() {
		if w.mayFail() {
			d := w.gray.span(200*ms, 600*ms)
			w.lull(d)
			if n := w.gray.rotten; n != nil {
				w.after(d-rested, func() {
					before := n.restMarks()
					w.after(rested, func() { w.rotAtRest(before) })
				})
			}
		}
		w.after(w.gray.span(700*ms, 2000*ms), again)
	}
	w.after(w.gray.span(w.opt.quiet, 1000*ms), again)
	if w.has(FeatureHung) {
		w.every(200*ms, w.judgeDisks)
	}
	if from := w.gray.idle.longFrom; from > 0 {
		w.after(from, func() {
			n := w.nodes[w.gray.r.IntN(len(w.nodes))]
			w.lull(longRest)
			w.gray.idle.stillUntil = w.now + longRest
			w.after(500*ms, func() { w.hangFor(n, longRest-600*ms) })
		})
	}
}

func (w *World) lull(d int64) {
	w.gray.idle.lullUntil = max(w.gray.idle.lullUntil, w.now+d)
	w.tracef("the producers rest until %.3f", float64(w.gray.idle.lullUntil)/1e6)
}

// busy says whether clients want anything now.
func (w *World) busy() bool { return w.loaded && w.now >= w.gray.idle.lullUntil }

// rotAtRest takes the power from a machine whose commit log rests, or from all machines, and then lets a bit rot in the
// last group that holds anything: the next process must say that it is damaged, and not take it for one that the crash
// has cut short. A disk of which something has rotted before is left alone.
func (w *World) rotAtRest(before restMarks) {
	g, n := &w.gray, w.gray.rotten
	g.idle.tried++
	if !w.mayFail() || g.flipped || before.life == 0 || n.restMarks() != before {
		return
	}
	if n.crash(); g.r.IntN(2) == 0 {
		for _, o := range w.nodes {
			o.crashIfUp()
		}
	}
	name, group, ok := n.lastGroup()
	if !ok {
		return
	}
	at := group.Offset + g.r.Int64N(group.Bytes)
	data, err := n.media.ReadFile(name, diskBytes)
	if err != nil || !n.media.Corrupt(name, []byte{data[at] ^ 1<<g.r.IntN(8)}, at) {
		return
	}
	w.Stats.RottenAtRest++
	g.flipped, n.rotAtRest = true, true
	w.tracef("a bit rots in %s of %s at %d, in group %d, the last one of a log at rest", name, n.name, at, group.Seq)
}

// restMarks tell a process that did nothing between two looks: they are the same.
type restMarks struct {
	life          int // 0: it is not well, or does something just now
	groups, marks uint64
	asleep        int64
}

// restMarks: a full log waits for room, and has none for a mark: the one block that it keeps back is for giving files
// back (clog's markForSpare). After a start it promises the last group with its first file.
func (n *host) restMarks() (r restMarks) {
	if n.unwell() || n.flying > 0 || n.media.Crashed() || n.e.Health() != nil {
		return r
	}
	s := n.e.CommitStats()
	if s.Full {
		return r
	}
	return restMarks{n.life, s.Groups, s.Marks + s.Files, n.asleep}
}

// lastGroup is the last group with records of the newest file of the commit log; not ok: that file begins with a
// checkpoint and has nothing else.
func (n *host) lastGroup() (name string, last clog.GroupInfo, ok bool) {
	errTorn := errors.New("it is not whole")
	err := clog.Scan(n.media, func(f clog.FileInfo, g clog.GroupInfo, recs []clog.RecordInfo) error {
		if f.Name != name {
			name, ok = f.Name, false
		}
		if g.Err != nil {
			return errTorn
		}
		for i := range recs {
			if recs[i].Type != clog.Checkpoint {
				last, ok = g, true
			}
		}
		return nil
	})
	return name, last, ok && err == nil
}

// opened looks at what a process says of a disk whose bits have rotted at rest, and at a commit log that is damaged.
func (n *host) opened(e *node.Engine) {
	if e.CommitStats().Failed {
		n.w.attend(n)
	}
	if n.rotAtRest && e.Health() == nil {
		n.w.fail("%s opened and says nothing of the bit that rotted in the last group of its commit log, which had been at "+
			"rest", n.name)
	}
}

// judgeDisks: a node knows that its disk hangs after maxUnaware in which nothing came back.
func (w *World) judgeDisks() {
	for _, n := range w.nodes {
		if n.e == nil || !n.running() || n.failed || n.closing || !n.hangs() {
			n.unawareSince = w.now
			continue
		}
		state, done := n.inside.Disk()
		if done != n.cameBack || state >= machine.DiskHung {
			n.cameBack, n.unawareSince = done, w.now
		}
		if w.now-n.unawareSince > maxUnaware {
			w.fail("the disk of %s hangs since %.3f or before, and the node holds it for %v",
				n.name, float64(n.unawareSince)/1e6, state)
		}
	}
}
