package web

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// O6
func TestGateHosts(t *testing.T) {
	g := NewGate(nil, []string{"Node-1", ""}, []string{"broker.example.com."})
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
	if g := NewGate(nil, nil, []string{"a", AnyHost}); !g.allows("evil.example") {
		t.Error("* does not allow every host")
	}
}

// O6. What a browser sends for another site's page is refused, and what programs send is not.
func TestGateOrigins(t *testing.T) {
	g := NewGate(nil, nil, []string{"console.example", AnyHost})
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
		{"POST", "Origin: https://console.example", 0}, // behind a proxy that replaces Host
		{"POST", "Origin: https://console.example:8443", 0},
		{"POST", "Origin: https://console.example.evil", 403},
		{"POST", "Origin: https://console.example; Sec-Fetch-Site: same-origin", 0},
		{"POST", "Origin: https://console.example; Sec-Fetch-Site: cross-site", 403},
		{"POST", "Sec-Fetch-Site: cross-site", 403},
		{"POST", "Sec-Fetch-Site: same-site", 403},
		{"POST", "Sec-Fetch-Site: same-origin", 0},
		{"POST", "Sec-Fetch-Site: none", 0},
		{"GET", "Origin: http://evil.example", 0}, // a page of another site cannot read the answer
	} {
		r := httptest.NewRequest(x.method, "http://localhost:4151/topic/delete?topic=t", nil)
		for _, header := range strings.Split(x.headers, "; ") {
			if name, value, ok := strings.Cut(header, ": "); ok {
				r.Header.Set(name, value)
			}
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

// Programs may use every name, and everybody for probes and metrics. Browsers give themselves away.
func TestGateBrowsers(t *testing.T) {
	g := NewGate(nil, nil, nil)
	for _, x := range []struct {
		path, header, value string
		status              int
	}{
		{"/pub", "", "", 0},
		{"/pub", "User-Agent", "kube-probe/1.30", 0},
		{"/stats", "User-Agent", "Mozilla/5.0 (X11; Linux)", 421},
		{"/stats", "Referer", "http://evil.example/", 421},
		{"/stats", "Accept-Language", "", 421},
		{"/stats", "Sec-Fetch-Mode", "cors", 421},
		{"/stats", "Origin", "http://evil.example", 421},
		{"/stats", "Cookie", "a=b", 421},
		{"/metrics", "User-Agent", "Mozilla/5.0", 0},
		{"/ping", "User-Agent", "Mozilla/5.0", 0},
		{"/readyz", "Origin", "http://evil.example", 0},
	} {
		r := httptest.NewRequest("GET", "http://nsqd:4151"+x.path, nil)
		if x.header != "" {
			r.Header.Set(x.header, x.value)
		}
		status := 0
		if err := g.Check(r); err != nil {
			status = err.Status
		}
		if status != x.status {
			t.Errorf("%s with %s %q: status %d, want %d", x.path, x.header, x.value, status, x.status)
		}
	}
	r := httptest.NewRequest("POST", "http://127.0.0.1:4151/topic/delete", nil)
	r.Header.Set("Origin", "https://mq.example")
	err := g.Check(r)
	for _, want := range []string{"Origin", "https://mq.example", "Host", "127.0.0.1:4151", "http_allowed_hosts"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
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

// Hosts that are allowed later pass, as hosts and as origins, and those that are not any more do not.
func TestAllowedHostsChange(t *testing.T) {
	g := NewGate(nil, []string{"node-1"}, []string{"old.example"})
	g.Allow([]string{"new.example"})
	origin := http.Header{"Origin": {"https://new.example"}}
	if !g.allows("node-1") || !g.allows("new.example") || g.allows("old.example") || !g.fromAllowed(origin) {
		t.Error("the old hosts hold")
	}
}
