package nsq

import (
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
