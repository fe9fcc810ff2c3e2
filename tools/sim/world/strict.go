package world

import (
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

// noteFinish remembers a FIN that came in good time.
func (a *agent) noteFinish(id node.ID) {
	if at, ok := a.got[id]; ok && a.n.w.now-at < a.n.w.opt.msgTimeout/2 {
		a.taken[id] = a.n.w.now
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
