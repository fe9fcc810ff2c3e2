package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/load"
	"penstock/internal/node"
	"penstock/tests/support/patience"
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
	var status node.BackupStatus
	if err := json.Unmarshal([]byte(out), &status); code != 0 || err != nil || status.State != node.BackupDone {
		t.Fatalf("exit %d, %v: %s%s", code, err, out, errs)
	}
	if code, _, errs := command("backup", to, "--http-address", p.http); code != cli.ExitUsage ||
		!strings.Contains(errs, "is not empty") {
		t.Errorf("into the same directory: exit %d, %s", code, errs)
	}
	p.end(syscall.SIGKILL)
	<-stop

	restored := filepath.Join(t.TempDir(), "restored")
	if code, out, errs := command("restore", to, "--data-path", restored); code != 0 {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if code, _, errs := command("restore", to, "--data-path", restored); code != cli.ExitData ||
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

// publishMuch stores about 128 MB, more than the commit log keeps, so that there are segments.
func (p *process) publishMuch(t *testing.T) {
	t.Helper()
	_, err := load.Publish(t.Context(), load.Config{
		Address: p.nsq, Topic: "orders", Connections: 4, InFlight: 16, Batch: 10, SizeBytes: 10_000, Ready: 1,
		Messages: 12_800,
	})
	must(t, err)
}

// An admin's token writes backups below one place of the machine only: by default beside the data directory. What leads
// elsewhere is refused with the setting's name, and nothing is written there.
func TestBackupElsewhereIsRefused(t *testing.T) {
	base := t.TempDir()
	data, place, elsewhere := filepath.Join(base, "data"), filepath.Join(base, "place"), filepath.Join(base, "elsewhere")
	must(t, os.Mkdir(place, 0o700))
	must(t, os.Symlink(base, filepath.Join(place, "out")))
	for _, c := range []struct{ name, allowed, flag string }{
		{"the default", data + "-backups", ""}, {"a place that the setting names", place, place},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startProcess(t, "", binary(t), []string{
				"serve", "--data-path", data, "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
				"--lookup-address", "127.0.0.1:0", "--backup-path", c.flag,
			})
			for _, to := range []string{
				elsewhere, c.allowed + "/../elsewhere", place + "/out/elsewhere", c.allowed + "2/x", c.allowed,
			} {
				resp, err := http.Post("http://"+p.http+"/backup?dir="+url.QueryEscape(to), "", nil)
				must(t, err)
				said, err := io.ReadAll(resp.Body)
				must(t, errors.Join(err, resp.Body.Close()))
				if resp.StatusCode != 400 || !strings.Contains(string(said), "backup-path") {
					t.Errorf("%s: %s %s", to, resp.Status, said)
				}
				if _, err := os.Stat(filepath.Join(to, "backup.json")); err == nil {
					t.Errorf("%s was written", to)
				}
			}
			if _, err := os.Stat(elsewhere); err == nil {
				t.Error("a directory was made")
			}
			execute(t, "backup", elsewhere, "--http-address", p.http).check(t, cli.ExitUsage, "backup-path")
			execute(t, "backup", filepath.Join(c.allowed, "a", "b"), "--http-address", p.http).well(t)
			p.end(syscall.SIGTERM)
		})
	}
}

// A backup onto a disk that becomes full, another file system than that of the data, says so and leaves nothing there.
// The node goes on, and a backup onto a larger disk, copied at a bounded rate, is whole.
func TestBackupOntoAFullDisk(t *testing.T) {
	t.Parallel()
	small, large := tmpfs(t, "size=16m"), tmpfs(t, "size=512m")
	p := startNode(t, filepath.Join(t.TempDir(), "data"), "--commit-live-bytes", "64MiB", "--commit-file-bytes", "16MiB")
	p.publishMuch(t)
	to := filepath.Join(small, "backup")
	execute(t, "backup", to, "--http-address", p.http).check(t, cli.ExitOther, "no space left on device")
	if left, err := os.ReadDir(small); err != nil || len(left) != 0 {
		t.Errorf("%v are left (%v)", left, err)
	}
	p.publish("orders", 100)

	to = filepath.Join(large, "backup")
	began := time.Now()
	o := execute(t, "backup", to, "--rate", "40MiB", "--http-address", p.http, "--json")
	var status node.BackupStatus
	must(t, json.Unmarshal([]byte(o.stdout), &status))
	if o.code != 0 || status.LinkedBytes != 0 || status.CopiedBytes < 100<<20 {
		t.Fatalf("%+v", o)
	}
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("%d bytes at 40 MiB a second took %v", status.CopiedBytes, took)
	}
	restored := filepath.Join(t.TempDir(), "restored")
	if o := execute(t, "restore", to, "--data-path", restored); o.code != 0 {
		t.Fatalf("%+v", o)
	}
	execute(t, "restore", to, "--data-path", filepath.Join(small, "restored")).check(
		t, cli.ExitData, "no space left on device")
	if left, err := os.ReadDir(small); err != nil || len(left) != 0 {
		t.Errorf("%v are left of the restore (%v)", left, err)
	}
}

// A node is killed while it is backed up. Its unfinished backup is recognised and never restored; the node starts,
// removes what the backup held, and makes another one.
func TestBackupIsKilled(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	p := startNode(t, data, "--commit-live-bytes", "64MiB", "--commit-file-bytes", "16MiB")
	p.publishMuch(t)
	to := filepath.Join(t.TempDir(), "backup")
	said := make(chan outcome, 1)
	go func() {
		var stdout, stderr bytes.Buffer
		cmd := exec.Command(binary(t), "backup", to, "--rate", "1000000", "--http-address", p.http)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		said <- outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	}()
	for end := time.Now().Add(patience.Or(90 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
		if held, _ := filepath.Glob(filepath.Join(to, "topics", "*", "*", "*.seg")); len(held) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the backup does not begin")
		}
	}
	p.end(syscall.SIGKILL)
	o := <-said
	o.check(t, cli.ExitOther, "the node began the backup into "+to)
	o.check(t, cli.ExitOther, "the backup is complete if "+filepath.Join(to, "backup.json")+" exists; otherwise, once "+
		"the "+
		"node has ended, remove "+to+" and begin again")
	restored := filepath.Join(t.TempDir(), "restored")
	execute(t, "restore", to, "--data-path", restored).check(t, cli.ExitData, "is no complete backup")
	if _, err := os.Stat(restored); err == nil {
		t.Error("something was restored")
	}
	p = startNode(t, data, "--commit-live-bytes", "64MiB", "--commit-file-bytes", "16MiB")
	if held, err := os.ReadDir(filepath.Join(data, "held")); err == nil && len(held) > 0 {
		t.Errorf("%d second names are left", len(held))
	}
	execute(t, "backup", to, "--http-address", p.http).check(t, cli.ExitUsage, "is not empty")
	if o := execute(t, "backup", to+"2", "--http-address", p.http); o.code != 0 {
		t.Errorf("%+v", o)
	}
}
