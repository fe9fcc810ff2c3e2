package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"penstock/cmd/engine/load"
	"penstock/engine"
)

// A node is backed up under load and killed. The restored one has every message that was answered OK before the command
// began, each once, and is the same node.
func TestBackupRestore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := startNode(t, dir)
	command := func(args ...string) (int, string, string) {
		t.Helper()
		o := execute(t, args...)
		return o.code, o.stdout, o.stderr
	}
	create := func(path string) {
		t.Helper()
		resp, err := http.Post("http://"+p.http+path, "", nil)
		must(t, err)
		must(t, resp.Body.Close())
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", path, resp.Status)
		}
	}
	create("/topic/create?topic=orders")
	create("/channel/create?topic=orders&channel=c")
	p.publish("orders", 3000)

	stop := make(chan struct{})
	go func() {
		defer close(stop)
		_, _ = load.Publish(t.Context(), load.Config{ // ends with the node
			Address: p.nsq, Topic: "orders", Connections: 4, InFlight: 16, Batch: 1, SizeBytes: 1000, Ready: 1,
			Messages: 40_000,
		})
	}()
	to := filepath.Join(t.TempDir(), "backup")
	code, out, errs := command("backup", to, "--http-address", p.http, "--json")
	var status engine.BackupStatus
	if err := json.Unmarshal([]byte(out), &status); code != 0 || err != nil || status.State != engine.BackupDone {
		t.Fatalf("exit %d, %v: %s%s", code, err, out, errs)
	}
	if code, _, errs := command("backup", to, "--http-address", p.http); code != exitUsage ||
		!strings.Contains(errs, "is not empty") {
		t.Errorf("into the same directory: exit %d, %s", code, errs)
	}
	p.end(syscall.SIGKILL)
	<-stop

	restored := filepath.Join(t.TempDir(), "restored")
	if code, out, errs := command("restore", to, "--data-path", restored); code != 0 {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if code, _, errs := command("restore", to, "--data-path", restored); code != exitData ||
		!strings.Contains(errs, "is not empty") {
		t.Errorf("into a directory in use: exit %d, %s", code, errs)
	}
	q := startNode(t, restored)
	var depth int64
	for _, topic := range statsOf(t, q).Topics {
		depth += topic.Channels[0].Depth
	}
	if depth < 3000 || depth > 43_000 {
		t.Errorf("%d messages wait; 3000 were answered OK before the backup began", depth)
	}
	if n := q.consume("orders", depth); n != depth {
		t.Errorf("%d of %d messages came", n, depth)
	}
	if code := q.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d", code)
	}

	// The stopped node, copied, and restored under a new name.
	copied, twin := filepath.Join(t.TempDir(), "copied"), filepath.Join(t.TempDir(), "twin")
	if code, out, errs := command("backup", copied, "--from", restored); code != 0 {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if code, out, errs := command("restore", copied, "--data-path", twin, "--new-identity"); code != 0 {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	nodes := map[string]bool{}
	for _, d := range []string{dir, restored, twin} {
		text, err := os.ReadFile(filepath.Join(d, "node.json"))
		must(t, err)
		var n struct {
			ID string `json:"node_id"`
		}
		must(t, json.Unmarshal(text, &n))
		nodes[n.ID] = true
	}
	if len(nodes) != 2 {
		t.Errorf("the three directories have the names %v", nodes)
	}
	twinNode := startNode(t, twin)
	if s := statsOf(t, twinNode); len(s.Topics) != 1 || s.Topics[0].Channels[0].Depth != 0 {
		t.Errorf("%+v", s)
	}
}

type statsShape struct {
	Topics []struct {
		Name     string `json:"topic_name"`
		Channels []struct {
			Depth int64 `json:"depth"`
		} `json:"channels"`
	} `json:"topics"`
}

func statsOf(t *testing.T, p *process) (s statsShape) {
	t.Helper()
	_, text := p.get("/stats?format=json")
	must(t, json.Unmarshal([]byte(text), &s))
	return s
}
