package node

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"penstock/internal/node/errs"
)

// Waiting for a condition ends with it, with the caller's context and with the engine.
func TestAwait(t *testing.T) {
	t.Parallel()
	cn := bareNode()
	cn.Ctx, cn.cancel = context.WithCancel(t.Context())
	var reached atomic.Bool
	result := make(chan error)
	wait := func(ctx context.Context) {
		go func() { result <- cn.Await(ctx, reached.Load) }()
	}
	wait(t.Context())
	cn.e.news.Raise() // there may be no news for this waiter
	reached.Store(true)
	cn.e.news.Raise()
	if err := <-result; err != nil {
		t.Errorf("what was reached ended with %v", err)
	}

	reached.Store(false)
	ctx, cancel := context.WithCancel(t.Context())
	wait(ctx)
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context the caller got %v", err)
	}

	wait(t.Context())
	cn.cancel()
	cn.e.news.Raise()
	if err := <-result; !errors.Is(err, errs.ErrClosed) {
		t.Errorf("when the engine closed the caller got %v", err)
	}
}
