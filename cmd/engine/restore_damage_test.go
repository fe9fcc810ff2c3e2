package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/node"
)

// flipMessage damages the first message in a segment that has this text, below dir.
func flipMessage(t *testing.T, dir, text string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "topics", "*", "*", "*.seg"))
	must(t, err)
	for _, name := range names {
		data, err := os.ReadFile(name)
		must(t, err)
		if at := bytes.Index(data, []byte(text)); at >= 0 {
			data[at] ^= 1
			must(t, os.WriteFile(name, data, 0o600))
			return
		}
	}
	t.Fatalf("%q is not in %v", text, names)
}

// A backup with a message that does not read back is not restored as if it were whole. The command says what is
// missing, and restores the rest of it when it is told to.
func TestRestoreAcceptsLoss(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	e, err := node.Open(t.Context(), node.Options{
		DataPath: dir, Logger: slog.New(slog.DiscardHandler), BufferBytes: 4 << 20, CommitFileBytes: 256 << 10,
		CommitLiveBytes: 1 << 20, MinSegmentBytes: 16 << 10, MaxSegmentBytes: 64 << 10,
		MaxMessageBytes: 16 << 10, MaxBatchBytes: 64 << 10,
	})
	must(t, err)
	topic, err := e.Topic(t.Context(), "orders")
	must(t, err)
	pad := strings.Repeat("x", 10_000)
	for i := range 200 { // more than the commit log keeps
		_, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: fmt.Appendf(nil, "message %d %s", i, pad)})
		must(t, err)
	}
	must(t, e.Close())
	from := filepath.Join(t.TempDir(), "backup")
	if o := execute(t, "backup", from, "--from", dir); o.code != 0 {
		t.Fatalf("%+v", o)
	}
	flipMessage(t, from, "message")
	to := filepath.Join(t.TempDir(), "restored")
	o := execute(t, "restore", from, "--data-path", to)
	for _, want := range []string{".seg of the backup is damaged", "--accept-loss", "nothing was restored"} {
		o.check(t, cli.ExitData, want)
	}
	o.check(t, cli.ExitData, "missing are topic orders, partition 0: 1 messages from ")
	o = execute(t, "restore", from, "--data-path", to, "--accept-loss")
	if o.code != 0 || !strings.Contains(o.stdout, "missing: topic orders, partition 0: 1 messages from ") {
		t.Errorf("%+v", o)
	}

	flipMessage(t, dir, "message")
	damaged := filepath.Join(t.TempDir(), "damaged")
	execute(t, "backup", damaged, "--from", dir).check(t, cli.ExitData,
		damaged+" is damaged: messages do not read back, on the node as in the backup: topic orders, partition 0: ")
	execute(t, "restore", damaged, "--data-path", to+"2").check(t, cli.ExitData, "what does not verify: topic orders")
}
