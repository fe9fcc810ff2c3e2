package topic

import (
	"context"
	"errors"
	"sync"
	"time"

	"penstock/internal/node/errs"
)

// Consume calls handler for each message until ctx ends, and then returns nil. It is Open and a loop around Next: in a
// cluster the messages of all partitions come, through failovers and moves. It returns earlier with ErrDeleted or
// ErrClosed if the channel or topic is deleted or the engine closed, or with an error of Open. A nil from the handler
// confirms the message; an error requeues it after ConsumeOptions.RequeueDelay. A message that the handler keeps for
// longer than its timeout is delivered again, unless the handler calls Touch in time.
//
// Consume gives ctx to the handlers and waits for them. When it returns, no handler runs any more, and messages that
// were in flight go to other consumers.
func (c *Channel) Consume(ctx context.Context, o ConsumeOptions, handler func(context.Context, *Message) error) error {
	if handler == nil {
		return errNil("the handler")
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
	s, err := c.Open(ctx, o)
	if err != nil {
		return err
	}
	defer s.Close()
	var workers sync.WaitGroup
	errs := make([]error, o.Workers)
	for i := range errs {
		workers.Go(func() { errs[i] = s.work(ctx, o.RequeueDelay, handler) })
	}
	workers.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return errs[0]
}

// work is a worker of Consume. It returns the error of Next.
func (s *Messages) work(ctx context.Context, delay time.Duration, handler func(context.Context, *Message) error) error {
	var m Message
	for {
		if err := s.Next(ctx, &m); err != nil {
			return err
		}
		var err error
		if handler(ctx, &m) == nil {
			err = m.Finish()
		} else {
			err = m.Requeue(delay)
		}
		if err != nil && !errors.Is(err, errs.ErrNotInFlight) && !errors.Is(err, errs.ErrNotOwner) {
			s.env.Log.Debug("a message could not be finished", "id", m.ID.String(), "error", err)
		}
	}
}
