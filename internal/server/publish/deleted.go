package publish

import (
	"context"
	"errors"
	"time"

	"penstock/internal/node/errs"
)

// A client may name a topic or channel that is being deleted, such as an ephemeral one whose last client has just left.
// The client then creates it again. For that it waits until the deletion is done, at most about maxDeletedTries ×
// deletedPause.
const (
	maxDeletedTries = 200
	deletedPause    = 5 * time.Millisecond
)

// RetryDeleted calls do again while it fails because the topic or channel is being deleted, or because its leadership
// has just moved to another node.
func RetryDeleted(ctx context.Context, do func() error) error {
	for try := 0; ; try++ {
		err := do()
		if !errors.Is(err, errs.ErrDeleted) && !errors.Is(err, errs.ErrMoved) || try == maxDeletedTries {
			return err
		}
		if try == 0 {
			continue // the deletion may be over already
		}
		select {
		case <-time.After(deletedPause):
		case <-ctx.Done():
			return err
		}
	}
}
