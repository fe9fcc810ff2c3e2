package partition

import (
	"context"
	"sync/atomic"

	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
)

// Control entries are appended to a partition's log as a batch of their own, behind all puts that are in the inbox
// before them:
//
//	AppendControls  enqueues a batch, and returns a waiter for the result; the next two functions use it:
//	WriteControls   of a partition: writes several batches, each of them committed before the next is enqueued
//	writeControls   of a topic (package engine): writes the same entries to every partition that this node leads
//	PostControls    enqueues a batch for which nobody waits
//	NewControls     returns a function with which a channel enqueues the entries that its machine emits

// AppendControls enqueues own.Controls, which belong to the log from then on. Unless AppendControls returns an error,
// the caller must call Result on the waiter, or Receive and then Free.
//
// The batch waits in the inbox for at most Options.PublishTimeout. After that time it is refused, and not stored.
func (pt *Partition) AppendControls(ctx context.Context, own *inbox.Special) (*inbox.Waiter, error) {
	w := inbox.NewWaiter()
	w.Kind, w.Special = inbox.Controls, own
	w.DeadlineNs = pt.store.now().Add(pt.store.PublishTimeout()).UnixNano()
	if err := pt.Enqueue(ctx, &w.Put); err != nil {
		w.Free()
		return nil, err
	}
	return w, nil
}

// WriteControls appends batches of control entries, and returns when all of them are committed. onCommit is called when
// the last batch is committed (inbox.List.Committed). WriteControls may wait as long as a commit takes. After an error
// or a crash, the log has the first few of the batches: none, some or all.
func (pt *Partition) WriteControls(ctx context.Context, batches [][]fold.Control, onCommit func()) error {
	for i, b := range batches {
		own := &inbox.Special{Controls: b}
		if i == len(batches)-1 {
			own.OnCommit = onCommit
		}
		w, err := pt.AppendControls(ctx, own)
		if err == nil {
			err = w.Result(pt.store.host)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// PostControls enqueues a batch for which nobody waits. Unless it returns an error, done is called with the batch's
// result, however long that takes, on the goroutine that calls Put.Done.
func (pt *Partition) PostControls(own *inbox.Special, done func(error)) error {
	p := &inbox.Put{Done: func(p *inbox.Put) { done(p.Err) }}
	p.Kind, p.Special, p.NoExpiry = inbox.Controls, own, true
	return pt.Enqueue(context.Background(), p)
}

// NewControls returns a function that enqueues batches of control entries of one channel. The entries belong to the log
// until done is called with the result of the batch; only then may the function be called again. Unless the function
// returns an error, done is called on the goroutine that calls Put.Done.
//
// The batch waits in the inbox without a time limit: it must be written, because the channel's machine does not emit
// its entries again. If the batch is in the log and not committed after a while, done is called with ErrUnknown; with
// patient, done is not called before the outcome is known. If revoked (nil: never) is set while the batch is in the
// inbox, the batch is not stored.
func (pt *Partition) NewControls(
	revoked *atomic.Bool, patient bool, done func(error),
) func(controls []fold.Control) error {
	own := &inbox.Special{Revoked: revoked}
	p := &inbox.Put{Done: func(p *inbox.Put) { done(p.Err) }}
	p.Kind, p.Special, p.NoExpiry = inbox.Controls, own, patient
	return func(controls []fold.Control) error {
		own.Controls = controls
		return pt.Enqueue(context.Background(), p)
	}
}

// OnCommitter runs f on the committer with Replica.mu held, where the fold may be read and changed, and then calls
// done. It does not wait.
func (pt *Partition) OnCommitter(f func(), done func(error)) {
	p := &inbox.Put{Done: func(p *inbox.Put) { done(p.Err) }}
	p.Kind, p.Special = inbox.Inspection, &inbox.Special{Inspect: f}
	if err := pt.Enqueue(context.Background(), p); err != nil {
		done(err)
	}
}

// WriteTombstone writes the record that this node's copies of the topic are deleted, behind all puts that are in the
// inbox. It waits until the record is durable.
func (pt *Partition) WriteTombstone(own *inbox.Special) error {
	w := inbox.NewWaiter()
	w.Kind, w.Special = inbox.Tombstone, own
	if err := pt.Enqueue(context.Background(), &w.Put); err != nil {
		w.Free()
		return err
	}
	return w.Result(pt.store.host)
}
