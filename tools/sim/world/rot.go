package world

import (
	"path"
	"strings"

	"penstock/segment"
)

// rot flips one bit in a file of the node whose bits rot: any file, at any place that was written, with a liking for what was written last.
func (w *World) rot(*node) {
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
		w.tracef("a bit rots in %s of %s at %d, running %v", name, n.name, at, n.m != nil)
	}
}

// replaceDisk is what an operator does with a node that says at its start that its data directory is damaged: it gets an empty disk, as soon as the
// others have all that it has.
func (w *World) replaceDisk(n *node) {
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

// patience is how long an operator waits for the repair of a copy before he replaces its disk. A copy that says it must be cut where its bytes are
// damaged, or whose damage lies where its leader has nothing any more, needs that.
const patience = 20_000 * ms

// giveUp replaces a rotten disk that is not repaired: a node that runs is ended for it.
func (w *World) giveUp(n *node) {
	switch {
	case !w.gray.flipped || w.whole() == "":
		return
	case n.m != nil && w.spares(n):
		w.Stats.Replaced++
		w.newDisk(n)
	default:
		w.after(500*ms, func() { w.giveUp(n) })
	}
}

// readAll reads all logs of the node whose bits rot, as a scrub does: what is damaged and nobody has asked for is found, and fetched from the others.
func (w *World) readAll() {
	n := w.gray.rotten
	w.gray.clean = false
	if n.e != nil && n.running() && !n.closing {
		w.gray.clean = true
		for _, v := range n.m.Partitions() {
			if err := n.m.ReadLog(v.ID, func(segment.Offset, *segment.Header, []byte) bool { return true }); err != nil {
				w.gray.clean = false
				w.tracef("%s finds: %v", n.name, err)
			}
		}
		n.poke()
	}
	w.after(1000*ms, w.readAll)
}

// eachFile lists the files of a disk, in order.
func (n *node) eachFile(dir string, visit func(name string)) {
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
func (n *node) flip(name string) (at int64, ok bool) {
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
