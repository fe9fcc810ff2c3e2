package server

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"penstock/internal/node"
	"penstock/internal/server/auth"
	"penstock/internal/server/web"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
)

// ask sends a request with a token; empty: without one.
func ask(t testing.TB, method, url, token string) (int, string) {
	t.Helper()
	var headers []string
	if token != "" {
		headers = []string{"Authorization", "Bearer " + token}
	}
	reply, body := request(t, method, url, "x", headers...)
	if (reply.StatusCode == 401) != (reply.Header.Get("WWW-Authenticate") == "Bearer") {
		t.Errorf("%s: status %d, WWW-Authenticate %q", url, reply.StatusCode, reply.Header.Get("WWW-Authenticate"))
	}
	return reply.StatusCode, body
}

// B98. A request requires the same permission as the same action over the NSQ protocol. An action that affects more
// than one topic requires permission for everything.
func TestHTTPAuth(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tokens.toml")
	authtest.Write(t, name,
		authtest.Token("shop", "shop", `permissions = ["publish"]`+"\n"+`topics = ["orders"]`)+
			authtest.Token(
				"owner", "owner", `permissions = ["admin"]`+"\n"+`topics = ["orders"]`+"\n"+`channels = ["billing"]`,
				`permissions = ["admin"]`+"\n"+`topics = ["mine"]`,
			)+
			authtest.Token("root", "root", `permissions = ["publish", "admin"]`+"\n"+`topics = ["*"]`))
	cluster := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "cluster") })
	n := startNode(t, node.Options{}, Options{Auth: auth.Options{File: name}, ClusterHandler: cluster})
	nsqd, lookup := n.base, "http://"+n.LookupAddr().String()
	for _, x := range []struct {
		method, url                     string
		shop, owner, root, withoutToken int
	}{
		{"GET", nsqd + "/ping", 200, 200, 200, 200},
		{"GET", nsqd + "/info", 200, 200, 200, 401},
		{"GET", nsqd + "/stats?format=json", 200, 200, 200, 401},
		{"GET", nsqd + "/none", 404, 404, 404, 404},
		{"GET", nsqd + "/pub?topic=orders", 405, 405, 405, 405},
		{"POST", nsqd + "/pub?topic=orders", 200, 403, 200, 401},
		{"POST", nsqd + "/mpub?topic=orders", 200, 403, 200, 401},
		{"POST", nsqd + "/pub?topic=other", 403, 403, 200, 401},
		{"POST", nsqd + "/pub", 400, 400, 400, 401},
		{"POST", nsqd + "/topic/create?topic=orders", 403, 403, 200, 401},
		{"POST", nsqd + "/channel/create?topic=orders&channel=billing", 403, 200, 200, 401},
		{"POST", nsqd + "/channel/pause?topic=orders&channel=billing", 403, 200, 200, 401},
		{"POST", nsqd + "/channel/unpause?topic=orders&channel=billing", 403, 200, 200, 401},
		{"POST", nsqd + "/channel/empty?topic=orders&channel=billing", 403, 200, 200, 401},
		{"POST", nsqd + "/channel/delete?topic=orders&channel=other", 403, 403, 404, 401},
		{"POST", nsqd + "/topic/pause?topic=orders", 403, 403, 200, 401},
		{"POST", nsqd + "/topic/unpause?topic=orders", 403, 403, 200, 401},
		{"POST", nsqd + "/topic/empty?topic=orders", 403, 403, 200, 401},
		{"POST", nsqd + "/topic/delete?topic=other", 403, 403, 200, 401},
		{"GET", nsqd + "/config/log_level", 403, 403, 200, 401},
		{"PUT", nsqd + "/config/log_level", 403, 403, 400, 401},
		{"POST", nsqd + "/debug/freememory", 403, 403, 200, 401},
		{"PUT", nsqd + "/debug/setblockrate?rate=0", 403, 403, 200, 401},
		{"GET", nsqd + "/debug/pprof/cmdline", 403, 403, 200, 401},
		{"GET", nsqd + "/debug/pprof/", 403, 403, 200, 401},
		{"GET", nsqd + "/cluster/status", 403, 403, 200, 401},
		{"POST", nsqd + "/cluster/drain", 403, 403, 200, 401},
		{"GET", lookup + "/ping", 200, 200, 200, 200},
		{"GET", lookup + "/lookup?topic=orders", 200, 200, 200, 200},
		{"GET", lookup + "/nodes", 200, 200, 200, 401},
		{"POST", lookup + "/topic/create?topic=mine", 403, 200, 200, 401},
		{"POST", lookup + "/channel/create?topic=mine&channel=c", 403, 200, 200, 401},
		{"POST", lookup + "/channel/delete?topic=mine&channel=none", 403, 404, 404, 401},
		{"POST", lookup + "/topic/tombstone?topic=mine&node=x:1", 403, 200, 200, 401},
		{"POST", lookup + "/tombstone_topic_producer?topic=mine&node=x:1", 403, 200, 200, 401},
		{"POST", lookup + "/topic/delete?topic=other", 403, 403, 200, 401},
		{"GET", lookup + "/debug/pprof/cmdline", 403, 403, 200, 401},
	} {
		for token, want := range map[string]int{"": x.withoutToken, "shop": x.shop, "owner": x.owner, "root": x.root} {
			if got, body := ask(t, x.method, x.url, token); got != want {
				t.Errorf("%s %s with token %q: %d %.80s, want %d", x.method, x.url, token, got, body, want)
			}
		}
		if x.withoutToken == 401 {
			if code, body := ask(t, x.method, x.url, "unknown"); code != 401 || body != `{"message":"AUTH_FAILED"}` {
				t.Errorf("%s %s with an unknown token: %d %s", x.method, x.url, code, body)
			}
		}
	}
	if code, body := ask(t, "POST", nsqd+"/pub?topic=orders", ""); code != 401 || body != `{"message":"AUTH_FIRST"}` {
		t.Errorf("%d %s", code, body)
	}
	if code, body := ask(t, "POST", nsqd+"/pub?topic=other", "shop"); code != 403 || body != `{"message":"UNAUTHORIZED"}` {
		t.Errorf("%d %s", code, body)
	}
}

// A new route whose author did not think about permissions must not be open.
func TestOpenRoutesOnlyTell(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	for path, rt := range n.api.Table() {
		if path == "/session" { // where clients begin to prove who they are
			continue
		}
		if rt.Need == web.Open && rt.Methods != "GET" && rt.Methods != "GET,HEAD" {
			t.Errorf("%s of nsqd's API is open and takes %s", path, rt.Methods)
		}
	}
}

// An auth server is asked once for many requests with the same secret. A request is refused if the server refuses the
// secret or cannot answer.
func TestHTTPAuthServers(t *testing.T) {
	s := newAuthServer(t)
	s.set(200, grantJSON(3600, "^t$", "", "publish"))
	n := startNode(t, node.Options{}, Options{Auth: auth.Options{HTTPAddresses: []string{s.address()}}})
	for range 20 {
		if code, body := ask(t, "POST", n.base+"/pub?topic=t", "one"); code != 200 {
			t.Fatalf("%d %s", code, body)
		}
	}
	if k := s.asked.Load(); k != 1 {
		t.Errorf("asked %d times", k)
	}
	if code, _ := ask(t, "POST", n.base+"/pub?topic=other", "one"); code != 403 {
		t.Errorf("another topic: %d", code)
	}
	if code, _ := ask(t, "POST", n.base+"/pub?topic=t", "two"); code != 200 || s.asked.Load() != 2 {
		t.Errorf("another secret: %d, asked %d times", code, s.asked.Load())
	}
	s.set(200, grantJSON(3600, ".*", ".*", "admin"))
	if code, _ := ask(t, "GET", n.base+"/config/log_level", "three"); code != 200 {
		t.Errorf("an administrator: %d", code)
	}
	s.set(403, "")
	if code, _ := ask(t, "POST", n.base+"/pub?topic=t", "four"); code != 401 {
		t.Errorf("a secret that is refused: %d", code)
	}
	s.set(500, "")
	if code, _ := ask(t, "POST", n.base+"/pub?topic=t", "five"); code != 503 {
		t.Errorf("a server that fails: %d", code)
	}
}

// syncBuffer is a log to which several goroutines write.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Whatever goes wrong, no secret appears in a log, in an answer of the API or in statistics.
func TestSecretsAreNotLogged(t *testing.T) {
	const secret = "tops3cret-value"
	var log syncBuffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	name := filepath.Join(t.TempDir(), "tokens.toml")
	authtest.Write(t, name, authtest.Token("known", "known-"+secret, `permissions = ["publish"]`+"\n"+`topics = ["t"]`))
	s := newAuthServer(t)
	elsewhere := newAuthServer(t)
	for _, method := range []string{"GET", "POST"} {
		n := startNode(t, node.Options{}, Options{Logger: logger, Auth: auth.Options{
			File: name, HTTPMethod: method,
			HTTPAddresses: []string{s.address(), "127.0.0.1:1", "http://user:" + secret + "@127.0.0.1:1/x"},
		}})
		try := func(secret string) {
			c := n.dial(t)
			c.Send(authCommand(secret))
			if _, _, err := c.Frame(nsqtest.Patience); err != nil {
				t.Error(err)
			}
			c.Send(nsqtest.Pub("t", "x") + nsqtest.Pub("u", "x") + "BLAH\n")
			_, body := ask(t, "POST", n.base+"/pub?topic=t", secret)
			_, stats := ask(t, "GET", n.base+"/stats?format=json", "")
			if strings.Contains(body+stats, "tops3cret") {
				t.Errorf("the API shows it: %s %s", body, stats)
			}
		}
		for status, answer := range map[int]string{
			200: grantJSON(60, "t", "", "publish"), 403: "", 500: secret, 201: "{" + secret, 302: elsewhere.URL + "/auth",
		} {
			s.set(status, answer)
			try(secret)
		}
		try("known-" + secret)
		s.CloseClientConnections()
		for _, text := range []string{"sha256 = \"" + secret, "[[token]]\nname=\"x\"\nsha256=\"" + secret + "\""} {
			authtest.Write(t, name, text)
			if err := n.ReloadTokens(); err == nil || strings.Contains(err.Error(), secret) {
				t.Errorf("ReloadTokens: %v", err)
			}
		}
		authtest.Write(t, name, authtest.Token("known", "known-"+secret, `permissions = ["publish"]`+"\n"+`topics = ["t"]`))
	}
	if text := log.String(); strings.Contains(text, "tops3cret") || !strings.Contains(text, "refusing") {
		for line := range strings.Lines(text) {
			if strings.Contains(line, "tops3cret") {
				t.Errorf("in the log: %s", line)
			}
		}
		if !strings.Contains(text, "refusing") {
			t.Errorf("the log says nothing of refusals:\n%s", text)
		}
	}
	if elsewhere.asked.Load() != 0 {
		t.Error("a redirect took a secret to where nobody configured it")
	}
}
