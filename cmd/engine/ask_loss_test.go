package main

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"penstock/tests/support/clitest"
)

// What cannot be taken back asks on a terminal, and says in numbers what is lost; another answer changes nothing. With
// --yes, and where nobody can answer, nothing is asked.
func TestLossIsAskedAbout(t *testing.T) {
	p := startNode(t, t.TempDir())
	t.Setenv("PENSTOCK_SERVER", p.http)
	execute(t, "topic", "create", "orders").well(t)
	execute(t, "channel", "create", "orders", "billing").well(t)
	execute(t, "channel", "set", "orders", "billing", "--max-attempts", "3").well(t)
	execute(t, "topic", "create", "orders.DLQ").well(t)
	execute(t, "channel", "create", "orders.DLQ", "redrive").well(t)
	for range 3 {
		post(p.http, "/pub?topic=orders", "12345")
	}
	on := func(answer string, args ...string) outcome {
		t.Helper()
		tty, types, _ := clitest.Typing(t)
		types(answer + "\n")
		cmd := exec.CommandContext(t.Context(), binary(t), args...)
		var stdout, stderr bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, &stdout, &stderr
		var exit *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	}
	waits := "3 messages wait, 0 are in flight and 0 deferred"
	for _, tc := range []struct{ args, word, says string }{
		{"channel skip orders billing", "billing", "ALL THAT IS PUBLISHED until penstock channel unskip:\nnow " + waits},
		{"channel seek orders billing --to newest", "billing", "Now " + waits},
		{"channel redrive orders billing", "billing", "of the 0 dead letters in topic orders.DLQ"},
		{"channel empty orders billing", "billing", waits},
		{"channel delete orders billing", "billing", waits + ",\nand 0 dead letters not moved yet"},
		{"topic delete orders", "orders", "of 3 messages that were\never published) and with 1 channel, in which " + waits},
	} {
		args := strings.Fields(tc.args)
		o := on("no", args...)
		if o.code == 0 || !strings.Contains(o.stderr, tc.says) || !strings.Contains(o.stderr, "nothing was changed") ||
			!strings.Contains(o.stderr, "Type "+tc.word+" to continue: ") || o.stdout != "" {
			t.Errorf("%s: %+v", tc.args, o)
		}
		if list := execute(t, "channel", "list", "orders"); !strings.Contains(list.stdout, "billing  3") {
			t.Errorf("%s: after an answer that is not the name: %+v", tc.args, list)
		}
	}
	o := on("", "channel", "delete", "orders", "nobody")
	if o.code == 0 || !strings.Contains(o.stderr, "has no channel nobody") {
		t.Errorf("a channel that is not there: %+v", o)
	}
	o = on("no", "channel", "empty", "orders", "billing", "--yes")
	if o.code != 0 || strings.Contains(o.stderr, "Type") {
		t.Errorf("with --yes: %+v", o)
	}
	execute(t, "channel", "empty", "orders", "billing").well(t)
	if o := on("orders", "topic", "delete", "orders"); o.code != 0 || o.stdout != "topic orders was deleted\n" {
		t.Errorf("with the name: %+v", o)
	}
}
