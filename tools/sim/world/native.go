package world

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/message"
)

// With FeatureNative, some consumers of ordered channels are native clients: they get deliveries after a while, keep
// them, and begin to handle them later, as their leader permits (internal/node/channel/permit.go, client/permit.go).
// Each is a machine of its own: it goes on while its node stands still, and hears late that its connection
// has ended. Only the end of the process it hears at once. What it begins is what the world's checks see as delivered.

// firstNativeSeed is the first seed that may draw them: those below are histories that were written down before.
const firstNativeSeed = 9_500_000

// drawNative draws from a stream of its own, so other worlds stay what they were.
func (w *World) drawNative() {
	r := rand.New(rand.NewPCG(w.Seed, 0x94d049bb133111eb))
	if w.Seed >= firstNativeSeed && w.has(FeatureRemote) && w.has(FeatureChannels) && r.IntN(2) == 0 {
		w.features |= FeatureNative
	}
}

// native is a native client: the sink at its node, and what the client has.
type native struct {
	*agent
	at   *channel.Consumer
	r    *rand.Rand
	sent []*node.Delivery // not flushed
	last int64            // when the newest frame comes: frames do not overtake each other

	// At the node, by partition: the newest delivery, the newest one to be begun no more, and what the client has
	// answered.
	newest, asked, done map[uint32]uint64

	// At the client.
	queue   []*unbegun
	until   int64             // end of its permit
	dropped map[uint32]uint64 // by partition: it begins none up to this number
	asking  bool
	gone    bool // it knows that its subscription has ended
	busy    bool
}

// unbegun is a delivery that the client has not begun.
type unbegun struct {
	*node.Delivery
	sent int64
}

var _ message.PermitSink = (*native)(nil)

// attachNative makes a native client of a channel that this node serves.
func (n *host) attachNative(ch *node.Channel, a *agent) error {
	x := &native{
		agent: a, r: rand.New(rand.NewPCG(n.w.Seed, uint64(n.w.seq))),
		newest: map[uint32]uint64{}, asked: map[uint32]uint64{}, done: map[uint32]uint64{}, dropped: map[uint32]uint64{},
	}
	k, err := ch.AttachLeader(node.ConsumerOptions{MsgTimeout: time.Duration(n.w.opt.msgTimeout)}, x)
	if err != nil {
		return err
	}
	a.consumer, x.at = k, k
	n.w.Stats.Native++
	return k.Ready(1 + x.r.IntN(20))
}

// span draws from [0, most], often little.
func (x *native) span(most int64) int64 {
	f := x.r.Float64()
	if !x.n.w.faults {
		most /= 50
	} else if x.r.IntN(3) > 0 {
		f *= f * f
	}
	return int64(f * float64(most))
}

// frame runs fn at the client when a frame that the node sends now arrives there.
func (x *native) frame(fn func()) {
	w := x.n.w
	x.last = max(x.last, w.now+x.span(1500*ms))
	w.after(x.last-w.now, fn)
}

// reply runs fn at the node when a frame that the client sends now arrives there.
func (x *native) reply(fn func()) {
	x.n.w.after(x.span(200*ms), func() { x.n.do(x.life, fn) })
}

// Deliver implements node.Sink.
func (x *native) Deliver(d *node.Delivery) bool {
	w := x.n.w
	if x.closed {
		w.fail("%s delivers %v on %s to a consumer that was told of its end", x.n.name, d.ID, x.c.name)
	}
	if x.finished[d.ID] {
		w.fail("%s delivers %v on %s again, which it has taken the FIN of", x.n.name, d.ID, x.c.name)
	}
	x.n.checkLeased("delivers %v on %s", d.ID, x.c.name)
	if d.Ordered {
		x.newest[d.ID.Partition()] = d.Number
	}
	x.sent = append(x.sent, cloned(d))
	return true
}

// Flush implements node.Sink: it sends what was delivered, with a permit.
func (x *native) Flush() {
	if len(x.sent) == 0 {
		return
	}
	frame, now, until := x.sent, x.n.w.now, x.permit()
	x.sent = nil
	x.frame(func() {
		if x.gone {
			return
		}
		for _, d := range frame {
			x.queue = append(x.queue, &unbegun{d, now})
		}
		x.until = max(x.until, until)
		x.work()
	})
	if x.n.w.faults && x.r.IntN(2) == 0 {
		x.n.later(x.span(100*ms), x.lose)
	}
}

// lose ends the connection. The node sees that at once; the client goes on, and hears of it later.
func (x *native) lose() {
	if !x.closed {
		x.closed = true
		x.at.Close()
		x.n.w.after(x.span(6000*ms), func() { x.gone = true })
	}
}

func (x *native) permit() int64 { return x.n.w.now + int64(x.at.Permit()) }

// Closed implements node.Sink.
func (x *native) Closed(err error) {
	x.agent.Closed(err)
	x.frame(func() {
		x.gone = true
		x.reply(x.at.Left)
	})
}

// Recall implements message.PermitSink.
func (x *native) Recall(partition uint32) bool {
	n := x.newest[partition]
	if x.asked[partition] < n {
		x.asked[partition] = n
		x.frame(func() {
			x.dropped[partition] = n
			x.reply(func() { x.done[partition] = n })
		})
	}
	return x.done[partition] >= n
}

// work makes the client begin its next delivery after a while.
func (x *native) work() {
	if !x.busy {
		x.busy = true
		x.n.w.after(x.span(1800*ms), func() {
			x.busy = false
			x.begin()
		})
	}
}

// begin begins the next delivery, if it may.
func (x *native) begin() {
	w, n := x.n.w, x.n
	if n.m == nil || n.life != x.life {
		x.gone = true // the process has ended
	}
	if x.gone || len(x.queue) == 0 {
		return
	}
	d := x.queue[0]
	if d.Ordered && w.now >= x.until {
		x.ask()
		return
	}
	x.queue = x.queue[1:]
	late := w.now-d.sent >= w.opt.msgTimeout-w.opt.msgTimeout/8 // clocks run apart
	if !late && (!d.Ordered || d.Number > x.dropped[d.ID.Partition()]) {
		if w.watched() {
			w.showf("the client of %s begins %v attempt %d on %s of %s", n.name, d.ID, d.Attempts, x.c.name, x.c.t.name)
		}
		w.book.seen(x.agent, d.Delivery)
		x.handle(d.ID, d.Attempts)
	}
	x.work()
}

// handle is agent.answer. Some clients end their subscriptions instead.
func (x *native) handle(id node.ID, attempts uint16) {
	w := x.n.w
	if !w.faults || x.r.IntN(8) > 0 {
		x.answer(id, attempts)
		return
	}
	x.gone = true
	x.reply(func() {
		if !x.closed {
			x.closed = true
			x.at.CloseRemote(true)
		}
	})
}

// ask asks for another permit.
func (x *native) ask() {
	if x.asking {
		return
	}
	x.asking = true
	x.reply(func() {
		if x.closed {
			return
		}
		until := x.permit()
		x.frame(func() {
			x.asking, x.until = false, max(x.until, until)
			x.work()
		})
	})
	x.n.w.after(2000*ms, func() { // it may have been lost with a process that stood still
		if x.asking {
			x.asking = false
			x.work()
		}
	})
}

// wantsNative says whether the next consumer of the channel at this node is a native client.
func (n *host) wantsNative(c *channelModel) bool {
	return n.w.has(FeatureNative) && c.settings != nil && c.settings.Order != 0 && n.serves(c.t) && n.w.seq%4 > 0
}

// slowReader is an NSQ client of the leader that does not always read: what it gets waits in the output of its node,
// and is handed over later, unless its Until has passed.
type slowReader struct {
	*agent
	queue   []*node.Delivery
	dropped []message.HeldDelivery
	busy    bool
	moved   bool // the node has ended its subscription; the connection goes on, with what waits in its output
}

var _ message.HeldSink = (*slowReader)(nil)

// attachSlow makes such a client of a channel that this node serves.
func (n *host) attachSlow(ch *node.Channel, a *agent) error {
	x := &slowReader{agent: a}
	k, err := ch.AttachLeader(node.ConsumerOptions{MsgTimeout: time.Duration(n.w.opt.msgTimeout)}, x)
	if err != nil {
		return err
	}
	a.consumer = k
	n.w.Stats.Native++
	return k.Ready(20)
}

// Deliver implements node.Sink.
func (x *slowReader) Deliver(d *node.Delivery) bool {
	x.n.checkLeased("delivers %v on %s", d.ID, x.c.name)
	x.queue = append(x.queue, cloned(d))
	x.write()
	return true
}

// Closed implements node.Sink.
func (x *slowReader) Closed(err error) {
	x.moved = true
	x.agent.Closed(err)
}

// write hands over what waits, after a while.
func (x *slowReader) write() {
	if x.closed && !x.moved {
		x.queue = nil // the client has gone
	}
	if x.busy || len(x.queue) == 0 {
		return
	}
	x.busy = true
	most := int64(1500 * ms)
	if !x.n.w.faults {
		most /= 50
	}
	x.n.later(x.n.w.skewed(0, most), func() {
		x.busy = false
		if len(x.queue) == 0 || x.closed && !x.moved {
			return
		}
		d := x.queue[0]
		x.queue = x.queue[1:]
		if d.Until.Passed() {
			x.dropped = append(x.dropped, message.HeldDelivery{ID: d.ID, Until: d.Until})
			if !x.closed {
				x.consumer.Pump()
			}
		} else {
			x.n.w.book.seen(x.agent, d)
			x.answer(d.ID, d.Attempts)
		}
		x.write()
	})
}

// Drained implements message.HeldSink.
func (x *slowReader) Drained() bool { return len(x.queue) == 0 }

// Withdraw implements message.HeldSink. Only remote consumers call it.
func (x *slowReader) Withdraw(node.ID) bool { panic("BUG: a consumer at the leader withdraws") }

// Dropped implements message.HeldSink.
func (x *slowReader) Dropped(dst []message.HeldDelivery) []message.HeldDelivery {
	dst = append(dst, x.dropped...)
	x.dropped = nil
	return dst
}

// cloned is a delivery with bytes of its own.
func cloned(d *node.Delivery) *node.Delivery {
	own := *d
	own.Body, own.Headers = bytes.Clone(d.Body), slices.Clone(d.Headers)
	for i := range own.Headers {
		h := &own.Headers[i]
		h.Key, h.Value = bytes.Clone(h.Key), bytes.Clone(h.Value)
	}
	return &own
}
