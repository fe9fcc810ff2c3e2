package world

import (
	"path"
	"strings"

	"penstock/internal/node/partition"
	"penstock/segment"
)

// rot flips one bit in a file of the node whose bits rot: any file, at any place that was written, with a liking for
// what was written last.
func (w *World) rot(*host) {
	n, g := w.gray.rotten, &w.gray
	if w.cfg.Break == MutantRotEverywhere {
		n = w.nodes[g.r.IntN(len(w.nodes))]
	}
	if n.media.Crashed() || w.has(FeatureIdle) && g.idle.tried < 2 { // first something may rot at rest: see rotAtRest
		return
	}
	kind := []string{".clog", ".clog", ".seg", ".seg", ".seg", ".idx", ".json", ""}[g.r.IntN(8)]
	var names []string
	n.eachFile(".", func(name string) {
		// What is in the trash nobody reads, and its names have a counter of the process, which is not the same in two runs.
		if strings.HasSuffix(name, kind) && !strings.HasPrefix(name, "trash/") {
			names = append(names, name)
		}
	})
	if len(names) == 0 {
		return
	}
	name := names[g.r.IntN(len(names))]
	if g.r.IntN(3) == 0 {
		name = names[len(names)-1]
	}
	if at, ok := n.flip(name); ok {
		w.Stats.Rotten++
		g.flipped = true
		if strings.HasPrefix(name, "clog/") {
			// it may be in the mark that promised the group: with both damaged nobody can tell it from a torn write
			n.rotAtRest = false
		}
		w.tracef("a bit rots in %s of %s at %d, running %v", name, n.name, at, n.m != nil)
	}
}

// replaceDisk is what an operator does with a node that says at its start that its data directory is damaged: it gets
// an empty disk, as soon as the others have all that it has.
func (w *World) replaceDisk(n *host) {
	if n.e != nil || !w.gray.flipped {
		return
	}
	if !w.spares(n) {
		w.after(200*ms, func() { w.replaceDisk(n) })
		return
	}
	w.Stats.Replaced++
	w.newDisk(n)
}

// attend is what an operator does with a node that is up and says that its commit log is damaged, when he comes to it:
// if bits have rotted there and the others have all that it has, it gets an empty disk; else it is started anew, as its
// log says, for what could not be read may read then.
func (w *World) attend(n *host) {
	w.Stats.Poisoned++
	w.tracef("%s is up with a damaged commit log", n.name)
	life, wait := n.life, int64(0)
	if w.has(FeatureForget) && n.forgot.at != 0 {
		w.attendForgot(n)
		return
	}
	if w.has(FeatureRot | FeatureErrors) {
		wait = w.gray.span(0, maxPoisoned)
	} else if !w.faults {
		w.fail("%s is up with a damaged commit log, and no disk of this world rots or fails to read", n.name)
	}
	w.after(wait, func() {
		switch {
		case n.life != life:
		case n == w.gray.rotten && w.gray.flipped && w.spares(n):
			w.Stats.Replaced++
			w.newDisk(n)
		default:
			n.kill("its commit log is damaged")
		}
	})
}

// maxPoisoned is how long a node is up with a damaged commit log before somebody comes to it.
const maxPoisoned = 3_000 * ms

// readAll reads all logs of the node whose bits rot, as a scrub does: what is damaged and nobody has asked for is
// found, and fetched from the others. It passes over what nobody needs (neededFrom), which goes with the copy's own
// retention: that waits for the commit log to turn.
func (w *World) readAll() {
	n := w.gray.rotten
	w.gray.clean = false
	if n.e != nil && n.running() && !n.closing {
		w.gray.clean = true
		for _, v := range n.inside.Partitions() {
			if err := n.readLog(v.ID, w.neededFrom(&v), func(segment.Offset, *segment.Header, []byte) bool {
				return true
			}); err != nil {
				w.gray.clean = false
				w.tracef("%s finds: %v", n.name, err)
			}
		}
		n.poke()
	}
	w.after(1000*ms, w.readAll)
}

// neededFrom is the offset below which nobody needs what a copy has: the beginning of the log on the node that serves
// the partition, or of the log of an earlier leader, if that leader told the copy so. That leader's retention had
// removed what all channels had confirmed; the log of the leader after it may begin before that.
func (w *World) neededFrom(copy *partition.View) segment.Offset {
	for _, n := range w.nodes {
		if n.e == nil || !n.running() {
			continue
		}
		for _, v := range n.inside.Partitions() {
			if v.ID != copy.ID || !v.Serves {
				continue
			}
			needed := v.StartAt
			if v.Start < copy.LeaderStart {
				needed = v.EndAt
				_ = n.readLog(v.ID, v.StartAt, func(at segment.Offset, h *segment.Header, _ []byte) bool {
					if h.Position < copy.LeaderStart {
						return true
					}
					needed = at
					return false
				})
			}
			return needed
		}
	}
	return 0
}

// eachFile lists the files of a disk, in order.
func (n *host) eachFile(dir string, visit func(name string)) {
	infos, err := n.media.ReadDir(dir)
	if err != nil {
		return
	}
	for _, f := range infos {
		name := path.Join(dir, f.Name())
		if f.IsDir() {
			n.eachFile(name, visit)
		} else {
			visit(name)
		}
	}
}

// flip changes one bit of a file, in half of the cases near the end of what is written in it.
func (n *host) flip(name string) (at int64, ok bool) {
	g := &n.w.gray
	data, err := n.media.ReadFile(name, diskBytes)
	if err != nil {
		return 0, false
	}
	end := int64(len(data))
	for end > 0 && data[end-1] == 0 {
		end--
	}
	if end == 0 {
		return 0, false
	}
	at = g.r.Int64N(end)
	if g.r.IntN(2) == 0 {
		at = max(0, end-1-g.r.Int64N(600))
	}
	return at, n.media.Corrupt(name, []byte{data[at] ^ 1<<g.r.IntN(8)}, at)
}
