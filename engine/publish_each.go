package engine

import (
	"context"

	"penstock/engine/inbox"
)

// publishEach stores messages that the engine makes itself, each in a put of its own and all at the same time. It
// returns one error or nil for each. It borrows what ms points to until it returns.
func (t *Topic) publishEach(ctx context.Context, ms []Outgoing) []error {
	errs := make([]error, len(ms))
	waiters := make([]*inbox.Waiter, len(ms))
	for i := range ms {
		waiters[i], errs[i] = t.startPublish(ctx, ms[i:i+1])
	}
	for i, w := range waiters {
		if w != nil {
			errs[i] = w.Receive(t.e.host)
			w.Free()
		}
	}
	return errs
}

// startPublish submits one message; its answer comes in the waiter.
func (t *Topic) startPublish(ctx context.Context, m []Outgoing) (*inbox.Waiter, error) {
	w := inbox.NewWaiter()
	w.Trusted = true
	if err := t.submitAll(ctx, w, m); err != nil {
		w.Free()
		return nil, err
	}
	return w, nil
}
