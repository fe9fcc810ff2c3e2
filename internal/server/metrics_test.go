package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	nativeclient "penstock/client"
	"penstock/internal/node"
	"penstock/tests/support/nsqtest"
)

// Prometheus reads /metrics without a secret, as NSQ's tools read /stats.
func TestMetricsHTTP(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	n.post(t, "/pub?topic=orders", "one")
	for _, x := range []struct {
		method, path string
		status       int
		has          string
	}{
		{"GET", "/metrics", 200, `penstock_topic_published_messages_total{topic="orders"} 1`},
		{"GET", "/metrics", 200, "go_goroutines"},
		{"GET", "/metrics", 200, "process_resident_memory_bytes"},
		{"GET", "/metrics/per-object?topic=or*", 200, `penstock_topic_published_messages_total{topic="orders"} 1`},
		{"GET", "/metrics/per-object", 400, `{"message":`},
		{"POST", "/metrics", 405, `{"message":"METHOD_NOT_ALLOWED"}`},
	} {
		if code, body := n.do(t, x.method, x.path, ""); code != x.status || !strings.Contains(body, x.has) {
			t.Errorf("%s %s: %d %s", x.method, x.path, code, body)
		}
	}
}

// Of the publishes that are answered OK about one in 16 is measured, and of the others none.
func TestPublishDuration(t *testing.T) {
	const publishes = 1000
	n := startNode(t, node.Options{}, Options{NativeAddress: "127.0.0.1:0"})
	c := n.dial(t)
	for range publishes {
		c.Send(nsqtest.Pub("orders", "one"))
		c.OK()
	}
	publishWithClient(t, n, publishes)
	for range publishes {
		n.post(t, "/pub?topic=orders", "one")
	}
	if code, _ := n.do(t, "POST", "/pub?topic=orders", ""); code != 400 {
		t.Errorf("an empty body: %d", code)
	}
	_, body := n.do(t, "GET", "/metrics", "")
	var all uint64
	for _, protocol := range []string{"nsq", "http", "native"} {
		var count, sum float64
		for line := range strings.Lines(body) {
			_, _ = fmt.Sscanf(line, `penstock_publish_duration_seconds_count{protocol="`+protocol+`"} %g`, &count)
			_, _ = fmt.Sscanf(line, `penstock_publish_duration_seconds_sum{protocol="`+protocol+`"} %g`, &sum)
		}
		if count < publishes/64 || count > publishes/4 {
			t.Errorf("%s: %v of %d publishes were measured", protocol, count, publishes)
		}
		if each := sum / count; each < 1e-6 || each > 1 {
			t.Errorf("%s: a publish took %v s", protocol, each)
		}
		all += uint64(count)
	}
	var seen uint64
	for _, n := range n.api.Look(time.Now()).Publishes {
		seen += n
	}
	if seen != all {
		t.Errorf("the console's history has %d durations, the metrics have %d", seen, all)
	}
}

// publishWithClient publishes to orders with the native client, one message after the other.
func publishWithClient(t *testing.T, n *testNode, count int) {
	t.Helper()
	c, err := nativeclient.Dial(t.Context(), []string{n.NativeAddr().String()}, nativeclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p, err := c.Producer(t.Context(), "orders", nativeclient.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range count {
		if _, err := p.ProduceSync(t.Context(), &nativeclient.Message{Body: []byte("one")}); err != nil {
			t.Fatal(err)
		}
	}
}
