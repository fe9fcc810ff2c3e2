package node

import (
	"log/slog"
	"strings"
	"testing"

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
		op := wire.Operation{Kind: "rename-channel", Channel: channel}
		_, err := topic.Local().Execute(t.Context(), op)
		if err == nil || !strings.Contains(err.Error(), `"rename-channel"`) {
			t.Errorf("channel %q: %v", channel, err)
		}
	}
	op := wire.Operation{Kind: wire.OpPending, Channel: "elsewhere"}
	if result, err := topic.Local().Execute(t.Context(), op); result != nil || err != nil {
		t.Errorf("a channel that is not here: %s, %v", result, err)
	}
}
