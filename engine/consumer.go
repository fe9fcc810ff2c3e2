package engine

import (
	"context"
	"errors"
	"time"

	"penstock/engine/channel"
	"penstock/engine/remote"
	"penstock/replicate/wire"
)

// Consumer is one subscriber of a channel. Its methods are safe for concurrent use.
//
// The channel serves it (channel.Consumer), or, if Subscribe finds that this node leads no partition of the topic, the
// leaders do, over the connections between nodes (remote.Consumer). Which of the two is decided when it subscribes. A
// local one from Subscribe is closed with ErrMoved when its node leads nothing of the topic any more. A remote one
// stays: when its own node comes to lead a partition, that node is one of the leaders that serve it.
type Consumer struct {
	ch     *Channel
	served servedConsumer
}

// RemoteLabel is the label of a consumer whose client is connected to another node.
type RemoteLabel = wire.Label

// servedConsumer is the part of a Consumer that depends on who serves it; the methods of Consumer say what each does.
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

// Attach subscribes a sink to what this node leads. Nothing is delivered before Ready and Pump.
func (c *Channel) Attach(o ConsumerOptions, s Sink) (*Consumer, error) {
	k, err := c.local.Attach(o, s, false)
	if err != nil {
		return nil, err
	}
	return &Consumer{ch: c, served: k}, nil
}

// Subscribe is Attach for a client that sees only this node: if the node leads no partition of the topic, the messages
// come from the nodes that do. While it leads one, its consumers get what it leads, and the clients' connections to the
// other nodes bring the rest. It returns when the leaders have answered, or after a second.
//
// What a leader refuses after Finish, Requeue or Touch returned nil, a Sink that is a FailureSink is told. Label
// travels to the leaders if it is a json.Marshaler.
func (c *Channel) Subscribe(ctx context.Context, o ConsumerOptions, s Sink) (*Consumer, error) {
	k, err := c.local.Attach(o, s, true)
	switch {
	case err == nil:
		return &Consumer{ch: c, served: k}, nil
	case !errors.Is(err, channel.ErrServesNothing):
		return nil, err
	case o.Partition != nil: // the client goes to that partition's leader itself, and other messages are not for it
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

// Ready sets how many messages may be in flight to this consumer. Deliveries do not use the number up.
func (k *Consumer) Ready(n int) error { return k.served.Ready(n) }

// Finish confirms a message. The confirmation is in the log within Options.ConfirmInterval; a crash before that
// delivers the message again. If other nodes serve the consumer, the time begins when the leader has the FIN.
func (k *Consumer) Finish(id ID) error { return k.served.Finish(id) }

// Requeue gives a message back, to be delivered again after delay.
func (k *Consumer) Requeue(id ID, delay time.Duration) error { return k.served.Requeue(id, delay) }

// Touch starts the message's timeout anew, within Options.MaxMsgTimeout of its delivery.
func (k *Consumer) Touch(id ID) error { return k.served.Touch(id) }

// StopDelivery ends deliveries to this consumer for good; what is in flight may still be finished.
func (k *Consumer) StopDelivery() { k.served.StopDelivery() }

// Unblock says that the sink, which returned false from Deliver, has room again.
func (k *Consumer) Unblock() { k.served.Unblock() }

// Pump delivers what is ready now, to any consumer of the channel, on the caller's goroutine. Call it after a run
// of Ready, Finish and Requeue.
func (k *Consumer) Pump() { k.served.Pump() }

// Close unsubscribes: what is in flight goes to other consumers at once. An ephemeral channel goes with its last
// consumer. It must not be called from the sink.
func (k *Consumer) Close() { k.served.Close() }

// Stats is a snapshot of this consumer's numbers.
func (k *Consumer) Stats() ConsumerStats { return k.served.Counts() }

// has says whether an id can be of this topic at all; clients send what they like.
func (t *Topic) has(id ID) bool { return int(id.Partition()) < t.Partitions() }
