package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/traffic"
)

func TestSub(t *testing.T) {
	t.Parallel()
	at := startNative(t)
	run := func(input string, args ...string) outcome {
		t.Helper()
		return feed(t, input, slices.Concat(args, at)...)
	}
	sub := func(args ...string) string {
		t.Helper()
		return run("", append([]string{"sub", "orders"}, args...)...).well(t)
	}
	run("", "sub", "orders", "billing", "--count", "1").check(t, cli.ExitOther, "there is no topic orders")
	run("one\ntwo\nthree\nfour\nfive\n", "pub", "orders", "--lines", "--header", "a=b", "--key", "k").well(t)
	from := []string{"--from", "oldest"}
	if got := sub(slices.Concat([]string{"billing", "--count", "2", "--no-finish"}, from)...); got != "one\ntwo\n" {
		t.Errorf("looked at %q", got)
	}
	var m traffic.ReadMessage
	must(t, json.Unmarshal([]byte(sub("billing", "--count", "1", "--format", "json")), &m))
	if *m.Body != "one" || m.Attempts != 2 || *m.Key != "k" || len(m.Headers) != 1 || m.Partition != 0 || m.Number != 0 ||
		time.Since(m.Timestamp) > time.Minute {
		t.Errorf("%+v", m)
	}
	// One comes again, and one is new: they take turns.
	if got := sub("billing", "--count", "2"); got != "two\nthree\n" && got != "three\ntwo\n" {
		t.Errorf("%q", got)
	}
	if got := sub("billing", "--count", "1", "--format", "hex"); got != "666f7572\n" {
		t.Errorf("%q", got)
	}
	if got := sub(slices.Concat([]string{"other", "--count", "5"}, from)...); got != "one\ntwo\nthree\nfour\nfive\n" {
		t.Errorf("another channel: %q", got)
	}
	// A channel from the third message on.
	if got := sub("late", "--from", "0000000000000002", "--count", "3"); got != "three\nfour\nfive\n" {
		t.Errorf("from an id: %q", got)
	}
}

// Without --count the command goes on until a signal; what it printed is finished, and the rest is not.
func TestSubEnds(t *testing.T) {
	t.Parallel()
	at := startNative(t)
	publish := func(first, end int) {
		t.Helper()
		var lines strings.Builder
		for n := first; n < end; n++ {
			fmt.Fprintf(&lines, "line %d\n", n)
		}
		feed(t, lines.String(), slices.Concat([]string{"pub", "t", "--lines"}, at)...).well(t)
	}
	publish(0, 1000)
	start := func() (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.Command(binary(t), slices.Concat([]string{"sub", "t", "c", "--from", "oldest"}, at)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		return cmd, &stderr
	}
	cmd, stderr := start()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var got []byte
	for bytes.Count(got, []byte("\n")) < 1000 {
		part := make([]byte, 4096)
		n, err := out.Read(part)
		must(t, err)
		got = append(got, part[:n]...)
	}
	must(t, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
		t.Errorf("%v, %s", err, stderr)
	}
	// Somebody who has seen enough: the command ends without an error.
	publish(1000, 30_000)
	cmd, stderr = start()
	out, err = cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	if _, err := out.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	out.Close()
	if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
		t.Errorf("%v, %s", err, stderr)
	}
	rest := feed(t, "", slices.Concat([]string{"sub", "t", "c", "--count", "100"}, at)...).well(t)
	for line := range strings.Lines(rest) {
		var n int
		if _, err := fmt.Sscanf(line, "line %d", &n); err != nil || n < 1000 {
			t.Fatalf("%q comes after it was finished", line)
		}
	}
	// More than there are: the signal came too early.
	feed(t, "one", slices.Concat([]string{"pub", "u"}, at)...).well(t)
	cmd = exec.Command(binary(t), slices.Concat([]string{"sub", "u", "c", "--from", "oldest", "--count", "5"}, at)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err = cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	if _, err := out.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	must(t, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err == nil || !strings.Contains(errs.String(), "interrupted after 1 of 5 messages") {
		t.Errorf("%v, %s", err, &errs)
	}
}
