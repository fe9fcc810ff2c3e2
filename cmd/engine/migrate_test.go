package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/engine/internal/cli"
)

const cleanTable = `TOPIC   CHANNEL  MESSAGES  BYTES  DAMAGED  STATE
alone   -        10        70     0        
held    -        5         30     0        paused
held    late     0         0      0        
orders  -        0         0      0        
orders  audit    34        267    0        
orders  billing  20        160    0        
orders  idle     0         0      0        
quiet   -        0         0      0        
quiet   stopped  3         21     0        paused
total            72        548    0        
`

func TestMigrateDryRun(t *testing.T) {
	from, to := nsqdDir(t, "clean"), filepath.Join(t.TempDir(), "new")
	o := execute(t, "migrate", "nsqd", "--data-path", from, "--to", to, "--dry-run")
	if o.code != 0 || o.stdout != cleanTable || o.stderr != "" {
		t.Errorf("%+v", o)
	}
	if _, err := os.Stat(to); !os.IsNotExist(err) {
		t.Errorf("a dry run made the target: %v", err)
	}
}

func TestMigrateUsage(t *testing.T) {
	from := nsqdDir(t, "clean")
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{nil, cli.ExitUsage, "--data-path is missing"},
		{[]string{"--data-path", from}, cli.ExitUsage, "say where to"},
		{[]string{"--data-path", from, "--to", "x", "--http", "y"}, cli.ExitUsage, "exclude each other"},
		{[]string{"--data-path", from, "--to", from + "/."}, cli.ExitUsage, "nsqd's own directory"},
		{
			[]string{"--data-path", from, "--http", "127.0.0.1:1", "--state", filepath.Join(from, "s")},
			cli.ExitUsage,
			"another file",
		},
		{[]string{"--data-path", t.TempDir(), "--dry-run"}, cli.ExitData, "no files of an nsqd"},
	} {
		execute(t, append([]string{"migrate", "nsqd"}, tc.args...)...).check(t, tc.code, tc.want)
	}
}

// Everything readable is imported, and the exit code says that something was not.
func TestMigrateDamaged(t *testing.T) {
	from := nsqdDir(t, "clean")
	name := filepath.Join(from, "orders:audit.diskqueue.000001.dat")
	data, err := os.ReadFile(name)
	must(t, err)
	data[0] = 0x7f // the first record's size: this file is lost, but not the others
	must(t, os.WriteFile(name, data, 0o600))
	to := t.TempDir()
	o := execute(t, "migrate", "nsqd", "--data-path", from, "--to", to)
	if o.code != cli.ExitOther || !strings.Contains(o.stdout, "orders  audit    21 ") ||
		!strings.Contains(o.stderr, "damaged: orders:audit.diskqueue.000001.dat at byte 0: ") {
		t.Errorf("%+v", o)
	}
	o = execute(t, "migrate", "nsqd", "--data-path", from, "--to", to, "--skip-damaged")
	if o.code != 0 || !strings.Contains(o.stdout, "was imported before") {
		t.Errorf("%+v", o)
	}
	got, _ := contents(t, to)
	if n := len(got["orders:audit"]); n != 21 {
		t.Errorf("%d messages of audit, want 21", n)
	}
	if n := len(got["orders:billing"]); n != 20 {
		t.Errorf("%d messages of billing, want 20", n)
	}
}

// A running node accepts topics that need no confirmations. A topic whose channels have different backlogs is refused
// as a whole.
func TestMigrateIntoNode(t *testing.T) {
	t.Parallel()
	from, data, state := nsqdDir(t, "clean"), t.TempDir(), filepath.Join(t.TempDir(), "state.json")
	p := startNode(t, data)
	args := []string{"migrate", "nsqd", "--data-path", from, "--http", p.http, "--state", state}
	for range 2 {
		o := execute(t, args...)
		if o.code != cli.ExitOther || !strings.Contains(o.stderr, "topic orders: the channels have different backlogs") {
			t.Fatalf("%+v", o)
		}
	}
	execute(t, "migrate", "nsqd", "--data-path", from, "--to", data).check(t, cli.ExitData, "")
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	want := cleanBacklogs()
	for name := range want {
		if strings.HasPrefix(name, "orders") {
			delete(want, name)
		}
	}
	got, _ := contents(t, data)
	got.compare(t, want)
}

func TestMigrateIntoNodeWithAuth(t *testing.T) {
	from, dir := nsqdDir(t, "killed"), t.TempDir()
	tokens, token := filepath.Join(dir, "tokens.toml"), filepath.Join(dir, "token")
	must(t, os.WriteFile(tokens, fmt.Appendf(nil, "[[token]]\nname = \"import\"\nsha256 = "+
		"\"%x\"\n[[token.grant]]\npermissions = [\"publish\", \"subscribe\", \"admin\"]\ntopics = [\"*\"]\nchannels = "+
		"[\"*\"]\n", sha256.Sum256([]byte("secret"))), 0o600))
	must(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	cert, key := writeCertificate(t, dir, "node")
	p := startNode(t, t.TempDir(), "--auth-file", tokens, "--tls-cert", cert, "--tls-key", key, "--https-address",
		"127.0.0.1:0")
	args := []string{"migrate", "nsqd", "--data-path", from, "--http", p.http, "--state", filepath.Join(dir, "state.json")}
	if o := execute(t, args...); o.code != cli.ExitOther || !strings.Contains(o.stderr, "the node refused") {
		t.Errorf("without a token: %+v", o)
	}
	at := "https://" + httpsAddress.FindStringSubmatch(p.log.String())[1]
	o := execute(t, "migrate", "nsqd", "--data-path", from, "--http-address", at, "--tls-ca", cert, "--token-file", token,
		"--state", filepath.Join(dir, "state.json"))
	if o.code != 0 || !strings.Contains(o.stdout, "imported: 30 messages") {
		t.Errorf("over https: %+v", o)
	}
	o = execute(t, "migrate", "nsqd", "--data-path", from, "--http-address", "192.0.2.1:4151", "--token-file", token,
		"--state", filepath.Join(dir, "other.json"))
	if o.code == 0 || !strings.Contains(o.stderr, "the token was not sent") {
		t.Errorf("the token in clear to another machine: %+v", o)
	}
	if o := execute(t, append(args, "--token-file", filepath.Join(dir, "none"))...); o.code != cli.ExitUsage ||
		!strings.Contains(o.stderr, "the token file cannot be used") {
		t.Errorf("without the file: %+v", o)
	}
}

func TestMigrateNodeIsGone(t *testing.T) {
	o := execute(t, "migrate", "nsqd", "--data-path", nsqdDir(t, "clean"), "--http", "127.0.0.1:1", "--state",
		filepath.Join(t.TempDir(), "s"))
	if o.code != cli.ExitOther || !strings.Contains(o.stderr, "does not answer") ||
		!strings.Contains(o.stderr, "run the command again") {
		t.Errorf("%+v", o)
	}
}

// The import itself is killed with kill -9 at any moment, and started again. After the last run the target has exactly
// the messages of nsqd. B17
func TestMigrateKilled(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	var a, b []byte
	countA, countB := 0, 0
	for id := range 60_000 {
		record := nsqdRecord(id, strings.Repeat("x", 200))
		if id%3 != 0 {
			a, countA = append(a, record...), countA+1
		}
		if id%3 != 1 {
			b, countB = append(b, record...), countB+1
		}
	}
	must(t, os.WriteFile(filepath.Join(from, "t:a.diskqueue.000000.dat"), a, 0o600))
	must(t, os.WriteFile(filepath.Join(from, "t:b.diskqueue.000000.dat"), b, 0o600))
	must(t, os.WriteFile(filepath.Join(from, "nsqd.dat"),
		[]byte(`{"topics":[{"name":"t","channels":[{"name":"a"},{"name":"b"}]}]}`), 0o600))
	finished := false
	for after := 20 * time.Millisecond; !finished; after += 40 * time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		finished = exec.CommandContext(ctx, binary(t), "migrate", "nsqd", "--data-path", from, "--to", to).Run() == nil
		cancel()
	}
	got, _ := contents(t, to)
	if len(got["t:a"]) != countA || len(got["t:b"]) != countB || len(got["t"]) != 0 {
		t.Errorf("a has %d of %d messages, b %d of %d", len(got["t:a"]), countA, len(got["t:b"]), countB)
	}
}
