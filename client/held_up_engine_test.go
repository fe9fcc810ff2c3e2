//go:build linux

package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"penstock/client"
)

// While its leader cannot be reached, Next waits, of a consumer and of a reader. When its context ends, the error says
// why nothing came, and matches the context's error; afterwards it says nothing of that any more.
func TestRealNextSaysWhatHoldsItUp(t *testing.T) {
	nodes := startNodes(t, 1)
	c := dialNodes(t, nodes)
	publish(t, c, 0, 1)
	k := consumer(t, c, client.ConsumerOptions{})
	r, err := c.Reader(within(t), "orders", 0, client.FromOldest())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	calls := map[string]func(context.Context) error{
		"the consumer's": func(ctx context.Context) error { _, err := k.Next(ctx); return err },
		"the reader's":   func(ctx context.Context) error { _, err := r.Next(ctx); return err },
	}
	says := func(what, part string, next func(context.Context) error) {
		eventually(t, what+" Next says: "+part, func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
			defer cancel()
			err := next(ctx)
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s Next: %v", what, err)
			}
			return err != nil && strings.HasSuffix(err.Error(), part)
		})
	}
	nodes[0].stop()
	for what, next := range calls {
		says(what, "connection refused", next)
	}
	nodes[0].start()
	for what, next := range calls {
		says(what, "context deadline exceeded", next)
	}
}
