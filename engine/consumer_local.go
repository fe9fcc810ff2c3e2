package engine

import (
	"time"

	"penstock/engine/core"
)

// localConsumer is a consumer that this node's channel serves: a client of this node, or a subscription, which is a
// client of another one. The channel knows it from attach to detach, and a crash forgets it: messages that it had in
// flight are delivered again.
type localConsumer struct {
	ch          *Channel
	id          core.ClientID // the machine's
	sink        Sink
	label       any
	needsLeader bool    // it was attached because this node leads something
	only        *uint32 // the partition that it reads; nil: all

	// Guarded by ch.mu.
	delivery Delivery // what the sink gets; used again for each message
	touched  bool     // it is in ch.touched: its sink is flushed when ch.mu is released
	stopped  bool
	clean    bool // nothing of it is on its way through another node
}

// attach adds a consumer to the channel. With follows the error is errServesNothing if this node leads no partition of
// the topic, and the consumer ends when that comes to be so.
func (c *Channel) attach(o ConsumerOptions, s Sink, follows bool) (*localConsumer, error) {
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
	k := &localConsumer{ch: c, id: c.nextID, sink: s, label: o.Label, needsLeader: follows, only: o.Partition}
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
func (k *localConsumer) do(ev core.Event) error {
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
	if ofMessage(ev.Kind) && !c.e.members.leased() {
		return ErrNotInFlight // another node may have it in flight by now
	}
	c.ev = ev
	err := c.step().Err
	if c.timed != nil && ev.Kind == core.EvFinish && err == nil {
		c.timed.Finished(ev.ID, c.e.now().UnixNano())
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

func (k *localConsumer) ready(n int) error {
	return k.do(core.Event{Kind: core.EvReady, Count: n})
}

func (k *localConsumer) finish(id ID) error { return k.finishSeen(id, 0) }

// finishSeen, requeueSeen and touchSeen get what core.Event.Seen is.
func (k *localConsumer) finishSeen(id ID, seen uint64) error {
	if !k.ch.t.has(id) {
		return ErrNotInFlight
	}
	return k.do(core.Event{Kind: core.EvFinish, ID: id, Seen: seen})
}

func (k *localConsumer) requeue(id ID, delay time.Duration) error { return k.requeueSeen(id, delay, 0) }

func (k *localConsumer) requeueSeen(id ID, delay time.Duration, seen uint64) error {
	if !k.ch.t.has(id) {
		return ErrNotInFlight
	}
	if delay >= time.Millisecond && !k.ch.ephemeral && k.ch.t.partitions()[id.Partition()].StateFull(1) {
		return ErrStateFull
	}
	return k.do(core.Event{Kind: core.EvRequeue, ID: id, DelayMs: delay.Milliseconds(), Seen: seen})
}

func (k *localConsumer) touch(id ID) error { return k.touchSeen(id, 0) }

func (k *localConsumer) touchSeen(id ID, seen uint64) error {
	if !k.ch.t.has(id) {
		return ErrNotInFlight
	}
	return k.do(core.Event{Kind: core.EvTouch, ID: id, Seen: seen})
}

// returnDelivery takes a delivery that the client's node did not hand over.
func (k *localConsumer) returnDelivery(id ID, serial uint64) {
	if k.ch.t.has(id) {
		_ = k.do(core.Event{Kind: core.EvReturn, ID: id, Seen: serial}) // it timed out long ago, or the channel is closed
	}
}

func (k *localConsumer) stopDelivery() {
	k.ch.mu.Lock()
	k.stopped = true
	k.ch.mu.Unlock()
	if k.do(core.Event{Kind: core.EvStop}) == nil { // else it is closed: nothing is delivered anyway
		k.ch.Wake() // others may have now what waited for this one's tag
	}
}

func (k *localConsumer) unblock() {
	if k.do(core.Event{Kind: core.EvBlocked, Flag: false}) == nil {
		k.ch.pump()
	}
}

func (k *localConsumer) pump() { k.ch.pump() }

func (k *localConsumer) close() { k.detach() }

// closeRemote is close for another node's client.
func (k *localConsumer) closeRemote(clean bool) {
	k.ch.mu.Lock()
	k.clean = clean
	k.ch.mu.Unlock()
	k.detach()
}

// detach returns false if the consumer was closed before, or its channel was.
func (k *localConsumer) detach() bool {
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

// counts finds the consumer among those of its channel: the machine counts.
func (k *localConsumer) counts() ConsumerStats {
	for _, s := range k.ch.stats(true).Consumers {
		if s.Client == k.id {
			return s
		}
	}
	return ConsumerStats{Label: k.label}
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
