package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

var sinceLine = regexp.MustCompile(
	`(?m)^(nothing was changed, and nobody was refused,|the nodes have all entries) since (\S+)$`)

// auditOf runs penstock audit against a node, and returns what it prints and since when it knows all.
func auditOf(t *testing.T, p *process) (text string, since time.Time) {
	t.Helper()
	o := execute(t, "audit", "--http-address", p.http)
	m := sinceLine.FindStringSubmatch(o.stdout)
	if o.code != 0 || m == nil {
		t.Fatalf("%+v", o)
	}
	since, err := time.Parse(time.RFC3339, m[2])
	must(t, err)
	return o.stdout, since
}

// O5. The audit is there after kill -9, and says since when it knows all: since the first start, not the last one. The
// folder disturbs neither fsck nor a start.
func TestAuditIsThereAfterKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := startNode(t, dir)
	text, begun := auditOf(t, p)
	if !strings.Contains(text, "nothing was changed, and nobody was refused, since 2") {
		t.Errorf("at first: %s", text)
	}
	execute(t, "topic", "create", "orders", "--http-address", p.http).well(t)
	file := filepath.Join(dir, "audit", "changes.jsonl")
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), "topic=orders") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the change does not come to the disk")
		}
	}
	p.end(syscall.SIGKILL)
	p = startNode(t, dir)
	text, since := auditOf(t, p)
	if !strings.Contains(text, "topic=orders") || !since.Equal(begun) {
		t.Errorf("known since %v, and at first since %v:\n%s", since, begun, text)
	}
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	must(t, os.RemoveAll(filepath.Join(dir, "audit")))
	p = startNode(t, dir)
	if text, now := auditOf(t, p); strings.Contains(text, "orders") || !now.After(since) {
		t.Errorf("without its folder it knows all since %v:\n%s", now, text)
	}
}

// A disk that is full for the audit stops nothing: it is said once, counted, and shown by the command.
func TestAuditWithoutRoom(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	must(t, os.MkdirAll(filepath.Join(dir, "audit"), 0o700))
	must(t, os.Symlink("/dev/full", filepath.Join(dir, "audit", "changes.jsonl")))
	p := startNode(t, dir)
	for _, topic := range []string{"a", "b", "c"} {
		execute(t, "topic", "create", topic, "--http-address", p.http).well(t)
	}
	p.publish("a", 3)
	for end := time.Now().Add(20 * time.Second); p.metric("audit_not_written_total") < 3; {
		if time.Sleep(10 * time.Millisecond); time.Now().After(end) {
			t.Fatal("what is not written is not counted")
		}
	}
	text, _ := auditOf(t, p)
	if !strings.Contains(text, "topic=b") || !strings.Contains(text, "could not write 3 entries") {
		t.Errorf("%s", text)
	}
	if n := strings.Count(p.log.String(), "keeping the audit on disk failed"); n != 1 {
		t.Errorf("it is said %d times:\n%s", n, p.log)
	}
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
