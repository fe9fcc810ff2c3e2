package world

import "penstock/tests/support/faultaio"

// Two processes of one node's name run at the same time: in copies of one directory, or in one directory whose lock
// excludes nobody. Others reach the one that the row of the node names. Clients reach both.

// runBeside starts another process of a node's name: on a copy of its disk, or on its disk.
func (w *World) runBeside(n *host, shared bool) {
	f := &w.forget
	if n.e == nil || n.media.Crashed() || !w.mayForget(w.now, n) || shared && !w.mayForget(0, n) {
		return
	}
	t := n.twin
	if t == nil {
		t = &host{w: w, index: n.index, name: n.name, rate: n.rate, skew: n.skew, lowSkew: n.lowSkew, highSkew: n.highSkew}
		t.life, t.twin, n.twin = 1000*(n.index+1), n, t
		f.twins = append(f.twins, t)
	}
	if t.m != nil {
		return
	}
	f.busy = true
	w.Stats.Twins++
	began := w.now
	n.forgot.unsound, n.forgot.shared, t.forgot.shared = true, true, true
	if shared {
		t.media = n.media
		began = 0
	} else {
		t.media = n.media.Crash(f.r.Uint64())
	}
	w.tracef("another process of %s begins, on the same disk %v", n.name, shared)
	w.forgets(n, began, "two processes of its name run")
	t.power = true
	t.boot()
	w.repeatWhile(func() bool { return n.forgot.shared }, 20*ms, func() { w.useTwin(t) })
	steps := 1 + f.r.IntN(4)
	var next func()
	next = func() {
		if steps--; steps < 0 || !w.faults {
			w.endTwin(n, began, f.r.IntN(2) == 0)
			return
		}
		w.oneOfTwins(n, t)
		w.after(f.r.Int64N(900*ms), next)
	}
	w.after(f.r.Int64N(900*ms), next)
}

func (w *World) repeatWhile(more func() bool, ns int64, fn func()) {
	w.after(ns, func() {
		if more() {
			fn()
			w.repeatWhile(more, ns, fn)
		}
	})
}

// oneOfTwins ends one of the two, or starts the one that does not run.
func (w *World) oneOfTwins(n, t *host) {
	o := n
	if w.forget.r.IntN(2) == 0 {
		o = t
	}
	if o.m == nil {
		o.power = true
		o.boot()
		return
	}
	o.power = false
	o.kill("one of two ends")
}

// useTwin publishes at a node's other process.
func (w *World) useTwin(t *host) {
	if t.e != nil && t.running() && !t.closing && w.busy() {
		w.put(t, w.topics[w.forget.r.IntN(len(w.topics))])
	}
}

// endTwin leaves one of two processes: the original, or the copy in its place.
func (w *World) endTwin(n *host, began int64, original bool) {
	t := n.twin
	if t == nil || !n.forgot.shared {
		return
	}
	shared := t.media == n.media
	w.tracef("one process of %s is left, the first one %v", n.name, original)
	t.power, n.power = false, original
	for _, o := range []*host{t, n} {
		if !o.power && o.m != nil {
			o.kill("the other one is to go on")
		}
	}
	n.forgot.shared, t.forgot.shared = false, false
	if !original && !shared {
		n.media = t.media
		n.forgot.boot = t.forgot.boot
	}
	w.forgets(n, began, "one of its two processes is left")
	w.forget.busy = false
	if n.power = true; n.m == nil {
		w.after(10*ms, n.boot)
		return
	}
	// What this process acknowledges from now on the other cannot take away, but on one disk it already has. If the other
	// took its name, its log says that it must stop: an operator starts it anew.
	n.forgot.unsound = true
	life := n.life
	w.after(300*ms, func() {
		if n.life == life {
			n.kill("its name was another process's for a while")
		}
	})
}

// sharesDisk says that another process uses the node's disk: it goes on when this one is killed.
func (n *host) sharesDisk() bool {
	return n.twin != nil && n.twin.m != nil && n.twin.media == n.media && n.forgot.shared
}

// loseTwin ends the other process on the same disk with the machine; rest is what is left of the disk.
func (n *host) loseTwin(rest *faultaio.Disk) {
	if !n.sharesDisk() {
		return
	}
	t := n.twin
	t.endProcess(true)
	t.media = rest
	for _, o := range []*host{n, t} {
		o.power = o.power && o.w.nodes[o.index] == o
	}
	t.restart()
}
