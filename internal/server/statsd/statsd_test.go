package statsd

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"penstock/internal/server/stats"
)

// The names and types are those that nsqd 1.3.0 sends, in its order.
func TestStatsdLines(t *testing.T) {
	r := &stats.Reply{Topics: []stats.Topic{
		{
			Name: "t", Depth: 1, BackendDepth: 2, MessageCount: 30, MessageBytes: 400,
			Latency: stats.Latency{Percentiles: []stats.Percentile{{Quantile: 0.99, Value: 5000}}, Measured: true},
			Channels: []stats.Channel{
				{
					Name: "c", Depth: 5, BackendDepth: 6, InFlightCount: 7, DeferredCount: 8, MessageCount: 9, RequeueCount: 10,
					TimeoutCount: 11, ClientCount: 12, Latency: stats.Unmeasured(),
				},
				{Name: "e#ephemeral"},
			},
		},
		{Name: "e#ephemeral"},
	}}
	last := map[string]uint64{"topic.t.message_count": 10, "topic.t.channel.c.requeue_count": 99}
	lines, counters := encode("nsq.h_4151.", r, nil, last, true)
	want := `nsq.h_4151.topic.t.message_count:20|c
nsq.h_4151.topic.t.message_bytes:400|c
nsq.h_4151.topic.t.depth:1|g
nsq.h_4151.topic.t.backend_depth:2|g
nsq.h_4151.topic.t.e2e_processing_latency_99:5000|g
nsq.h_4151.topic.t.channel.c.message_count:9|c
nsq.h_4151.topic.t.channel.c.depth:5|g
nsq.h_4151.topic.t.channel.c.backend_depth:6|g
nsq.h_4151.topic.t.channel.c.in_flight_count:7|g
nsq.h_4151.topic.t.channel.c.deferred_count:8|g
nsq.h_4151.topic.t.channel.c.requeue_count:10|c
nsq.h_4151.topic.t.channel.c.timeout_count:11|c
nsq.h_4151.topic.t.channel.c.clients:12|g
`
	if got := strings.Join(lines, ""); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if counters["topic.t.message_count"] != 30 || len(counters) != 5 {
		t.Errorf("the next push counts from %v", counters)
	}
	if lines, _ := encode("", r, nil, counters, false); lines[0] != "topic.t.message_count:0|c\n" ||
		!slices.Contains(lines, "topic.e#ephemeral.depth:0|g\n") {
		t.Errorf("a push without news: %q", lines)
	}
}

func TestStatsdPrefix(t *testing.T) {
	for _, x := range [][2]string{
		{"nsq.%s", "nsq.a_example_4151."}, {"nsq.%s.", "nsq.a_example_4151."}, {"plain", "plain."}, {"", ""},
	} {
		if got := prefixOf(x[0], "a.example", 4151); got != x[1] {
			t.Errorf("%q: %q, want %q", x[0], got, x[1])
		}
	}
}

func TestStatsdPackets(t *testing.T) {
	got := pack([]string{"aaaa\n", "bbb\n", "cc\n", "a line that is too long\n", "d\n"}, 9)
	if fmt.Sprintf("%q", got) != `["aaaa\nbbb\n" "cc\n" "a line that is too long\n" "d\n"]` {
		t.Errorf("%q", got)
	}
	if pack(nil, 9) != nil {
		t.Error("a packet of no lines")
	}
}

// A statsd whose name does not resolve costs one line of the log.
func TestStatsdThatDoesNotResolve(t *testing.T) {
	var log strings.Builder
	d := New(Options{Address: "statsd.invalid.:8125"}, nil, "", 0, slog.New(slog.NewTextHandler(&log, nil)))
	for range 5 {
		d.note(d.push(nil))
	}
	if n := strings.Count(log.String(), "cannot be pushed"); n != 1 {
		t.Errorf("%d lines", n)
	}
	d.note(nil)
	d.note(nil)
	if n := strings.Count(log.String(), "pushed to statsd again"); n != 1 {
		t.Errorf("%d lines when it works again", n)
	}
}
