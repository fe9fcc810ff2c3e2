package world

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/peer"
	"penstock/replicate/wire"
)

// network connects processes as package peer does: one connection per pair, which ends and is made anew. Frames arrive
// in order or the connection ends; in a world of packets they are also lost, doubled and overtake each other, which the
// machines must bear as well.
type network struct {
	w     *World
	ports []*ports
	conns []*conn
	cut   [8][8]bool // by node index: what the first sends does not reach the second
}

// ports is one process's end of everything: the platform.Transport of it.
type ports struct {
	net    *network
	n      *host
	life   int
	self   peer.Node
	h      peer.Handler
	known  map[replicate.NodeID]*peer.Node
	closed bool
}

// conn is a connection of two processes.
type conn struct {
	net  *network
	ends [2]*end
	dead bool
}

type end struct {
	p       *ports
	up      bool  // Up was told, and Down was not
	arrival int64 // of the last frame that was sent to this end
	stalled int64 // since when frames to this end do not arrive; 0: they do
	waiting []*netproto.Received
}

func (net *network) listen(n *host, self peer.Node, h peer.Handler) *ports {
	p := &ports{net: net, n: n, life: n.life, self: self, h: h, known: map[replicate.NodeID]*peer.Node{}}
	net.ports = append(net.ports, p)
	p.dial()
	return p
}

func (p *ports) alive() bool { return !p.closed && p.n.m != nil && p.n.life == p.life }

// dial tries again and again to connect to nodes with a greater id.
func (p *ports) dial() {
	if !p.alive() {
		return
	}
	for _, o := range p.net.ports {
		if o.self.ID > p.self.ID && o.alive() && p.knows(o) && o.knows(p) && p.net.between(p, o) == nil &&
			!p.net.cutBetween(p, o) {
			p.net.connect(p, o)
		}
	}
	p.n.w.after(p.n.w.between(10*ms, 60*ms), p.dial)
}

func (p *ports) knows(o *ports) bool {
	k := p.known[o.self.ID]
	return k != nil && k.Store == o.self.Store && (o.n.twin == nil || k.Boot == o.self.Boot)
}

func (net *network) cutBetween(a, b *ports) bool {
	return net.cut[a.n.index][b.n.index] || net.cut[b.n.index][a.n.index]
}

func (net *network) between(a, b *ports) *conn {
	for _, c := range net.conns {
		if !c.dead && c.of(a) != nil && c.of(b) != nil {
			return c
		}
	}
	return nil
}

func (c *conn) of(p *ports) *end {
	for _, e := range c.ends {
		if e.p == p {
			return e
		}
	}
	return nil
}

func (c *conn) other(e *end) *end {
	if c.ends[0] == e {
		return c.ends[1]
	}
	return c.ends[0]
}

func (net *network) connect(a, b *ports) {
	c := &conn{net: net, ends: [2]*end{{p: a}, {p: b}}}
	net.conns = append(net.conns, c)
	for _, e := range c.ends {
		o := c.other(e)
		// Up of an end comes before its Frames, and after the Down of the connection before.
		e.p.n.later(net.w.skewed(ms/10, net.w.opt.delay), func() {
			if c.dead || !e.p.alive() || net.stillUp(e.p, o.p) {
				c.end(false)
				return
			}
			e.up = true
			net.w.tracef("%s is connected to %s", e.p.n.name, o.p.n.name)
			e.p.h.Up(o.p.self.ID, o.p.self.Boot)
			c.flush(e)
		})
	}
}

// stillUp says whether Down of an older connection to the same node is still to come.
func (net *network) stillUp(p, o *ports) bool {
	for _, c := range net.conns {
		if e := c.of(p); e != nil && e.up && c.other(e).p.self.ID == o.self.ID {
			return true
		}
	}
	return false
}

// end ends a connection: what is on the way in it is lost, and each end hears of it in time.
func (c *conn) end(gone bool) {
	if c.dead {
		return
	}
	c.dead = true
	c.broke()
	c.net.w.Stats.Breaks++
	for _, e := range c.ends {
		c.down(e, gone)
	}
}

func (c *conn) down(e *end, gone bool) {
	o := c.other(e).p
	e.p.n.later(c.net.w.skewed(0, 20*ms), func() {
		e.waiting = nil
		if !e.up {
			return
		}
		e.up = false
		// The address refuses if no process listens there by now; what was cut does not answer at all.
		refused := gone && o.n.m == nil && !c.net.cutBetween(e.p, o)
		c.net.w.tracef("%s lost the connection to %s, refused %v", e.p.n.name, o.n.name, refused)
		e.p.h.Down(o.self.ID, o.self.Boot, refused)
	})
}

// gone ends everything of a process that is no more. A machine without power says nothing: who talked to it finds out
// by its silence.
func (net *network) gone(n *host, silent bool) {
	for _, c := range net.conns {
		for _, e := range c.ends {
			if e.p.n != n || c.dead {
				continue
			}
			e.up, c.dead = false, true
			c.broke()
			o := c.other(e)
			d := net.w.skewed(0, 10*ms)
			if silent {
				d = net.w.between(50*ms, silence)
			}
			net.w.after(d, func() { c.down(o, true) })
		}
	}
	net.ports = slices.DeleteFunc(net.ports, func(p *ports) bool { return p.n == n })
	net.conns = slices.DeleteFunc(net.conns, func(c *conn) bool { return c.dead && !c.ends[0].up && !c.ends[1].up })
}

// silence is how long an end waits for a sign of the other.
const silence = 400 * ms

// SetNodes implements platform.Transport.
func (p *ports) SetNodes(nodes map[replicate.NodeID]*peer.Node) {
	p.known = nodes
	for _, c := range p.net.conns {
		e := c.of(p)
		if e == nil || c.dead {
			continue
		}
		o := c.other(e).p
		k := nodes[o.self.ID]
		if k == nil || k.Store != o.self.Store ||
			k.Boot != o.self.Boot && k.Boot != uuid.Nil && (!o.alive() || o.n.twin != nil) {
			c.end(false)
		}
	}
}

func (p *ports) connTo(to replicate.NodeID) (*conn, *end) {
	for _, c := range p.net.conns {
		if e := c.of(p); e != nil && e.up && !c.dead && c.other(e).p.self.ID == to {
			return c, e
		}
	}
	return nil, nil
}

// Connected implements platform.Transport.
func (p *ports) Connected(to replicate.NodeID) bool {
	c, _ := p.connTo(to)
	return c != nil
}

// Disconnect implements platform.Transport.
func (p *ports) Disconnect(to replicate.NodeID, reason error) {
	p.net.w.fail("%s ends the connection to node %d because of what came over it: %v", p.n.name, to, reason)
}

// Close implements platform.Transport.
func (p *ports) Close() {
	p.closed = true
	for _, c := range p.net.conns {
		if c.of(p) != nil {
			c.end(true)
		}
	}
}

// AwaitRoom implements platform.Transport. Queues are full at random here, and for a moment.
func (p *ports) AwaitRoom(ctx context.Context, _ replicate.NodeID) error {
	p.n.m.Sleep(ctx, time.Millisecond)
	return ctx.Err()
}

// TrySend implements platform.Transport. The bytes are copied, and the frame is released at once or, in some runs,
// later, as by a connection.
func (p *ports) TrySend(to replicate.NodeID, f *netproto.Frame) error {
	w := p.net.w
	c, e := p.connTo(to)
	if c == nil || p.closed {
		return peer.ErrNotConnected
	}
	if w.faults && w.chance(w.opt.full) {
		p.n.brokeAt = w.now
		return netproto.ErrQueueFull
	}
	r := received(f)
	if f.Owner != nil {
		f.Owner.Release()
	}
	w.Stats.Frames++
	o := c.other(e)
	w.checkFrame(p.n, o.p.n, f.Type)
	copies := 1
	if w.opt.packets && w.faults && !ordered(r) {
		if w.chance(w.opt.drop) {
			copies = 0
		} else if w.chance(w.opt.dup) && !forwarded(r) {
			copies = 2
		}
	}
	for range copies {
		c.transmit(o, r)
		c.echo(o, r)
	}
	return nil
}

// forwarded frames are requests of their own: a connection does not double them, and whoever took one twice would store
// its messages twice.
func forwarded(r *netproto.Received) bool {
	switch r.Type {
	case netproto.TypeForwardPut, netproto.TypeForwardAck, netproto.TypeForwardOp, netproto.TypeForwardOpAck:
		return true
	}
	return false
}

// ordered frames rest on what a connection promises, and no follower's log makes up for it: also in a world of packets
// they arrive, in order, or the connection ends.
func ordered(r *netproto.Received) bool {
	return r.Type >= netproto.TypeSubscribe && r.Type <= netproto.TypeFenced
}

func received(f *netproto.Frame) *netproto.Received {
	size := len(f.Head)
	for _, b := range f.Body {
		size += len(b)
	}
	payload := append(make([]byte, 0, size), f.Head...)
	for _, b := range f.Body {
		payload = append(payload, b...)
	}
	r := &netproto.Received{Payload: payload}
	r.Header = netproto.Header{
		Type: f.Type, Flags: f.Flags, Status: f.Status, Stream: f.Stream, Request: f.Request, PayloadBytes: uint32(size),
	}
	if f.Flags&netproto.FlagSelfChecked != 0 {
		r.HeadBytes = uint16(len(f.Head))
	}
	return r
}

// transmit brings a frame to an end.
func (c *conn) transmit(to *end, r *netproto.Received) {
	w := c.net.w
	d := w.skewed(w.opt.delay/4, 2*w.opt.delay)
	if w.faults && w.chance(w.opt.slow) {
		d = w.between(5*ms, 100*ms)
	}
	at := w.now + d
	if !w.opt.packets || ordered(r) {
		at = max(at, to.arrival)
		to.arrival = at
	}
	c.arrive(to, r, at-w.now)
}

func (c *conn) arrive(to *end, r *netproto.Received, d int64) {
	w := c.net.w
	to.p.n.later(d, func() {
		switch {
		case c.dead && !to.up:
			return
		case c.net.cut[c.other(to).p.n.index][to.p.n.index]:
			if w.opt.packets && !ordered(r) {
				return
			}
			c.stall(to, r)
			return
		}
		to.waiting = append(to.waiting, r)
		c.flush(to)
	})
}

// stall keeps a frame that cannot get through, and ends the connection if that takes too long. While it is stalled
// there is one chain of retries, whatever else waits for its turn.
func (c *conn) stall(to *end, r *netproto.Received) {
	w := c.net.w
	switch {
	case to.stalled == 0:
		to.stalled = w.now
		w.after(20*ms, func() { c.retry(to) })
	case w.now-to.stalled > silence:
		c.end(false)
		return
	}
	if !c.dead {
		to.waiting = append(to.waiting, r)
	}
}

func (c *conn) retry(to *end) {
	switch {
	case c.dead:
		return
	case c.net.cut[c.other(to).p.n.index][to.p.n.index]:
		if c.net.w.now-to.stalled > silence {
			c.end(false)
			return
		}
		c.net.w.after(20*ms, func() { c.retry(to) })
	default:
		to.stalled = 0
		c.flushSoon(to)
	}
}

func (c *conn) flushSoon(to *end) { to.p.n.later(0, func() { c.flush(to) }) }

// flush hands over what has arrived.
func (c *conn) flush(to *end) {
	if !to.up || len(to.waiting) == 0 || !to.p.alive() {
		return
	}
	if to.stalled != 0 {
		return
	}
	var burst []netproto.Received
	for _, r := range to.waiting {
		burst = append(burst, *r)
	}
	to.waiting = nil
	o := c.other(to).p
	c.net.show(o, to.p, burst)
	to.p.h.Frames(o.self.ID, o.self.Boot, burst)
}

// breakOne ends a random connection.
func (net *network) breakOne() {
	var live []*conn
	for _, c := range net.conns {
		if !c.dead {
			live = append(live, c)
		}
	}
	if len(live) > 0 {
		live[net.w.rng.IntN(len(live))].end(false)
	}
}

// show traces frames of replication.
func (net *network) show(from, to *ports, burst []netproto.Received) {
	if net.w.cfg.Trace == nil { // a transcript shows none of them
		return
	}
	for i := range burst {
		f := &burst[i]
		var d wire.Decoder
		if _, ok := wire.Kind(f.Type); !ok {
			net.w.showf("%s -> %s %v request %d status %v", from.n.name, to.n.name, f.Type, f.Request, f.Status)
		} else if err := d.Decode(&f.Header, f.Payload); err == nil {
			m := &d.Message
			net.w.showf("%s -> %s %v %s epoch %d r%d gen %d pos %d until %d committed %d next %d code %d damaged %v batches %d",
				from.n.name, to.n.name, f.Type, net.w.partName(d.ID), m.Epoch, m.Request, m.Generation, m.Position, m.Until,
				m.Committed, m.Log.Next, m.Code, m.Damaged, len(m.Batches))
		}
	}
}
