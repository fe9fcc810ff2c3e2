package node_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"penstock/internal/node"
)

// Batches that fit into no ordinary buffer are written to segments and leave memory like all others. If there are more
// of them than the large buffers can hold together, they are stored one after the other.
func TestLargeBatches(t *testing.T) {
	t.Parallel()
	e, err := node.Open(context.Background(), node.Options{
		DataPath: t.TempDir(), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	topic, err := e.Topic(context.Background(), "large")
	if err != nil {
		t.Fatal(err)
	}
	const batchBytes, total = 4 << 20, 320 << 20
	body := bytes.Repeat([]byte{'x'}, 1<<20)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for n := range total / batchBytes {
		if _, err := topic.PublishBatch(ctx, [][]byte{body, body, body, body}); err != nil {
			t.Fatalf("batch %d: %v", n, err)
		}
	}
}
