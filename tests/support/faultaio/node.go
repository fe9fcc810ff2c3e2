package faultaio

import (
	"bytes"
	"io/fs"
	"slices"
	"time"
)

// node is a file or a directory, apart from its names. The disk's mu guards it.
//
// Everything exists twice: as the running system sees it, and as a power cut would leave it. A power cut leaves of a
// file durable plus any subset of pending, and of a directory durableEntries plus the changes that a crash picks from
// Disk.dirOps.
type node struct {
	dir    bool
	number uint64 // its identity; 0: nobody has asked
	links  int    // names that lead to it, in the running system

	// A file.
	pair
	held    int64   // the first bytes that have space, or will have it without asking; the rest of the file is a hole
	pending []write // in order, without bytes that were flushed since: they never cover a later durable write
	maps    []*mapping

	// A directory.
	entries        map[string]*node
	durableEntries map[string]*node
}

// write is a write that was performed but not flushed.
type write struct {
	off  int64
	data []byte
	// doomed: a flush that covered the write failed. Reads show the write, and no later flush makes it durable, because
	// the kernel considers its pages clean.
	doomed bool
}

func newDir() *node {
	return &node{dir: true, entries: map[string]*node{}, durableEntries: map[string]*node{}}
}

func newFile() *node {
	return &node{pair: newPair()}
}

// put makes p visible to reads and mappings.
func (n *node) put(p []byte, off int64) {
	n.now.write(p, off)
	n.show(p, off)
}

func (n *node) show(p []byte, off int64) {
	for _, m := range n.maps {
		m.show(p, off)
	}
}

// writeVolatile performs a write without a flush.
func (n *node) writeVolatile(p []byte, off int64, doomed bool) {
	n.held = max(n.held, off+int64(len(p)))
	n.put(p, off)
	n.pending = append(n.pending, write{off: off, data: kept(p), doomed: doomed})
}

// zeros are what files are prepared with. Writes of zeros need no memory of their own.
var zeros [256 << 10]byte

// kept returns a copy of p that is never changed.
func kept(p []byte) []byte {
	if len(p) <= len(zeros) && bytes.Equal(p, zeros[:len(p)]) {
		return zeros[:len(p):len(p)]
	}
	return bytes.Clone(p)
}

// writeDurable performs a write with RWF_DSYNC, which flushes its own bytes and nothing else of the file.
func (n *node) writeDurable(p []byte, off int64) {
	n.held = max(n.held, off+int64(len(p)))
	n.pair.write(p, off)
	n.show(p, off)
	n.pending = subtract(n.pending, off, off+int64(len(p)))
}

// flush performs an fdatasync that succeeds.
func (n *node) flush() {
	if !slices.ContainsFunc(n.pending, func(w write) bool { return w.doomed }) {
		for _, w := range n.pending {
			n.durable.size = max(n.durable.size, w.off+int64(len(w.data)))
			n.settle(w.off, w.off+int64(len(w.data)))
		}
		n.pending, n.durable.size = nil, n.now.size
		return
	}
	var doomed []write
	for _, w := range n.pending {
		if w.doomed {
			doomed = append(doomed, w)
			continue
		}
		n.durable.write(w.data, w.off)
		doomed = subtract(doomed, w.off, w.off+int64(len(w.data)))
	}
	n.pending = doomed
	n.durable.size = n.now.size
}

// flushFailed performs an fdatasync that fails: no later flush makes the pending writes durable.
func (n *node) flushFailed() {
	for i := range n.pending {
		n.pending[i].doomed = true
	}
}

// subtract removes the bytes [from, to) from the writes, so that a crash cannot put old bytes over newer, durable ones.
func subtract(writes []write, from, to int64) []write {
	var kept []write
	for i, w := range writes {
		end := w.off + int64(len(w.data))
		if end <= from || w.off >= to {
			if kept != nil {
				kept = append(kept, w)
			}
			continue
		}
		if kept == nil {
			kept = append(make([]write, 0, len(writes)+1), writes[:i]...)
		}
		if w.off < from {
			kept = append(kept, write{off: w.off, data: w.data[:from-w.off], doomed: w.doomed})
		}
		if end > to {
			kept = append(kept, write{off: to, data: w.data[to-w.off:], doomed: w.doomed})
		}
	}
	if kept == nil {
		return writes
	}
	return kept
}

// dirOp is one change of names that is not durable yet. Either all of its changes survive a crash, or none.
type dirOp struct{ changes []dirChange }

// dirChange sets a name; to nil removes it.
type dirChange struct {
	dir  *node
	name string
	to   *node
}

// dirKey is a name that a dirOp changes.
type dirKey struct {
	dir  *node
	name string
}

// settle makes the ops durable that pick chooses, in order, and returns the rest. As in a journal, a durable op needs
// every earlier op on the same names to be durable.
func settle(ops []dirOp, pick func(i int, op dirOp) bool) []dirOp {
	chosen := make([]bool, len(ops))
	needed := map[dirKey]bool{}
	for i := len(ops) - 1; i >= 0; i-- {
		chosen[i] = pick(i, ops[i])
		for _, c := range ops[i].changes {
			chosen[i] = chosen[i] || needed[dirKey{c.dir, c.name}]
		}
		if chosen[i] {
			for _, c := range ops[i].changes {
				needed[dirKey{c.dir, c.name}] = true
			}
		}
	}
	var left []dirOp
	for i, op := range ops {
		if !chosen[i] {
			left = append(left, op)
			continue
		}
		for _, c := range op.changes {
			c.apply(c.dir.durableEntries)
		}
	}
	return left
}

func (c dirChange) apply(entries map[string]*node) {
	if c.to == nil {
		delete(entries, c.name)
	} else {
		entries[c.name] = c.to
	}
}

// info is the fs.FileInfo of a node.
type info struct {
	name string
	size int64
	dir  bool
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) IsDir() bool        { return i.dir }
func (i info) ModTime() time.Time { return time.Time{} }
func (i info) Sys() any           { return nil }
func (i info) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o700
	}
	return 0o600
}
