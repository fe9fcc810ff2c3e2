package node

import (
	"log/slog"
	"strings"
	"testing"

	tp "penstock/internal/node/topic"
	"penstock/replicate/wire"
)

// A newer node requests an operation that this version does not know. The answer is an error even if the channel is not
// here, because the requester would take a missing result for done.
func TestUnknownOperation(t *testing.T) {
	e, err := Open(t.Context(), Options{DataPath: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	topic, err := e.CreateTopic(t.Context(), "t", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topic.CreateChannel(t.Context(), "here"); err != nil {
		t.Fatal(err)
	}
	for _, channel := range []string{"here", "elsewhere", ""} {
		op := wire.Operation{Kind: "rename-channel", Channel: channel, Partitions: []uint32{0}}
		_, err := tp.Hooks{T: topic}.Perform(t.Context(), op)
		if err == nil || !strings.Contains(err.Error(), `"rename-channel"`) {
			t.Errorf("channel %q: %v", channel, err)
		}
	}
	op := wire.Operation{Kind: wire.OpPending, Channel: "elsewhere", Partitions: []uint32{0}}
	if result, err := (tp.Hooks{T: topic}).Perform(t.Context(), op); result != nil || err != nil {
		t.Errorf("a channel that is not here: %s, %v", result, err)
	}
}
