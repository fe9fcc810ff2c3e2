package web

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

// nsqd 1.3 answers these requests in the same way, except that its Location begins with a slash: a proxy's prefix would
// be lost.
func TestStrayRequests(t *testing.T) {
	ok := func(*http.Request, url.Values) (any, error) { return "OK", nil }
	table := Table{
		"/ping": On("GET,HEAD", ok, Open), "/pub": On("POST", ok, Publish), "/config/{option}": On("GET,PUT", ok, Node),
		"/topic/create": On("POST", ok, Admin), "/debug/pprof/": On("GET", ok, Node),
	}
	h := table.Handler(Policy{Permit: func(Access, *http.Request, url.Values) (string, error) { return "", nil }})
	for _, x := range []struct {
		method, path string
		status       int
		header, is   string
	}{
		{"POST", "/pub?topic=t", 200, "Allow", ""},
		{"POST", "/pub/?topic=t", 307, "Location", "../pub?topic=t"},
		{"POST", "/PUB?topic=t", 307, "Location", "pub?topic=t"},
		{"POST", "//pub?topic=t", 307, "Location", "../pub?topic=t"},
		{"POST", "/Topic/Create/?topic=t", 307, "Location", "../../topic/create?topic=t"},
		{"GET", "/ping/", 301, "Location", "../ping"},
		{"HEAD", "/Ping", 307, "Location", "ping"},
		{"GET", "/config/log_level/", 301, "Location", "../../config/log_level"},
		{"GET", "/debug/pprof", 301, "Location", "../debug/pprof/"},
		{"GET", "/debug/pprof/heap", 200, "Allow", ""},
		{"GET", "/pub/", 404, "Location", ""},
		{"GET", "/nonsense", 404, "Location", ""},
		{"GET", "/", 404, "Location", ""},
		{"OPTIONS", "/pub", 200, "Allow", "OPTIONS, POST"},
		{"OPTIONS", "/config/log_level", 200, "Allow", "GET, OPTIONS, PUT"},
		{"OPTIONS", "/nonsense", 404, "Allow", ""},
		{"GET", "/pub", 405, "Allow", "OPTIONS, POST"},
		{"DELETE", "/ping", 405, "Allow", "GET, HEAD, OPTIONS"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(x.method, "http://node"+x.path, nil))
		if w.Code != x.status || w.Header().Get(x.header) != x.is {
			t.Errorf("%s %s: %d, %s %q; want %d, %q",
				x.method, x.path, w.Code, x.header, w.Header().Get(x.header), x.status, x.is)
		}
	}
}
