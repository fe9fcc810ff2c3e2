package topic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/internal/node/remote"
)

// Consumer is one subscriber of a channel. Its methods are safe for concurrent use, but must not be called from within
// the Sink: the caller of the Sink may hold locks that they take.
//
// A local consumer is served by this node's part of the channel (channel.Consumer): it gets the messages of the
// partitions that this node leads. A remote consumer is served by the leaders (remote.Consumer), of which this node may
// be one: it gets the messages of all partitions. A consumer never changes from one kind to the other. On a single node
// all are local.
//
//	made by          on a single node    in a cluster
//	Subscribe        local               remote
//	SubscribeClient  local               local if this node leads a partition, otherwise remote
//
// Attach and AttachLeader return a local one as it is.
type Consumer interface {
	// Ready sets how many messages may be in flight to this consumer, 0 or more; 0 pauses it. Deliveries do not use the
	// number up.
	Ready(n int) error
	// Finish confirms a message. It returns before the confirmation is stored: that is in the log within
	// Options.ConfirmInterval, and after a crash before that the message is delivered again. For a remote consumer the
	// interval begins when the leader has received the FIN. Finish returns ErrNotInFlight if the message is not in
	// flight, because it timed out, for example, and ErrNotOwner if it is in flight to another consumer.
	Finish(id message.ID) error
	// Requeue gives a message back, to be delivered again after delay: whole milliseconds, at most Options.MaxReqTimeout.
	// A message that has had its last attempt (ChannelSettings.MaxAttempts) becomes a dead letter instead. Requeue
	// returns the errors of Finish. It also fails, and leaves the message in flight, if too many messages are deferred
	// already: with ErrStateFull, or with another error at Options.MaxDeferred.
	Requeue(id message.ID, delay time.Duration) error
	// Touch restarts the message's timeout, but not beyond Options.MaxMsgTimeout after its delivery. Its errors are those
	// of Finish.
	Touch(id message.ID) error
	// StopDelivery ends deliveries to this consumer for good. Messages in flight can still be finished.
	StopDelivery()
	// Unblock says that the sink has room again after Deliver has returned false. It may deliver on the caller's
	// goroutine.
	Unblock()
	// Pump delivers the messages that are ready now, to any local consumer of the channel, on the caller's goroutine. A
	// remote consumer sends the calls that wait, such as Finish, to the leaders. Call Pump after a run of Ready, Finish
	// and Requeue.
	Pump()
	// Close unsubscribes. Messages in flight go to other consumers at once. An ephemeral channel is deleted with its last
	// consumer. Close does not call Sink.Closed.
	Close()
	// Counts returns a snapshot of this consumer's counters. A remote consumer does not know how many messages it has in
	// flight.
	Counts() message.ConsumerStats
}

// Subscribe subscribes a sink to all partitions of the topic, on whatever nodes they are led, now and later. When
// leaderships move, nodes fail or the topic gets more partitions, the consumer follows; messages that were in flight at
// a leader that is lost come again from the next one. Nothing is delivered before Ready and Pump. The sink belongs to
// the consumer until Sink.Closed is called or Close has returned.
//
// In a cluster Subscribe waits until the leaders have answered, at most one second; leaders that have not answered by
// then are asked again in the background. A Finish, Requeue or Touch of a remote consumer only sends: the leader may
// refuse it later, and a Sink that is a FailureSink is told. For ordered channels such a Sink must be a HeldSink.
//
// Subscribe returns ErrTooManyClients (Options.MaxConsumers), ErrDeleted or ErrClosed, and in a cluster
// ErrPartitionLevel, and ErrOptions for a tag of more than 255 bytes. Sink.Closed gets ErrDeleted or ErrClosed.
func (c *Channel) Subscribe(ctx context.Context, o message.ConsumerOptions, s message.Sink) (Consumer, error) {
	if err := c.judge(&o, s); err != nil {
		return nil, err
	}
	if c.env.Cluster == nil {
		k, err := c.local.Attach(o, s, false)
		if err != nil {
			return nil, err
		}
		return k, nil
	}
	// The leaders of all partitions serve the consumer, over frames to this node itself where it is one of them. That
	// this node's part of the channel was shut because its leaderships moved does not matter.
	k, err := c.env.Cluster.Consumers.Subscribe(ctx, remote.Client{
		Topic: c.t.View(), Channel: c.name, Text: channel.LabelText(o.Label),
		Closed: func() error {
			if err := c.local.Err(); !errors.Is(err, errs.ErrMoved) {
				return err
			}
			return nil
		},
	}, o, s)
	if err != nil {
		return nil, err
	}
	return k, nil
}

// judge is what all ways to subscribe demand of the options and the sink. It sets the timeout that the consumer gets.
func (c *Channel) judge(o *message.ConsumerOptions, s message.Sink) (err error) {
	if s == nil {
		return errNil("the Sink")
	}
	if o.SampleRate < 0 || o.SampleRate > 99 {
		return fmt.Errorf("%w: SampleRate is %d; it is 1 to 99 percent, or 0 for all", errs.ErrOptions, o.SampleRate)
	}
	now := c.env.options()
	o.MsgTimeout, err = message.MsgTimeout(o.MsgTimeout, now.MsgTimeout, now.MaxMsgTimeout)
	return err
}

// errNil refuses what must not be nil. Without it the program would end later, on another goroutine.
func errNil(what string) error {
	return fmt.Errorf("%w: %s is nil; nothing was done", errs.ErrOptions, what)
}

// Attach is Subscribe for the partitions that this node leads, now and later. It does not wait. It returns
// ErrTooManyClients, or the error with which this node's part of the channel was closed: ErrDeleted, ErrClosed, or
// ErrMoved when this node led none of the channel's partitions any more. After ErrMoved, which Sink.Closed may get too,
// get the channel again from Topic.Channel.
func (c *Channel) Attach(o message.ConsumerOptions, s message.Sink) (*channel.Consumer, error) {
	if err := c.judge(&o, s); err != nil {
		return nil, err
	}
	return c.local.Attach(o, s, false)
}

// AttachLeader is Attach for a client that knows the leaders and subscribes at each of them: it returns ErrNoLeader if
// this node leads no partition of the topic, and the consumer is closed with ErrMoved when that becomes so.
func (c *Channel) AttachLeader(o message.ConsumerOptions, s message.Sink) (*channel.Consumer, error) {
	if err := c.judge(&o, s); err != nil {
		return nil, err
	}
	k, err := c.local.Attach(o, s, true)
	if errors.Is(err, channel.ErrServesNothing) {
		return nil, errs.ErrNoLeader
	}
	return k, err
}

// SubscribeClient is for servers of protocols whose clients connect to every node that leads a partition of the topic,
// as NSQ's clients do, but may know only this node. If this node leads partitions, it is AttachLeader. Otherwise it is
// Subscribe, and the consumer stays when this node comes to lead a partition. ConsumerOptions.Label travels to the
// leaders if it is a json.Marshaler.
//
// It returns the errors of both, and ErrNoLeader if ConsumerOptions.Partition is set and this node leads no partition.
func (c *Channel) SubscribeClient(ctx context.Context, o message.ConsumerOptions, s message.Sink) (Consumer, error) {
	k, err := c.AttachLeader(o, s)
	switch {
	case err == nil:
		return k, nil
	case !errors.Is(err, errs.ErrNoLeader) || o.Partition != nil:
		return nil, err // a client of one partition connects to that partition's leader itself
	}
	return c.Subscribe(ctx, o, s)
}

// checkHas returns ErrNoPartition if the topic does not have the partition of an id. Ids come from clients, who may
// send anything.
func (t *Topic) checkHas(id message.ID) error {
	if n := t.Partitions(); int(id.Partition()) >= n {
		return fmt.Errorf("%w: topic %s has %d, counted from 0, and message %v is of partition %d",
			errs.ErrNoPartition, t.Name(), n, id, id.Partition())
	}
	return nil
}
