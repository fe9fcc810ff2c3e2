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
		waiters[i], errs[i] = t.startPublish(ctx, &ms[i])
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
func (t *Topic) startPublish(ctx context.Context, m *Outgoing) (*inbox.Waiter, error) {
	var own []Header
	headers, key, err := keyed(m, &own)
	if err != nil {
		return nil, err
	}
	w := inbox.NewWaiter()
	w.Carry(m.Body)
	w.Trusted = true
	if len(headers) != 0 {
		w.Headers = [][]Header{headers}
	}
	var to *partition
	if len(key) != 0 {
		to = t.partitions()[t.PartitionFor(key)]
	}
	if err := t.submit(ctx, &w.Put, to); err != nil {
		w.Free()
		return nil, err
	}
	return w, nil
}
