package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// errServesNothing says that this node leads no partition of the topic.
var errServesNothing = errors.New("engine: this node leads no partition of the topic")

// remoteConsumer is a client of this node that other nodes serve. Its mu is taken after a channel's and before remotes'.
type remoteConsumer struct {
	rs      *remotes
	t       *Topic
	channel string
	sink    Sink
	ask     wire.Subscribe // without the topic's and the window's

	mu         lock.Mutex[lock.RemoteConsumer]
	legs       []*leg // active ones, in the order of credit.legs, and then those that were asked
	credit     credit
	stopped    bool
	full       bool // the sink said so
	ended      bool
	creating   bool
	started    bool                     // Subscribe has returned
	asked      int                      // first answers that are to come
	answered   chan struct{}            // closed when they have, or the client has failed
	err        error                    // why the client failed before started: Subscribe returns it; fail sets it
	bound      int64                    // ConsumerOptions.MaxInFlightBytes
	unfinished map[ID]unfinishedMessage // with a bound: what the client has
	delivery   Delivery
	dropped    []HeldDelivery
	wire       wire.Delivered
	frame      netproto.Frame
	body       [1][]byte
	stats      ConsumerStats
}

// leg is one leader's part of it.
type leg struct {
	creditLeg
	r        *remoteConsumer
	node     replicate.NodeID
	id       uint64
	begun    int64 // when it was asked for, by now()
	stamped  bool  // the leader knew of deadlines before it was asked: deliveries of an ordered channel come with one
	first    bool  // Subscribe waits for its answer
	active   bool
	ops      []byte // Consume entries that were not sent
	owed     int    // bytes taken from it and not given back
	received uint64 // the last serial of a held delivery
	reported uint64 // the last of which the leader was told that it came
}

func (rs *remotes) subscribe(ctx context.Context, c *Channel, o ConsumerOptions, s Sink) (*remoteConsumer, error) {
	timeout := o.MsgTimeout
	if timeout == 0 {
		timeout = c.e.opts.MsgTimeout
	}
	r := &remoteConsumer{rs: rs, t: c.t, channel: c.name, sink: s, answered: make(chan struct{})}
	r.ask = wire.Subscribe{
		Topic: c.t.uuid, Channel: []byte(c.name), MsgTimeoutMs: uint32(timeout.Milliseconds()),
		SampleRate: uint8(max(0, min(o.SampleRate, 99))),
	}
	label := RemoteLabel{Text: labelText(o.Label)}
	if m, ok := o.Label.(json.Marshaler); ok {
		if text, err := m.MarshalJSON(); err == nil {
			label.Client = text
		}
	}
	if text, err := json.Marshal(label); err == nil && len(text) <= wire.MaxLabelBytes { // a longer one is not worth a failure
		r.ask.Label = text
	}
	if len(o.Tag) > wire.MaxTagBytes {
		return nil, fmt.Errorf("%w: a consumer's tag has at most %d bytes", ErrOptions, wire.MaxTagBytes)
	}
	r.ask.Tag = []byte(o.Tag)
	if r.bound = o.MaxInFlightBytes; r.bound > 0 {
		r.unfinished = map[ID]unfinishedMessage{}
	}
	r.stats.Label = o.Label
	rs.mu.Lock()
	shut := rs.shut
	rs.clients = append(rs.clients, r)
	rs.mu.Unlock()
	err := c.closedErr() // what ends clients saw it in the list, or is seen here
	if err == nil && shut {
		err = ErrClosed
	}
	if err != nil {
		r.end()
		return nil, err
	}
	r.begin()
	ctx, cancel := rs.cn.e.host.WithTimeout(ctx, remoteAnswerTime)
	rs.cn.e.host.Either(r.answered, ctx.Done())
	cancel()
	r.mu.Lock()
	err = r.err
	r.started = true
	r.mu.Unlock()
	if err != nil {
		r.end()
		return nil, err
	}
	return r, nil
}

// begin asks the leaders of now.
func (r *remoteConsumer) begin() {
	r.followLeaders(r.t.leaders())
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.legs {
		if !l.active {
			l.first = true
			r.asked++
		}
	}
	if r.asked == 0 {
		r.closeAnswered()
	}
}

// closeAnswered ends Subscribe's waiting; mu is held.
func (r *remoteConsumer) closeAnswered() {
	select {
	case <-r.answered:
	default:
		close(r.answered)
	}
}

// firstAnswer counts an answer, or that none will come; mu is held.
func (r *remoteConsumer) firstAnswer(l *leg) {
	if l.first {
		l.first = false
		if r.asked--; r.asked == 0 {
			r.closeAnswered()
		}
	}
}

// followLeaders makes the legs those to the leaders of now.
func (r *remoteConsumer) followLeaders(leaders []replicate.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	for i := 0; i < len(r.legs); {
		if l := r.legs[i]; !slices.Contains(leaders, l.node) {
			r.unsubscribeAt(l)
			continue
		}
		i++
	}
	r.ask.WindowBytes = r.windowBytes(len(leaders))
	for _, node := range leaders {
		if !slices.ContainsFunc(r.legs, func(l *leg) bool { return l.node == node }) {
			r.subscribeAt(node)
		}
	}
	r.share()
}

// subscribeAt asks a leader; mu is held. If it cannot be asked now, the next tick tries again.
func (r *remoteConsumer) subscribeAt(node replicate.NodeID) {
	rs := r.rs
	l := &leg{r: r, node: node, begun: rs.cn.now(), stamped: rs.cn.e.Level() >= heldLevel}
	if !l.stamped && !rs.cn.leased() {
		return // handleDeliver would drop what comes
	}
	rs.mu.Lock()
	rs.next++
	l.id = rs.next
	rs.legs[l.id] = l
	rs.mu.Unlock()
	if l.stamped {
		rs.sendStamp(node)
	}
	f := netproto.Frame{Type: netproto.TypeSubscribe, Request: l.id, Head: wire.AppendSubscribe(nil, &r.ask)}
	if err := rs.send(node, &f); err != nil {
		rs.removeLeg(l)
		return
	}
	r.legs = append(r.legs, l)
}

func (rs *remotes) removeLeg(l *leg) {
	rs.mu.Lock()
	delete(rs.legs, l.id)
	rs.mu.Unlock()
}

// remove forgets a leg, whose credits are free again; mu is held. What is in flight there comes again from whoever leads next.
func (r *remoteConsumer) remove(l *leg) {
	r.rs.removeLeg(l)
	r.forgetUnfinished(l)
	if i := slices.Index(r.legs, l); i >= 0 {
		r.legs = slices.Delete(r.legs, i, i+1)
	}
	r.credit.legs = slices.DeleteFunc(r.credit.legs, func(c *creditLeg) bool { return c == &l.creditLeg })
	r.firstAnswer(l)
}

// unsubscribeAt unsubscribes at a leader; mu is held.
func (r *remoteConsumer) unsubscribeAt(l *leg) {
	r.flushLeg(l)
	r.remove(l) // what comes for it from now on is handed to nobody
	f := netproto.Frame{Type: netproto.TypeUnsubscribe, Request: l.id}
	if r.rs.cn.e.Level() >= heldLevel && r.drained() {
		f.Head = []byte{1}
	}
	r.rs.sendReliably(l.node, &f)
}

// share divides the client's RDY and tells the leaders; mu is held.
func (r *remoteConsumer) share() {
	for _, i := range r.credit.divide(r.rs.cn.now()) {
		r.sendReady(r.legs[i])
	}
	if r.credit.rotates() && r.rs.startRotation() {
		r.rs.cn.spawn(r.rs.rotateCredits)
	}
}

// sendReady sends a leader its part; mu is held.
func (r *remoteConsumer) sendReady(l *leg) {
	l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeReady, Seq: l.seq, Count: uint32(l.creditLeg.asked)})
	r.flushLeg(l)
}

// flushLeg sends what waits; mu is held. If the connection's queue is full it stays, up to maxUnsentBytes: then the
// subscription is of no use any more.
func (r *remoteConsumer) flushLeg(l *leg) {
	if len(l.ops) == 0 || !l.active {
		return
	}
	b := putBuffers.Get().(*putBuffer)
	b.bytes, l.ops = l.ops, b.bytes[:0]
	r.body[0] = b.bytes
	r.frame = netproto.Frame{Type: netproto.TypeConsume, Request: l.id, Body: r.body[:], Owner: b}
	err := r.rs.send(l.node, &r.frame)
	r.body[0], r.frame.Owner = nil, nil
	if err == nil {
		return
	}
	if errors.Is(err, netproto.ErrQueueFull) && len(b.bytes) < maxUnsentBytes {
		b.bytes, l.ops = l.ops, b.bytes
	}
	b.Release()
}

// handleSubscribed takes a leader's answer.
func (r *remoteConsumer) handleSubscribed(l *leg, status netproto.Status, payload []byte) {
	r.mu.Lock()
	switch {
	case !slices.Contains(r.legs, l) || l.active:
	case status == netproto.StatusOK:
		at := len(r.credit.legs)
		r.legs = slices.DeleteFunc(r.legs, func(o *leg) bool { return o == l })
		r.legs = slices.Insert(r.legs, at, l)
		r.credit.legs = append(r.credit.legs, &l.creditLeg)
		l.active = true
		r.firstAnswer(l)
		if r.stopped {
			l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeStop})
		}
		r.share()
	case status == netproto.StatusRejected && len(payload) == 1:
		why := subscriptionErrorOf(payload[0])
		if errors.Is(why, ErrNoChannel) && r.started && len(r.credit.legs) > 0 && !ephemeral(r.channel) {
			r.create(l)
			break
		}
		r.mu.Unlock()
		r.fail(why)
		return
	default: // it leads no more, or not yet: the store's news or the next tick tell
		r.remove(l)
	}
	r.mu.Unlock()
}

// create makes the channel where it is missing although other leaders have it: the topic has a new partition, whose leader had nothing
// of it. A tick subscribes there again. mu is held.
func (r *remoteConsumer) create(l *leg) {
	r.remove(l)
	if r.creating {
		return
	}
	r.creating = true
	cn := r.rs.cn
	cn.spawn(func() {
		if err := cn.onAllLeaders(cn.ctx, r.t, operation{Kind: opCreateChannel, Channel: r.channel}); err != nil && cn.ctx.Err() == nil {
			cn.log.Warn("a channel could not be made on a new partition yet; it is tried again", "topic", r.t.name, "channel", r.channel, "error", err)
		}
		r.mu.Lock()
		r.creating = false
		r.mu.Unlock()
	})
}

// handleConsumed takes a leader's answers.
func (r *remoteConsumer) handleConsumed(l *leg, payload []byte) error {
	c, failures, err := wire.DecodeConsumed(payload)
	if err != nil {
		return err
	}
	r.mu.Lock()
	if i := slices.Index(r.credit.legs, &l.creditLeg); i >= 0 && c.Seq != 0 {
		if r.credit.answered(i, c.Seq, int(c.InFlight)) && r.credit.finished(i) {
			r.sendReady(l)
		}
		r.share()
	}
	r.mu.Unlock()
	sink, ok := r.sink.(FailureSink)
	for len(failures) > 0 {
		var f wire.Failure
		f, failures = wire.NextFailure(failures)
		if call := failedCalls[f.Kind]; ok && call != 0 {
			sink.Failed(call, ID(f.ID), subscriptionErrorOf(f.Reason))
		}
	}
	return nil
}

// handleUnserved takes the end of a leg.
func (r *remoteConsumer) handleUnserved(l *leg, payload []byte) {
	if len(payload) == 1 {
		if err := subscriptionErrorOf(payload[0]); errors.Is(err, ErrDeleted) {
			r.fail(err)
			return
		}
	}
	r.mu.Lock()
	if !r.ended {
		r.remove(l)
		r.share()
	}
	r.mu.Unlock()
	r.followLeaders(r.t.leaders())
}

// peerLost ends the leg to a node.
func (r *remoteConsumer) peerLost(node replicate.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range slices.Clone(r.legs) {
		if l.node == node {
			r.remove(l)
		}
	}
	r.share()
}

func (r *remoteConsumer) ready(n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped && !r.ended {
		r.credit.ready = n
		r.share()
	}
	return nil
}

func (r *remoteConsumer) finish(id ID) error {
	return r.sendOp(&wire.Consume{Kind: wire.ConsumeFinish, ID: uint64(id)})
}

func (r *remoteConsumer) requeue(id ID, delay time.Duration) error {
	return r.sendOp(&wire.Consume{Kind: wire.ConsumeRequeue, ID: uint64(id), DelayMs: requeueDelay(delay)})
}

func (r *remoteConsumer) touch(id ID) error {
	return r.sendOp(&wire.Consume{Kind: wire.ConsumeTouch, ID: uint64(id)})
}

// sendOp is Finish, Requeue or Touch: it goes to who leads the message's partition now.
func (r *remoteConsumer) sendOp(what *wire.Consume) error {
	if !r.t.has(ID(what.ID)) {
		return ErrNotInFlight
	}
	to := replicate.NodeID(r.t.partitions()[ID(what.ID).Partition()].rep.target.Load())
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.legs, func(l *leg) bool { return l.node == to && l.active })
	if i < 0 {
		return ErrNotInFlight // nor is it anywhere else
	}
	l := r.legs[i]
	if l.received != 0 && !r.withdraw(ID(what.ID)) {
		return ErrNotInFlight // it means an earlier delivery: this one is half on its way
	}
	l.appendSeen()
	l.ops = wire.AppendConsume(l.ops, what)
	switch what.Kind {
	case wire.ConsumeFinish:
		r.stats.FinishCount++
	case wire.ConsumeRequeue:
		r.stats.RequeueCount++
	}
	if r.bound > 0 {
		r.updateUnfinished(what)
	}
	if what.Kind != wire.ConsumeTouch && r.credit.finished(i) {
		r.sendReady(l)
	} else if len(l.ops) >= maxConsumeBytes {
		r.flushLeg(l)
	}
	return nil
}

// pump sends what was said. What the leaders deliver comes by itself.
func (r *remoteConsumer) pump() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.legs {
		r.flushLeg(l)
	}
}

// unblock gives back the bytes that the sink had no room for.
func (r *remoteConsumer) unblock() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.full = false
	for _, l := range r.legs {
		r.pay(l, r.leastPaid())
		r.flushLeg(l)
	}
}

func (r *remoteConsumer) stopDelivery() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped || r.ended {
		return
	}
	r.stopped = true
	r.credit.ready = 0
	for _, l := range r.legs {
		if l.active {
			l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeStop})
		}
	}
	r.share()
	for _, l := range r.legs {
		r.flushLeg(l)
	}
}

// tick sends what a caller left, and asks where a bound may have fallen since: messages time out.
func (r *remoteConsumer) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.credit.legs {
		if r.credit.finished(i) {
			r.sendReady(r.legs[i])
		}
	}
	if len(r.unfinished) > 0 {
		r.expireUnfinished()
	}
	r.returnDropped()
	for _, l := range r.legs {
		r.pay(l, 1)
		r.flushLeg(l)
	}
}

// rotateCredit passes credits on, and says whether there will be more turns.
func (r *remoteConsumer) rotateCredit() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || !r.credit.rotates() {
		return false
	}
	r.share()
	return true
}

func (r *remoteConsumer) close() { r.end() }

// end unsubscribes everywhere. It returns false if the client had ended before.
func (r *remoteConsumer) end() (first bool) {
	rs := r.rs
	r.mu.Lock()
	first = !r.ended
	r.ended = true
	for _, l := range slices.Clone(r.legs) {
		r.unsubscribeAt(l)
	}
	r.credit.ready = 0
	r.mu.Unlock()
	rs.mu.Lock()
	rs.clients = slices.DeleteFunc(rs.clients, func(o *remoteConsumer) bool { return o == r })
	last := !slices.ContainsFunc(rs.clients, func(o *remoteConsumer) bool { return o.t == r.t && o.channel == r.channel })
	rs.mu.Unlock()
	if last && first && ephemeral(r.channel) {
		r.t.dropUnused(r.channel)
	}
	return first
}

// fail ends the client because there is nothing to subscribe to. The client is told once: by Subscribe's error if that has
// not returned yet, else by Closed.
func (r *remoteConsumer) fail(err error) {
	if errors.Is(err, ErrDeleted) || errors.Is(err, ErrNoChannel) {
		err = ErrDeleted
		r.t.dropUnused(r.channel) // it is made anew for its next consumer
	}
	r.mu.Lock()
	started := r.started
	if !started && r.err == nil {
		r.err = err // before end, which may be the last answer that Subscribe waits for
	}
	r.mu.Unlock()
	if r.end() && started {
		r.sink.Closed(err)
	}
	r.mu.Lock()
	r.closeAnswered()
	r.mu.Unlock()
}

// dropUnused removes a channel of which this node has no partition and that nobody is attached to.
func (t *Topic) dropUnused(name string) {
	c, ok := t.LookupChannel(name)
	if !ok || t.servesAny() {
		return
	}
	c.mu.Lock()
	used := len(c.consumers) > 0 || c.closed != nil
	c.mu.Unlock()
	if used {
		return
	}
	t.mu.Lock()
	if t.channels[name] == c {
		delete(t.channels, name)
	}
	t.mu.Unlock()
	c.shut(ErrDeleted)
}

// counts says nothing of how many messages are in flight: only the leaders know.
func (r *remoteConsumer) counts() ConsumerStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.ReadyCount, s.Stopped = r.credit.ready, r.stopped
	return s
}

// requeueDelay is in ms, as leaders are told.
func requeueDelay(d time.Duration) uint64 { return uint64(max(0, d.Milliseconds())) }
