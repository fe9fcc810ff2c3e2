package devcluster

import (
	"io"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
	"penstock/tests/support/clitest"
)

// O17: on a terminal dev-cluster prints text for people, with every address that it names being listened on.
func TestDevClusterOnATerminal(t *testing.T) {
	n := &Node{
		Node: "n1", NSQ: "127.0.0.1:1", HTTP: "127.0.0.1:2", Lookup: "127.0.0.1:3", Native: "127.0.0.1:4", logName: "n1.log",
	}
	for _, asJSON := range []bool{false, true} {
		tty, _, next := clitest.Typing(t) // one each: it may pass on what is written to it in pieces
		if !cli.IsTerminal(tty) || cli.WidthOf(tty) != 100 {
			t.Fatalf("the terminal is not seen as one of 100 columns, but %d", cli.WidthOf(tty))
		}
		d := newNodeRunner(&Options{asJSON: asJSON}, "", tty, io.Discard)
		d.waiting = []string{"n1"}
		d.announce(n, 7)
		got := ""
		for until := map[bool]string{false: "stops them\r\n", true: "}\r\n"}[asJSON]; !strings.HasSuffix(got, until); {
			got += next() // a read may end between two writes
		}
		if strings.HasPrefix(got, "{") != asJSON || !strings.Contains(got, "127.0.0.1:2") ||
			!strings.Contains(got, "127.0.0.1:4") {
			t.Errorf("json %v: %q", asJSON, got)
		}
	}
}
