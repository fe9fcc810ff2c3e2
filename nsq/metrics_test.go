package nsq

import (
	"fmt"
	"strings"
	"testing"

	"penstock/engine"
)

// Prometheus reads /metrics without a secret, as NSQ's tools read /stats.
func TestMetricsHTTP(t *testing.T) {
	n := startNode(t, engine.Options{}, Options{})
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
	n := startNode(t, engine.Options{}, Options{})
	c := n.dial(t)
	for range publishes {
		c.send(pub("orders", "one"))
		c.ok()
	}
	for range publishes {
		n.post(t, "/pub?topic=orders", "one")
	}
	if code, _ := n.do(t, "POST", "/pub?topic=orders", ""); code != 400 {
		t.Errorf("an empty body: %d", code)
	}
	_, body := n.do(t, "GET", "/metrics", "")
	for _, protocol := range []string{"nsq", "http"} {
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
	}
}
