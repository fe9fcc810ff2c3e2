package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/load"
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
		execute(t, append(args, "--address", "127.0.0.1:1")...).check(t, cli.ExitUsage, tc.want)
	}
}

// bench measures over the native protocol, too, in each kind of loop, and reads what it has published.
func TestBenchNative(t *testing.T) {
	p := startNode(t, t.TempDir(), "--native-address", "127.0.0.1:0")
	steer(t, "topic", "create", "parts", "--partitions", "3", "--http-address", p.http)
	bench := func(mode, topic string, more ...string) (r load.Report) {
		t.Helper()
		out := execute(t, append([]string{
			"bench", mode, "--nodes", p.native(), "--http-address", p.http, "--topic", topic, "--keep-topic", "--json",
		}, more...)...)
		if err := json.Unmarshal([]byte(out.stdout), &r); err != nil || out.code != 0 || r.Protocol != "native" {
			t.Fatalf("%s %q: exit code %d, %v, %+v, %s", mode, more, out.code, err, r, out.stderr)
		}
		return r
	}
	published := int64(0)
	pub := func(more ...string) load.Report {
		t.Helper()
		r := bench("pub", "parts", append([]string{"--protocol", "native"}, more...)...)
		if len(r.Latencies) != 1 || r.Latencies[0].Count != r.Messages || r.Latencies[0].Max <= 0 || r.Batches == 0 {
			t.Errorf("%q: %+v", more, r)
		}
		published += r.Messages
		return r
	}
	if r := pub("--messages", "100", "--connections", "2"); r.Messages != 100 || r.InFlight != 1 || r.Batches != 100 {
		t.Errorf("one at a time: %+v", r)
	}
	r := pub("--messages", "20000", "--in-flight", "1000", "--connections", "2", "--headers", "2")
	if r.Messages != 20000 || r.PerBatch < 2 || r.WireBytes < 100 {
		t.Errorf("many at a time: %+v", r)
	}
	r = pub("--messages", "20000", "--in-flight", "10000", "--body", "json", "--size", "1KiB", "--compress", "s2")
	if r.Compression != "s2" || r.WireBytes < 1 || r.WireBytes > 900 {
		t.Errorf("compressed JSON: %+v", r)
	}
	if r = pub("--messages", "1000", "--rate", "10000", "--in-flight", "100"); r.Messages != 1000 || r.Rate != 10000 {
		t.Errorf("at a rate: %+v", r)
	}
	if r := bench("read", "parts", "--connections", "2"); r.Messages != published || r.MessagesPerSecond <= 0 {
		t.Errorf("%d messages were published; read: %+v", published, r)
	}
	r = bench("sub", "parts", "--protocol", "native", "--messages", fmt.Sprint(published), "--connections", "2")
	if r.Messages != published || r.Redelivered != 0 {
		t.Errorf("%d messages were published; consumed: %+v", published, r)
	}
	r = bench("e2e", "there", "--protocol", "native", "--messages", "200", "--rate", "5000", "--connections", "2")
	if r.Messages < 199 || r.Foreign != 0 || len(r.Latencies) != 3 || r.Latencies[0].Max <= 0 || r.Batches == 0 {
		t.Errorf("end to end: %+v", r)
	}
	if r := bench("read", "filled", "--fill", "--messages", "5000"); r.Messages != 5000 || r.BytesPerSecond <= 0 {
		t.Errorf("filled and read: %+v", r)
	}
	for _, tc := range []struct{ args, want string }{
		{"pub --protocol native --batch 2", "batch must be 1"},
		{"pub --protocol native --batch-bytes 3", "--batch-bytes"},
		{"pub --protocol stomp", "not one of nsq, native"},
		{"e2e --protocol native --size 1", "size must be at least"},
		{"pub --linger 1s", "--linger belongs to --protocol native"},
		{"pub --protocol native --nodes here", "--nodes here is not HOST:PORT"},
	} {
		execute(t, append([]string{"bench"}, strings.Fields(tc.args)...)...).check(t, cli.ExitUsage, tc.want)
	}
}
