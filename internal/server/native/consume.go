package native

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"penstock/internal/clip"
	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
	"penstock/internal/server/auth"
	"penstock/internal/server/native/wire"
	"penstock/internal/server/stats"
	"penstock/netproto"
)

// order is a Finish, FinishThrough, Requeue, Touch or Sync that a subscription's goroutine carries out.
type order struct {
	typ     netproto.Type
	request uint64 // of a Sync
	bytes   int    // that it takes of the limits until it is carried out, or a Sync until it is answered
	through wire.FinishThrough
	payload []byte // of a Finish, Requeue or Touch; it was checked, and lies in buf
	buf     *netproto.RecvBuf
}

// wishes are what else a subscription's goroutine has to do. They need no room of the limits.
type wishes struct {
	messages uint32 // how many messages may be in flight from now on, if ready is set
	ready    bool
	permit   bool  // the client asks for a permit
	stop     bool  // no more deliveries: the node stops
	end      bool  // the client has ended the subscription, behind its orders so far
	closed   error // the engine has ended the consumer; nil: it has not
}

// subscription is one subscription of a client. The connection's reader makes it and passes orders to it; its own
// goroutine, run, carries them out, and pumps. Its sink is packer. mu is a leaf. After a crash nothing of it is left,
// and its messages in flight are delivered again.
type subscription struct {
	s       *session
	request uint64
	ask     *wire.Subscribe
	ctx     context.Context // ends with the connection, and when run has ended
	cancel  context.CancelFunc
	wake    chan struct{} // holds a token if run may have something to do
	// wanted ends when the client ends the subscription: nobody needs the channel any more that begin may wait for.
	wanted   context.Context
	unwanted context.CancelFunc

	mu         sync.Mutex
	answered   bool // the Subscribe
	orders     []order
	wishes     wishes
	unanswered int // Syncs that the engine carries out

	// Only run uses these.
	topic    *node.Topic
	consumer *channel.Consumer
	packer   *packer
	spare    []order // empty; exchanged for orders
	refusals []wire.Refusal
	handles  wire.Handles
	requeues wire.Requeue
}

// rouse wakes run.
func (u *subscription) rouse() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// wish makes run do something.
func (u *subscription) wish(change func(*wishes)) {
	u.mu.Lock()
	change(&u.wishes)
	u.mu.Unlock()
	u.rouse()
}

// stop ends deliveries; what is in flight may still be finished.
func (u *subscription) stop() { u.wish(func(w *wishes) { w.stop = true }) }

// openSubscription registers the subscription that a Subscribe asks for. It returns the limit if there are too many,
// and an error if the request already names one.
func (s *session) openSubscription(request uint64, m *wire.Subscribe) (*errs.LimitError, error) {
	u := &subscription{s: s, request: request, ask: m, wake: make(chan struct{}, 1)}
	u.packer = newPacker(u)
	u.packer.allow(m.Bytes)
	u.packer.permits.stamp(m.Stamp, time.Now())
	u.wishes = wishes{messages: m.Messages, ready: true}
	u.ctx, u.cancel = context.WithCancel(s.ctx)
	u.wanted, u.unwanted = context.WithCancel(u.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	over, err := s.subscriptions.add(s.pays(), request, u)
	if over != nil || err != nil {
		u.cancel()
	}
	return over, err
}

// subscription returns an open subscription, or nil: it may have ended while the client's frame was on its way.
func (s *session) subscription(request uint64) *subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subscriptions.byRequest[request]
}

// forgetSubscription removes a subscription, and gives back what its orders took of the limits.
func (s *session) forgetSubscription(u *subscription) {
	u.cancel()
	s.mu.Lock()
	s.subscriptions.remove(s.pays(), u.request)
	s.mu.Unlock()
	u.mu.Lock()
	orders := u.orders
	u.orders = nil
	u.mu.Unlock()
	for i := range orders {
		u.drop(&orders[i])
	}
}

// drop gives up an order that the subscription did not live to carry out.
func (u *subscription) drop(o *order) {
	if o.typ == wire.TypeSync {
		u.synced(o.request, o.bytes, errSubscriptionEnded)
		return
	}
	u.s.giveBack(u.s.pays(), o.bytes, o.buf)
}

var errSubscriptionEnded = errors.New("the subscription has ended; what it finished shortly before may come again")

// isOrder says whether a frame is about a subscription that exists.
func isOrder(t netproto.Type) bool {
	switch t {
	case wire.TypeCredit, wire.TypeFinish, wire.TypeFinishThrough, wire.TypeRequeue, wire.TypeTouch, wire.TypeSync,
		wire.TypeSubscribeEnd, wire.TypeRecall:
		return true
	}
	return false
}

// takeOrder passes a frame about a subscription to it. An error ends the connection.
func (s *session) takeOrder(f *netproto.Received) error {
	o := order{typ: f.Type, bytes: netproto.HeaderBytes + len(f.Payload)}
	name := f.Request
	var credit wire.Credit
	var recall wire.Recall
	var err error
	switch f.Type {
	case wire.TypeCredit:
		err = wire.Decode(f.Payload, &credit)
	case wire.TypeFinishThrough:
		err = wire.Decode(f.Payload, &o.through)
	case wire.TypeFinish, wire.TypeTouch:
		o.payload, o.buf = f.Payload, f.Buf
		err = wire.Decode(f.Payload, &s.checked.handles)
	case wire.TypeRequeue:
		o.payload, o.buf = f.Payload, f.Buf
		err = wire.Decode(f.Payload, &s.checked.requeues)
	case wire.TypeSync:
		var m wire.Sync
		err = wire.Decode(f.Payload, &m)
		o.request, name = f.Request, m.Subscription
	case wire.TypeSubscribeEnd:
		err = wire.Decode(f.Payload, new(wire.Outcome))
	case wire.TypeRecall:
		err = wire.Decode(f.Payload, &recall)
	}
	if err != nil {
		s.srv.meter.count(f.Type, netproto.StatusRejected)
		return fmt.Errorf("%w: %s: %w", netproto.ErrInvalid, typeName(f.Type), err)
	}
	switch u := s.subscription(name); {
	case u == nil && o.typ == wire.TypeSync:
		return s.fail(wire.TypeSync, o.request, netproto.StatusUnknown, errSubscriptionEnded.Error())
	case u == nil && o.typ == wire.TypeSubscribeEnd:
		s.left(name)
	case u == nil:
	case o.typ == wire.TypeCredit:
		u.packer.allow(credit.Bytes)
		u.packer.stamped(credit.Stamp)
		u.wish(func(w *wishes) { w.messages, w.ready, w.permit = credit.Messages, true, credit.Stamp != 0 })
	case o.typ == wire.TypeRecall:
		u.packer.recalled(&recall)
	case o.typ == wire.TypeSubscribeEnd:
		return s.endSubscription(u)
	default:
		if over := s.reserve(s.pays(), o.bytes); over != nil {
			return s.refuseOrder(u, &o, over)
		}
		if !u.give(o) {
			u.drop(&o)
		}
	}
	return nil
}

// give adds an order for which room was reserved. It returns false if the subscription has ended.
func (u *subscription) give(o order) bool {
	u.mu.Lock()
	if u.ctx.Err() != nil {
		u.mu.Unlock()
		o.buf.Retain() // drop releases it
		return false
	}
	o.buf.Retain()
	u.orders = append(u.orders, o)
	u.mu.Unlock()
	u.rouse()
	return true
}

// endSubscription ends a subscription for its client. While its channel is created, which may take long, the client is
// answered at once, and begin ends the subscription without an answer.
func (s *session) endSubscription(u *subscription) error {
	u.unwanted()
	if u.answers() {
		return s.fail(wire.TypeSubscribe, u.request, netproto.StatusClosed, "the client has ended the subscription")
	}
	u.wish(func(w *wishes) { w.end = true })
	return nil
}

// answers says that the caller is to answer the Subscribe: it is the first one who asks.
func (u *subscription) answers() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	first := !u.answered
	u.answered = true
	return first
}

// refuseOrder answers an order that there is no room for.
func (s *session) refuseOrder(u *subscription, o *order, over *errs.LimitError) error {
	var r wire.Refused
	add := func(h wire.Handle) {
		r.Messages = append(r.Messages, wire.Refusal{Handle: h, Kind: uint16(o.typ), Status: netproto.StatusFull})
	}
	switch o.typ {
	case wire.TypeSync:
		return s.fail(o.typ, o.request, netproto.StatusFull, later(over))
	case wire.TypeFinishThrough:
		add(wire.Handle{Number: o.through.Number, ID: o.through.ID})
	case wire.TypeFinish, wire.TypeTouch:
		for _, h := range s.checked.handles.Deliveries {
			add(h)
		}
	case wire.TypeRequeue:
		for _, m := range s.checked.requeues.Messages {
			add(m.Handle)
		}
	}
	s.srv.meter.count(o.typ, netproto.StatusFull)
	return s.post(&netproto.Frame{Type: wire.TypeRefused, Request: u.request, Head: wire.Append(nil, &r)})
}

// run carries out the client's orders until the subscription ends.
func (u *subscription) run() {
	u.rouse()
	err := u.serve()
	u.consumer.CloseRemote(errors.Is(err, errEndedByClient))
	u.s.remember(u)
	u.awaitSyncs()
	u.s.forgetSubscription(u)
	u.packer.end(err)
}

// awaitSyncs waits until each Sync that was carried out is answered, because a client that hears of the end before
// takes the answer for lost.
func (u *subscription) awaitSyncs() {
	for {
		u.mu.Lock()
		left := u.unanswered
		u.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-u.wake:
		case <-u.ctx.Done():
			return
		}
	}
}

// errEndedByClient says that the client has ended the subscription.
var errEndedByClient = errors.New("native: the client has ended the subscription")

// lookEvery is how often a subscription looks whether its client may still have messages, if nothing else happens.
const lookEvery = time.Second

// serve returns why the subscription ends.
func (u *subscription) serve() error {
	var look <-chan time.Time
	if u.s.srv.opts.Auth != nil {
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		look = ticker.C
	}
	for {
		select {
		case <-look:
			if err := u.packer.resolve(); err != nil {
				return err
			}
			continue
		case <-u.wake:
		case <-u.ctx.Done():
			return context.Canceled
		}
		if err := u.turn(); err != nil {
			return err
		}
		if err := u.packer.goOn(); err != nil {
			return err
		}
	}
}

// turn does all that there is to do. An error ends the subscription.
func (u *subscription) turn() error {
	u.mu.Lock()
	orders, w := u.orders, u.wishes
	u.orders = u.spare
	u.wishes.ready, u.wishes.stop, u.wishes.permit = false, false, false
	u.mu.Unlock()
	for i := range orders {
		if u.ctx.Err() != nil {
			u.drop(&orders[i])
			continue
		}
		u.carryOut(&orders[i])
	}
	clear(orders)
	u.spare = orders[:0]
	u.sayRefused()
	switch {
	case w.closed != nil:
		return w.closed
	case w.end:
		return errEndedByClient
	}
	if w.ready {
		n := min(int64(w.messages), int64(u.s.srv.opts.MaxMessagesInFlight))
		_ = u.consumer.Ready(int(n)) // an error: the channel is closed, and the sink hears of it
	}
	if w.permit {
		u.packer.sendPermit()
	}
	if w.stop {
		u.consumer.StopDelivery()
	}
	return nil
}

// carryOut does what one order says.
func (u *subscription) carryOut(o *order) {
	switch o.typ {
	case wire.TypeFinish:
		u.each(o, u.consumer.FinishDelivery)
	case wire.TypeTouch:
		u.each(o, u.consumer.TouchDelivery)
	case wire.TypeFinishThrough:
		h := wire.Handle{Number: o.through.Number, ID: o.through.ID}
		u.judge(o.typ, h, u.consumer.FinishThrough(h.Number))
	case wire.TypeRequeue:
		_ = wire.Decode(o.payload, &u.requeues) // it was checked
		for _, m := range u.requeues.Messages {
			delay := time.Duration(m.DelayMs) * time.Millisecond
			u.judge(o.typ, m.Handle, u.consumer.RequeueDelivery(node.ID(m.ID), m.Number, delay))
		}
	case wire.TypeSync:
		request, bytes := o.request, o.bytes
		u.sayRefused() // of what came before it
		u.unansweredSyncs(1)
		u.consumer.Sync(func(err error) {
			u.synced(request, bytes, err)
			u.unansweredSyncs(-1)
		})
		return
	}
	u.s.srv.meter.count(o.typ, netproto.StatusOK)
	u.s.giveBack(u.s.pays(), o.bytes, o.buf)
}

// each does something with each delivery of a Finish or Touch.
func (u *subscription) each(o *order, do func(id node.ID, number uint64) error) {
	_ = wire.Decode(o.payload, &u.handles) // it was checked
	for _, h := range u.handles.Deliveries {
		u.judge(o.typ, h, do(node.ID(h.ID), h.Number))
	}
}

// judge notes what the engine has refused.
func (u *subscription) judge(typ netproto.Type, h wire.Handle, err error) {
	if err == nil {
		return
	}
	status := netproto.StatusFull
	switch {
	case errors.Is(err, errs.ErrNotInFlight), errors.Is(err, errs.ErrNotOwner):
		status = netproto.StatusRejected
	case typ == wire.TypeFinishThrough: // not even the deliveries before it are finished
		status = netproto.StatusNotLeader
	}
	u.s.srv.meter.count(typ, status)
	u.refusals = append(u.refusals, wire.Refusal{Handle: h, Kind: uint16(typ), Status: status})
	if len(u.refusals) == wire.MaxIDCount {
		u.sayRefused()
	}
}

// sayRefused tells the client what was refused.
func (u *subscription) sayRefused() {
	if len(u.refusals) == 0 {
		return
	}
	m := wire.Refused{Messages: u.refusals}
	_ = u.s.post(&netproto.Frame{Type: wire.TypeRefused, Request: u.request, Head: wire.Append(nil, &m)})
	u.refusals = u.refusals[:0]
}

// synced answers a Sync. Any goroutine may call it.
func (u *subscription) synced(request uint64, bytes int, err error) {
	if err != nil {
		_ = u.s.fail(wire.TypeSync, request, netproto.StatusUnknown, err.Error())
	} else {
		_ = u.s.answer(wire.TypeSync, request, netproto.StatusOK, wire.Append(nil, new(wire.Outcome)))
	}
	u.s.giveBack(u.s.pays(), bytes, nil)
}

// unansweredSyncs changes how many Syncs the engine carries out, and wakes run.
func (u *subscription) unansweredSyncs(change int) {
	u.mu.Lock()
	u.unanswered += change
	u.mu.Unlock()
	u.rouse()
}

// outcome is what the client is told of an error. It is told who leads, if it wants a single partition.
func (u *subscription) outcome(err error) (netproto.Status, *wire.Outcome) {
	status, out := statusOf(err), new(wire.Outcome)
	out.Text = err.Error()
	out.Text = clip.Text(out.Text, wire.MaxTextBytes)
	if status == netproto.StatusNotLeader && u.ask.Partition != wire.NoPartition {
		p := u.s.srv.place()
		out.Address = p.address(u.topic.ID(), u.ask.Partition)
	}
	return status, out
}

// sayEnd tells the client that its subscription has ended, and why.
func (u *subscription) sayEnd(err error) {
	f, out := netproto.Frame{Type: wire.TypeSubscribeEnd, Request: u.request}, new(wire.Outcome)
	if !errors.Is(err, errEndedByClient) {
		f.Status, out = u.outcome(err)
	}
	u.s.srv.meter.count(wire.TypeSubscribeEnd, f.Status)
	f.Head = wire.Append(nil, out)
	_ = u.s.post(&f)
}

// Consumer describes a native client in the statistics of a channel (message.ConsumerStats.Label).
type Consumer struct {
	Client  string // name and version of its program, as it says
	Address string // from which it is connected
	TLS     bool
	Who     string // the name that it has proved; "": none
	Since   time.Time

	SampleRate int // percent of the messages that it wants; 0: all
}

// String describes the client in one line.
func (c *Consumer) String() string {
	if c.Client == "" {
		return c.Address
	}
	return c.Client + " " + c.Address
}

// Host is the client's address without the port.
func (c *Consumer) Host() string {
	if host, _, err := net.SplitHostPort(c.Address); err == nil {
		return host
	}
	return c.Address
}

func (c *Consumer) Describe() stats.Client {
	return stats.Client{
		ClientID: c.Client, Hostname: c.Host(), UserAgent: c.Client, Version: "native",
		RemoteAddress: c.Address, ConnectTime: c.Since.Unix(), TLS: c.TLS, Started: c.Since,
		Authed: c.Who != "", AuthIdentity: c.Who, SampleRate: c.SampleRate,
	}
}

// label describes the client.
func (u *subscription) label() *Consumer {
	c := u.s.label()
	c.SampleRate = int(u.ask.SampleRate)
	return c
}

func (s *session) label() *Consumer {
	c := &Consumer{Address: s.remote, TLS: s.tls != nil, Who: auth.Certified(s.tls), Since: s.began}
	if name := s.client.Load(); name != nil {
		c.Client = *name
	}
	if l := s.login.Load(); l != nil {
		c.Who = l.who.Name()
	}
	return c
}
