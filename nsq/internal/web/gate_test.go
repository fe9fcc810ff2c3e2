package web

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// O6
func TestGateHosts(t *testing.T) {
	g := NewGate(nil, "Node-1", "", "broker.example.com.")
	for host, allowed := range map[string]bool{
		"127.0.0.1:4151": true, "127.0.0.1": true, "192.168.0.7:4151": true, "[::1]:4151": true, "[::1]": true, "::1": true,
		"[fe80::1%25eth0]:4151": true, "localhost": true, "LocalHost:4151": true, "localhost.:4151": true,
		"node-1:4151": true, "NODE-1": true, "broker.example.com": true, "broker.example.com.:1": true, "": true,
		"evil.example": false, "evil.example:4151": false, "localhost.evil.example:4151": false,
		"127.0.0.1.evil.example": false, "127.0.0.1:4151:1": false,
		"broker.example.com.evil": false, "xlocalhost": false, "*": false, "[": false, "127.1": false,
	} {
		if g.allows(host) != allowed {
			t.Errorf("Host %q: allowed is %t", host, !allowed)
		}
	}
	if g := NewGate(nil, "a", AnyHost); !g.allows("evil.example") {
		t.Error("* does not allow every host")
	}
}

// O6. What a browser sends for another site's page is refused, and what programs send is not.
func TestGateOrigins(t *testing.T) {
	g := NewGate(nil)
	for _, x := range []struct {
		method  string
		headers string
		status  int // 0: it may pass
	}{
		{"POST", "", 0},
		{"POST", "Origin: http://localhost:4151", 0},
		{"POST", "Origin: http://localhost:4171", 403},
		{"POST", "Origin: http://evil.example", 403},
		{"PUT", "Origin: http://evil.example", 403},
		{"DELETE", "Origin: null", 403},
		{"POST", "Sec-Fetch-Site: cross-site", 403},
		{"POST", "Sec-Fetch-Site: same-site", 403},
		{"POST", "Sec-Fetch-Site: same-origin", 0},
		{"POST", "Sec-Fetch-Site: none", 0},
		{"GET", "Origin: http://evil.example", 0}, // a page of another site cannot read the answer
	} {
		r := httptest.NewRequest(x.method, "http://localhost:4151/topic/delete?topic=t", nil)
		if name, value, ok := strings.Cut(x.headers, ": "); ok {
			r.Header.Set(name, value)
		}
		status := 0
		if err := g.Check(r); err != nil {
			status = err.Status
		}
		if status != x.status {
			t.Errorf("%s with %q: status %d, want %d", x.method, x.headers, status, x.status)
		}
	}
}

func TestAllowedHosts(t *testing.T) {
	if err := CheckAllowedHosts([]string{"*", "a", "broker.example.com"}); err != nil {
		t.Error(err)
	}
	for _, list := range [][]string{{""}, {"a:1"}, {"http://a"}, {"*.example.com"}, make([]string, MaxAllowedHosts+1)} {
		if CheckAllowedHosts(list) == nil {
			t.Errorf("%q is accepted", list)
		}
	}
}
