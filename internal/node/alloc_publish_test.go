//go:build !race

// The race detector makes pools drop values at random.

package node_test

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"penstock/internal/node"
)

// A caller that waits pays no allocation per message either, with headers and a key.
func TestPublishMessagesDoesNotAllocate(t *testing.T) {
	const perBatch, maxPerMessage = 10, 0.01
	e := openWith(t, node.Options{
		DataPath: fastDir(t), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), RetentionInterval: time.Hour,
	})
	topic := topicOf(t, e, "t")
	one := node.Outgoing{
		Body:    make([]byte, 100),
		Headers: headers("header-000", "000000000001", "header-001", "000000000002"),
		Key:     []byte("k"),
	}
	batch := make([]node.Outgoing, perBatch)
	for i := range batch {
		batch[i] = one
	}
	for what, publish := range map[string]func() error{
		"PublishMessage": func() error {
			for range perBatch {
				if _, err := topic.PublishMessage(t.Context(), one); err != nil {
					return err
				}
			}
			return nil
		},
		"PublishMessages": func() error { _, err := topic.PublishMessages(t.Context(), batch); return err },
	} {
		run := func() {
			if err := publish(); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			run()
		}
		if perMessage := testing.AllocsPerRun(300, run) / perBatch; perMessage > maxPerMessage {
			t.Errorf("%s: %.4f allocations per message, at most %v", what, perMessage, maxPerMessage)
		}
	}
}
