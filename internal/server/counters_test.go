package server

import (
	"strings"
	"testing"

	"penstock/internal/node"
)

// Refused publishes, answers over HTTP, refused secrets and connections are counted.
func TestServerCounters(t *testing.T) {
	n := startNode(t, node.Options{DisableAutoCreate: true}, Options{})
	n.dial(t)
	n.post(t, "/topic/create?topic=t", "")
	n.post(t, "/pub?topic=t", "x")
	n.do(t, "POST", "/pub?topic=none", "x")
	n.do(t, "GET", "/nonsense/1234", "")
	_, body := n.do(t, "GET", "/metrics", "")
	for _, want := range []string{
		`penstock_http_requests_total{code="200",route="/pub"} 1`,
		`penstock_http_requests_total{code="404",route="/"} 1`,
		`penstock_publishes_refused_total{reason="other"} 1`,
		`penstock_publishes_refused_total{reason="overloaded"} 0`,
		`penstock_connections{kind="nsq"} 1`,
		`penstock_auth_failures_total 0`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}
