package topic

import (
	"context"

	"penstock/batch"
	"penstock/internal/node/errs"
	"penstock/internal/node/inbox"
	"penstock/internal/node/message"
	"penstock/internal/node/partition"
)

// PublishMessage stores one message, of 1 to Options.MaxMessageBytes bytes, and returns its id when the message is on
// stable storage. Its first delivery waits for m.Delay, in whole milliseconds rounded up. PublishMessage borrows
// everything in m until it returns.
//
// If ctx ends while the put waits in this node's inbox, PublishMessage removes the put and returns ctx's error; later
// it ignores ctx, and the answer is at most about Options.PublishTimeout away while the disk answers.
//
// After ErrDisk, ErrUnknown or ErrClosed the message may have been stored, or may appear later. Any other error means
// that nothing was stored: ErrEmptyMessage, ErrMessageTooBig, ErrBatchTooBig, ErrOverloaded, ErrDeadline, ErrNoSpace,
// ErrQuota, ErrReadOnly, ErrDeleted, in a cluster ErrNoLeader and ErrNoQuorum, for headers ErrHeaders, and for a delay
// ErrDeferTooLong, if it is negative or above Options.MaxDefer, and ErrStateFull. The other methods that publish return
// the same errors.
func (t *Topic) PublishMessage(ctx context.Context, m message.Outgoing) (message.ID, error) {
	one := [1]message.Outgoing{m}
	return t.PublishMessages(ctx, one[:])
}

// PublishBatch stores all messages or none, in order and with consecutive ids in one partition, and returns the first
// id. Together they may have Options.MaxBatchBytes bytes, with the headers of their records. PublishBatch borrows
// bodies, and what they point to, until it returns.
func (t *Topic) PublishBatch(ctx context.Context, bodies [][]byte) (message.ID, error) {
	w := inbox.NewWaiter()
	defer w.Free()
	w.Messages, w.Alone, w.Waits = bodies, true, true
	if err := t.submit(ctx, &w.Put, nil); err != nil {
		return 0, err
	}
	return w.Wait(ctx)
}

// PublishMessages is PublishBatch for messages with keys, headers or a delay. All go to one partition, so their keys
// must belong to the same partition and their delays must be equal: otherwise it returns ErrBatchKeys. It borrows
// everything in ms until it returns.
func (t *Topic) PublishMessages(ctx context.Context, ms []message.Outgoing) (message.ID, error) {
	w := inbox.NewWaiter()
	defer w.Free()
	w.Alone, w.Waits = true, true
	if err := t.submitAll(ctx, w, ms); err != nil {
		return 0, err
	}
	return w.Wait(ctx)
}

// submitAll submits ms as the waiter's put, to the partition of their key.
func (t *Topic) submitAll(ctx context.Context, w *inbox.Waiter, ms []message.Outgoing) error {
	parts := t.PartitionList()
	n, err := w.CarryAll(ms, len(parts))
	if err != nil {
		return err
	}
	var to *partition.Partition
	if n != inbox.AnyPartition {
		to = parts[n]
	}
	return t.submit(ctx, &w.Put, to)
}

// PublishAsync is PublishMessage for a goroutine that keeps many messages on their way. Unless it returns an error, it
// calls done exactly once, maybe before it returns: with the id when the message is on stable storage, or with the
// error that PublishMessage would have returned. If it returns an error, nothing was stored and done is not called. It
// borrows everything in m until done is called.
//
// done runs on a goroutine of the engine, mostly the committer, which may hold locks: done must not block. It may send
// on a buffered channel, count, or pass the result to another goroutine. PublishAsync itself blocks only while the
// inbox is full, at most Options.AdmitTimeout.
func (t *Topic) PublishAsync(m message.Outgoing, done func(message.ID, error)) error {
	if done == nil {
		return errNil("the function that PublishAsync calls")
	}
	parts := t.PartitionList()
	a, n, err := t.env.Store.AsyncPuts().Get(&m, len(parts), done)
	if err != nil {
		return err
	}
	var to *partition.Partition
	if n != inbox.AnyPartition {
		to = parts[n]
	}
	if err := t.submit(context.Background(), &a.Put, to); err != nil {
		a.Unused()
		return err
	}
	return nil
}

// Submit submits a Put to the topic's next partition. If it returns nil, Put.Done is called exactly once, maybe before
// Submit returns; until then the Put and its bytes are borrowed. If it returns an error, nothing was stored and Done is
// not called. Submit blocks only while the inbox is full, at most Options.AdmitTimeout, and then returns ErrOverloaded.
// With Put.Alone it may also wait for the disk.
func (t *Topic) Submit(p *inbox.Put) error {
	if p == nil || p.Done == nil {
		return errNil("the Put, or its Done")
	}
	return t.submit(context.Background(), p, nil)
}

// submit measures p and appends it to the inbox of pt (nil: of the topic's next partition), or passes it to the
// forwarder if another node leads that partition.
func (t *Topic) submit(ctx context.Context, p *inbox.Put, pt *partition.Partition) error {
	e := t.env
	if err := e.Limits.Measure(p); err != nil {
		return err
	}
	if t.shared.Deleted.Load() {
		return errs.ErrDeleted
	}
	// A put without a deadline gets the default one from the engine's watch, if the put is still in the inbox at the next
	// round of watch. Reading the clock for every put would cost as much as storing the put.
	p.DeadlineNs = 0
	if !p.Deadline.IsZero() {
		p.DeadlineNs = e.Clock.NowNs() + int64(e.Host.Until(p.Deadline))
	}
	if pt == nil {
		pt = t.nextPartition()
	}
	return pt.Enqueue(ctx, p)
}

// PartitionFor returns the partition of a key: batch.PartitionOf says how it is computed. When a topic gets more
// partitions, most keys move to another partition. PartitionFor borrows key until it returns.
func (t *Topic) PartitionFor(key []byte) int { return batch.PartitionOf(key, t.Partitions()) }

// SubmitTo is Submit to one partition, 0 to Partitions()-1. It returns ErrNoPartition for any other number.
func (t *Topic) SubmitTo(partition int, p *inbox.Put) error {
	if p == nil || p.Done == nil {
		return errNil("the Put, or its Done")
	}
	parts := t.PartitionList()
	if partition < 0 || partition >= len(parts) {
		return errs.ErrNoPartition
	}
	return t.submit(context.Background(), p, parts[partition])
}

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
