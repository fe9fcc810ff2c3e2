package engine

import "context"

// publishEach stores messages that the engine makes itself, each in a put of its own and all at the same time. It
// returns one error or nil for each. It borrows what ms points to until it returns.
func (t *Topic) publishEach(ctx context.Context, ms []Outgoing) []error {
	errs := make([]error, len(ms))
	waiters := make([]*waiter, len(ms))
	for i := range ms {
		waiters[i], errs[i] = t.startPublish(ctx, &ms[i])
	}
	for i, w := range waiters {
		if w != nil {
			errs[i] = w.receive(t.e.host)
			w.free()
		}
	}
	return errs
}

// startPublish submits one message; its answer comes in the waiter.
func (t *Topic) startPublish(ctx context.Context, m *Outgoing) (*waiter, error) {
	var own []Header
	headers, key, err := keyed(m, &own)
	if err != nil {
		return nil, err
	}
	w := getWaiter()
	w.carry(m.Body)
	w.trusted = true
	if len(headers) != 0 {
		w.Headers = [][]Header{headers}
	}
	var to *partition
	if len(key) != 0 {
		to = t.partitions()[t.PartitionFor(key)]
	}
	if err := t.submit(ctx, &w.Put, to); err != nil {
		w.free()
		return nil, err
	}
	return w, nil
}
