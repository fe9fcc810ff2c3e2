package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/node/datadir"
	"penstock/segment/aio"
	"penstock/tests/support/patience"
)

// check requires one sentence on stderr and the documented exit code.
func (o outcome) check(t *testing.T, code int, want string) {
	t.Helper()
	if o.code != code {
		t.Errorf("exit code %d, want %d:\n%s", o.code, code, o.stderr)
	}
	lines := strings.Split(strings.TrimSuffix(o.stderr, "\n"), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "penstock: ") || !strings.Contains(last, want) {
		t.Errorf("stderr ends with %q, want %q", last, want)
	}
	for _, l := range lines[:len(lines)-1] {
		if !strings.HasPrefix(l, "time=") { // log lines may come before
			t.Errorf("stderr has another line: %q", l)
		}
	}
}

func TestExitUsage(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"serve", "--dta-path", dir}, "unknown flag --dta-path; the nearest one is --data-path"},
		{[]string{"serve", "extra"}, "unknown command"},
		{[]string{"serv"}, `unknown command "serv"; the nearest one is penstock serve; see penstock --help`},
		{[]string{"nosuch"}, `unknown command "nosuch"; see penstock --help`},
		{
			[]string{"topic", "lst"},
			`unknown command "lst"; the nearest one is penstock topic list; see penstock topic --help`,
		},
		{[]string{"bench", "pubb"}, `"pubb"; the nearest one is penstock bench pub; see penstock bench --help`},
		{[]string{"completion", "tcsh"}, `unknown command "tcsh"; see penstock completion --help`},
		{[]string{"channel", "seek", "a", "b"}, `required flag(s) "to" not set; see penstock channel seek --help`},
		{[]string{"serve", "--io", "mmap", "--data-path", dir}, "not one of auto, uring, pwrite"},
		{[]string{"serve", "--config", filepath.Join(dir, "none.toml"), "--data-path", dir}, "does not exist"},
		{[]string{"serve", "--tls-cert", "c.pem", "--data-path", dir}, "set both tls-cert and tls-key"},
		{[]string{"config", "--max-topics", "0"}, "smallest value"},
		{[]string{"bench", "pub", "--size", "huge"}, "not a size"},
		{[]string{"bench", "pub", "--sise", "1"}, "--sise; the nearest one is --size; see penstock bench pub --help"},
		{[]string{"channel", "peek", "a", "b", "--count", "many"}, `penstock: --count: "many" is not a whole number`},
		{
			[]string{"channel", "peek", "a", "b", "--count", "99999999999999999999"},
			`penstock: --count: "99999999999999999999" is too large or too small`,
		},
		{[]string{"channel", "set", "a", "b", "--rate", "-1"}, `penstock: --rate: "-1" is not a whole number of 0 or more`},
		{[]string{"pub", "a", "--producer", "", "--lines"}, "--producer needs a name"},
		{[]string{"pub", "a", "--rate", "fast"}, `penstock: --rate: "fast" is not a number`},
		{
			[]string{"cluster", "health", "--wait", "5"},
			`penstock: --wait: "5" is not a time such as 500ms, 90s, 1h30m or 10d`,
		},
		{[]string{"topic", "list", "--json=maybe"}, `penstock: --json: "maybe" is neither true nor false`},
		{[]string{"config", "--max-audit-entries", "many"}, `penstock: --max-audit-entries: "many" is not a whole number`},
		{[]string{"topic", "list", "--colour", "1"}, "penstock: unknown flag --colour; see penstock topic list --help"},
		{[]string{"channel", "peek", "orders"}, "accepts 2 arg(s), received 1: penstock channel peek TOPIC CHANNEL"},
		{
			[]string{
				"serve", "--data-path", dir, "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--lookup-address",
				"127.0.0.1:0", "--commit-file-bytes", "1MiB",
			},
			"penstock: the options contradict each other: CommitFileBytes",
		},
		{
			[]string{
				"serve", "--data-path", dir, "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--lookup-address",
				"127.0.0.1:0", "--auth-file", filepath.Join(dir, "none.toml"),
			},
			"penstock: the token file cannot be used: open ",
		},
	} {
		execute(t, tc.args...).check(t, cli.ExitUsage, tc.want)
	}
	t.Setenv("PENSTOCK_DATAPATH", dir)
	execute(t, "serve").check(t, cli.ExitUsage,
		"PENSTOCK_DATAPATH is not a setting; the nearest one is PENSTOCK_DATA_PATH")
}

func TestExitOK(t *testing.T) {
	if o := execute(t, "version"); o.code != 0 || !strings.Contains(o.stdout, version) ||
		!strings.Contains(o.stdout, "format") {
		t.Errorf("version: %+v", o)
	}
	t.Setenv("PENSTOCK_MAX_TOPICS", "5")
	o := execute(t, "config", "--io", "pwrite", "--json")
	var rows []struct{ Key, Source string }
	if err := json.Unmarshal([]byte(o.stdout), &rows); err != nil || o.code != 0 {
		t.Fatalf("config --json: %v, %+v", err, o)
	}
	source := map[string]string{}
	for _, r := range rows {
		source[r.Key] = r.Source
	}
	if source["io"] != "flag --io" || source["max_topics"] != "environment PENSTOCK_MAX_TOPICS" ||
		source["data_path"] != "default" {
		t.Errorf("sources: %v", source)
	}
}

// An output that cannot be written is no wrong usage.
func TestExitOutput(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, line := range []string{
		"version", "version --json", "--version", "config", "config --json", "config --defaults", "completion bash",
		"nsqd --version",
	} {
		cmd := exec.Command(binary(t), strings.Fields(line)...)
		var stderr strings.Builder
		cmd.Stdout, cmd.Stderr = full, &stderr
		_ = cmd.Run()
		(outcome{cmd.ProcessState.ExitCode(), "", stderr.String()}).check(t, cli.ExitOther, "no space left on device")
	}
}

func TestExitAddress(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	execute(t, "serve", "--data-path", t.TempDir(), "--nsq-address", address, "--http-address", "127.0.0.1:0").check(t,
		cli.ExitAddress, address+" is in use")
	execute(t, "serve", "--data-path", t.TempDir(), "--nsq-address", "127.0.0.1:0", "--http-address", address).check(t,
		cli.ExitAddress, address+" is in use")
	execute(t, "serve", "--data-path", t.TempDir(), "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
		"--lookup-address", address).check(t, cli.ExitAddress, address+" is in use")
	execute(t, "serve", "--data-path", t.TempDir(), "--nsq-address", "nonsense", "--http-address", "127.0.0.1:0").check(t,
		cli.ExitAddress, "nonsense")
}

// O13: an address that cannot be listened on is found before the data directory is made, whichever address it is.
func TestExitAddressMakesNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	base := freeBasePort(t)
	free := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", base+n) }
	for name, flags := range map[string][]string{
		"nsq":     {"--nsq-address", address},
		"http":    {"--http-address", address},
		"lookup":  {"--lookup-address", address},
		"another": {"--nsq-address", "192.0.2.1:4150"},
		"twice":   {"--nsq-address", free(0), "--http-address", free(0)},
		"cluster": {"--node-id", "a", "--cluster-address", address, "--cluster-peers", "a=" + address},
		"etcd": {
			"--node-id", "a", "--cluster-address", free(0), "--cluster-peers", "a=" + free(0), "--etcd-client-address", address,
		},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		all := append([]string{
			"serve", "--data-path", dir, "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--lookup-address",
			"127.0.0.1:0",
		}, flags...)
		o := execute(t, all...)
		if o.code != cli.ExitAddress || !strings.Contains(o.stderr, "choose another one") {
			t.Errorf("%s: %+v", name, o)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the data directory was made (%v)", name, err)
		}
	}
}

// Bad data directories: the command prints one clear sentence, exits with a non-zero code, and changes nothing.
func TestExitDataDirectory(t *testing.T) {
	t.Parallel()
	binary(t) // skips all cases together
	serve := func(dir string, args ...string) outcome {
		return execute(t, append([]string{
			"serve", "--data-path", dir, "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--lookup-address",
			"127.0.0.1:0", "--lock-wait", "0s",
		}, args...)...)
	}
	t.Run("in use", func(t *testing.T) {
		dir := t.TempDir()
		p := startNode(t, dir)
		serve(dir).check(t, cli.ExitData, "in use")
		if code := p.end(syscall.SIGTERM); code != 0 {
			t.Errorf("the first node ended with %d", code)
		}
	})
	t.Run("another node", func(t *testing.T) {
		dir := t.TempDir()
		startNode(t, dir, "--node-id", "a").end(syscall.SIGTERM)
		serve(dir, "--node-id", "b").check(t, cli.ExitData, "belongs to node \"a\"")
	})
	t.Run("a cluster's node", func(t *testing.T) {
		path := t.TempDir()
		disk, err := aio.OpenDisk(path, aio.DiskOptions{Mode: aio.ModePwrite})
		must(t, err)
		f, err := datadir.OpenNodeFile(disk, slog.New(slog.DiscardHandler), "a", datadir.FirstLevel, true, uuid.New)
		must(t, err)
		must(t, f.Adopt(uuid.New()))
		must(t, disk.Close())
		serve(path).check(t, cli.ExitData, "belongs to node \"a\" of cluster")
		execute(t, "migrate", "nsqd", "--data-path", nsqdDir(t, "clean"), "--to", path).check(t, cli.ExitData, "of cluster")
		if _, err := os.Stat(filepath.Join(path, "topics")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("something was imported: %v", err)
		}
	})
	t.Run("newer format", func(t *testing.T) {
		dir := t.TempDir()
		startNode(t, dir).end(syscall.SIGTERM)
		name := filepath.Join(dir, "node.json")
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		plain := regexp.MustCompile(`,\n  "crc32c": "[0-9a-f]{8}"`).ReplaceAllString(string(data), "")
		changed := regexp.MustCompile(`"format": \d+`).ReplaceAllString(plain, `"format": 99`)
		if changed == plain {
			t.Fatalf("node.json has no format: %s", data)
		}
		if err := os.WriteFile(name, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		serve(dir).check(t, cli.ExitData, "newer")
	})
	t.Run("a file", func(t *testing.T) {
		name := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		serve(name).check(t, cli.ExitData, name)
	})
	for _, name := range []string{"trash", "spare", "topics", "clog"} {
		t.Run(name+" on a file system of its own", func(t *testing.T) {
			dir, other := t.TempDir(), tmpfs(t, "size=64m")
			at := filepath.Join(dir, name)
			must(t, os.Mkdir(at, 0o700))
			must(t, unix.Mount(other, at, "", unix.MS_BIND, ""))
			t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) })
			serve(dir).check(t, cli.ExitData, "the folder "+name+" of the data directory is on another file system")
		})
		t.Run(name+" is a link", func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.Symlink(t.TempDir(), filepath.Join(dir, name)))
			serve(dir).check(t, cli.ExitData, "the folder "+name+" of the data directory is a link")
		})
	}
	t.Run("read-only", func(t *testing.T) {
		dir := tmpfs(t, "size=64m")
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=64m"); err != nil {
			t.Fatal(err)
		}
		serve(dir).check(t, cli.ExitData, "read-only")
	})
}

// A node whose commit log is damaged says what helps, which is not a restart, and that its topics store nothing.
func TestDamagedCommitLog(t *testing.T) {
	dir := t.TempDir()
	p := startNode(t, dir)
	for n := range 20 {
		p.publish("orders", 1)
		if n == 0 {
			execute(t, "channel", "create", "orders", "billing", "--http-address", p.http).well(t)
		}
	}
	p.end(syscall.SIGKILL)
	files, err := filepath.Glob(filepath.Join(dir, "clog", "*.clog"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	data, err := os.ReadFile(files[0])
	must(t, err)
	at := len(bytes.TrimRight(data, "\x00")) / 2 // in the middle of what was written
	for data[at] == 0 {
		at--
	}
	data[at] ^= 0xff
	must(t, os.WriteFile(files[0], data, 0o600))

	p = startNode(t, dir)
	for _, what := range []string{"topic", "channel"} {
		rows := strings.Split(strings.TrimSpace(execute(t, what, "list", "--http-address", p.http).well(t)), "\n")
		if len(rows) != 2 || !strings.HasSuffix(rows[1], "  stores nothing") {
			t.Errorf("%s list: %q", what, rows)
		}
	}
	aloneWorld(t, p).eventually(rowOf(t, "stores nothing"), true)
	if code := p.end(syscall.SIGTERM); code == 0 {
		t.Error("exit code 0")
	}
	log := p.log.String()
	if strings.Contains(log, "restart to recover") || strings.Count(log, "restore a backup of this node") != 2 ||
		!strings.Contains(log, "a restart does not help") {
		t.Errorf("the log:\n%s", log)
	}
}

// A full disk does not stop a node: it starts, reports the problem, refuses to publish, and publishes once there is
// room.
func TestFullDisk(t *testing.T) {
	dir := tmpfs(t, "size=256k")
	p := startNode(t, dir, "--publish-timeout", "300ms", "--admit-timeout", "200ms")
	publish := func() outcome {
		return execute(t, "bench", "pub", "--address", p.nsq, "--http-address", "", "--messages", "1")
	}
	publish().check(t, cli.ExitOther, "E_PUB_FAILED")
	if !strings.Contains(p.log.String(), "no space left on device") {
		t.Errorf("the log does not say that the disk is full:\n%s", p.log)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=256m"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience.Or(90 * time.Second)); publish().code != 0; { // each try waits up to 300 ms
		if time.Now().After(deadline) {
			t.Fatalf("publishing does not resume:\n%s", p.log)
		}
	}
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// tmpfs mounts a small file system for one test.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system of its own needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("this machine does not allow mounts (a container without CAP_SYS_ADMIN): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}
