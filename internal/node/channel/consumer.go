package channel

import (
	"errors"
	"sync/atomic"
	"time"

	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
)

// Consumer is a consumer that this node's channel serves: a client of this node, or a subscription, which stands for a
// client of another node. Any goroutine may call its methods, but not from within the sink, because they take the
// channel's lock. A crash forgets it: messages that it had in flight are delivered again.
type Consumer struct {
	ch          *Channel
	id          delivery.ClientID // the machine's
	sink        message.Sink
	runs        message.RunSink  // sink; nil: it is none
	holds       message.HeldSink // likewise
	label       any
	needsLeader bool    // it was attached with follows: it ends when this node serves no partition
	only        *uint32 // the partition that it reads; nil: all
	timeout     time.Duration
	mostTimeout time.Duration // Limits.MaxMsgTimeout when it was attached

	// Guarded by ch.mu.
	delivery message.Delivery // what the sink gets; used again for each message
	touched  bool             // it is in ch.touched: its sink is flushed after ch.mu is released
	stopped  bool
	clean    bool // no delivery to it is on its way through another node, and none is begun any more

	permits  permits
	handings []*handing  // by partition; guarded by ch.mu
	held     atomic.Bool // it got deliveries with an Until
}

// ErrServesNothing says that this node serves no partition of the topic.
var ErrServesNothing = errors.New("engine: this node leads no partition of the topic")

// Attach adds a consumer to the channel. With follows, Attach returns ErrServesNothing if this node serves no partition
// of the topic, and the consumer is closed when that becomes so.
func (c *Channel) Attach(o message.ConsumerOptions, s message.Sink, follows bool) (*Consumer, error) {
	timeout := o.MsgTimeout
	if timeout == 0 {
		timeout = c.node.limits().MsgTimeout
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil, c.closed
	}
	// This check needs mu: either CloseFollowing sees the new consumer, or the check sees the change that made the
	// engine call it.
	if follows && !c.topic.ServesAny() {
		return nil, ErrServesNothing
	}
	c.applyPostsLocked()
	c.nextID++
	k := &Consumer{ch: c, id: c.nextID, sink: s, label: o.Label, needsLeader: follows, only: o.Partition}
	k.runs, _ = s.(message.RunSink)
	k.holds, _ = s.(message.HeldSink)
	k.mostTimeout = c.node.limits().MaxMsgTimeout
	k.timeout = min(timeout, k.mostTimeout)
	c.ev = delivery.Event{
		Kind: delivery.EvSubscribe, Client: k.id, MsgTimeoutMs: timeout.Milliseconds(), SampleRate: o.SampleRate,
	}
	if o.Partition != nil {
		c.ev.Only = *o.Partition + 1
	}
	if o.Tag != "" {
		c.ev.Tag = fold.HashKey([]byte(o.Tag))
	}
	if err := c.step().Err; errors.Is(err, delivery.ErrTooManyConsumers) {
		return nil, &errs.LimitError{
			Err: err, What: "with this one the number of the channel's consumers at this node", Value: len(c.consumers) + 1,
			Most: c.limits.MaxConsumers, Setting: "max-consumers",
		}
	} else if err != nil {
		return nil, err
	}
	c.consumers[k.id] = k
	if k.runs != nil {
		c.runSinks++
	}
	return k, nil
}

// do runs an event about this consumer through the machine.
func (k *Consumer) do(ev delivery.Event) error {
	c := k.ch
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		if ofMessage(ev.Kind) {
			return errs.ErrNotInFlight
		}
		return c.closed
	}
	ev.Client = k.id
	if ev.Kind == delivery.EvFinishThrough && (c.consumers[k.id] != k || !c.node.Leased()) {
		return errs.ErrMoved // not ErrNotInFlight, which says that the deliveries before it are finished
	}
	if ofMessage(ev.Kind) && !c.node.Leased() {
		return errs.ErrNotInFlight // another node may have it in flight by now
	}
	c.ev = ev
	if c.timed != nil && ev.Kind == delivery.EvFinishThrough {
		now := c.node.now().UnixNano()
		c.m.EachThrough(k.id, ev.Seen, func(id message.ID) { c.timed.Finished(id, now) })
	}
	err := c.step().Err
	if c.timed != nil && ev.Kind == delivery.EvFinish && err == nil {
		c.timed.Finished(ev.ID, c.node.now().UnixNano())
	}
	if ev.Kind == delivery.EvRequeue {
		c.arm() // the delay runs whether or not the caller pumps
	} else {
		c.queueControls()
	}
	return err
}

func ofMessage(k delivery.EventKind) bool {
	return k == delivery.EvFinish || k == delivery.EvRequeue || k == delivery.EvTouch
}

// Ready sets how many messages may be in flight to this consumer (RDY). Deliveries do not use the number up.
func (k *Consumer) Ready(n int) error {
	return k.do(delivery.Event{Kind: delivery.EvReady, Count: n})
}

func (k *Consumer) Finish(id message.ID) error { return k.FinishSeen(id, 0) }

// FinishSeen is Finish for a client of another node; seen is delivery.Event.Seen.
func (k *Consumer) FinishSeen(id message.ID, seen uint64) error {
	if !k.ch.has(id) {
		return errs.ErrNotInFlight
	}
	return k.do(delivery.Event{Kind: delivery.EvFinish, ID: id, Seen: seen})
}

// FinishDelivery is Finish for the delivery with this number (message.Delivery.Number) alone: it does not confirm a
// later delivery of the same message.
func (k *Consumer) FinishDelivery(id message.ID, number uint64) error {
	if number == 0 || !k.ch.has(id) {
		return errs.ErrNotInFlight
	}
	return k.do(delivery.Event{Kind: delivery.EvFinish, ID: id, Number: number})
}

// FinishThrough confirms the delivery with this number (message.Delivery.Number) and all deliveries to this consumer
// before it that are in flight. It returns ErrNotInFlight if that delivery itself is not in flight any more; those
// before it are confirmed all the same. After any other error nothing is: the consumer has ended, or this node may not
// confirm now, because another one may lead.
func (k *Consumer) FinishThrough(number uint64) error {
	return k.do(delivery.Event{Kind: delivery.EvFinishThrough, Seen: number})
}

// Requeue gives a message back, to be delivered again after delay.
func (k *Consumer) Requeue(id message.ID, delay time.Duration) error {
	return k.RequeueSeen(id, delay, 0)
}

// RequeueSeen is Requeue for a client of another node; seen is delivery.Event.Seen.
func (k *Consumer) RequeueSeen(id message.ID, delay time.Duration, seen uint64) error {
	return k.requeue(delivery.Event{ID: id, Seen: seen}, delay)
}

// RequeueDelivery is Requeue for the delivery with this number alone.
func (k *Consumer) RequeueDelivery(id message.ID, number uint64, delay time.Duration) error {
	if number == 0 {
		return errs.ErrNotInFlight
	}
	return k.requeue(delivery.Event{ID: id, Number: number}, delay)
}

func (k *Consumer) requeue(ev delivery.Event, delay time.Duration) error {
	if !k.ch.has(ev.ID) {
		return errs.ErrNotInFlight
	}
	if delay >= time.Millisecond && !k.ch.ephemeral {
		if err := k.ch.topic.Partition(int(ev.ID.Partition())).RefusesDelay(1, delay); err != nil {
			return err
		}
	}
	ev.Kind, ev.DelayMs = delivery.EvRequeue, delay.Milliseconds()
	return k.do(ev)
}

func (k *Consumer) Touch(id message.ID) error { return k.TouchSeen(id, 0) }

// TouchSeen is Touch for a client of another node; seen is delivery.Event.Seen.
func (k *Consumer) TouchSeen(id message.ID, seen uint64) error {
	if !k.ch.has(id) {
		return errs.ErrNotInFlight
	}
	return k.do(delivery.Event{Kind: delivery.EvTouch, ID: id, Seen: seen})
}

// TouchDelivery is Touch for the delivery with this number alone.
func (k *Consumer) TouchDelivery(id message.ID, number uint64) error {
	if number == 0 || !k.ch.has(id) {
		return errs.ErrNotInFlight
	}
	return k.do(delivery.Event{Kind: delivery.EvTouch, ID: id, Number: number})
}

// ReturnDelivery takes back a delivery that the client's node did not hand over.
func (k *Consumer) ReturnDelivery(id message.ID, serial uint64) {
	if k.ch.has(id) {
		// An error means that the delivery timed out long ago, or that the channel is closed.
		_ = k.do(delivery.Event{Kind: delivery.EvReturn, ID: id, Seen: serial})
	}
}

// StopDelivery ends deliveries to this consumer for good.
func (k *Consumer) StopDelivery() {
	k.ch.mu.Lock()
	k.stopped = true
	k.ch.mu.Unlock()
	if k.do(delivery.Event{Kind: delivery.EvStop}) == nil { // otherwise the channel is closed and delivers nothing
		k.ch.Wake() // other consumers may now get messages that waited for this one's tag
	}
}

// Unblock is called when the sink has room again. It delivers on the caller's goroutine.
func (k *Consumer) Unblock() {
	if k.HasRoom() {
		k.ch.pump()
	}
}

// HasRoom is called when the sink has room again. It delivers nothing, and returns false if the channel is closed.
func (k *Consumer) HasRoom() bool {
	return k.do(delivery.Event{Kind: delivery.EvBlocked, Flag: false}) == nil
}

// Hold sets how long a delivery to this consumer, from now on, may be on its way. If such a delivery fails, the next
// message of its order waits for that long. Hold does nothing if the channel is closed.
func (k *Consumer) Hold(ms int64) { _ = k.do(delivery.Event{Kind: delivery.EvHold, HoldMs: ms}) }

// Pump delivers the messages that are ready now, to any consumer of the channel, on the caller's goroutine.
func (k *Consumer) Pump() {
	if k.held.Load() {
		k.takeBack()
	}
	k.ch.pump()
}
func (k *Consumer) Wake() { k.ch.Wake() }

// Close unsubscribes the consumer: its messages in flight go to other consumers at once.
func (k *Consumer) Close() { k.detach() }

// CloseRemote is Close for a client of another node. clean says that no delivery to it is on its way.
func (k *Consumer) CloseRemote(clean bool) {
	k.ch.mu.Lock()
	k.clean = clean
	k.ch.mu.Unlock()
	k.detach()
}

// detach unsubscribes the consumer. It returns false if the consumer, or its channel, was closed before.
func (k *Consumer) detach() bool {
	c := k.ch
	c.mu.Lock()
	if c.consumers[k.id] != k {
		c.mu.Unlock()
		return false
	}
	c.unsubscribeLocked(k)
	last := len(c.consumers) == 0 && c.closed == nil
	c.mu.Unlock()
	if last && c.ephemeral {
		c.topic.Unused(c)
		return true
	}
	c.pump()
	return true
}

// Timeouts returns for how long a message may be in flight to the consumer before it is delivered again, and for how
// long if it is touched.
func (k *Consumer) Timeouts() (untouched, most time.Duration) {
	return k.timeout, k.mostTimeout
}

// Counts returns the consumer's counts, which the machine keeps.
func (k *Consumer) Counts() message.ConsumerStats {
	for _, s := range k.ch.Stats().Consumers {
		if s.Client == k.id {
			return s
		}
	}
	return message.ConsumerStats{Label: k.label}
}

// InFlight returns how many messages the consumer has in flight.
func (k *Consumer) InFlight() int {
	k.ch.mu.Lock()
	defer k.ch.mu.Unlock()
	return k.ch.m.ClientInFlight(k.id)
}

// CloseFollowing closes the consumers that were attached with follows, because this node no longer serves any partition
// and would deliver nothing to them. They are told ErrMoved.
func (c *Channel) CloseFollowing() {
	c.mu.Lock()
	var stranded []*Consumer
	for _, id := range c.clientIDs() {
		if k := c.consumers[id]; k.needsLeader {
			stranded = append(stranded, k)
		}
	}
	c.mu.Unlock()
	for _, k := range stranded {
		if k.detach() {
			k.sink.Closed(errs.ErrMoved)
		}
	}
}

// Used says whether the channel has consumers, or is closed.
func (c *Channel) Used() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.consumers) > 0 || c.closed != nil
}
