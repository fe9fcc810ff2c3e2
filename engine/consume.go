package engine

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ConsumeOptions are the options of Channel.Consume; the zero value is ready.
type ConsumeOptions struct {
	MaxInFlight  int           // messages delivered and not finished; 0: 64. Consume buffers their bodies in memory
	Workers      int           // concurrent handlers; 0: 1, which keeps a partition's order while nothing is requeued
	MsgTimeout   time.Duration // time in flight until the message is delivered again; 0: Options.MsgTimeout
	RequeueDelay time.Duration // delay of the next delivery after a handler's error; 0: 1 s; negative: none
}

// Message is one delivery to a handler. The Message, its Body and its Headers are valid until the handler returns; then
// their memory is used for another message. A handler that keeps bytes copies them.
type Message struct {
	ID        ID
	Timestamp time.Time // when it was published
	Attempts  uint16    // deliveries so far, this one included
	Body      []byte
	Headers   []Header // in the order in which they were published; nil: none

	consumer *Consumer
	headers  []Header // memory of Headers, reused from message to message
	text     []byte   // the names and values that headers point into, reused too
}

// copyHeaders copies the headers of a delivery, which are borrowed, into the message's own memory.
func (m *Message) copyHeaders(headers []Header) {
	m.Headers = nil
	if len(headers) == 0 {
		return
	}
	m.headers, m.text = m.headers[:0], m.text[:0]
	for i := range headers {
		m.text = append(append(m.text, headers[i].Key...), headers[i].Value...)
	}
	text := m.text
	for i := range headers {
		name, end := len(headers[i].Key), len(headers[i].Key)+len(headers[i].Value)
		m.headers = append(m.headers, Header{Key: text[:name:name], Value: text[name:end:end]})
		text = text[end:]
	}
	m.Headers = m.headers
}

// Touch restarts the message's timeout: see Consumer.Touch. Only the handler may call it, before it returns.
func (m *Message) Touch() error { return m.consumer.Touch(m.ID) }

// Consume calls handler for each message until ctx ends, and then returns nil. It returns earlier with ErrDeleted,
// ErrClosed or ErrMoved (another node leads now: subscribe again) if the consumer is closed, or with an error of
// Subscribe. A nil from the handler confirms the message; an error requeues it after ConsumeOptions.RequeueDelay. A
// message that the handler keeps for longer than its timeout is delivered again.
//
// Consume gives ctx to the handlers and waits for them. When it returns, no handler runs any more, and messages that
// were in flight go to other consumers.
func (c *Channel) Consume(ctx context.Context, o ConsumeOptions, handler func(context.Context, *Message) error) error {
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = 64
	}
	if o.Workers <= 0 {
		o.Workers = 1
	}
	switch {
	case o.RequeueDelay == 0:
		o.RequeueDelay = time.Second
	case o.RequeueDelay < 0:
		o.RequeueDelay = 0
	}
	s := &handlerSink{messages: make(chan *Message, o.MaxInFlight), ended: make(chan struct{})}
	k, err := c.Subscribe(ctx, ConsumerOptions{MsgTimeout: o.MsgTimeout}, s)
	if err != nil {
		return err
	}
	s.consumer = k
	if err := k.Ready(o.MaxInFlight); err != nil {
		k.Close()
		return err
	}
	k.Pump()
	var workers sync.WaitGroup
	for range o.Workers {
		workers.Go(func() { s.work(ctx, &o, handler) })
	}
	workers.Wait()
	k.Close()
	if ctx.Err() != nil {
		return nil
	}
	return s.err
}

// handlerSink passes messages to Consume's workers. Its Go channel holds as many messages as may be in flight, so that
// Deliver need not block. The channel overflows only if messages time out and are delivered again while they are still
// in it; then the sink is full until the workers have emptied it. consumer is set before the first delivery; err is set
// before ended is closed.
type handlerSink struct {
	consumer *Consumer
	messages chan *Message
	free     sync.Pool
	ended    chan struct{}
	err      error
}

// Deliver implements Sink. It copies the message and does not block: the channel's lock is held.
func (s *handlerSink) Deliver(d *Delivery) bool {
	m, ok := s.free.Get().(*Message)
	if !ok {
		m = new(Message)
	}
	m.ID, m.Timestamp, m.Attempts, m.consumer = d.ID, time.Unix(0, d.Timestamp), d.Attempts, s.consumer
	m.Body = append(m.Body[:0], d.Body...)
	m.copyHeaders(d.Headers)
	select {
	case s.messages <- m:
	default:
		s.free.Put(m) // the message stays in flight until its timeout, like any unfinished message
	}
	return len(s.messages) < cap(s.messages)
}

func (s *handlerSink) Flush() {}

// Closed implements Sink. It ends the workers.
func (s *handlerSink) Closed(err error) {
	s.err = err
	close(s.ended)
}

// work is a worker of Consume: it handles messages until ctx ends or the consumer is closed.
func (s *handlerSink) work(ctx context.Context, o *ConsumeOptions, handler func(context.Context, *Message) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.ended:
			return
		case m := <-s.messages:
			if ctx.Err() != nil {
				return
			}
			s.handle(ctx, o, handler, m)
		}
	}
}

// handle calls the handler for one message, and finishes or requeues the message. Then the message's memory is free for
// another delivery.
func (s *handlerSink) handle(
	ctx context.Context, o *ConsumeOptions, handler func(context.Context, *Message) error, m *Message,
) {
	var err error
	if handler(ctx, m) == nil {
		err = s.consumer.Finish(m.ID)
	} else {
		err = s.consumer.Requeue(m.ID, o.RequeueDelay)
	}
	if err != nil && !errors.Is(err, ErrNotInFlight) && !errors.Is(err, ErrNotOwner) {
		s.consumer.ch.e.log.Debug("a message could not be finished", "id", m.ID.String(), "error", err)
	}
	s.free.Put(m)
	if len(s.messages) == 0 {
		s.consumer.Unblock() // this also pumps: no message is left for the workers
	}
}
