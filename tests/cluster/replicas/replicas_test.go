package replicas

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/internal/node"
)

// publish stores n messages of a topic and closes the node. Segments and commit log files are small, so that both are
// read.
func publish(t *testing.T, dir, body string, n int) {
	t.Helper()
	e, err := node.Open(context.Background(), node.Options{
		DataPath: dir, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), IO: "pwrite",
		MaxMessageBytes: 64 << 10, MaxBatchBytes: 256 << 10, CommitFileBytes: 1 << 20, CommitLiveBytes: 4 << 20,
		BufferBytes: 4 << 20, MinSegmentBytes: 256 << 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	topic, err := e.Topic(context.Background(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if _, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: fmt.Appendf(nil, "%s %d %s",
			body, i, strings.Repeat("x", 8000))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, dir string) *Node {
	t.Helper()
	n, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func copied(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// B94
func TestCompare(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "node")
	publish(t, dir, "first", 2000) // 16 MB: more than the commit log keeps
	same := copied(t, dir)
	longer := copied(t, dir)
	publish(t, longer, "more", 10)
	other := copied(t, dir)
	publish(t, other, "else", 5)

	a := read(t, dir)
	if got := Messages([]*Node{a}); got != 2000 {
		t.Errorf("%d messages were read", got)
	}
	if segments, err := filepath.Glob(filepath.Join(dir, "topics", "*", "*", "*.seg")); err != nil || len(segments) < 2 {
		t.Errorf("%d segments: the test reads only the commit log", len(segments))
	}
	for _, tc := range []struct {
		name    string
		nodes   []*Node
		whole   bool
		differ  int
		saysThe string
	}{
		{"the same", []*Node{a, read(t, same)}, true, 0, ""},
		{"one is behind", []*Node{a, read(t, longer)}, false, 0, ""},
		{"one is behind at rest", []*Node{a, read(t, longer)}, true, 1, "one ends before position"},
		{"diverged", []*Node{a, read(t, longer), read(t, other)}, false, 1, "they differ at position"},
		{"one alone", []*Node{a}, true, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := Compare(tc.nodes, tc.whole)
			if len(r.Differences) != tc.differ || len(tc.nodes) > 1 && (r.Partitions != 1 || r.Bytes < 2000*8000) {
				t.Fatalf("%+v", r)
			}
			for _, d := range r.Differences {
				if !strings.Contains(d.String(), tc.saysThe) {
					t.Errorf("%v", d)
				}
			}
		})
	}
}

// A replica that does not verify is not equal to one that does.
func TestDamageIsADifference(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "node")
	publish(t, dir, "first", 2000)
	damaged := copied(t, dir)
	segments, err := filepath.Glob(filepath.Join(damaged, "topics", "*", "*", "*.seg"))
	if err != nil || len(segments) == 0 {
		t.Fatal("no segments", err)
	}
	data, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	data[100_000] ^= 1
	if err := os.WriteFile(segments[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := Read(damaged)
	if err == nil {
		t.Errorf("it was read: %+v", Compare([]*Node{read(t, dir), b}, true))
	} else if !strings.Contains(err.Error(), "is followed by") {
		t.Error(err)
	}
	if _, err := Read(t.TempDir()); err == nil {
		t.Error("an empty directory is a node")
	}
}
