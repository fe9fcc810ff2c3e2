package engine

import (
	"context"
	"errors"
	"time"

	"penstock/engine/channel"
	"penstock/engine/remote"
	"penstock/replicate/wire"
)

// Consumer is one subscriber of a channel. Its methods are safe for concurrent use, but must not be called from within
// the Sink: the caller of the Sink may hold locks that they take.
//
// A local consumer is served by this node's channel (channel.Consumer). A remote consumer is served by the leaders,
// over the connections between nodes (remote.Consumer); Subscribe makes one if this node leads no partition of the
// topic. A consumer never changes from one kind to the other. A local consumer that Subscribe made is closed with
// ErrMoved when this node leads no partition of the topic any more. A remote consumer stays open: when this node comes
// to lead a partition, it is simply one of the leaders that serve the consumer.
type Consumer struct {
	ch     *Channel
	served servedConsumer
}

// RemoteLabel is the ConsumerStats.Label, at a leader, of a consumer whose client is connected to another node.
type RemoteLabel = wire.Label

// servedConsumer is implemented by the local and the remote consumer. The methods of Consumer have the comments.
type servedConsumer interface {
	Ready(n int) error
	Finish(id ID) error
	Requeue(id ID, delay time.Duration) error
	Touch(id ID) error
	StopDelivery()
	Unblock()
	Pump()
	Close()
	Counts() ConsumerStats
}

// Attach subscribes a sink to the partitions that this node leads, now and later. Nothing is delivered before Ready and
// Pump. The sink belongs to the consumer until Sink.Closed is called or Close has returned. Attach returns
// ErrTooManyClients (Options.MaxConsumers), or the error with which the channel was closed: ErrDeleted, ErrMoved or
// ErrClosed. After ErrMoved, get the channel again from Topic.Channel.
func (c *Channel) Attach(o ConsumerOptions, s Sink) (*Consumer, error) {
	k, err := c.local.Attach(o, s, false)
	if err != nil {
		return nil, err
	}
	return &Consumer{ch: c, served: k}, nil
}

// AttachLeader is Attach for a client that knows the leaders and subscribes at each of them: it returns ErrNoLeader if
// this node leads no partition of the topic, and the consumer is closed with ErrMoved when that becomes so.
func (c *Channel) AttachLeader(o ConsumerOptions, s Sink) (*Consumer, error) {
	k, err := c.local.Attach(o, s, true)
	if errors.Is(err, channel.ErrServesNothing) {
		return nil, ErrNoLeader
	}
	if err != nil {
		return nil, err
	}
	return &Consumer{ch: c, served: k}, nil
}

// Subscribe is Attach for a client that may know only this node. If this node leads no partition of the topic, the
// messages come from the nodes that lead them. While this node leads a partition, its consumers get only messages of
// the partitions that it leads; clients get the others over connections to the other nodes. For a remote consumer
// Subscribe waits until the leaders have answered, at most one second; leaders that have not answered by then are asked
// again in the background.
//
// A leader may refuse a Finish, Requeue or Touch of a remote consumer after it returned nil; a Sink that is a
// FailureSink is told. ConsumerOptions.Label travels to the leaders if it is a json.Marshaler.
//
// Besides the errors of Attach, Subscribe returns ErrNoLeader if ConsumerOptions.Partition is set and this node leads
// no partition, and ErrOptions if a remote consumer's tag is too long.
func (c *Channel) Subscribe(ctx context.Context, o ConsumerOptions, s Sink) (*Consumer, error) {
	k, err := c.local.Attach(o, s, true)
	switch {
	case err == nil:
		return &Consumer{ch: c, served: k}, nil
	case !errors.Is(err, channel.ErrServesNothing):
		return nil, err
	case o.Partition != nil: // such a client connects to that partition's leader itself
		return nil, ErrNoLeader
	}
	r, err := c.e.cluster.remotes.Subscribe(ctx, remote.Client{
		Topic: topicView{c.t}, Channel: c.name, Closed: c.local.Err, Text: channel.LabelText(o.Label),
	}, o, s)
	if err != nil {
		return nil, err
	}
	return &Consumer{ch: c, served: r}, nil
}

// Ready sets how many messages may be in flight to this consumer, 0 or more; 0 pauses it. Deliveries do not use the
// number up.
func (k *Consumer) Ready(n int) error { return k.served.Ready(n) }

// Finish confirms a message. It returns before the confirmation is stored: that is in the log within
// Options.ConfirmInterval, and after a crash before that the message is delivered again. For a remote consumer the
// interval begins when the leader has received the FIN. Finish returns ErrNotInFlight if the message is not in flight,
// because it timed out, for example, and ErrNotOwner if it is in flight to another consumer.
func (k *Consumer) Finish(id ID) error { return k.served.Finish(id) }

// FinishThrough confirms the delivery with this Delivery.Number and all deliveries to this consumer before it that are
// in flight, of all partitions; it costs less than a Finish of each. It never confirms a later delivery, not even one
// of the same message. It returns the errors of Finish about the delivery with that number; those before it are
// confirmed all the same. A remote consumer, whose deliveries have no numbers, returns ErrNotServed.
func (k *Consumer) FinishThrough(number uint64) error {
	if l, ok := k.served.(*channel.Consumer); ok {
		return l.FinishThrough(number)
	}
	return ErrNotServed
}

// Sync calls done once everything that Finish, FinishThrough and Requeue have changed in this channel so far, for any
// consumer of this node, is in the log on every replica that must have it: then no crash brings those messages back. An
// error means that some of it may be lost, and such messages are delivered again: ErrMoved or ErrClosed, for example.
// done runs once, on a goroutine of its own. A remote consumer gets ErrNotServed.
func (k *Consumer) Sync(done func(error)) {
	if l, ok := k.served.(*channel.Consumer); ok {
		l.Sync(done)
		return
	}
	k.ch.e.host.Spawn(func() { done(ErrNotServed) })
}

// Timeouts returns for how long a message may be in flight to this consumer before it is delivered again, and for how
// long at most if it is touched. Both are 0 for a remote consumer.
func (k *Consumer) Timeouts() (untouched, most time.Duration) {
	if l, ok := k.served.(*channel.Consumer); ok {
		return l.Timeouts()
	}
	return 0, 0
}

// Requeue gives a message back, to be delivered again after delay: whole milliseconds, at most Options.MaxReqTimeout. A
// message that has had its last attempt (ChannelSettings.MaxAttempts) becomes a dead letter instead. Requeue returns
// the errors of Finish. It also fails, and leaves the message in flight, if too many messages are deferred already:
// with ErrStateFull, or with another error at Options.MaxDeferred.
func (k *Consumer) Requeue(id ID, delay time.Duration) error { return k.served.Requeue(id, delay) }

// Touch restarts the message's timeout, but not beyond Options.MaxMsgTimeout after its delivery. Touch returns the
// errors of Finish.
func (k *Consumer) Touch(id ID) error { return k.served.Touch(id) }

// StopDelivery ends deliveries to this consumer for good. Messages in flight can still be finished.
func (k *Consumer) StopDelivery() { k.served.StopDelivery() }

// Unblock says that the sink has room again after Deliver has returned false. It may deliver on the caller's goroutine.
func (k *Consumer) Unblock() { k.served.Unblock() }

// Pump delivers the messages that are ready now, to any local consumer of the channel, on the caller's goroutine. A
// remote consumer sends the calls that wait, such as Finish, to the leaders. Call Pump after a run of Ready, Finish and
// Requeue.
func (k *Consumer) Pump() { k.served.Pump() }

// Close unsubscribes. Messages in flight go to other consumers at once. An ephemeral channel is deleted with its last
// consumer. Close does not call Sink.Closed.
func (k *Consumer) Close() { k.served.Close() }

// Stats returns a snapshot of this consumer's counters. A remote consumer does not know how many messages it has in
// flight.
func (k *Consumer) Stats() ConsumerStats { return k.served.Counts() }

// has says whether the topic has the partition of an id. Ids come from clients, who may send anything.
func (t *Topic) has(id ID) bool { return int(id.Partition()) < t.Partitions() }
