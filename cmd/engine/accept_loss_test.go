package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/node/offline"
)

// A single node whose commit log is gone is refused with an exit code of its own. It says what to do, and when the loss
// is accepted, it starts. Where nobody can answer, accept-loss does nothing without --yes.
func TestForgottenCommitLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startNode(t, dir)
	p.publish("orders", 5)
	p.end(syscall.SIGTERM)
	execute(t, "accept-loss").check(t, cli.ExitUsage, "--data-path")
	if out := execute(t, "accept-loss", "--data-path", dir).well(t); !strings.Contains(out, "nothing was changed") {
		t.Errorf("a whole directory: %s", out)
	}
	must(t, os.Rename(filepath.Join(dir, "clog"), filepath.Join(dir, "moved")))
	serve := []string{
		"serve", "--data-path", dir, "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--lookup-address",
		"127.0.0.1:0",
	}
	refused := execute(t, serve...)
	refused.check(t, cli.ExitForgot, "the folder clog is empty or gone")
	refused.check(t, cli.ExitForgot, "penstock accept-loss --data-path "+dir)

	must(t, os.RemoveAll(filepath.Join(dir, "clog")))
	must(t, os.Rename(filepath.Join(dir, "moved"), filepath.Join(dir, "clog")))
	startNode(t, dir).end(syscall.SIGTERM) // what comes back makes it whole
	backUpAndRestore(t, dir, "")

	must(t, os.RemoveAll(filepath.Join(dir, "clog")))
	execute(t, "accept-loss", "--data-path", dir).check(t, cli.ExitUsage, "--yes")
	execute(t, serve...).check(t, cli.ExitForgot, "the folder clog is empty or gone")
	backUpAndRestore(t, dir, "lacks what the node wrote to it (the folder clog is empty or gone): messages that were "+
		"answered OK are missing; put back what was moved away and make the backup again, or restore an older one")
	var loss offline.Loss
	out := execute(t, "accept-loss", "--data-path", dir, "--yes", "--json").well(t)
	if err := json.Unmarshal([]byte(out), &loss); err != nil || loss.Forgotten == "" || len(loss.Partitions) != 1 ||
		loss.Partitions[0].Topic != "orders" || loss.Partitions[0].NextID != 0 {
		t.Errorf("%v: %s", err, out)
	}
	p = startNode(t, dir)
	p.publish("orders", 1)
	execute(t, "accept-loss", "--data-path", dir, "--yes").check(t, cli.ExitData, "in use")
	p.end(syscall.SIGTERM)
}

// backUpAndRestore copies the directory of a stopped single node and restores that. Nothing is refused, and both
// commands say what is missing; "": nothing is.
func backUpAndRestore(t *testing.T, dir, missing string) {
	t.Helper()
	to := filepath.Join(t.TempDir(), "backup")
	for _, args := range [][]string{
		{"backup", to, "--from", dir},
		{"restore", to, "--data-path", filepath.Join(t.TempDir(), "restored")},
	} {
		out := execute(t, args...).well(t)
		if says := strings.Contains(out, "lacks what"); says != (missing != "") || !strings.Contains(out, missing) {
			t.Errorf("%s says %s", args[0], out)
		}
	}
}
