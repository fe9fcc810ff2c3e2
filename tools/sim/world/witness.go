package world

import (
	"fmt"

	"penstock/internal/node/partition"
)

// witness records a run, so that a transcript can choose from it what led to the failure. World calls it where it
// traces and where it looks at the marks of copies; a nil witness records nothing. A run has one goroutine at a time,
// so nothing is locked.
type witness struct {
	records []record
	last    map[copyKey]partition.Marks // what was recorded of a copy by its process
}

type copyKey struct {
	node int
	part string
}

// record is one event: a line of the trace, or new marks of a copy, or the end of a process.
type record struct {
	at    int64
	node  int // index of the host; -1: of no host
	text  string
	part  string // of marks
	marks partition.Marks
	ended bool
}

// watched says whether lines for people are wanted.
func (w *World) watched() bool { return w.cfg.Trace != nil || w.cfg.witness != nil }

// say shows a line to whoever watches.
func (w *World) say(line string) {
	if w.cfg.Trace != nil {
		w.cfg.Trace(fmt.Sprintf("%10.3f %s", float64(w.now)/1e6, line))
	}
	if x := w.cfg.witness; x != nil {
		x.records = append(x.records, record{at: w.now, node: -1, text: line})
	}
}

// saw notes the marks of a copy where they differ from those before.
func (x *witness) saw(n *host, v *partition.Marks) {
	if x == nil {
		return
	}
	key := copyKey{n.index, n.w.partName(v.ID)}
	if old, ok := x.last[key]; ok && old == *v {
		return
	}
	if x.last == nil {
		x.last = map[copyKey]partition.Marks{}
	}
	x.last[key] = *v
	x.records = append(x.records, record{at: n.w.now, node: n.index, part: key.part, marks: *v})
}

// ended notes that a process is no more.
func (x *witness) ended(n *host) {
	if x == nil {
		return
	}
	for key := range x.last {
		if key.node == n.index {
			delete(x.last, key)
		}
	}
	x.records = append(x.records, record{at: n.w.now, node: n.index, ended: true})
}
