package server

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
)

// The names and types are those that nsqd 1.3.0 sends, in its order.
func TestStatsdLines(t *testing.T) {
	r := &statsReply{Topics: []topicStats{
		{
			Name: "t", Depth: 1, BackendDepth: 2, MessageCount: 30, MessageBytes: 400,
			Latency: latency{Percentiles: []percentile{{0.99, 5000}}, measured: true},
			Channels: []channelStats{
				{
					Name: "c", Depth: 5, BackendDepth: 6, InFlightCount: 7, DeferredCount: 8, MessageCount: 9, RequeueCount: 10,
					TimeoutCount: 11, ClientCount: 12, Latency: unmeasured(),
				},
				{Name: "e#ephemeral"},
			},
		},
		{Name: "e#ephemeral"},
	}}
	last := map[string]uint64{"topic.t.message_count": 10, "topic.t.channel.c.requeue_count": 99}
	lines, counters := statsdLines("nsq.h_4151.", r, nil, last, true)
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
	if lines, _ := statsdLines("", r, nil, counters, false); lines[0] != "topic.t.message_count:0|c\n" ||
		!slices.Contains(lines, "topic.e#ephemeral.depth:0|g\n") {
		t.Errorf("a push without news: %q", lines)
	}
}

func TestStatsdPrefix(t *testing.T) {
	for _, x := range [][2]string{
		{"nsq.%s", "nsq.a_example_4151."}, {"nsq.%s.", "nsq.a_example_4151."}, {"plain", "plain."}, {"", ""},
	} {
		if got := statsdPrefix(x[0], "a.example", 4151); got != x[1] {
			t.Errorf("%q: %q, want %q", x[0], got, x[1])
		}
	}
}

func TestStatsdPackets(t *testing.T) {
	got := statsdPackets([]string{"aaaa\n", "bbb\n", "cc\n", "a line that is too long\n", "d\n"}, 9)
	if fmt.Sprintf("%q", got) != `["aaaa\nbbb\n" "cc\n" "a line that is too long\n" "d\n"]` {
		t.Errorf("%q", got)
	}
	if statsdPackets(nil, 9) != nil {
		t.Error("a packet of no lines")
	}
}

// A node pushes what was published since the last push, over UDP, in packets of the size that is set.
func TestStatsdPushes(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	n := startNode(t, node.Options{}, Options{Statsd: StatsdOptions{
		Address: conn.LocalAddr().String(), Prefix: "x", Interval: 50 * time.Millisecond, MemStats: true, PacketBytes: 100,
	}})
	n.post(t, "/mpub?topic=t", "a\nb\nc")
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	total, mem, buf := 0, false, make([]byte, 4096)
	for total < 3 || !mem {
		size, _, err := conn.ReadFrom(buf)
		if err != nil {
			t.Fatalf("%d messages, memory %v: %v", total, mem, err)
		}
		if size > 100 {
			t.Errorf("a packet of %d bytes", size)
		}
		for line := range strings.Lines(string(buf[:size])) {
			count := 0
			if _, err := fmt.Sscanf(line, "x.topic.t.message_count:%d|c\n", &count); err == nil {
				total += count
			}
			mem = mem || strings.HasPrefix(line, "x.mem.heap_objects:")
		}
	}
	if total != 3 {
		t.Errorf("the pushes add up to %d messages", total)
	}
}

// A statsd whose name does not resolve costs one line of the log.
func TestStatsdThatDoesNotResolve(t *testing.T) {
	var log syncBuffer
	d := statsd{
		s: &Server{opts: Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}},
		o: StatsdOptions{Address: "statsd.invalid.:8125"},
	}
	for range 5 {
		d.log(d.push())
	}
	if n := strings.Count(log.String(), "cannot be pushed"); n != 1 {
		t.Errorf("%d lines", n)
	}
	d.log(nil)
	d.log(nil)
	if n := strings.Count(log.String(), "pushed to statsd again"); n != 1 {
		t.Errorf("%d lines when it works again", n)
	}
}
