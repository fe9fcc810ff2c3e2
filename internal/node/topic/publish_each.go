package topic

import (
	"context"

	"penstock/internal/node/inbox"
	"penstock/internal/node/message"
)

// publishEach stores messages that the engine makes itself: dead letters, and those that Redrive sends back. Each is a
// put of its own, and all are submitted before the first answer. It returns one error or nil for each message, and
// borrows ms, and what it points to, until it returns.
func (t *Topic) publishEach(ctx context.Context, ms []message.Outgoing) []error {
	errs := make([]error, len(ms))
	waiters := make([]*inbox.Waiter, len(ms))
	for i := range ms {
		waiters[i], errs[i] = t.startPublish(ctx, ms[i:i+1])
	}
	for i, w := range waiters {
		if w != nil {
			errs[i] = w.Receive(t.env.Host)
			w.Free()
		}
	}
	return errs
}

// startPublish submits one message. If it returns a waiter, the caller receives the answer there and frees the waiter.
func (t *Topic) startPublish(ctx context.Context, m []message.Outgoing) (*inbox.Waiter, error) {
	w := inbox.NewWaiter()
	w.Trusted = true
	if err := t.submitAll(ctx, w, m); err != nil {
		w.Free()
		return nil, err
	}
	return w, nil
}
