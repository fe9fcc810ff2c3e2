package engine

import (
	"context"
	"errors"
	"slices"

	"penstock/engine/core"
)

// Control entries get into a partition's log as a batch of their own, behind all that is in the inbox before them:
//
//	appendControls  hands a batch over, and returns a waiter for the result; the next three use it:
//	writeControls   of a partition: several batches, one after the other, each committed before the next
//	writeControls   of a topic: the same entries into every partition that this node leads
//	writeControls   of a channel: what its machine gives away, in order (channel_committed.go)
//	postControls    hands a batch over that nobody waits for
//
// What a channel's consumers confirm goes its own way: a controlPut is used again and again (confirm.go).

// appendControls hands own.controls over, which belong to the log from then on. Unless it returns an error the caller
// calls result on the waiter, or receives from its done and frees it.
//
// A batch waits in the inbox at most Options.PublishTimeout, and then was not stored. Entries that a channel's machine
// has given away (own.source) wait there for as long as it takes: they must be written.
func (pt *partition) appendControls(ctx context.Context, own *specialPut) (*waiter, error) {
	w := getWaiter()
	w.kind, w.special = putControls, own
	if own.source == nil {
		w.deadline = pt.e.now().Add(pt.e.opts.PublishTimeout).UnixNano()
	}
	if err := pt.enqueue(ctx, &w.Put); err != nil {
		w.free()
		return nil, err
	}
	return w, nil
}

// result waits until the put is committed, or will not be, and frees the waiter. No defer frees it: when a simulated
// process is killed, its tasks end inside Receive, and the put is in the inbox still.
func (w *waiter) result() error {
	w.part.e.host.Receive(w.done)
	err := w.Err
	w.free()
	return err
}

// writeControls appends batches of control entries and returns when all are committed; onCommit runs with the last one.
func (pt *partition) writeControls(ctx context.Context, batches [][]core.Control, onCommit func()) error {
	for i, b := range batches {
		own := &specialPut{controls: b}
		if i == len(batches)-1 {
			own.onCommit = onCommit
		}
		w, err := pt.appendControls(ctx, own)
		if err == nil {
			err = w.result()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeControls appends the same control entries to every partition that this node leads, and returns when all are
// committed; onCommit (nil: nothing) runs with each. The other partitions' leaders are asked, too.
func (t *Topic) writeControls(ctx context.Context, controls []core.Control, onCommit func(*partition)) error {
	var ws []*waiter
	var err error
	for _, pt := range t.partitions() {
		if !pt.rep.leads.Load() {
			continue
		}
		own := &specialPut{controls: slices.Clone(controls)} // each log fills in its own
		if onCommit != nil {
			own.onCommit = func() { onCommit(pt) }
		}
		var w *waiter
		if w, err = pt.appendControls(ctx, own); err != nil {
			break
		}
		ws = append(ws, w)
	}
	for _, w := range ws {
		err = errors.Join(err, w.result())
	}
	return err
}

// postControls hands a batch over that nobody waits for. Unless it returns an error done hears what became of it,
// however long that takes; done runs where Put.Done does.
func (pt *partition) postControls(own *specialPut, done func(error)) error {
	p := &Put{Done: func(p *Put) { done(p.Err) }}
	p.kind, p.special, p.noExpiry = putControls, own, true
	return pt.enqueue(context.Background(), p)
}
