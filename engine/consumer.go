package engine

import (
	"time"

	"penstock/engine/core"
	"penstock/replicate/wire"
)

// Consumer is one subscriber of a channel. Its methods are safe for concurrent use.
type Consumer struct {
	ch          *Channel
	id          core.ClientID
	sink        Sink
	label       any
	delivery    Delivery
	touched     bool
	stopped     bool
	clean       bool            // nothing of it is on its way through another node
	needsLeader bool            // it was attached because this node leads something
	only        *uint32         // the partition that it reads; nil: all
	remote      *remoteConsumer // other nodes serve it; the channel does not know it
}

// Attach subscribes a sink to what this node leads. Nothing is delivered before Ready and Pump.
func (c *Channel) Attach(o ConsumerOptions, s Sink) (*Consumer, error) { return c.attach(o, s, false) }

func (c *Channel) attach(o ConsumerOptions, s Sink, follows bool) (*Consumer, error) {
	timeout := o.MsgTimeout
	if timeout == 0 {
		timeout = c.e.opts.MsgTimeout
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil, c.closed
	}
	if follows && !c.t.servesAny() { // with mu: closeLeftoverConsumers sees the consumer, or this sees why it was called
		return nil, errServesNothing
	}
	c.applyPostsLocked()
	c.nextID++
	k := &Consumer{ch: c, id: c.nextID, sink: s, label: o.Label, needsLeader: follows, only: o.Partition}
	c.ev = core.Event{Kind: core.EvSubscribe, Client: k.id, MsgTimeoutMs: timeout.Milliseconds(), SampleRate: o.SampleRate}
	if o.Partition != nil {
		c.ev.Only = *o.Partition + 1
	}
	if o.Tag != "" {
		c.ev.Tag = core.HashKey([]byte(o.Tag))
	}
	if err := c.step().Err; err != nil {
		return nil, err
	}
	c.consumers[k.id] = k
	return k, nil
}

// do runs an event about this consumer through the machine.
func (k *Consumer) do(ev core.Event) error {
	c := k.ch
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		if ofMessage(ev.Kind) {
			return ErrNotInFlight
		}
		return c.closed
	}
	ev.Client = k.id
	if c.e.cluster != nil && ofMessage(ev.Kind) && !c.e.cluster.leased() {
		return ErrNotInFlight // another node may have it in flight by now
	}
	c.ev = ev
	err := c.step().Err
	if c.timed != nil && ev.Kind == core.EvFinish && err == nil {
		c.timed.finished(ev.ID, c.e.now().UnixNano())
	}
	if ev.Kind == core.EvRequeue {
		c.arm() // the delay runs whether or not the caller pumps
	} else {
		c.queueControls()
	}
	return err
}

func ofMessage(k core.EventKind) bool {
	return k == core.EvFinish || k == core.EvRequeue || k == core.EvTouch
}

// Ready sets how many messages may be in flight to this consumer: a window, not a credit.
func (k *Consumer) Ready(n int) error {
	if k.remote != nil {
		k.remote.ready(n)
		return nil
	}
	return k.do(core.Event{Kind: core.EvReady, Count: n})
}

// Finish confirms a message. The confirmation is in the log within Options.ConfirmInterval;
// a crash before that delivers the message again.
func (k *Consumer) Finish(id ID) error { return k.finish(id, 0) }

// finish, requeue and touch get what core.Event.Seen is.
func (k *Consumer) finish(id ID, seen uint64) error {
	if !k.ch.has(id) {
		return ErrNotInFlight
	}
	if k.remote != nil {
		return k.remote.sendOp(&wire.Consume{Kind: wire.ConsumeFinish, ID: uint64(id)})
	}
	return k.do(core.Event{Kind: core.EvFinish, ID: id, Seen: seen})
}

// Requeue gives a message back, to be delivered again after delay.
func (k *Consumer) Requeue(id ID, delay time.Duration) error { return k.requeue(id, delay, 0) }

func (k *Consumer) requeue(id ID, delay time.Duration, seen uint64) error {
	if !k.ch.has(id) {
		return ErrNotInFlight
	}
	if k.remote != nil {
		return k.remote.sendOp(&wire.Consume{Kind: wire.ConsumeRequeue, ID: uint64(id), DelayMs: requeueDelay(delay)})
	}
	if delay >= time.Millisecond && !k.ch.ephemeral && k.ch.t.partitions()[id.Partition()].stateFull(1) {
		return ErrStateFull
	}
	return k.do(core.Event{Kind: core.EvRequeue, ID: id, DelayMs: delay.Milliseconds(), Seen: seen})
}

// Touch starts the message's timeout anew, within Options.MaxMsgTimeout of its delivery.
func (k *Consumer) Touch(id ID) error { return k.touch(id, 0) }

func (k *Consumer) touch(id ID, seen uint64) error {
	if !k.ch.has(id) {
		return ErrNotInFlight
	}
	if k.remote != nil {
		return k.remote.sendOp(&wire.Consume{Kind: wire.ConsumeTouch, ID: uint64(id)})
	}
	return k.do(core.Event{Kind: core.EvTouch, ID: id, Seen: seen})
}

// returnDelivery takes a delivery that the client's node did not hand over.
func (k *Consumer) returnDelivery(id ID, serial uint64) {
	if k.ch.has(id) {
		_ = k.do(core.Event{Kind: core.EvReturn, ID: id, Seen: serial}) // it timed out long ago, or the channel is closed
	}
}

// has says whether an id can be of this topic at all; clients send what they like.
func (c *Channel) has(id ID) bool { return int(id.Partition()) < c.t.Partitions() }

// StopDelivery ends deliveries to this consumer for good; what is in flight may still be finished.
func (k *Consumer) StopDelivery() {
	if k.remote != nil {
		k.remote.stop()
		return
	}
	k.ch.mu.Lock()
	k.stopped = true
	k.ch.mu.Unlock()
	if k.do(core.Event{Kind: core.EvStop}) == nil { // else it is closed: nothing is delivered anyway
		k.ch.wake() // others may have now what waited for this one's tag
	}
}

// Unblock says that the sink, which returned false from Deliver, has room again.
func (k *Consumer) Unblock() {
	if k.remote != nil {
		k.remote.unblock()
		return
	}
	if k.do(core.Event{Kind: core.EvBlocked, Flag: false}) == nil {
		k.ch.pump()
	}
}

// Pump delivers what is ready now, to any consumer of the channel, on the caller's goroutine. Call it after a run
// of Ready, Finish and Requeue.
func (k *Consumer) Pump() {
	if k.remote != nil {
		k.remote.flush()
		return
	}
	k.ch.pump()
}

// Close unsubscribes: what is in flight goes to other consumers at once. An ephemeral channel goes with its last
// consumer. It must not be called from the sink.
func (k *Consumer) Close() {
	if k.remote != nil {
		k.remote.end()
		return
	}
	k.detach()
}

// closeRemote is Close for another node's client.
func (k *Consumer) closeRemote(clean bool) {
	k.ch.mu.Lock()
	k.clean = clean
	k.ch.mu.Unlock()
	k.detach()
}

// detach returns false if the consumer was closed before, or its channel was.
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
		c.t.dropEphemeralChannel(c)
		return true
	}
	c.pump()
	return true
}

func (t *Topic) dropEphemeralChannel(c *Channel) {
	t.mu.Lock()
	if t.channels[c.name] == c {
		delete(t.channels, c.name)
	}
	t.mu.Unlock()
	c.shut(ErrDeleted)
	t.dropIfEphemeral()
}

// Stats is a snapshot of this consumer's numbers.
func (k *Consumer) Stats() ConsumerStats {
	if k.remote != nil {
		return k.remote.counts()
	}
	for _, s := range k.ch.stats(true).Consumers {
		if s.consumer == k {
			return s
		}
	}
	return ConsumerStats{Label: k.label}
}
