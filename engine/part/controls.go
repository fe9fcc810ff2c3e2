package part

import (
	"context"
	"sync/atomic"

	"penstock/engine/core"
	"penstock/engine/inbox"
)

// Control entries get into a partition's log as a batch of their own, behind all that is in the inbox before them:
//
//	AppendControls  hands a batch over, and returns a waiter for the result; the next two use it:
//	WriteControls   of a partition: several batches, one after the other, each committed before the next
//	writeControls   of a topic (package engine): the same entries into every partition that this node leads
//	postControls    hands a batch over that nobody waits for
//	NewControls     returns a function that a channel hands the entries over with which its machine gives away

// AppendControls hands own.Controls over, which belong to the log from then on. Unless it returns an error the caller
// calls Result on the waiter, or Receive and then Free.
//
// The batch waits in the inbox at most Options.PublishTimeout, and then was not stored.
func (pt *Partition) AppendControls(ctx context.Context, own *inbox.Special) (*inbox.Waiter, error) {
	w := inbox.NewWaiter()
	w.Kind, w.Special = inbox.Controls, own
	w.DeadlineNs = pt.store.now().Add(pt.store.opts.PublishTimeout).UnixNano()
	if err := pt.Enqueue(ctx, &w.Put); err != nil {
		w.Free()
		return nil, err
	}
	return w, nil
}

// WriteControls appends batches of control entries and returns when all are committed; onCommit runs with the last one
// (inbox.List.Committed). It may wait as long as a commit does. After an error or a crash the log has the first few of
// the batches: none, some or all.
func (pt *Partition) WriteControls(ctx context.Context, batches [][]core.Control, onCommit func()) error {
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

// postControls hands a batch over that nobody waits for. Unless it returns an error done hears what became of it,
// however long that takes; done runs where Put.Done does.
func (pt *Partition) postControls(own *inbox.Special, done func(error)) error {
	p := &inbox.Put{Done: func(p *inbox.Put) { done(p.Err) }}
	p.Kind, p.Special, p.NoExpiry = inbox.Controls, own, true
	return pt.Enqueue(context.Background(), p)
}

// NewControls returns a function that hands batches of control entries of one channel over. The entries belong to the
// log until done hears what became of the batch; only then the function may be called again. done runs where Put.Done
// does, unless the function returns an error.
//
// The batch waits in the inbox for as long as it takes: it must be written, because the machine has given it away. When
// it is in the log and not committed after a while, done hears ErrUnknown; with patient, done hears nothing before the
// outcome is known. If revoked (nil: never) is set while the batch is in the inbox, it is not stored.
func (pt *Partition) NewControls(
	revoked *atomic.Bool, patient bool, done func(error),
) func(controls []core.Control) error {
	own := &inbox.Special{Revoked: revoked}
	p := &inbox.Put{Done: func(p *inbox.Put) { done(p.Err) }}
	p.Kind, p.Special, p.NoExpiry = inbox.Controls, own, patient
	return func(controls []core.Control) error {
		own.Controls = controls
		return pt.Enqueue(context.Background(), p)
	}
}

// runOnCommitter runs f where the fold may be read (on the committer), and then calls done.
func (pt *Partition) runOnCommitter(f func(), done func(error)) {
	p := &inbox.Put{Done: func(p *inbox.Put) { done(p.Err) }}
	p.Kind, p.Special = inbox.Inspection, &inbox.Special{Inspect: f}
	if err := pt.Enqueue(context.Background(), p); err != nil {
		done(err)
	}
}

// startBorder returns where the log begins.
func (pt *Partition) startBorder() core.Border {
	at, _, id := pt.log.Start()
	return core.Border{At: at, ID: id}
}

// WriteTombstone stores that this node's copies of the topic are deleted, behind all that is in the inbox.
func (pt *Partition) WriteTombstone(own *inbox.Special) error {
	w := inbox.NewWaiter()
	w.Kind, w.Special = inbox.Tombstone, own
	if err := pt.Enqueue(context.Background(), &w.Put); err != nil {
		w.Free()
		return err
	}
	return w.Result(pt.store.host)
}
