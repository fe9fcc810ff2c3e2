package faultaio

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
)

// sectorBytes is the unit that a device writes whole or not at all.
const sectorBytes = 512

// Crash returns what a power cut now (or at CrashAt) leaves, as a new disk on which everything is durable. The seed
// decides for each write that was not flushed whether it survives whole, in some sectors, or not at all, and which
// changes of names survive. The receiver does not change, so one run can serve many seeds. The new disk has no rules.
func (d *Disk) Crash(seed uint64) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	rng := newRand(seed)
	c := newCloner()
	root := c.clone(d.root)
	ops := c.cloneOps(d.dirOps)
	if rng.IntN(2) == 0 {
		n := rng.IntN(len(ops) + 1) // a journal: the oldest n survive
		settle(ops, func(i int, _ dirOp) bool { return i < n })
	} else {
		settle(ops, func(int, dirOp) bool { return rng.IntN(2) == 0 })
	}
	for _, o := range d.inFlight() {
		if n := c.nodes[o.file.node]; n != nil { // else the file has no name, whatever survives
			n.pending = append(n.pending, write{off: o.off, data: o.copy})
		}
	}
	rest := d.successor(rng.Uint64(), root)
	rest.collapse(root, rng)
	root.countLinks()
	return rest
}

// Kill returns the disk that the next process finds after this process was killed: everything that completed, flushed
// or not, and any subset of the queues' writes in flight. A later Crash of that disk can still lose what was not
// flushed.
func (d *Disk) Kill(seed uint64) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	rng := newRand(seed)
	c := newCloner()
	next := d.successor(rng.Uint64(), c.clone(d.root))
	next.dirOps = c.cloneOps(d.dirOps)
	for _, o := range d.inFlight() {
		landed := rng.IntN(2) == 0
		if n := c.nodes[o.file.node]; n != nil && landed {
			n.writeVolatile(o.copy, o.off, false)
		}
	}
	next.root.countLinks()
	next.used = usedBytes(next.root)
	return next
}

// inFlight lists the operations in flight of all queues, in order. d.mu is held.
func (d *Disk) inFlight() []*queueOp {
	var ops []*queueOp
	for _, q := range d.queues {
		ops = append(ops, q.inFlight...)
	}
	return ops
}

func (d *Disk) successor(seed uint64, root *node) *Disk {
	next := &Disk{root: root, capacity: d.capacity, crashAt: -1, keepLog: d.keepLog, rng: newRand(seed)}
	next.changed = sync.NewCond(&next.mu)
	return next
}

// countLinks counts the names of the nodes below n, which are new and have none counted.
func (n *node) countLinks() {
	for _, e := range n.entries {
		e.links++
		e.countLinks()
	}
}

// cloner copies the graph of nodes; the copies share pages.
type cloner struct{ nodes map[*node]*node }

func newCloner() cloner { return cloner{nodes: map[*node]*node{}} }

func (c cloner) clone(n *node) *node {
	if n == nil {
		return nil
	}
	if twin := c.nodes[n]; twin != nil {
		return twin
	}
	twin := &node{dir: n.dir}
	c.nodes[n] = twin
	if !n.dir {
		twin.pair = n.pair.clone()
		twin.pending, twin.held = append([]write(nil), n.pending...), n.held
		return twin
	}
	twin.entries, twin.durableEntries = c.cloneEntries(n.entries), c.cloneEntries(n.durableEntries)
	return twin
}

func (c cloner) cloneEntries(entries map[string]*node) map[string]*node {
	twins := make(map[string]*node, len(entries))
	for name, n := range entries {
		twins[name] = c.clone(n)
	}
	return twins
}

func (c cloner) cloneOps(ops []dirOp) []dirOp {
	twins := make([]dirOp, len(ops))
	for i, op := range ops {
		for _, ch := range op.changes {
			twins[i].changes = append(twins[i].changes, dirChange{c.clone(ch.dir), ch.name, c.clone(ch.to)})
		}
	}
	return twins
}

// collapse turns a tree into what the crash left of it: the durable side, with some of the pending writes.
func (d *Disk) collapse(n *node, rng *rand.Rand) {
	if !n.dir {
		n.collapse(rng)
		d.used += n.held
		return
	}
	n.entries = make(map[string]*node, len(n.durableEntries))
	for _, name := range slices.Sorted(maps.Keys(n.durableEntries)) { // sorted, so that the seed alone decides
		child := n.durableEntries[name]
		n.entries[name] = child
		d.collapse(child, rng)
	}
}

func (n *node) collapse(rng *rand.Rand) {
	size := n.durable.size
	if rng.IntN(2) == 0 {
		size = n.now.size
	}
	for _, w := range n.pending {
		switch rng.IntN(3) {
		case 0:
			n.durable.write(w.data, w.off)
		case 1: // lost
		case 2:
			tear(&n.durable, w, rng)
		}
	}
	n.pending = nil
	n.durable.cut(size)
	n.durable.size = size
	n.now = n.durable.clone()
	n.held = min(n.held, size)
}

// tear writes some sectors of w: either the first ones, or any.
func tear(c *content, w write, rng *rand.Rand) {
	prefix := rng.IntN(2) == 0
	sectors := (len(w.data) + sectorBytes - 1) / sectorBytes
	stop := rng.IntN(sectors + 1)
	for i := range sectors {
		if prefix && i >= stop || !prefix && rng.IntN(2) == 0 {
			continue
		}
		from := i * sectorBytes
		c.write(w.data[from:min(from+sectorBytes, len(w.data))], w.off+int64(from))
	}
}

func usedBytes(n *node) int64 {
	if !n.dir {
		return n.held
	}
	var sum int64
	for _, child := range n.entries {
		sum += usedBytes(child)
	}
	return sum
}

// Corrupt overwrites stored bytes without the engine's knowledge: bit rot. It reports whether the file exists.
func (d *Disk) Corrupt(name string, p []byte, off int64) bool {
	return d.corrupt(name, func(n *node) { n.writeDurable(p, off) })
}

// CorruptUnseen is Corrupt on the device only: mappings continue to show what they have read before.
func (d *Disk) CorruptUnseen(name string, p []byte, off int64) bool {
	return d.corrupt(name, func(n *node) { n.pair.write(p, off) })
}

func (d *Disk) corrupt(name string, how func(n *node)) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.lookup("corrupt", name)
	if err != nil || n.dir {
		return false
	}
	how(n)
	return true
}
