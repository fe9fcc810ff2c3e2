package node_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
)

func open(t *testing.T, dir string) *node.Engine {
	t.Helper()
	e, err := node.Open(context.Background(), node.Options{
		DataPath: dir, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// B44
func TestPublishConsumeReopen(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dir := t.TempDir()
	e := open(t, dir)
	topic, err := e.Topic(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	const n = 1000
	for i := range n {
		id, err := topic.PublishMessage(ctx, node.Outgoing{Body: fmt.Appendf(nil, "m%d", i)})
		if err != nil || id.MsgID() != 0+id.MsgID() || uint64(id) != uint64(i) {
			t.Fatalf("publish %d: id %s, %v", i, id, err)
		}
	}
	ch, err := topic.Channel(ctx, "c")
	if err != nil {
		t.Fatal(err)
	}
	got := consume(t, ch, n/2)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir)
	defer e.Close()
	topic, _ = e.Catalog().LookupTopic("orders")
	ch, ok := topic.LookupChannel("c")
	if !ok {
		t.Fatal("the channel is gone")
	}
	for id := range consume(t, ch, n/2) {
		if got[id] {
			t.Errorf("%s was confirmed before a clean stop and came again", id)
		}
		got[id] = true
	}
	if len(got) != n {
		t.Fatalf("%d of %d messages", len(got), n)
	}
}

func consume(t *testing.T, ch *node.Channel, n int) map[node.ID]bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	got := map[node.ID]bool{}
	var mu sync.Mutex
	err := ch.Consume(ctx, node.ConsumeOptions{}, func(_ context.Context, m *node.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if len(got) == n {
			return fmt.Errorf("enough")
		}
		got[m.ID] = true
		if len(got) == n {
			cancel()
		}
		return nil
	})
	if err != nil || len(got) != n {
		t.Fatalf("consumed %d of %d: %v", len(got), n, err)
	}
	return got
}
