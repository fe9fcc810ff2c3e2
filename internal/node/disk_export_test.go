package node

import (
	"context"

	"penstock/internal/node/inbox"
)

// WritesWaiting returns how many writes to the disk have begun and not completed.
func WritesWaiting(e *Engine) uint64 {
	begun, done := e.pulse.Counts()
	return begun - done
}

// CommitLogWaits says whether a write into a file of the commit log found no room.
func CommitLogWaits(e *Engine) bool { return e.store.CommitLog().NoRoom() }

// PutTo submits a put to one partition, whichever node leads it, and waits for the answer.
func PutTo(ctx context.Context, t *Topic, n int, p *inbox.Put) error {
	done := make(chan error, 1)
	p.Done = func(p *inbox.Put) { done <- p.Err }
	if err := t.SubmitTo(n, p); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
