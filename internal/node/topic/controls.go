package topic

import (
	"context"
	"errors"
	"slices"

	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/partition"
)

// writeControls appends the same control entries to every partition that this node leads, and returns when all are
// committed. For the other partitions, the same operation runs on their leaders (onLeaders). After an error or a crash
// the entries are in the logs of some of the partitions, or of none.
func (l *Local) writeControls(ctx context.Context, controls []fold.Control) error {
	return l.writeControlsOf(ctx, func(*partition.Partition) ([]fold.Control, error) {
		return slices.Clone(controls), nil // each log fills in its own
	}, nil)
}

// writeControlsOf is writeControls with entries of its own for each partition. An error of controls ends it. onCommit
// (nil: nothing) runs for each partition at the moment of its commit: see inbox.List.Committed for the lock.
func (l *Local) writeControlsOf(
	ctx context.Context, controls func(*partition.Partition) ([]fold.Control, error),
	onCommit func(*partition.Partition),
) error {
	var ws []*inbox.Waiter
	var err error
	for _, pt := range l.t.PartitionList() {
		if !pt.Leading.Load() {
			continue
		}
		own := new(inbox.Special)
		if own.Controls, err = controls(pt); err != nil {
			break
		}
		if onCommit != nil {
			own.OnCommit = func() { onCommit(pt) }
		}
		var w *inbox.Waiter
		if w, err = pt.AppendControls(ctx, own); err != nil {
			break
		}
		ws = append(ws, w)
	}
	for _, w := range ws {
		err = errors.Join(err, w.Result(l.t.env.Host))
	}
	return err
}
