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

func clogdump(args ...string) (code int, stdout, stderr string) {
	return execute("clogdump", args...)
}

func openOrders(t *testing.T, dir string) (*node.Engine, *node.Topic) {
	t.Helper()
	e, err := node.Open(t.Context(), node.Options{DataPath: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	topic, err := e.Topic(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	return e, topic
}

func TestClogdump(t *testing.T) {
	dir := t.TempDir()
	e, topic := openOrders(t, dir)
	for range 50 {
		if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("message")}); err != nil {
			t.Fatal(err)
		}
	}
	if code, _, errs := clogdump(dir); code != exitNotChecked || !strings.Contains(errs, "running") {
		t.Errorf("while the node runs: exit code %d, %q", code, errs)
	}
	if code, out, errs := clogdump("--live", dir); code != exitClean || !strings.Contains(out, "group") {
		t.Errorf("--live: exit code %d, %q", code, errs)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	code, out, errs := clogdump("--json", "--records", dir)
	if code != exitClean {
		t.Fatalf("exit code %d, %s", code, errs)
	}
	var messages uint32
	var next segment.MsgID
	checkpoints := 0
	dec := json.NewDecoder(strings.NewReader(out))
	for first := true; dec.More(); first = false {
		var g groupLine
		if err := dec.Decode(&g); err != nil {
			t.Fatal(err)
		}
		if g.Error != "" || g.Foreign || !first && !g.Continues {
			t.Errorf("group %+v", g)
		}
		for _, r := range g.Content {
			if r.Type == "checkpoint" {
				checkpoints++
				continue
			}
			if r.FirstID != next {
				t.Errorf("a batch begins with id %d, want %d", r.FirstID, next)
			}
			messages += r.Count
			next += segment.MsgID(r.Count)
		}
	}
	if messages != 50 || checkpoints == 0 {
		t.Errorf("%d messages, %d checkpoints", messages, checkpoints)
	}
	if _, out, _ := clogdump("--records", dir); !strings.Contains(out, "messages from id 49") {
		t.Errorf("the text lacks the last message:\n%s", out)
	}
}

func TestClogdumpOfDamage(t *testing.T) {
	dir := t.TempDir()
	e, topic := openOrders(t, dir)
	if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: bytes.Repeat([]byte("find me"), 100)}); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "clog", "*.clog"))
	if err != nil {
		t.Fatal(err)
	}
	changed := false
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if at := bytes.Index(data, []byte("find me")); at >= 0 {
			data[at] ^= 1
			changed = true
			if err := os.WriteFile(name, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !changed {
		t.Fatal("the message is not in the commit log")
	}
	if code, out, _ := clogdump(dir); code != exitCorrupt || !strings.Contains(out, "DAMAGED") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if code, _, errs := clogdump(); code != exitNotChecked || errs == "" {
		t.Errorf("no directory: exit code %d, %q", code, errs)
	}
}
