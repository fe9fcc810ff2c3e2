package world

import (
	"path"
	"strings"

	"github.com/google/uuid"

	"penstock/tests/support/faultaio"
)

// forgetKind is one way to forget.
type forgetKind int

// The ways.
const (
	forgetLog        forgetKind = iota // clog/ is removed
	forgetCurrent                      // the file of the commit log that is written is removed
	forgetLogFile                      // any file of it
	forgetRootFile                     // any file in the data directory's root: node.json, shortened.json, marks
	forgetTopic                        // the directory of a topic
	forgetSegment                      // a file of a topic's log
	forgetBack                         // the disk is set back
	forgetBackTwo                      // two disks are set back to one moment, while a third node is away
	forgetBackAll                      // all nodes end, one comes back older and first
	forgetResumed                      // the disk is set back, and the process has the boot that it had
	forgetTurns                        // the directory is copied, and the copy and the original run in turn
	forgetTwin                         // the directory is copied, and both run
	forgetShared                       // two processes run in one directory
	forgetFirstStart                   // the power goes while a node starts for the first time
	forgetRetention                    // the power goes while retention removes files
	forgetKinds
)

func (k forgetKind) String() string {
	return [...]string{
		"clog", "current-clog-file", "clog-file", "root-file", "topic", "segment", "set-back", "two-set-back",
		"all-end-one-set-back", "resumed", "copy-in-turn", "copy-beside", "two-on-one-disk", "first-start", "retention",
	}[k]
}

// isLogFile says whether a name is of a file of the commit log or of a partition's log.
func isLogFile(name string) bool {
	return strings.HasPrefix(name, "clog/") || strings.HasPrefix(name, "topics/") && !strings.HasSuffix(name, ".json")
}

// forgetSomething lets one node forget, or two.
func (w *World) forgetSomething() {
	f := &w.forget
	n := w.nodes[f.r.IntN(len(w.nodes))]
	if f.r.IntN(2) == 0 { // who leads something is worth more
		if l := w.someLeader(); l != nil {
			n = l
		}
	}
	switch f.kind {
	case forgetLog, forgetCurrent, forgetLogFile, forgetRootFile, forgetTopic, forgetSegment:
		w.removeFrom(n)
	case forgetBack:
		if m := w.someMoment(); m != nil && w.mayForget(m.at, n) {
			w.setBack(n, m, f.r.Int64N(1000*ms))
		}
	case forgetBackTwo:
		w.setBackTwo(n)
	case forgetBackAll:
		w.setBackAll(n)
	case forgetResumed:
		// A leader that goes on in its epoch is beyond this model: its next process begins the epoch again.
		if m := w.someMoment(); m != nil && w.mayForget(m.at, n) && m.boots[n.index] == n.forgot.boot && !w.leadsAny(n) {
			n.forgot.again = n.forgot.boot
			w.setBack(n, m, f.r.Int64N(100*ms))
		}
	case forgetTurns:
		w.takeTurns(n)
	case forgetTwin:
		w.runBeside(n, false)
	case forgetShared:
		w.runBeside(n, true)
	}
}

// leadsAny says whether a node leads something, by the rows.
func (w *World) leadsAny(n *host) bool {
	for _, p := range w.store.snap.Partitions.All() {
		if p.State.Leader == n.replica() {
			return true
		}
	}
	return false
}

// someLeader is a node that leads something, or nil.
func (w *World) someLeader() *host {
	ids := w.store.snap.Partitions.IDs()
	if len(ids) == 0 {
		return nil
	}
	return w.nodeOf(w.store.snap.Partitions.Get(ids[w.forget.r.IntN(len(ids))]).State.Leader)
}

func (w *World) someMoment() *moment {
	f := &w.forget
	if len(f.moments) == 0 {
		return nil
	}
	return &f.moments[f.r.IntN(len(f.moments))]
}

// removeFrom removes something of a node's directory, while its process runs or after its end.
func (w *World) removeFrom(n *host) {
	f := &w.forget
	if !w.mayForget(0, n) || n.media.Crashed() {
		return
	}
	name := n.victim(f.kind)
	if name == "" {
		return
	}
	if n.m != nil && f.r.IntN(2) == 0 {
		w.end1(n)
	}
	w.removeName(n, name)
	if n.m != nil { // it goes on for a while
		life := n.life
		w.after(f.r.Int64N(1500*ms), func() {
			if n.life == life {
				w.end1(n)
			}
		})
	}
}

// end1 ends a process, by its machine's power or not.
func (w *World) end1(n *host) {
	switch {
	case n.m == nil:
	case w.forget.r.IntN(2) == 0:
		n.crash()
	default:
		n.kill("to forget")
	}
}

// removeName removes a file or a directory beneath a node.
func (w *World) removeName(n *host, name string) {
	n.forgot.unsound = n.m != nil
	err := n.media.RemoveAll(name)
	_ = n.media.SyncDir(path.Dir(name)) // or a power cut would bring it back
	w.forgets(n, 0, "who removed "+name)
	if err != nil {
		w.tracef("remove %s of %s: %v", name, n.name, err)
	}
}

// victim is what is removed of a node's directory; "": there is no such thing.
func (n *host) victim(kind forgetKind) string {
	f := &n.w.forget
	var names []string
	list := func(dir string, want func(name string) bool) {
		infos, err := n.media.ReadDir(dir)
		if err != nil {
			return
		}
		for _, i := range infos {
			if want(i.Name()) {
				names = append(names, path.Join(dir, i.Name()))
			}
		}
	}
	any1 := func(string) bool { return true }
	switch kind {
	case forgetLog:
		return "clog"
	case forgetCurrent:
		return n.currentLog()
	case forgetLogFile:
		list("clog", any1)
	case forgetTopic:
		list("topics", any1)
	case forgetRootFile:
		infos, err := n.media.ReadDir(".")
		for _, i := range infos {
			if err == nil && !i.IsDir() {
				names = append(names, i.Name())
			}
		}
	case forgetSegment:
		n.eachFile("topics", func(name string) {
			if isLogFile(name) {
				names = append(names, name)
			}
		})
	}
	if len(names) == 0 {
		return ""
	}
	return names[f.r.IntN(len(names))]
}

// currentLog is the newest file of a node's commit log in which something is written.
func (n *host) currentLog() (current string) {
	n.eachFile("clog", func(name string) {
		if data, err := n.media.ReadFile(name, diskBytes); err == nil && !isZeros(data) {
			current = name
		}
	})
	return current
}

func isZeros(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// setBack gives a node's machine its disk of an earlier moment.
func (w *World) setBack(n *host, m *moment, wait int64) {
	if m.disks[n.index] == nil {
		return
	}
	n.halt()
	n.replaceMedia(m.disks[n.index])
	w.forgets(n, m.at, "its disk is an older one")
	w.bootAfter(n, wait)
}

// replaceMedia puts a copy of a disk into a machine that is off.
func (n *host) replaceMedia(d *faultaio.Disk) {
	n.media = d.Crash(n.w.forget.r.Uint64())
	n.broken, n.before = false, nil
}

// halt ends a process and lets nothing start again by itself.
func (n *host) halt() {
	n.power = false
	if n.m != nil {
		n.crash()
	}
}

func (w *World) bootAfter(n *host, wait int64) {
	w.after(wait, func() {
		n.power = true
		n.boot()
	})
}

// others are the nodes that are not n.
func (w *World) others(n *host) (list []*host) {
	first := w.forget.r.IntN(len(w.nodes))
	for i := range w.nodes {
		if o := w.nodes[(first+i)%len(w.nodes)]; o != n {
			list = append(list, o)
		}
	}
	return list
}

// setBackTwo sets two nodes back to one moment while a third is away, and brings that back later.
func (w *World) setBackTwo(n *host) {
	f := &w.forget
	rest := w.others(n)
	o, third := rest[0], rest[1]
	m := w.someMoment()
	if m == nil || !w.mayForget(m.at, n, o) || m.disks[n.index] == nil || m.disks[o.index] == nil {
		return
	}
	f.busy = true
	third.halt()
	f.endedAt = w.now
	w.setBack(n, m, f.r.Int64N(200*ms))
	w.setBack(o, m, f.r.Int64N(200*ms))
	d := 500*ms + f.r.Int64N(2500*ms)
	w.bootAfter(third, d)
	w.after(d+500*ms, func() { f.busy = false })
}

// setBackAll ends all nodes and lets one come back first, older.
func (w *World) setBackAll(n *host) {
	f := &w.forget
	m := w.someMoment()
	if m == nil || !w.mayForget(m.at, n) || m.disks[n.index] == nil {
		return
	}
	f.busy = true
	last := int64(0)
	for _, o := range w.nodes {
		o.halt()
		if o != n {
			d := f.r.Int64N(3000 * ms)
			last = max(last, d)
			w.bootAfter(o, d)
		}
	}
	f.endedAt = w.now
	w.setBack(n, m, f.r.Int64N(100*ms))
	w.after(last+500*ms, func() { f.busy = false })
}

// takeTurns copies the directory of a node and lets the copy and the original run in turn, some times.
func (w *World) takeTurns(n *host) {
	f := &w.forget
	if n.media.Crashed() {
		return
	}
	f.busy = true
	n.halt()
	aside, asideAt := n.media.Crash(f.r.Uint64()), w.now
	turns := 1 + f.r.IntN(4)
	var turn func()
	turn = func() {
		if turns--; turns < 0 || !w.faults {
			f.busy = false
			return
		}
		if w.mayForget(asideAt, n) {
			n.halt()
			here, at := n.media, w.now
			n.replaceMedia(aside)
			w.forgets(n, asideAt, "another copy of its directory runs")
			aside, asideAt = here, at
			n.forgot.again = uuid.Nil
		}
		w.bootAfter(n, f.r.Int64N(300*ms))
		w.after(300*ms+f.r.Int64N(1200*ms), turn)
	}
	w.bootAfter(n, 10*ms)
	w.after(200*ms+f.r.Int64N(1000*ms), turn)
}
