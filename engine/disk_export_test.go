package engine

import (
	"context"

	"penstock/engine/inbox"
)

// WritesWaiting is how many writes the disk has that did not come back.
func WritesWaiting(e *Engine) uint64 {
	begun, done := e.pulse.Counts()
	return begun - done
}

// PutTo stores a put in one partition, wherever it is led, and waits for the answer.
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
