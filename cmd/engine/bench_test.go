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
	// O13: a wrong argument is exit code 2, and is found before anybody is asked.
	for _, tc := range []struct{ args, want string }{
		{"pub --headers 257", "headers must be 0 to 256"},
		{"pub --batch 0", "batch must be 1 to"},
		{"pub --batch 3 --messages 10", "must be a multiple of batch"},
		{"e2e --rate 0", "needs a rate"},
		{"e2e --size 1", "size must be at least"},
	} {
		args := append([]string{"bench"}, strings.Fields(tc.args)...)
		execute(t, append(args, "--address", "127.0.0.1:1")...).check(t, exitUsage, tc.want)
	}
}
