package world

import (
	"maps"
	"slices"

	"penstock/internal/node"
	"penstock/netproto"
)

// Consumers at nodes that lead nothing are held to what all others are: on an ordered channel nothing comes after what
// follows it, and nothing comes again right after its FIN. Feature level 1 does not promise that.

// strict says whether that is checked.
func (w *World) strict() bool { return w.has(FeatureStrict) && w.store.snap.FeatureLevel() >= 2 }

// broke notes that what is on the way in a connection may be lost.
func (c *conn) broke() {
	for _, e := range c.ends {
		e.p.n.brokeAt = c.net.w.now
	}
}

// standsStill notes that a node stands still from now on: what is on its way to it or from it comes later. A FIN of a
// moment ago may reach the leader when the message has timed out there.
func (w *World) standsStill() {
	for _, n := range w.nodes {
		for _, a := range n.agents {
			maps.DeleteFunc(a.taken, func(_ node.ID, at int64) bool { return w.now-at < w.opt.msgTimeout })
		}
	}
}

// noteFinish remembers a FIN that came in good time. Nobody knows that while a node stands still, or right after that:
// the leader counts the timeout from when it sends a message, and refuses the FIN of one that lay there.
func (a *agent) noteFinish(id node.ID) {
	w := a.n.w
	still := slices.ContainsFunc(w.nodes, func(n *host) bool { return n.asleep > w.now-w.opt.msgTimeout })
	if at, ok := a.got[id]; ok && !still && w.now-at < w.opt.msgTimeout/2 {
		a.taken[id] = w.now
	}
	delete(a.got, id)
}

// notAgain: what was finished in time does not come again while the same leader serves and no connection was lost.
func (a *agent) notAgain(d *node.Delivery) {
	w := a.n.w
	if !w.has(FeatureStrict) || !a.remote {
		return
	}
	if a.got == nil {
		a.got, a.taken = map[node.ID]int64{}, map[node.ID]int64{}
	}
	a.got[d.ID] = w.now
	at, ok := a.taken[d.ID]
	if !ok || !w.strict() || a.c.settings == nil || a.c.settings.Order == 0 || a.c.doomed || w.opt.packets {
		return
	}
	if at > a.n.brokeAt && w.checks.servedSince(a.c.t, d.ID.Partition(), at-onTheWay) {
		w.fail("channel %s of %s: %s got %v again %.3f ms after it was finished",
			a.c.name, a.c.t.name, a.n.name, d.ID, float64(w.now-at)/1e6)
	}
}

// echo is MutantEcho: what was delivered through a connection comes once more after a while.
func (c *conn) echo(to *end, r *netproto.Received) {
	w := c.net.w
	if w.cfg.Break == MutantEcho && (r.Type == netproto.TypeDeliver || r.Type == netproto.TypeDeliverHeld) &&
		w.gray.r.IntN(4) == 0 {
		c.arrive(to, r, w.gray.span(100*ms, 800*ms))
	}
}
