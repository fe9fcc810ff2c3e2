package server

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"penstock/internal/node"
	"penstock/internal/server/web"
	"penstock/tests/support/nsqtest"
)

// listenerUnderTest is one HTTP listener of a node, with all routes that it serves.
type listenerUnderTest struct {
	name, base string
	routes     web.Table
	client     *http.Client
}

// allListeners starts a node with every HTTP listener that there is.
func allListeners(t *testing.T, o Options) (*testNode, []listenerUnderTest) {
	t.Helper()
	ca := nsqtest.NewAuthority(t)
	o.TLS.CertFile, o.TLS.KeyFile = ca.Issue(t, "server")
	o.HTTPSAddress = "127.0.0.1:0"
	if o.ClusterHandler == nil {
		o.ClusterHandler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "cluster")
		})
	}
	n := startNode(t, node.Options{}, o)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool}}
	t.Cleanup(transport.CloseIdleConnections)
	return n, []listenerUnderTest{
		{"http", n.base, n.api.Table(), http.DefaultClient},
		{"https", "https://" + n.HTTPSAddr().String(), n.api.Table(), &http.Client{Transport: transport}},
		{"lookup", "http://" + n.LookupAddr().String(), n.lookups.Routes(), http.DefaultClient},
	}
}

// gateAsk sends a request with a Host header and other headers, given as alternating names and values.
func gateAsk(t *testing.T, l listenerUnderTest, method, path, host string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, l.base+strings.ReplaceAll(path, "{option}", "log_level"), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	reply, err := l.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(body)
}

// O6. On every listener and every route, a page of another site changes nothing, and a page that reaches the node by a
// name that is not the node's (DNS rebinding) gets nothing.
func TestForeignPages(t *testing.T) {
	t.Parallel()
	o := Options{BroadcastAddress: "broker.example.com", AllowedHosts: []string{"proxy.example"}}
	n, listeners := allListeners(t, o)
	n.post(t, "/topic/create?topic=victim", "")
	for _, l := range listeners {
		if len(l.routes) < 10 {
			t.Fatalf("%s has only %d routes", l.name, len(l.routes))
		}
		paths := append(slices.Sorted(maps.Keys(l.routes)), "/none", "/cluster/drain", "/cluster/status")
		for _, path := range paths {
			path += "?topic=victim&channel=c&seconds=1"
			for _, x := range []struct {
				method, host string
				status       int
				headers      []string
			}{
				{"POST", "", 403, []string{"Origin", "http://evil.example"}},
				{"PUT", "", 403, []string{"Sec-Fetch-Site", "cross-site"}},
				{"POST", "evil.example", 421, []string{"Origin", "http://evil.example"}},
				{"GET", "evil.example:4151", 421, []string{"User-Agent", "Mozilla/5.0 (X11; Linux x86_64)"}},
				{"POST", "evil.example", 421, []string{"Accept-Language", "en"}},
			} {
				if x.status == 421 && web.Public(strings.Split(path, "?")[0]) {
					continue
				}
				status, body := gateAsk(t, l, x.method, path, x.host, x.headers...)
				var said map[string]string
				if json.Unmarshal([]byte(body), &said) != nil || status != x.status ||
					!strings.HasPrefix(said["message"], "refused because ") {
					t.Fatalf("%s: %s %s for %q with %v: %d %s", l.name, x.method, path, x.host, x.headers, status, body)
				}
			}
		}
		for _, host := range []string{"", "localhost", "testhost:1", "broker.example.com", "proxy.example:80", "10.0.0.1"} {
			if status, body := gateAsk(t, l, "GET", "/ping", host); status != 200 || body != "OK" {
				t.Errorf("%s: /ping for %q: %d %s", l.name, host, status, body)
			}
		}
	}
	// Programs reach the node by any name.
	if status, body := gateAsk(t, listeners[0], "GET", "/stats", "nsqd:4151"); status != 200 {
		t.Errorf("a program that asks for nsqd: %d %s", status, body)
	}
	if _, ok := n.e.Catalog().LookupTopic("victim"); !ok {
		t.Error("a page of another site has deleted the topic")
	}
	open := startNode(t, node.Options{}, Options{AllowedHosts: []string{"*"}})
	l := listenerUnderTest{base: open.base, client: http.DefaultClient}
	if status, _ := gateAsk(t, l, "GET", "/ping", "evil.example"); status != 200 {
		t.Errorf("with * a foreign host gets %d", status)
	}
}

// TestAllServersHaveTheGate: only web.NewServer makes HTTP servers, so that no listener can forget the gate.
func TestAllServersHaveTheGate(t *testing.T) {
	server := regexp.MustCompile(`(^|[^.\w])http\.(Server\{|ListenAndServe|Serve\(|ServeTLS\()|new\(http\.Server\)`)
	exempt := []string{
		"internal/server/web/server.go",
		"internal/cluster/etcd/formation.go", // one fixed answer to other voters, without routes
	}
	found := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(filepath.ToSlash(path), "../../")
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"bench", "tests", "tools", "testdata", ".git"}, d.Name()):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !server.Match(text) {
			return err
		}
		found++
		if !slices.Contains(exempt, name) {
			t.Errorf("%s makes an HTTP server of its own: use web.NewServer, whose gate refuses pages of other sites", name)
		}
		return nil
	})
	if err != nil || found != len(exempt) {
		t.Errorf("%d files make HTTP servers, want %d (%v)", found, len(exempt), err)
	}
}
