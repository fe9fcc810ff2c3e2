package topic

import (
	"context"
	"time"

	"penstock/internal/lock"
	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/internal/node/platform"
	"penstock/internal/node/pull"
)

// ConsumeOptions are the options of Channel.Open and Channel.Consume; the zero value is ready.
type ConsumeOptions struct {
	// MaxInFlight is how many messages may be delivered and not finished; 0: 64. Those that the program has not taken yet
	// wait in memory, with their bodies. In a cluster the leaders share it, see Channel.Open.
	MaxInFlight int
	// MsgTimeout is how long a message may stay unfinished until it is delivered again: whole milliseconds, at least one,
	// and cut to Options.MaxMsgTimeout; 0: Options.MsgTimeout. It begins anew when the program takes a message that has
	// waited in memory for half of it.
	MsgTimeout time.Duration
	// Tag limits delivery to messages whose header TagHeader has this value, at most 255 bytes. "": messages without a
	// tag, and those whose tag no consumer asks for.
	Tag string
	// Partition limits delivery to the messages of one partition; nil: all. Messages of other partitions wait for other
	// consumers.
	Partition *uint32
	// SampleRate is the percentage of messages to deliver, 1 to 99; the others are confirmed without a delivery. 0: all.
	SampleRate int

	// Workers and RequeueDelay are for Consume only. Workers is how many handlers run at a time; 0: 1, which keeps the
	// order of each partition while nothing is requeued. RequeueDelay is the delay of the next delivery after a handler's
	// error; 0: 1 s; negative: none.
	Workers      int
	RequeueDelay time.Duration
}

// Message is one delivery, and what its methods do concerns that delivery alone: after Finish or Requeue, or once the
// message was delivered again because it timed out, they return ErrNotInFlight and change nothing. The methods may be
// called by one goroutine at a time. Body and Headers are memory of the
// Message: they are valid until the Message is passed to Next again, or until the handler of Consume returns. A program
// that keeps them longer copies them.
type Message struct {
	ID        message.ID
	Timestamp time.Time // when it was published
	Attempts  uint16    // deliveries so far, this one included
	Body      []byte
	Headers   []message.Header // in the order in which they were published; nil: none

	of   *Messages
	item pull.Item // the memory of Body and Headers
}

// Finish confirms the message: it is not delivered again. See Consumer.Finish for what a crash may undo, and for the
// errors: after ErrNotInFlight or ErrNotOwner the message was or will be delivered again, because it timed out or its
// leader was lost. In a cluster this may also be so after nil, and a message that has just timed out is finished with
// its next delivery, if that one is on its way.
func (m *Message) Finish() error {
	return m.settle(func(s *Messages) error {
		if s.local != nil {
			return s.local.FinishDelivery(m.ID, m.item.Number)
		}
		return s.consumer.Finish(m.ID)
	})
}

// Requeue gives the message back, to be delivered again after delay. See Consumer.Requeue.
func (m *Message) Requeue(delay time.Duration) error {
	return m.settle(func(s *Messages) error {
		if s.local != nil {
			return s.local.RequeueDelivery(m.ID, m.item.Number, delay)
		}
		return s.consumer.Requeue(m.ID, delay)
	})
}

func (m *Message) settle(call func(*Messages) error) error {
	s := m.of
	if s == nil {
		return errs.ErrNotInFlight
	}
	if s.local == nil {
		s.mu.Lock()
		is := s.newest.Is(m.ID, m.item.Number)
		s.mu.Unlock()
		if !is {
			return errs.ErrNotInFlight
		}
	}
	err := call(s)
	s.mu.Lock()
	if err == nil && s.newest.Is(m.ID, m.item.Number) {
		s.newest.Settle(m.ID)
	}
	pump := s.queue.Settled()
	s.mu.Unlock()
	if pump {
		s.consumer.Pump()
	}
	return err
}

// Touch starts the message's timeout anew: see Consumer.Touch.
func (m *Message) Touch() error {
	if m.of == nil {
		return errs.ErrNotInFlight
	}
	return m.of.touch(&m.item)
}

func (s *Messages) touch(it *pull.Item) error {
	if s.local != nil {
		return s.local.TouchDelivery(it.ID, it.Number)
	}
	s.mu.Lock()
	is := s.newest.Is(it.ID, it.Number)
	if is {
		s.newest.Touch(it.ID, s.env.Clock.NowNs())
	}
	s.mu.Unlock()
	if !is {
		return errs.ErrNotInFlight
	}
	return s.consumer.Touch(it.ID)
}

// Messages are the messages of a channel as one consumer gets them: Channel.Open returns it, Next takes one message
// after the other. Its methods are safe for concurrent use. After a crash, messages that were not finished are
// delivered again.
type Messages struct {
	// mu guards the fields below it, and is a leaf: the engine calls the sink with locks held. It is never held while the
	// consumer is called. news has a value when a goroutine in Next must look again.

	env      *Shared
	consumer Consumer
	local    *channel.Consumer // consumer, on a single node; in a cluster nil
	news     chan struct{}
	max      int           // ConsumeOptions.MaxInFlight
	timeout  time.Duration // ConsumeOptions.MsgTimeout
	// counts says that deliveries get their numbers here, because leaders on other nodes give none: see newest.
	counts bool

	mu      lock.Mutex[lock.Messages]
	queue   pull.Queue
	newest  pull.Newest // only with counts
	now     int64       // the time of the deliveries of this run
	running bool        // a run of deliveries has begun
}

// Open subscribes to the channel's messages, for a program that takes them one by one, at its own pace. Consume is for
// a program that has a handler for each message.
//
// In a cluster the messages of all partitions come, on whatever nodes they are led, now and later: when leaderships
// move, nodes fail or the topic gets more partitions, the consumer follows, and the Channel stays usable. No message is
// lost. The ones that were in flight at a leader that is lost come again from the next one. The leaders share
// MaxInFlight; if it is smaller than their number, they take turns.
//
// Open returns ErrOptions, ErrNoPartition, ErrPartitionLevel, ErrTooManyClients, ErrDeleted or ErrClosed. In a cluster
// it waits for the leaders, at most one second; those that have not answered by then are asked again in the background.
func (c *Channel) Open(ctx context.Context, o ConsumeOptions) (*Messages, error) {
	if o.Partition != nil && int(*o.Partition) >= c.t.Partitions() {
		return nil, errs.ErrNoPartition
	}
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = 64
	}
	how := message.ConsumerOptions{
		MsgTimeout: o.MsgTimeout, Tag: o.Tag, Partition: o.Partition, SampleRate: o.SampleRate, Label: programLabel{},
	}
	if err := c.judge(&how, (*messagesSink)(nil)); err != nil {
		return nil, err
	}
	o.MsgTimeout = how.MsgTimeout
	s := &Messages{
		env: c.env, news: make(chan struct{}, 1), queue: pull.NewQueue(o.MaxInFlight, int64(o.MsgTimeout)),
		max: o.MaxInFlight, timeout: o.MsgTimeout, counts: c.env.Cluster != nil,
	}
	k, err := c.Subscribe(ctx, how, (*messagesSink)(s))
	if err != nil {
		return nil, err
	}
	s.consumer = k
	s.local, _ = k.(*channel.Consumer)
	if err := k.Ready(o.MaxInFlight); err != nil {
		k.Close()
		return nil, err
	}
	k.Pump()
	return s, nil
}

// programLabel is shown in statistics for a consumer of a program that embeds the engine.
type programLabel struct{}

func (programLabel) String() string { return "embedded" }

// Next takes the next message, and waits for it until ctx ends. It writes the message into m, whose memory it uses: the
// zero Message is ready, and a Message that is passed again and again costs no allocation. A program that works on
// several messages at a time has a Message for each.
//
// Next returns the error of ctx, ErrDeleted if the channel or topic was deleted, or ErrClosed after Close and when the
// engine is closed. Only after an error of ctx it may be called again with success.
func (s *Messages) Next(ctx context.Context, m *Message) error {
	if m == nil {
		return errNil("the Message")
	}
	for ctx.Err() == nil {
		s.mu.Lock()
		t := s.queue.Take(&m.item, s.env.Clock.NowNs(), (*message.Deadline).Passed)
		s.mu.Unlock()
		if t.Wake {
			s.wake()
		}
		switch {
		case t.Err != nil:
			return t.Err
		case t.Pump:
			s.consumer.Pump()
			continue
		case !t.Got:
			s.env.Host.Either(s.news, ctx.Done())
			s.mu.Lock()
			s.queue.Waited()
			s.mu.Unlock()
			continue
		}
		if t.Renew && s.touch(&m.item) != nil {
			continue // it is not in flight any more
		}
		it := &m.item
		m.ID, m.Timestamp, m.Attempts, m.Body, m.Headers = it.ID, time.Unix(0, it.Timestamp), it.Attempts, it.Body, it.Headers
		m.of = s
		return nil
	}
	return ctx.Err()
}

func (s *Messages) wake() {
	platform.Wake(s.news)
}

// Close unsubscribes. A Next that waits returns ErrClosed, and messages that are not finished go to other consumers at
// once. Close may be called again.
func (s *Messages) Close() {
	(*messagesSink)(s).Closed(errs.ErrClosed)
	s.consumer.Close()
}

// messagesSink is the Sink of a Messages. Its methods may be called with locks of the engine held.
type messagesSink Messages

var (
	_ message.HeldSink  = (*messagesSink)(nil)
	_ message.QueueSink = (*messagesSink)(nil)
)

// Deliver implements Sink. The sink is never full: at most as many messages as have room are in flight.
func (s *messagesSink) Deliver(d *message.Delivery) bool {
	s.mu.Lock()
	if !s.running {
		s.running, s.now = true, s.env.Clock.NowNs()
	}
	if s.counts {
		d.Number = s.newest.Add(d.ID, s.now, s.max, int64(s.timeout))
	}
	wake := s.queue.Add(d, s.now)
	s.mu.Unlock()
	if wake {
		(*Messages)(s).wake()
	}
	return true
}

func (s *messagesSink) Flush() {
	s.mu.Lock()
	s.running = false
	s.mu.Unlock()
}

func (s *messagesSink) Closed(err error) {
	s.mu.Lock()
	wake := s.queue.End(err)
	s.mu.Unlock()
	if wake {
		(*Messages)(s).wake()
	}
}

func (s *messagesSink) Drained() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.Drained()
}

func (s *messagesSink) Lost(origin any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.Lost(origin)
}

// Withdraw implements HeldSink. Next gives a message to the program at once and as a whole.
func (s *messagesSink) Withdraw(id message.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.Withdraw(id)
	return true
}

func (s *messagesSink) Dropped(dst []message.HeldDelivery) []message.HeldDelivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.Dropped(dst)
}
