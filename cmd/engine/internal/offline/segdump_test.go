package offline

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/internal/node"
	"penstock/segment"
)

// segmentFile makes a segment with 3000 messages of a real engine.
func segmentFile(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	e, err := node.Open(t.Context(), node.Options{DataPath: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	topic, err := e.Topic(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topic.Channel(t.Context(), "billing"); err != nil {
		t.Fatal(err)
	}
	for range 30 {
		bodies := make([][]byte, 100)
		for i := range bodies {
			bodies[i] = []byte("message")
		}
		if _, err := topic.PublishBatch(t.Context(), bodies); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil { // writes what only the commit log had
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "topics", "*", "0", "*.seg"))
	if err != nil || len(names) != 1 {
		t.Fatalf("segments: %v, %v", names, err)
	}
	return names[0]
}

func segdump(args ...string) (code int, stdout, stderr string) {
	return execute("segdump", args...)
}

func lines(t *testing.T, out string) (all []segmentLine) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(out))
	for dec.More() {
		var l segmentLine
		if err := dec.Decode(&l); err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

func TestSegdump(t *testing.T) {
	name := segmentFile(t)
	code, out, errs := segdump("--json", "--records", "--body", "4", name)
	if code != exitClean || errs != "" {
		t.Fatalf("exit code %d, %s", code, errs)
	}
	var next segment.MsgID
	seen := map[string]int{}
	for _, l := range lines(t, out) {
		seen[l.Kind]++
		switch l.Kind {
		case "record":
			if l.Record.ID != next || string(l.Record.Body) != "mess" || l.Record.Bytes != 7 {
				t.Fatalf("record %+v, want id %d", l.Record, next)
			}
			next++
		case "end":
			if !strings.Contains(l.End.Why, "unwritten") {
				t.Errorf("the end: %s", l.End.Why)
			}
		}
	}
	if next != 3000 || seen["segment"] != 1 || seen["end"] != 1 || seen["control"] == 0 {
		t.Errorf("%d records; lines: %v", next, seen)
	}
	code, out, _ = segdump("--records", name)
	for _, want := range []string{
		"segment 0 of topic", "channel created billing, id 0", `id 2999, 7 bytes: "message"`, "unwritten space",
	} {
		if code != exitClean || !strings.Contains(out, want) {
			t.Errorf("exit code %d; the text lacks %q", code, want)
		}
	}
}

func TestSegdumpOfDamage(t *testing.T) {
	name := segmentFile(t)
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[int]string{
		10:                              "checksum of the segment header",
		segment.SegmentHeaderBytes + 50: "header checksum",
		segment.SegmentHeaderBytes + segment.HeaderBytes + 1: "body checksum",
	} {
		damaged := bytes.Clone(data)
		damaged[at] ^= 1
		if err := os.WriteFile(name, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out, _ := segdump(name); code != exitCorrupt || !strings.Contains(out, want) {
			t.Errorf("byte %d: exit code %d, want %q:\n%s", at, code, want, out)
		}
	}
	if code, _, errs := segdump(name + ".none"); code != exitNotChecked || errs == "" {
		t.Errorf("a missing file: exit code %d, %q", code, errs)
	}
	if code, _, errs := segdump(); code != exitNotChecked || errs == "" {
		t.Errorf("no file: exit code %d, %q", code, errs)
	}
}
