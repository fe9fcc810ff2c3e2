package main

import (
	"net"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
)

// Where an nsqlookupd holds the default lookup address, a node goes on without lookups, and says so. An address that
// somebody named is refused, with the one flag that names it.
func TestBusyLookupPort(t *testing.T) {
	if ln, err := net.Listen("tcp", "127.0.0.1:4161"); err == nil { // otherwise it is busy already
		defer ln.Close()
	}
	serve := []string{
		"serve", "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--native-address", "off", "--data-path",
	}
	p := startProcess(t, "", binary(t), append(serve, t.TempDir()))
	log := p.log.String()
	for _, want := range []string{
		"another process listens at the default address for lookups", "--lookup-address", " lookup=off ", "lookup_tcp=off",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not say %q:\n%s", want, log)
		}
	}
	for flag, args := range map[string][]string{
		"--lookup-address": {"--lookup-address", p.http},
		"--http-address":   {"--lookup-address", "off", "--http-address", p.http},
		"--nsq-address":    {"--lookup-address", "off", "--nsq-address", p.http},
	} {
		o := execute(t, append(append(append([]string{}, serve...), t.TempDir(), "--lock-wait", "0s"), args...)...)
		o.check(t, cli.ExitAddress, "the address "+p.http+" is in use by another process: choose another one with "+flag)
		if strings.Count(o.stderr, "--") != 1 {
			t.Errorf("%s: it names more than the one flag: %s", flag, o.stderr)
		}
	}
}
