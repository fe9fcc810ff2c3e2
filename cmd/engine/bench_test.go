package main

import (
	"encoding/json"
	"strings"
	"testing"

	"penstock/cmd/engine/load"
)

// bench with --headers publishes messages that a node stores with their headers. Plain NSQ consumers get only the
// bodies.
func TestBenchHeaders(t *testing.T) {
	p := startNode(t, t.TempDir())
	bench := func(mode string, more ...string) load.Report {
		t.Helper()
		args := append([]string{
			"bench", mode, "--address", p.nsq, "--http-address", "", "--topic", "t", "--headers", "2", "--json",
		}, more...)
		out := execute(t, args...)
		var r load.Report
		if err := json.Unmarshal([]byte(out.stdout), &r); err != nil || out.code != 0 {
			t.Fatalf("%s: exit code %d, %v, %s", mode, out.code, err, out.stderr)
		}
		return r
	}
	if r := bench("pub", "--messages", "100"); r.Messages != 100 || r.Headers != 2 {
		t.Errorf("pub: %+v", r)
	}
	if r := bench("pub", "--messages", "200", "--batch", "50"); r.Messages != 200 {
		t.Errorf("pub with batches: %+v", r)
	}
	if r := bench("sub", "--messages", "500", "--fill", "--topic", "v"); r.Messages != 500 || r.Headers != 2 {
		t.Errorf("sub: %+v", r)
	}
	if r := bench("e2e", "--messages", "100", "--rate", "5000", "--topic", "u"); r.Messages < 99 || r.Foreign != 0 {
		t.Errorf("e2e: %+v", r)
	}
	if out := execute(t, "bench", "pub", "--address", p.nsq, "--headers", "257"); out.code == 0 ||
		!strings.Contains(out.stderr, "headers must be 0 to 256") {
		t.Errorf("too many: exit code %d, %s", out.code, out.stderr)
	}
}
