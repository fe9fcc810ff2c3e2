package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"penstock/client"
	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/traffic"
)

// Every flag of pub, read and sub is in the document about them.
func TestPubAndReadAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/pub-and-read.md")
	must(t, err)
	for _, name := range []string{"pub", "read", "sub"} {
		cmd, _, err := rootCommand().Find([]string{name})
		must(t, err)
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !strings.Contains(string(text), "`--"+f.Name) {
				t.Errorf("%s --%s is not documented", name, f.Name)
			}
		})
	}
}

// What is wrong in the command line is said before anything is sent.
func TestPubAndReadUsage(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"pub"}, "penstock pub TOPIC"},
		{[]string{"pub", "t", "--rate", "-1"}, "is negative"},
		{[]string{"pub", "t", "--header", "kind"}, "is not NAME=VALUE"},
		{[]string{"pub", "t", "--compress", "gzip"}, "is not one of"},
		{[]string{"pub", "t", "--nodes", "db1"}, "is not HOST:PORT"},
		{[]string{"pub", "t", "--nodes", ""}, "--nodes names no node"},
		{[]string{"pub", "t", "--partition", "-5"}, "--partition is -5, and partitions count from 0"},
		{[]string{"pub", "t t"}, `"t t" is not the name of a topic`},
		{[]string{"read", "t t"}, `"t t" is not the name of a topic`},
		{[]string{"read", "t", "--partition", "-5"}, "--partition is -5, and partitions count from 0"},
		{[]string{"sub", "t t", "c"}, `"t t" is not the name of a topic`},
		{[]string{"sub", "t", "c c"}, `"c c" is not the name of a channel`},
		{[]string{"read", "t", "--from", "yesterday"}, "is neither oldest nor newest"},
		{[]string{"read", "t", "--from", "0001000000000002", "--partition", "3"}, "is in partition 1"},
		{[]string{"read", "t", "--format", "xml"}, "is not one of"},
		{[]string{"sub", "t"}, "penstock sub TOPIC CHANNEL"},
		{[]string{"sub", "t", "c", "--from", "yesterday"}, "is neither oldest nor newest"},
		{[]string{"sub", "t", "c", "--no-finish"}, "--no-finish needs --count"},
		{[]string{"sub", "t", "c", "--no-finish", "--count", "65537"}, "takes at most 65536 messages"},
	} {
		execute(t, tc.args...).check(t, cli.ExitUsage, tc.want)
	}
	t.Setenv("PENSTOCK_TOKEN", "secret")
	for _, args := range [][]string{{"read", "t"}, {"sub", "t", "c"}, {"pub", "t"}} {
		execute(t, append(args, "--nodes", "192.0.2.1:4250")...).check(t, cli.ExitUsage, "was not sent")
	}
}

var nativeAddress = regexp.MustCompile(` native=(\S+)`)

// startNative starts a node, and returns the flags with which pub and read find it.
func startNative(t *testing.T, args ...string) []string {
	t.Helper()
	p := startNode(t, t.TempDir(), append([]string{"--native-address", "127.0.0.1:0"}, args...)...)
	return []string{"--nodes", p.native()}
}

// native is where a node that is ready serves native clients.
func (p *process) native() string {
	p.t.Helper()
	m := nativeAddress.FindStringSubmatch(p.log.String())
	if m == nil {
		p.t.Fatalf("the node does not say where it serves native clients:\n%s", p.log)
	}
	return m[1]
}

// feed runs a command with this standard input.
func feed(t *testing.T, input string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(t), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// well fails unless a command succeeded without a word on stderr, and returns what it printed.
func (o outcome) well(t *testing.T) string {
	t.Helper()
	if o.code != 0 || o.stderr != "" {
		t.Fatalf("%+v", o)
	}
	return o.stdout
}

func TestPubAndRead(t *testing.T) {
	t.Parallel()
	at := startNative(t)
	pub := func(input string, args ...string) outcome {
		t.Helper()
		return feed(t, input, slices.Concat([]string{"pub", "orders"}, at, args)...)
	}
	read := func(args ...string) string {
		t.Helper()
		return feed(t, "", slices.Concat([]string{"read", "orders"}, at, args)...).well(t)
	}
	if got := pub("one\ntwo\r\nthree", "--lines").well(t); got != "published 3 messages to topic orders\n" {
		t.Errorf("%q", got)
	}
	if got := read(); got != "one\ntwo\r\nthree\n" {
		t.Errorf("read %q", got)
	}
	pub("line 1\nline 2\n", "--key", "k", "--header", "kind=refund", "--header", "a=b=c", "--compress", "zstd").well(t)
	pub("\xff", "--compress", "s2", "--partition", "0").well(t)
	var all []traffic.ReadMessage
	for line := range strings.Lines(read("--format", "json")) {
		var m traffic.ReadMessage
		must(t, json.Unmarshal([]byte(line), &m))
		all = append(all, m)
	}
	if len(all) != 5 {
		t.Fatalf("%d messages", len(all))
	}
	m := &all[3]
	if *m.Body != "line 1\nline 2\n" || m.Key == nil || *m.Key != "k" || m.Number != 3 || m.Partition != 0 ||
		m.ID != "0000000000000003" || time.Since(m.Timestamp) > time.Minute || len(m.Headers) != 2 ||
		m.Headers[1].Name != "a" || *m.Headers[1].Value != "b=c" {
		t.Errorf("%+v", m)
	}
	if last := &all[4]; last.Body != nil || string(last.BodyBase64) != "\xff" {
		t.Errorf("%+v", last)
	}
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"one\n", []string{"--count", "1"}},
		{"ff\n", []string{"--from", all[4].ID, "--format", "hex"}},
		{"two\r\nthree\n", []string{"--from", all[1].ID, "--count", "2", "--partition", "0"}},
		{"", []string{"--from", "newest"}},
		{"", []string{"--from", time.Now().Add(time.Hour).Format(time.RFC3339)}},
		{"one\n", []string{"--from", time.Now().Add(-time.Hour).Format(time.RFC3339), "--count", "1"}},
	} {
		if got := read(tc.args...); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.args, got, tc.want)
		}
	}
	pub("").check(t, cli.ExitOther, "standard input is empty")
	o := pub("four\n\nfive\n", "--lines")
	if o.code != cli.ExitOther || !strings.Contains(o.stderr, "line 2 is empty") ||
		o.stdout != "published 1 message to topic orders\n" {
		t.Errorf("%+v", o)
	}
	feed(t, "", append([]string{"read", "nothing"}, at...)...).check(t, cli.ExitOther, "there is no topic nothing")
}

// A reader of the output that has seen enough is no error, and --follow goes on until a signal.
func TestReadEnds(t *testing.T) {
	t.Parallel()
	at := startNative(t)
	all := slices.Concat([]string{"pub", "t", "--lines"}, at)
	feed(t, strings.Repeat("a line of the topic\n", 20_000), all...).well(t)
	for _, follow := range []bool{false, true} {
		cmd := exec.Command(binary(t), slices.Concat([]string{"read", "t", fmt.Sprintf("--follow=%t", follow)}, at)...)
		out, err := cmd.StdoutPipe()
		must(t, err)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		must(t, cmd.Start())
		if _, err := out.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		if out.Close(); follow { // it waits for more, and is told to end
			must(t, cmd.Process.Signal(syscall.SIGINT))
		}
		if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
			t.Errorf("follow %t: %v, %s", follow, err, &stderr)
		}
	}
	cmd := exec.Command(binary(t), slices.Concat([]string{
		"read", "t", "--follow", "--from", "newest", "--count", "2",
	}, at)...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for n := 0; ; n++ { // the first ones may come before the reader is there
		feed(t, fmt.Sprint(n), slices.Concat([]string{"pub", "t"}, at)...).well(t)
		select {
		case err := <-ended:
			if lines := strings.Fields(stdout.String()); err != nil || len(lines) != 2 || lines[0] >= lines[1] {
				t.Errorf("%v, %q", err, lines)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// A run with a name that is killed at any moment goes on where it ended: every line is there once, in its order.
func TestPubGoesOnAfterAKill(t *testing.T) {
	t.Parallel()
	at := startNative(t)
	var input strings.Builder
	const lines = 4000
	for n := range lines {
		fmt.Fprintf(&input, "line %d of the import\n", n)
	}
	args := slices.Concat([]string{"pub", "t", "--producer", "import", "--lines"}, at)
	for round, rate := range []string{"2000", "4000", "3000"} {
		cmd := exec.Command(binary(t), append(args, "--rate", rate)...)
		cmd.Stdin = strings.NewReader(input.String())
		must(t, cmd.Start())
		seen := slices.Concat([]string{"read", "t", "--follow", "--count", fmt.Sprint((round + 1) * 300)}, at)
		for { // the topic may not be there yet
			if o := feed(t, "", seen...); !strings.Contains(o.stderr, "there is no topic t") {
				o.well(t)
				break
			}
		}
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
	var report traffic.PubReport
	must(t, json.Unmarshal([]byte(feed(t, input.String(), append(args, "--json")...).well(t)), &report))
	if report.Skipped < 900 || report.Published == 0 || report.Skipped+report.Published != lines ||
		report.Failed+report.Unknown != 0 {
		t.Errorf("%+v", report)
	}
	if got := feed(t, "", slices.Concat([]string{"read", "t"}, at)...).well(t); got != input.String() {
		t.Errorf("%d bytes instead of %d: something is missing, there twice or in another order", len(got), input.Len())
	}
	must(t, json.Unmarshal([]byte(feed(t, input.String(), append(args, "--json")...).well(t)), &report))
	if report.Skipped != lines || report.Published != 0 {
		t.Errorf("once more: %+v", report)
	}
	feed(t, "line 0 of the import\n", args...).check(t, cli.ExitOther, "it is not the same input")
}

// A run whose key belongs to another partition than that of the earlier run publishes nothing, so that no line is there
// twice. It says how to go on.
func TestPubWhenTheKeyMoves(t *testing.T) {
	t.Parallel()
	p := startNode(t, t.TempDir(), "--native-address", "127.0.0.1:0")
	key := "a"
	for client.PartitionOf([]byte(key), 4) != 2 {
		key += "a"
	}
	args := []string{"pub", "t", "--producer", "import", "--lines", "--key", key, "--nodes", p.native()}
	feed(t, "one\ntwo\n", args...).well(t)
	feed(t, "", "topic", "set", "t", "--partitions", "4", "--http-address", p.http).well(t)
	feed(t, "one\ntwo\nthree\n", args...).check(t, cli.ExitOther, "go on with --partition 0, or begin anew with "+
		"--partition 2")
	feed(t, "one\ntwo\nthree\n", append(args, "--partition", "0")...).well(t)
	if got := feed(t, "", "read", "t", "--nodes", p.native()).well(t); got != "one\ntwo\nthree\n" {
		t.Errorf("the topic has %q", got)
	}
}

// A signal ends a run that publishes slowly, and the run says which message was the last one.
func TestPubIsInterrupted(t *testing.T) {
	t.Parallel()
	at := startNative(t)
	cmd := exec.Command(binary(t), slices.Concat([]string{"pub", "t", "--lines", "--rate", "0.001"}, at)...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader("one\ntwo\nthree\n"), &stderr
	must(t, cmd.Start())
	for { // the topic may not be there yet
		if o := feed(t, "", slices.Concat([]string{"read", "t", "--follow", "--count", "1"}, at)...); o.code == 0 {
			break
		}
	}
	must(t, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err == nil || !strings.Contains(stderr.String(), "what follows message 1 was not published") {
		t.Errorf("%v, %s", err, &stderr)
	}
}

// A signal ends a run that waits for its input, as at a terminal.
func TestPubIsInterruptedWithoutInput(t *testing.T) {
	t.Parallel()
	at := startNative(t)
	cmd := exec.Command(binary(t), slices.Concat([]string{"pub", "t", "--lines"}, at)...)
	in, err := cmd.StdinPipe()
	must(t, err)
	defer in.Close()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	must(t, cmd.Start())
	_, err = in.Write([]byte("one\n"))
	must(t, err)
	for feed(t, "", slices.Concat([]string{"read", "t", "--follow", "--count", "1"}, at)...).code != 0 {
		continue // the topic may not be there yet
	}
	must(t, cmd.Process.Signal(syscall.SIGINT))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(15 * time.Second):
		_ = cmd.Process.Kill()
		t.Fatal("the signal does not end it")
	}
	(outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}).check(t, cli.ExitOther,
		"interrupted: what follows message 1 was not published")
	if got := stdout.String(); got != "published 1 message to topic t\n" {
		t.Errorf("%q", got)
	}
}

// A signal ends a run whose messages nobody answers, and not only when the client gives them up. The run says how many
// are stored, of how many that is unknown, and how many are not stored.
func TestPubIsInterruptedWithoutAnswers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		stop syscall.Signal
		ends bool // the input, before the signal
		want string
	}{
		{"the node hangs", syscall.SIGSTOP, false, `^published 1 message to topic t; .*of \d+ it is not known whether`},
		{"the node is gone", syscall.SIGKILL, true, `^published 1 message to topic t; \d+ (was|were) not stored`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := startNode(t, t.TempDir(), "--native-address", "127.0.0.1:0")
			cmd := exec.Command(binary(t), "pub", "t", "--lines", "--nodes", p.native())
			in, err := cmd.StdinPipe()
			must(t, err)
			write := func(text string) {
				t.Helper()
				_, err := in.Write([]byte(text))
				must(t, err)
			}
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			must(t, cmd.Start())
			write("one\n")
			for feed(t, "", "read", "t", "--follow", "--count", "1", "--nodes", p.native()).code != 0 {
				continue // the topic may not be there yet
			}
			must(t, p.cmd.Process.Signal(tc.stop))
			if tc.stop == syscall.SIGKILL {
				<-p.exited
			} else {
				waitUntil(t, "the node is stopped", p.stopped)
			}
			// More than the pipe and the command's buffer hold: when it is written, the command has taken some lines.
			write(strings.Repeat(strings.Repeat("x", 1000)+"\n", 500))
			if tc.ends {
				must(t, in.Close())
			}
			must(t, cmd.Process.Signal(syscall.SIGINT))
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case <-ended:
			case <-time.After(15 * time.Second): // the client gives a message up after 30 s
				t.Fatal("the signal does not end it")
			}
			(outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}).check(t, cli.ExitOther, "interrupted")
			if !regexp.MustCompile(tc.want).MatchString(stdout.String()) {
				t.Errorf("%q", &stdout)
			}
		})
	}
}

// A signal ends a command that waits for the first node, and the command says so, not how Go calls it.
func TestInterruptedBeforeANodeAnswers(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	for _, line := range []string{"pub t", "read t", "sub t c"} {
		cmd := exec.Command(binary(t), append(strings.Fields(line), "--nodes", l.Addr().String())...)
		var stderr bytes.Buffer
		cmd.Stdin, cmd.Stderr = strings.NewReader("one"), &stderr
		must(t, cmd.Start())
		conn, err := l.Accept() // and never answers
		must(t, err)
		defer conn.Close()
		must(t, cmd.Process.Signal(syscall.SIGINT))
		_ = cmd.Wait()
		(outcome{cmd.ProcessState.ExitCode(), "", stderr.String()}).check(t, cli.ExitOther, "interrupted before a node "+
			"answered")
		if strings.Contains(stderr.String(), "context") {
			t.Errorf("%s: %s", line, &stderr)
		}
	}
}

// Reading a topic of many partitions does not read one after the other: each takes endPause at least, if it is empty.
func TestReadManyPartitions(t *testing.T) {
	const partitions, endPause = 300, 50 * time.Millisecond
	p := startNode(t, t.TempDir(), "--native-address", "127.0.0.1:0")
	at := []string{"--nodes", p.native()}
	steer(t, "topic", "create", "many", "--partitions", fmt.Sprint(partitions), "--http-address", p.http)
	feed(t, "1\n2\n3\n4\n5\n6\n7\n", append([]string{"pub", "many", "--lines"}, at...)...).well(t)
	began := time.Now()
	got := feed(t, "", append([]string{"read", "many"}, at...)...).well(t)
	if took, most := time.Since(began), partitions*endPause/2; took > most {
		t.Errorf("it took %v, more than %v", took, most)
	}
	if lines := slices.Sorted(strings.Lines(got)); strings.Join(lines, "") != "1\n2\n3\n4\n5\n6\n7\n" {
		t.Errorf("it prints %q", got)
	}
	three := feed(t, "", append([]string{"read", "many", "--count", "3"}, at...)...).well(t)
	if strings.Count(three, "\n") != 3 {
		t.Errorf("with --count 3 it prints %q", three)
	}
}

// stopped says whether all threads of the process are stopped: a signal stops one that runs on another processor a
// moment later.
func (p *process) stopped() bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	must(p.t, err)
	for _, name := range tasks {
		stat, err := os.ReadFile(name)
		if err == nil && !strings.Contains(string(stat), ") T ") {
			return false
		}
	}
	return true
}
