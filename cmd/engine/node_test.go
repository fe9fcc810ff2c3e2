package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/engine/internal/serve"
	"penstock/internal/load"
	"penstock/tests/support/patience"
	"penstock/tests/support/underrace"
)

// built is the path of bin/penstock as a user builds it.
var built string

// binary returns the path of bin/penstock, which tests run as a process. It skips the test in a short run with race
// detection: the detector does not watch other processes, and the whole run without it has the test.
func binary(t testing.TB) string {
	t.Helper()
	if underrace.Enabled && testing.Short() {
		t.Skip("race detection does not watch other processes")
	}
	return built
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		if underrace.Enabled && testing.Short() {
			return m.Run()
		}
		dir, err := os.MkdirTemp("", "penstock-binary")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		built = filepath.Join(dir, "penstock")
		args := []string{"build", "-o", built}
		if ring == "giouring" {
			args = append(args, "-tags", "giouring", "-ldflags=-checklinkname=0")
		}
		build := exec.Command("go", append(args, ".")...)
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			panic("building the binary: " + err.Error())
		}
		return m.Run()
	}())
}

// outcome is the result of a finished process.
type outcome struct {
	code           int
	stdout, stderr string
}

func execute(t *testing.T, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(t), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// process is a running node.
type process struct {
	t         *testing.T
	cmd       *exec.Cmd
	nsq, http string
	log       *logBuffer
	exited    chan error
}

// logBuffer collects a node's log and reports when a line matches.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Write(p)
	select {
	case b.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

var readyLine = regexp.MustCompile(`msg=ready nsq=(\S+) http=(\S+)`)

// startNode runs `penstock serve` on free ports and waits until the node logs that it is ready.
func startNode(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	return startProcess(t, "", binary(t), append([]string{
		"serve", "--data-path", dir, "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--lookup-address",
		"127.0.0.1:0", "--backup-path", "/",
	}, args...))
}

// startProcess runs a program in dir and waits until it logs that it is ready.
func startProcess(t *testing.T, dir, program string, args []string) *process {
	t.Helper()
	p := launch(t, dir, program, args)
	p.ready()
	return p
}

// launch is startProcess without the waiting.
func launch(t *testing.T, dir, program string, args []string) *process {
	t.Helper()
	p := &process{t: t, log: &logBuffer{more: make(chan struct{}, 1)}, exited: make(chan error, 1)}
	p.cmd = exec.Command(program, args...)
	p.cmd.Stderr, p.cmd.Dir = p.log, dir
	must(t, p.cmd.Start())
	go func() { p.exited <- p.cmd.Wait() }()
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

// ready waits until the process logs that it is ready.
func (p *process) ready() {
	p.t.Helper()
	deadline := time.After(patience.Or(90 * time.Second))
	for {
		if m := readyLine.FindStringSubmatch(p.log.String()); m != nil {
			p.nsq, p.http = m[1], m[2]
			return
		}
		select {
		case <-p.log.more:
		case err := <-p.exited:
			p.t.Fatalf("the node ended (%v):\n%s", err, p.log)
		case <-deadline:
			p.t.Fatalf("the node is not ready:\n%s", p.log)
		}
	}
}

// end sends a signal and returns the exit code.
func (p *process) end(sig os.Signal) int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience.Or(90 * time.Second)):
		p.t.Fatalf("the node did not end after %v:\n%s", sig, p.log)
		return 0
	}
}

// get asks for a page, with a token if one is named.
func (p *process) get(path string, token ...string) (int, string) {
	p.t.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://"+p.http+path, nil)
	must(p.t, err)
	for _, secret := range token {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (p *process) publish(topic string, messages int64) {
	p.t.Helper()
	_, err := load.Publish(p.t.Context(), load.Config{
		Address: p.nsq, Topic: topic, Connections: 4, InFlight: 16, Batch: 1, SizeBytes: 100, Ready: 1, Messages: messages,
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) consume(topic string, messages int64) int64 {
	p.t.Helper()
	report, err := load.Consume(p.t.Context(), load.Config{
		Address: p.nsq, Topic: topic, Channel: "c", Connections: 1, InFlight: 1, Batch: 1, SizeBytes: 100, Ready: 100,
		Messages: messages,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return report.Messages
}

// B17 on one node: messages that were answered OK survive kill -9, even if the node is killed again during recovery.
func TestKillLosesNothing(t *testing.T) {
	dir := t.TempDir()
	p := startNode(t, dir)
	p.publish("orders", 5000)
	p.end(syscall.SIGKILL)
	for range 2 {
		p = startNode(t, dir)
		p.end(syscall.SIGKILL)
	}
	p = startNode(t, dir, "--io", "pwrite")
	if got := p.consume("orders", 5000); got != 5000 {
		t.Errorf("%d of 5000 messages are left", got)
	}
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d at SIGTERM:\n%s", code, p.log)
	}
}

func TestGracefulStop(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		dir := t.TempDir()
		p := startNode(t, dir)
		p.publish("orders", 100)
		if code := p.end(sig); code != 0 {
			t.Fatalf("exit code %d at %v:\n%s", code, sig, p.log)
		}
		if log := p.log.String(); !strings.Contains(log, "msg=stopped") || strings.Contains(log, "level=ERROR") {
			t.Errorf("log at %v:\n%s", sig, log)
		}
		p = startNode(t, dir)
		if got := p.consume("orders", 100); got != 100 {
			t.Errorf("%d of 100 messages are left", got)
		}
		if code := p.end(sig); code != 0 {
			t.Errorf("second exit code %d", code)
		}
	}
}

func TestServeSaysWhatItRunsOn(t *testing.T) {
	p := startNode(t, t.TempDir(), "--io", "pwrite", "--max-rdy-count", "77")
	if log := p.log.String(); !regexp.MustCompile(`(io|engine)=pwrite reason=\S+`).MatchString(log) {
		t.Errorf("the log does not say which I/O engine runs and why:\n%s", log)
	}
	code, info := p.get("/info")
	var parsed struct {
		Version string         `json:"version"`
		Storage map[string]any `json:"storage"`
	}
	if err := json.Unmarshal([]byte(info), &parsed); code != 200 || err != nil ||
		parsed.Version != serve.NSQVersion(version) ||
		len(parsed.Storage) == 0 {
		t.Errorf("/info answers %d %s (%v)", code, info, err)
	}
	if code, v := p.get("/config/max_rdy_count"); code != 200 || strings.TrimSpace(v) != "77" {
		t.Errorf("/config/max_rdy_count answers %d %s", code, v)
	}
	report := execute(t, "bench", "pub", "--address", p.nsq, "--http-address", p.http, "--messages", "100", "--json")
	var r load.Report
	if err := json.Unmarshal([]byte(report.stdout), &r); err != nil || report.code != 0 {
		t.Fatalf("bench: exit code %d, %v, %s", report.code, err, report.stderr)
	}
	if r.Messages != 100 || r.Server.IO != "pwrite" || r.Server.FileSystem == "unknown" || r.Server.Kernel == "unknown" ||
		r.Server.Durability == "unknown" {
		t.Errorf("the report does not say what was measured: %+v", r)
	}
	if report.stderr != "" {
		t.Errorf("a progress bar without a terminal: %q", report.stderr)
	}
}

// A connection that never reads and never ends must not keep the node from stopping.
func TestStopIsBounded(t *testing.T) {
	p := startNode(t, t.TempDir(), "--shutdown-timeout", "200ms")
	p.publish("orders", 1000)
	conn, err := net.Dial("tcp", p.nsq)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "  V2SUB orders c\nRDY 2500\nPUB orders\n"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	// Without the setting it would take 10 s.
	if code := p.end(syscall.SIGTERM); code != 0 || time.Since(start) > 9*time.Second {
		t.Errorf("exit code %d after %v:\n%s", code, time.Since(start), p.log)
	}
}
