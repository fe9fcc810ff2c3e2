package engine

import (
	"context"
	"sync"
	"time"

	"penstock/internal/node"
)

// Channel is a cursor over all partitions of a topic. Each message goes to one of its consumers, and again until one
// has finished it.
type Channel struct{ c *node.Channel }

// ConsumeOptions are the options of Consume; the zero value is ready.
type ConsumeOptions struct {
	// MaxInFlight is how many messages may be delivered and not finished. Those that no handler has yet wait in memory.
	// (64)
	MaxInFlight int
	// MsgTimeout is how long a handler may take until its message is delivered again. (Options.MsgTimeout)
	MsgTimeout time.Duration
	// Workers is how many handlers run at a time. One keeps the order of each partition while nothing is requeued. (1)
	Workers int
	// RequeueDelay is the delay of the next delivery after a handler's error; negative: none. (1 s)
	RequeueDelay time.Duration
}

// Delivery is a message on its way to a handler. Its bytes are valid until the handler returns.
type Delivery struct {
	ID        ID
	Published time.Time
	Attempts  int // deliveries so far, this one included
	Body      []byte
	Headers   []Header // in the order in which they were published

	m *node.Message
}

// Touch starts the timeout of the delivery anew. It returns ErrNotInFlight if the message was delivered again.
func (d *Delivery) Touch() error { return d.m.Touch() }

// Name returns the channel's name.
func (c *Channel) Name() string { return c.c.Name() }

// Consume calls handler for each message until ctx ends, and then returns nil. A nil from the handler finishes the
// message; an error lets it come again. Messages of all partitions come, through failovers and moves. A message is
// delivered at least once: its ID tells a program that it comes again.
//
// Consume waits for its handlers. It returns earlier, with ErrDeleted or ErrClosed, if the channel or the topic is
// deleted or the engine closed.
func (c *Channel) Consume(ctx context.Context, o ConsumeOptions, handler func(context.Context, *Delivery) error) error {
	var free sync.Pool // a Delivery for each handler that runs
	call := func(ctx context.Context, m *node.Message) error {
		d, ok := free.Get().(*Delivery)
		if !ok {
			d = new(Delivery)
		}
		defer free.Put(d)
		d.ID, d.Published, d.Attempts, d.Body, d.m = ID(m.ID), m.Timestamp, int(m.Attempts), m.Body, m
		d.Headers = headers(d.Headers[:0], m.Headers)
		return handler(ctx, d)
	}
	if handler == nil {
		call = nil
	}
	return c.c.Consume(ctx, node.ConsumeOptions{
		MaxInFlight: o.MaxInFlight, MsgTimeout: o.MsgTimeout, Workers: o.Workers, RequeueDelay: o.RequeueDelay,
	}, call)
}

// Pause stops deliveries to all consumers until Resume. The topic keeps messages that are published meanwhile.
func (c *Channel) Pause(ctx context.Context) error { return c.c.Pause(ctx) }

// Resume ends a Pause.
func (c *Channel) Resume(ctx context.Context) error { return c.c.Unpause(ctx) }

// SeekTo lets the channel begin anew at a place: all messages from there on are delivered, also those that were
// finished, and none before it.
func (c *Channel) SeekTo(ctx context.Context, at From) error { return c.c.Seek(ctx, at.seek()) }
