package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/internal/lock"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/internal/node/names"
	"penstock/internal/node/reason"
	"penstock/internal/node/route"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// Consumer is a consumer of this node whose messages come from the leaders, of which this node may be one. It has one
// leg per leader. The client's connection calls the exported methods through node.Consumer. The readers of the
// connections between nodes call the handle methods. Consumers calls tick.
//
// mu guards the fields below it. Consumers.mu and the locks of the sink may be taken inside mu. Sink.Flush, Sink.Closed
// and FailureSink.Failed are called without mu. If this node crashes, the leaders see the connection end, and other
// consumers get the messages in flight.
type Consumer struct {
	rs      *Consumers
	topic   Topic
	channel string
	sink    message.Sink
	ask     wire.Subscribe // the Subscribe frame of every leg; mu guards its WindowBytes

	mu         lock.Mutex[lock.RemoteConsumer]
	legs       route.Legs[*leg]
	stopped    bool
	full       bool                             // the sink has no room
	ended      bool                             // no leg is created any more
	creating   bool                             // the channel is being created on a new partition
	begun      bool                             // the leaders known at the beginning were asked
	started    bool                             // Subscribe has returned
	answered   chan struct{}                    // closed when all first answers have come, or the client has failed
	err        error                            // failure before Subscribe has returned; Subscribe returns it
	maxBytes   int64                            // ConsumerOptions.MaxInFlightBytes; 0: no limit
	unfinished map[message.ID]unfinishedMessage // only with maxBytes: the messages that the client has
	from       []*leg                           // by partition: the leg on which its newest delivery came; see legOf
	delivery   message.Delivery
	dropped    []message.HeldDelivery
	wire       wire.Delivered
	frame      netproto.Frame
	body       [1][]byte
	stats      message.ConsumerStats
}

// leg is a Consumer's subscription at one leader. The Consumer's mu guards it, except r, id, begun and stamped, which
// do not change.
type leg struct {
	route.Leg
	r        *Consumer
	id       uint64 // request id of its frames
	begun    int64  // when Subscribe was sent, by Lease.Now
	stamped  bool   // a Stamp was sent before Subscribe: the leader holds deliveries of ordered channels (DeliverHeld)
	ops      []byte // Consume entries that wait to be sent
	owed     int    // bytes that were delivered but not paid back to the window yet
	received uint64 // serial of the newest held delivery
	reported uint64 // newest serial that ConsumeSeen told the leader
}

// Client says what a client of this node subscribes to.
type Client struct {
	Topic   Topic
	Channel string
	Closed  func() error // returns why this node's channel of that name is closed; nil: it is not
	Text    string       // the label as text
}

// Subscribe creates a consumer and waits at most answerTime for the first answers of the leaders. A leader that does
// not answer in time is not an error: the ticks keep trying to subscribe. The caller holds no lock.
func (rs *Consumers) Subscribe(
	ctx context.Context, c Client, o message.ConsumerOptions, s message.Sink,
) (*Consumer, error) {
	timeout := cmp.Or(o.MsgTimeout, rs.n.MsgTimeout())
	r := &Consumer{rs: rs, topic: c.Topic, channel: c.Channel, sink: s, answered: make(chan struct{})}
	r.ask = wire.Subscribe{
		Topic: c.Topic.ID(), Channel: []byte(c.Channel), MsgTimeoutMs: uint32(timeout.Milliseconds()),
		SampleRate: uint8(max(0, min(o.SampleRate, 99))),
	}
	if o.Partition != nil {
		if rs.n.Level() < OnlyLevel {
			return nil, errs.ErrPartitionLevel
		}
		r.ask.Only = *o.Partition + 1
	}
	label := wire.Label{Text: c.Text}
	if m, ok := o.Label.(json.Marshaler); ok {
		if text, err := m.MarshalJSON(); err == nil {
			label.Client = text
		}
	}
	r.ask.Label = wire.EncodeLabel(&label)
	if len(o.Tag) > wire.MaxTagBytes {
		return nil, fmt.Errorf("%w: a consumer's tag has at most %d bytes", errs.ErrOptions, wire.MaxTagBytes)
	}
	r.ask.Tag = []byte(o.Tag)
	if r.maxBytes = o.MaxInFlightBytes; r.maxBytes > 0 {
		r.unfinished = map[message.ID]unfinishedMessage{}
	}
	r.stats.Label = o.Label
	rs.mu.Lock()
	shut := rs.shut
	rs.clients = append(rs.clients, r)
	rs.mu.Unlock()
	err := c.Closed() // a later close of the channel finds r in rs.clients
	if err == nil && shut {
		err = errs.ErrClosed
	}
	if err != nil {
		r.end()
		return nil, err
	}
	r.begin()
	ctx, cancel := rs.host.WithTimeout(ctx, answerTime)
	rs.host.Either(r.answered, ctx.Done())
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

// begin subscribes at the current leaders, and counts the answers that Subscribe must wait for.
func (r *Consumer) begin() {
	r.followLeaders(r.topic.Leaders())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.legs.AwaitFirst()
	r.begun = true
	r.tellAnswered()
}

// closeAnswered lets Subscribe return. mu is held.
func (r *Consumer) closeAnswered() {
	select {
	case <-r.answered:
	default:
		close(r.answered)
	}
}

// tellAnswered lets Subscribe return once every first answer has come, or its leg is gone. mu is held.
func (r *Consumer) tellAnswered() {
	if r.begun && r.legs.Awaited() == 0 {
		r.closeAnswered()
	}
}

// wanted returns those of the leaders of all partitions that lead what the client wants.
func (r *Consumer) wanted(leaders []replicate.NodeID) []replicate.NodeID {
	if r.ask.Only == 0 {
		return leaders
	}
	return leaders[min(int(r.ask.Only)-1, len(leaders)):min(int(r.ask.Only), len(leaders))]
}

// followLeaders removes the legs to nodes that are not leaders any more, and subscribes at leaders that have no leg.
// all are the leaders of all partitions. It takes mu.
func (r *Consumer) followLeaders(all []replicate.NodeID) {
	leaders := distinct(r.wanted(all))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	leave, join := r.legs.Follow(leaders)
	for _, l := range leave {
		r.unsubscribeAt(l)
	}
	r.ask.WindowBytes = r.windowBytes(len(leaders))
	for _, node := range join {
		r.subscribeAt(node)
	}
	r.share()
}

// subscribeAt creates a leg to a leader and sends Subscribe. If Subscribe cannot be sent now, the next tick tries
// again. mu is held.
func (r *Consumer) subscribeAt(node replicate.NodeID) {
	rs := r.rs
	l := &leg{Leg: route.Leg{Node: node}, r: r, begun: rs.lease.Now(), stamped: rs.n.Level() >= HeldLevel}
	if !l.stamped && !rs.lease.Leased() {
		return // without a lease handleDeliver would drop the messages
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
	r.legs.Add(l)
}

func (rs *Consumers) removeLeg(l *leg) {
	rs.mu.Lock()
	delete(rs.legs, l.id)
	rs.mu.Unlock()
}

// remove deletes a leg and the entries that wait in its ops, and frees its credits. The leader that takes over delivers
// the messages in flight again, so the sink drops those that the client has not taken yet. mu is held.
func (r *Consumer) remove(l *leg) {
	r.rs.removeLeg(l)
	if s, ok := r.sink.(message.QueueSink); ok && l.Accepted() {
		s.Lost(l)
	}
	for n, from := range r.from {
		if from == l {
			r.from[n] = nil
		}
	}
	r.forgetUnfinished(l)
	r.legs.Remove(l)
	r.tellAnswered()
}

// unsubscribeAt sends Unsubscribe to a leader and removes the leg. mu is held.
func (r *Consumer) unsubscribeAt(l *leg) {
	r.flushLeg(l)
	r.remove(l) // from here on its deliveries are dropped
	f := netproto.Frame{Type: netproto.TypeUnsubscribe, Request: l.id}
	if r.rs.n.Level() >= HeldLevel && r.drained() {
		f.Head = []byte{1}
	}
	r.rs.sendReliably(l.Node, &f)
}

// share divides the client's RDY among the legs and tells the leaders what changed. mu is held.
func (r *Consumer) share() {
	for _, i := range r.legs.Credit().Divide(r.rs.lease.Now()) {
		r.sendReady(r.legs.All()[i])
	}
	if r.legs.Credit().Rotates() && r.rs.startRotation() {
		r.rs.peers.Spawn(r.rs.rotateCredits)
	}
}

// sendReady tells a leader its part of the client's RDY. mu is held.
func (r *Consumer) sendReady(l *leg) {
	l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeReady, Seq: l.Seq(), Count: uint32(l.Asked())})
	r.flushLeg(l)
}

// flushLeg sends the waiting Consume entries. If the connection's queue is full, the entries keep waiting, unless they
// have reached maxUnsentBytes: then they are dropped. mu is held.
func (r *Consumer) flushLeg(l *leg) {
	if len(l.ops) == 0 || !l.Accepted() {
		return
	}
	b := wire.NewBuffer()
	b.Bytes, l.ops = l.ops, b.Bytes[:0]
	r.body[0] = b.Bytes
	r.frame = netproto.Frame{Type: netproto.TypeConsume, Request: l.id, Body: r.body[:], Owner: b}
	err := r.rs.send(l.Node, &r.frame)
	r.body[0], r.frame.Owner = nil, nil
	if err == nil {
		return
	}
	if errors.Is(err, netproto.ErrQueueFull) && len(b.Bytes) < maxUnsentBytes {
		b.Bytes, l.ops = l.ops, b.Bytes
	}
	b.Release()
}

// handleSubscribed handles a leader's answer to Subscribe.
func (r *Consumer) handleSubscribed(l *leg, status netproto.Status, payload []byte) {
	r.mu.Lock()
	switch {
	case !r.legs.Has(l) || l.Accepted():
	case status == netproto.StatusOK:
		r.legs.Accept(l)
		r.tellAnswered()
		if r.stopped {
			l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeStop})
		}
		r.share()
	case status == netproto.StatusRejected && len(payload) == 1:
		why := reason.OfSubscription(payload[0])
		if errors.Is(why, errs.ErrNoChannel) && !names.Ephemeral(r.channel) {
			lack := r.legs.Lacks(l, r.judges())
			if lack == route.LackNew {
				r.create()
			}
			if lack != route.LackGone {
				r.remove(l) // the next tick subscribes there again
				break
			}
		}
		r.mu.Unlock()
		r.fail(why)
		return
	default: // the node does not lead: news from the store or the next tick cause another attempt
		r.remove(l)
	}
	r.mu.Unlock()
}

// judges returns the leaders that must all lack the channel for it to be gone. While Subscribe waits, a partition
// without a leader is left out: the caller can make the channel anew. Later a consumer that has lost its only leader
// waits for the next one. mu is held.
func (r *Consumer) judges() []replicate.NodeID {
	all := r.wanted(r.topic.Leaders())
	if !r.started {
		return distinct(all)
	}
	return all
}

// create creates the channel on a leader that lacks it although other leaders have it: that node leads a new partition,
// and led no partition of the topic before. mu is held.
func (r *Consumer) create() {
	if r.creating {
		return
	}
	r.creating = true
	peers := r.rs.peers
	peers.Spawn(func() {
		if err := r.topic.CreateAtLeaders(peers.Ctx, r.channel); err != nil && peers.Ctx.Err() == nil {
			r.rs.n.Log.Warn("a channel could not be made on a new partition yet; it is tried again",
				"topic", r.topic.Name(), "channel", r.channel, "error", err)
		}
		r.mu.Lock()
		r.creating = false
		r.mu.Unlock()
	})
}

// handleConsumed handles a leader's answer to Consume: the number of messages in flight, and the calls that failed.
func (r *Consumer) handleConsumed(l *leg, payload []byte) error {
	c, failures, err := wire.DecodeConsumed(payload)
	if err != nil {
		return err
	}
	r.mu.Lock()
	if i := r.legs.Credit().Index(&l.CreditLeg); i >= 0 && c.Seq != 0 {
		if r.legs.Credit().Answered(i, c.Seq, int(c.InFlight)) && r.legs.Credit().Finished(i) {
			r.sendReady(l)
		}
		r.share()
	}
	r.mu.Unlock()
	sink, ok := r.sink.(message.FailureSink)
	for len(failures) > 0 {
		var f wire.Failure
		f, failures = wire.NextFailure(failures)
		if call := failedCalls[f.Kind]; ok && call != 0 {
			sink.Failed(call, message.ID(f.ID), reason.OfSubscription(f.Reason))
		}
	}
	return nil
}

// handleUnserved handles the message of a leader that it has ended the subscription.
func (r *Consumer) handleUnserved(l *leg, payload []byte) {
	if len(payload) == 1 {
		if err := reason.OfSubscription(payload[0]); errors.Is(err, errs.ErrDeleted) {
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
	r.followLeaders(r.topic.Leaders())
}

// peerLost removes the leg to a node whose connection is lost.
func (r *Consumer) peerLost(node replicate.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range slices.Clone(r.legs.All()) {
		if l.Node == node {
			r.remove(l)
		}
	}
	r.share()
}

// Ready sets how many messages may be in flight to the client.
func (r *Consumer) Ready(n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped && !r.ended {
		r.legs.Credit().Ready = n
		r.share()
	}
	return nil
}

// Finish confirms a message. It returns before the leader has the FIN. If the leader refuses the FIN,
// FailureSink.Failed is called. If the leader crashes before the FIN is in its log, its successor delivers the message
// again (see the package comment).
func (r *Consumer) Finish(id message.ID) error {
	return r.sendOp(&wire.Consume{Kind: wire.ConsumeFinish, ID: uint64(id)})
}

// Requeue gives a message back to its channel, which delivers it again after delay. Like Finish, Requeue does not wait
// for the leader.
func (r *Consumer) Requeue(id message.ID, delay time.Duration) error {
	ms := uint64(max(0, delay.Milliseconds()))
	return r.sendOp(&wire.Consume{Kind: wire.ConsumeRequeue, ID: uint64(id), DelayMs: ms})
}

// Touch restarts the timeout of a message. Like Finish, Touch does not wait for the leader.
func (r *Consumer) Touch(id message.ID) error {
	return r.sendOp(&wire.Consume{Kind: wire.ConsumeTouch, ID: uint64(id)})
}

// sendOp queues a Finish, Requeue or Touch for the leader of the message's partition. The entry waits in ops until the
// next pump or tick, unless it frees credit or ops is large.
func (r *Consumer) sendOp(what *wire.Consume) error {
	partition := message.ID(what.ID).Partition()
	if int(partition) >= r.topic.Partitions() {
		return errs.ErrNotInFlight // clients may send any id
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l, i, ok := r.legOf(partition)
	if !ok {
		return errs.ErrNotInFlight // without an accepted leg to the leader, the message is in flight nowhere
	}
	if l.received != 0 && !r.withdraw(message.ID(what.ID)) {
		return errs.ErrNotInFlight // the client means an earlier delivery: it has not got all of this one
	}
	l.appendSeen()
	l.ops = wire.AppendConsume(l.ops, what)
	switch what.Kind {
	case wire.ConsumeFinish:
		r.stats.FinishCount++
	case wire.ConsumeRequeue:
		r.stats.RequeueCount++
	}
	if r.maxBytes > 0 {
		r.updateUnfinished(what)
	}
	if what.Kind != wire.ConsumeTouch && r.legs.Credit().Finished(i) {
		r.sendReady(l)
	} else if len(l.ops) >= maxConsumeBytes {
		r.flushLeg(l)
	}
	return nil
}

// Pump sends the waiting Consume entries. Deliveries need no pump: the leaders send them unasked.
func (r *Consumer) Pump() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.legs.All() {
		r.flushLeg(l)
	}
}

// Unblock pays back the bytes that were withheld while the sink had no room.
func (r *Consumer) Unblock() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.full = false
	for _, l := range r.legs.All() {
		r.pay(l, r.leastPaid())
		r.flushLeg(l)
	}
}

// StopDelivery tells the leaders to deliver nothing more. Messages in flight can still be finished.
func (r *Consumer) StopDelivery() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped || r.ended {
		return
	}
	r.stopped = true
	r.legs.Credit().Ready = 0
	for _, l := range r.legs.All() {
		if l.Accepted() {
			l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeStop})
		}
	}
	r.share()
	for _, l := range r.legs.All() {
		r.flushLeg(l)
	}
}

// tick sends whatever waits: Consume entries, bytes to be paid back, and messages that the sink dropped. It also asks
// again those leaders whose bound (route.Credit) may have fallen because messages timed out, since leaders do not
// report timeouts.
func (r *Consumer) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.legs.Credit().Count() {
		if r.legs.Credit().Finished(i) {
			r.sendReady(r.legs.All()[i])
		}
	}
	if len(r.unfinished) > 0 {
		r.expireUnfinished()
	}
	r.returnDropped()
	for _, l := range r.legs.All() {
		r.pay(l, 1)
		r.flushLeg(l)
	}
}

// rotateCredit moves credits to the legs whose turn it is. It says whether the client must keep taking turns, and
// whether one of them is short.
func (r *Consumer) rotateCredit() (rotates, short bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || !r.legs.Credit().Rotates() {
		return false, false
	}
	r.share()
	return true, r.legs.Credit().InShortTurn()
}

func (r *Consumer) Close() { r.end() }

// end unsubscribes at all leaders and removes the client. first is false if end ran before. The caller holds no lock.
func (r *Consumer) end() (first bool) {
	rs := r.rs
	r.mu.Lock()
	first = !r.ended
	r.ended = true
	for _, l := range slices.Clone(r.legs.All()) {
		r.unsubscribeAt(l)
	}
	r.legs.Credit().Ready = 0
	r.mu.Unlock()
	rs.mu.Lock()
	rs.clients = slices.DeleteFunc(rs.clients, func(o *Consumer) bool { return o == r })
	last := !slices.ContainsFunc(rs.clients, func(o *Consumer) bool {
		return o.topic == r.topic && o.channel == r.channel
	})
	rs.mu.Unlock()
	if last && first && names.Ephemeral(r.channel) {
		r.topic.DropUnused(r.channel)
	}
	return first
}

// fail ends the client because its topic or channel cannot be served any more, or this node closes. The client is told
// once: by Subscribe's error if Subscribe has not returned yet, otherwise by Sink.Closed. The caller holds no lock.
func (r *Consumer) fail(err error) {
	if errors.Is(err, errs.ErrDeleted) || errors.Is(err, errs.ErrNoChannel) {
		err = errs.ErrDeleted
		r.topic.DropUnused(r.channel) // the next consumer creates the channel anew
	}
	r.mu.Lock()
	started := r.started
	if !started && r.err == nil {
		r.err = err // set before end, which may let Subscribe return
	}
	r.mu.Unlock()
	if r.end() && started {
		r.sink.Closed(err)
	}
	r.mu.Lock()
	r.closeAnswered()
	r.mu.Unlock()
}

// Counts returns the client's counters, except the number of messages in flight, which only the leaders know.
func (r *Consumer) Counts() message.ConsumerStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.ReadyCount, s.Stopped = r.legs.Credit().Ready, r.stopped
	return s
}
