package world

import (
	"fmt"
	"slices"
	"syscall"

	"penstock/batch"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/replicate"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// replica is the node's id, by what the store has. The process may not know it yet: the answer to its registration was
// lost, and the node is in the ISR of what was made since. A node that the store has not has the id that it had.
func (n *host) replica() replicate.NodeID {
	for id, row := range n.w.store.snap.Nodes {
		if row.Name == n.name {
			return id
		}
	}
	return replicate.NodeID(n.id)
}

func engineID(id meta.PartitionID, n segment.MsgID) node.ID {
	return batch.MakeID(id.Partition, n)
}

// mischief does something bad, sometimes.
func (w *World) mischief() {
	o := &w.opt
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	switch {
	case w.chance(o.kill):
		if n.m != nil {
			n.kill("for no reason")
			if w.chance(0.3) {
				w.after(0, n.boot) // at once: its lease still lives
			}
		}
	case w.chance(o.crash):
		w.powerCut(n)
	case w.chance(o.crashAt):
		if n.m != nil {
			n.media.CrashAt(n.media.Ops() + int(w.skewed(0, 40)))
		}
	case w.chance(o.stop + o.leave):
		n.leave()
	case w.chance(o.cut):
		w.cutLinks()
	case w.chance(o.cut / 2):
		w.net.breakOne()
	case w.chance(o.pause):
		w.freeze(n)
	case w.chance(o.storeOut):
		w.store.out = w.now + w.skewed(10*ms, 2*o.leaseTTL)
		w.tracef("the store is away until %.3f", float64(w.store.out)/1e6)
	case w.chance(o.jump):
		n.setSkew(n.skew + w.between(-2000*ms, 2000*ms))
		w.leap(n)
		w.tracef("the clock of %s jumps: %.3f s ahead from its next start on", n.name, float64(n.skew)/1e9)
	case w.chance(o.diskFault):
		w.breakDisk(n)
	case w.chance(o.diskFull):
		w.fillDisk(n)
	case w.chance(o.wipe):
		w.wipe(n)
	}
}

// powerCut takes one machine, or several at once.
func (w *World) powerCut(n *host) {
	if !w.chance(0.25) {
		n.crashIfUp()
		return
	}
	for _, o := range w.nodes {
		if o == n || w.chance(0.7) {
			o.crashIfUp()
		}
	}
}

func (n *host) crashIfUp() {
	if n.m != nil {
		n.crash()
	}
}

// freeze is SIGSTOP, and SIGCONT later.
func (w *World) freeze(n *host) {
	if n.m == nil {
		return
	}
	d := w.skewed(5*ms, 2*w.opt.leaseTTL)
	n.asleep = w.now + d
	w.standsStill()
	w.tracef("%s stands still until %.3f", n.name, float64(n.asleep)/1e6)
	w.after(d, n.thaw)
}

// cutLinks breaks some ways between nodes, or between a node and the store, for a while.
func (w *World) cutLinks() {
	w.Stats.Cuts++
	a, b := w.rng.IntN(len(w.nodes)), w.rng.IntN(len(w.nodes))
	var ways [][2]int
	switch w.rng.IntN(4) {
	case 0:
		ways = append(ways, [2]int{a, b})
	case 1:
		ways = append(ways, [2]int{a, b}, [2]int{b, a})
	case 2: // alone
		for i := range w.nodes {
			ways = append(ways, [2]int{a, i}, [2]int{i, a})
		}
	case 3: // alone, but for the store
		for i := range w.nodes {
			if i != a {
				ways = append(ways, [2]int{a, i}, [2]int{i, a})
			}
		}
	}
	for _, x := range ways {
		w.net.cut[x[0]][x[1]] = true
	}
	text := ""
	for _, x := range ways {
		to := "store"
		if x[0] != x[1] {
			to = w.nodes[x[1]].name
		}
		text += fmt.Sprintf(" %s->%s", w.nodes[x[0]].name, to)
	}
	w.tracef("the network loses%s", text)
	w.after(w.skewed(20*ms, 1500*ms), func() {
		for _, x := range ways {
			w.net.cut[x[0]][x[1]] = false
		}
	})
}

// breakDisk makes one write or flush fail; the node must be restarted.
func (w *World) breakDisk(n *host) {
	w.Stats.DiskFaults++
	kinds := []faultaio.Kind{
		faultaio.KindWrite, faultaio.KindWriteSync, faultaio.KindSync, faultaio.KindCreate, faultaio.KindRename,
		faultaio.KindSyncDir,
	}
	kind := kinds[w.rng.IntN(len(kinds))]
	w.tracef("the disk of %s will fail a %v", n.name, kind)
	n.media.Inject(faultaio.Rule{Kind: kind, After: int(w.skewed(0, 10)), Err: syscall.EIO})
	n.broken = true
	life := n.life
	w.after(w.between(200*ms, 1000*ms), func() {
		// A segment that could not be written closes its partition: only a restart helps.
		if n.life == life {
			n.kill("its disk may have failed")
		}
	})
}

// fillDisk leaves a node almost no room for a while. Some disks copy on write: then nothing that is written finds room.
func (w *World) fillDisk(n *host) {
	w.Stats.Full++
	free, err := n.media.FreeBytes()
	if err != nil {
		return
	}
	w.tracef("the disk of %s is almost full", n.name)
	n.media.SetCapacity(diskBytes - free + w.skewed(0, 300<<10))
	d := w.between(100*ms, 800*ms)
	n.fullUntil = max(n.fullUntil, w.now+d)
	if d%3 == 0 {
		w.Stats.NoRoom++
		w.tracef("and copies on write")
		n.media.SetNoRoom(true)
	}
	w.after(d, func() {
		n.media.SetCapacity(diskBytes)
		n.media.SetNoRoom(false)
	})
}

// wipe gives a node another, empty disk, if everybody in sync with it can spare it.
func (w *World) wipe(n *host) {
	// A topic may be made meanwhile on the disks that the store knows: two that are gone by then could never lead.
	if w.has(FeatureTopics) && slices.ContainsFunc(w.nodes, func(n *host) bool { return n.wiped }) {
		return
	}
	// What rots there is on the other disks only, and an ISR counts a disk that was replaced until its node is known with
	// the new one.
	if w.gray.rotten != nil && n != w.gray.rotten {
		return
	}
	if w.spares(n) {
		w.newDisk(n)
	}
}

// spares says whether everything that the disk of a node has is in sync on others.
func (w *World) spares(n *host) bool {
	for _, p := range w.store.snap.Partitions.All() {
		others := 0
		_, moves := w.store.moves[p.ID]
		// It may be about to join, and the move to take out another member.
		mine := moves && slices.Contains(p.State.Replicas, n.replica())
		for _, m := range p.State.ISR {
			if m.Node == n.replica() {
				mine = true
			} else if w.holds(m) && !w.isRotten(m.Node) {
				others++
			}
		}
		// Another member that holds everything must survive, also if the row is about to change.
		if mine && others < 2 || !mine && others < 1 {
			return false
		}
	}
	return true
}

// isRotten says whether bits of a node's disk have rotted: it is no copy to count on.
func (w *World) isRotten(id replicate.NodeID) bool {
	return w.gray.flipped && w.gray.rotten.replica() == id
}

// newDisk gives a node another disk, which is empty.
func (w *World) newDisk(n *host) {
	w.Stats.Wipes++
	w.tracef("%s gets an empty disk", n.name)
	if n.m != nil {
		n.endProcess(true)
	}
	n.media = faultaio.New(faultaio.Options{Seed: w.rng.Uint64(), CapacityBytes: diskBytes})
	n.wiped, n.rotAtRest = true, false
	n.ill = illness{}
	if n == w.gray.rotten {
		w.gray.flipped = false
	}
	n.wipes++
	n.restart()
}

// holds says whether the disk of a member is still there. The store learns of another one only when its node registers.
func (w *World) holds(m replicate.Member) bool {
	row := w.store.snap.Nodes[m.Node]
	return row != nil && row.Store == m.Store && !slices.ContainsFunc(w.nodes, func(n *host) bool {
		return n.wiped && n.name == row.Name
	})
}

// heal ends all faults.
func (w *World) heal() {
	w.tracef("the faults end")
	w.faults, w.loaded = false, false
	w.net.cut = [8][8]bool{}
	if w.Stats.Pauses > 0 {
		w.after(int64(publishTimeout)+500*ms, w.unpauseAll)
	}
	w.store.out = 0
	if w.removal != nil {
		w.bringBack(w.removal)
	}
	w.drainNone()
	w.evenOut()
	w.healGray()
	for _, n := range w.nodes {
		n.media.ClearRules()
		n.media.CrashAt(-1)
		n.media.SetCapacity(diskBytes)
		n.media.SetNoRoom(false)
		if n.asleep > w.now {
			n.asleep = w.now
		}
		n.thaw()
		if n.m == nil {
			w.after(50*ms, n.boot)
		}
		// What failed before stays closed until its process is started anew.
		if n.m != nil && n.suspect() {
			n.kill("it may have met a fault")
		}
	}
}

// suspect says whether the process may have met a fault that only a restart ends.
func (n *host) suspect() bool {
	return n.failed || n.w.opt.diskFault > 0 || n.w.has(FeatureErrors)
}
