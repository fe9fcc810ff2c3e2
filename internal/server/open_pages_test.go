package server

import (
	"net/http"
	"net/http/cookiejar"
	"strings"
	"testing"

	"penstock/internal/node"
)

// shown are the pages that tell of topics, addresses and tokens. needed are those that supervisors, NSQ's clients and
// browsers ask for before they can show a token.
func (n *testNode) shown() []string {
	lookups := "http://" + n.LookupAddr().String()
	return []string{
		n.base + "/stats", n.base + "/stats?format=json&topic=a", n.base + "/metrics", n.base + "/metrics/per-object?topic=*",
		n.base + "/info", lookups + "/info", lookups + "/topics", lookups + "/nodes", lookups + "/debug",
	}
}

func (n *testNode) needed() []string {
	lookups := "http://" + n.LookupAddr().String()
	return []string{
		n.base + "/ping", n.base + "/livez", n.base + "/readyz", n.base + "/startupz", n.base + "/session",
		n.base + "/console/", n.base + "/console/app.js", lookups + "/ping", lookups + "/lookup?topic=a",
		lookups + "/listlookup?topic=a", lookups + "/channels?topic=a",
	}
}

// Where there are tokens, pages that tell of topics, addresses and tokens need one, of whatever right; unless
// OpenPages opens them. What is needed before a token can be shown stays open.
func TestPagesNeedAToken(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		n    *testNode
		open bool
	}{
		"tokens":             {startClosed(t, Options{}), false},
		"tokens, open pages": {startClosed(t, Options{OpenPages: true}), true},
		"no tokens":          {startNode(t, node.Options{}, Options{}), true},
	} {
		n := x.n
		if code, text := ask(t, "POST", n.base+"/topic/create?topic=a", "s3cret"); code != 200 {
			t.Fatal(code, text)
		}
		for _, url := range n.shown() {
			for _, token := range []string{"", "wrong", "s3cret"} {
				want := 401
				if x.open || token == "s3cret" {
					want = 200
				}
				if code, text := ask(t, "GET", url, token); code != want {
					t.Errorf("%s: %s with the token %q: %d %s, want %d", name, url, token, code, text, want)
				}
			}
		}
		for _, url := range n.needed() {
			if reply, text := request(t, "GET", url, ""); reply.StatusCode != 200 {
				t.Errorf("%s: %s: %d %s", name, url, reply.StatusCode, text)
			}
		}
		if x.open {
			continue
		}
		reply, _ := request(t, "GET", n.base+"/metrics", "")
		if says := reply.Header.Get("Penstock-Detail"); !strings.Contains(says, "open-pages") {
			t.Errorf("%s: the refusal says %q", name, says)
		}
	}
}

// A browser that has logged in at the console sees the pages with its cookie.
func TestPagesWithACookie(t *testing.T) {
	t.Parallel()
	n := startClosed(t, Options{})
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	for i, want := range []int{401, 200} {
		reply, err := browser.Get(n.base + "/stats")
		if err != nil {
			t.Fatal(err)
		}
		reply.Body.Close()
		if reply.StatusCode != want {
			t.Errorf("%d, want %d", reply.StatusCode, want)
		}
		if i > 0 {
			break
		}
		token := strings.NewReader(`{"token":"s3cret"}`)
		if reply, err = browser.Post(n.base+"/session", "application/json", token); err != nil {
			t.Fatal(err)
		}
		reply.Body.Close()
	}
}
