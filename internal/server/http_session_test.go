package server

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"penstock/internal/node"
	"penstock/internal/server/api"
	"penstock/internal/server/auth"
	"penstock/tests/support/authtest"
)

// sessionOf asks for the session of a token, with a query; it returns the answer as it is, too.
func sessionOf(t *testing.T, n *testNode, token, query string) (s api.Session, text string) {
	t.Helper()
	code, text := ask(t, "GET", n.base+"/session"+query, token)
	if code != 200 {
		t.Fatalf("%s as %q: %d %s", query, token, code, text)
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s, text
}

// grantTokens writes a file with tokens that have rights on everything, on some topics, and on some channels.
func grantTokens(t *testing.T) string {
	name := filepath.Join(t.TempDir(), "tokens.toml")
	grant := func(permissions, topics, channels string) string {
		return "permissions = [" + permissions + "]\ntopics = [" + topics + "]\nchannels = [" + channels + "]"
	}
	authtest.Write(t, name, authtest.Token("root", "root", grant(`"admin", "publish"`, `"*"`, `"*"`))+
		authtest.Token("looker", "looker", grant(`"view"`, `"*"`, `"*"`))+
		authtest.Token("owner", "owner", grant(`"admin", "publish", "subscribe"`, `"shop-*"`, `"*"`))+
		authtest.Token("mailer", "mailer", grant(`"admin", "subscribe"`, `"shop-*"`, `"mail*"`))+
		authtest.Token("filler", "filler", grant(`"publish"`, `"shop-a"`, `"*"`))+
		authtest.Token(
			"both", "both", grant(`"view"`, `"*"`, `"*"`), grant(`"publish"`, `"shop-a"`, `"*"`),
			grant(`"subscribe"`, `"shop-a"`, `"mail"`),
		))
	return name
}

// GET /session says what a client may do with a topic and a channel, and the routes decide just so.
func TestSessionSaysWhatAClientMay(t *testing.T) {
	n := startNode(t, node.Options{}, Options{Auth: auth.Options{File: grantTokens(t)}})
	for _, path := range []string{
		"/topic/create?topic=shop-a", "/topic/create?topic=other", "/channel/create?topic=shop-a&channel=mail",
		"/channel/create?topic=shop-a&channel=bills", "/channel/create?topic=other&channel=mail",
	} {
		if code, text := ask(t, "POST", n.base+path, "root"); code != 200 {
			t.Fatalf("%s: %d %s", path, code, text)
		}
	}
	const (
		shop, other = "?topic=shop-a", "?topic=other"
		mail, bills = "?topic=shop-a&channel=mail", "?topic=shop-a&channel=bills"
	)
	for _, x := range []struct {
		token, query string
		may          api.May
		creates      bool
	}{
		{"root", shop, api.May{Publish: true, View: true, Admin: true}, true},
		{"root", mail, api.May{Publish: true, View: true, Admin: true}, true},
		{"looker", shop, api.May{View: true}, false},
		{"looker", bills, api.May{View: true}, false},
		{"owner", shop, api.May{Publish: true, Subscribe: true, View: true, Admin: true}, true},
		{"owner", bills, api.May{Publish: true, Subscribe: true, View: true, Admin: true}, true},
		{"owner", other, api.May{}, false},
		{"owner", "?topic=other&channel=mail", api.May{}, false},
		{"mailer", shop, api.May{}, true}, // channels limit what may be done with the topic as a whole
		{"mailer", mail, api.May{Subscribe: true, View: true, Admin: true}, true},
		{"mailer", bills, api.May{}, true},
		{"mailer", other, api.May{}, false},
		{"filler", shop, api.May{Publish: true}, false},
		{"filler", mail, api.May{Publish: true}, false},
		{"filler", other, api.May{}, false},
		{"both", shop, api.May{Publish: true, View: true}, false},
		{"both", mail, api.May{Publish: true, Subscribe: true, View: true}, false},
		{"both", bills, api.May{Publish: true, View: true}, false},
		{"both", other, api.May{View: true}, false},
	} {
		s, text := sessionOf(t, n, x.token, x.query)
		if s.May == nil || *s.May != x.may || s.Creates != x.creates || s.Name != x.token {
			t.Errorf("%s of %s: %s, want %+v, creates %v", x.query, x.token, text, x.may, x.creates)
		}
		sameAsRoutes(t, n, x.token, x.query, x.may)
	}
}

// sameAsRoutes checks that the routes decide as may says.
func sameAsRoutes(t *testing.T, n *testNode, token, query string, may api.May) {
	t.Helper()
	kind := "topic"
	if len(query) > len("?topic=shop-a") {
		kind = "channel"
	}
	for _, r := range []struct {
		method, path string
		allowed      bool
	}{
		{"POST", "/pub", may.Publish},
		{"GET", "/" + kind + "/settings", may.View},
		{"GET", "/" + kind + "/peek", may.Admin},
		{"POST", "/" + kind + "/unpause", may.Admin},
	} {
		code, text := ask(t, r.method, n.base+r.path+query, token)
		if want := map[bool]int{true: 200, false: 403}[r.allowed]; code != want {
			t.Errorf("%s %s%s of %s: %d %s, want %d", r.method, r.path, query, token, code, text, want)
		}
	}
}

// A GET /session that names no topic has no "may" in its answer; "creates" is true if the token may make topics of
// some names.
func TestSessionWithoutATopic(t *testing.T) {
	n := startNode(t, node.Options{}, Options{Auth: auth.Options{File: grantTokens(t)}})
	for token, creates := range map[string]bool{
		"root": true, "looker": false, "owner": true, "mailer": false, "filler": false, "both": false,
	} {
		for _, query := range []string{"", "?channel=mail", "?topic=", "?topic=&channel=mail"} {
			if s, text := sessionOf(t, n, token, query); s.May != nil || s.Creates != creates ||
				s.Admin != (token == "root") || s.View != (token == "root" || token == "looker" || token == "both") {
				t.Errorf("%q of %s: %s", query, token, text)
			}
		}
	}
	for _, token := range []string{"", "nobody's"} { // strangers learn nothing
		const want = `{"auth":true,"name":"","view":false,"admin":false,"cluster":false,"node":"","version":""}` + "\n"
		for _, query := range []string{"", "?topic=shop-a", "?topic=shop-a&channel=mail"} {
			if _, text := sessionOf(t, n, token, query); text != want {
				t.Errorf("%q of a stranger: %s", query, text)
			}
		}
	}
}

// Without Auth every client may do everything.
func TestSessionWithoutAuth(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	for _, query := range []string{"?topic=t", "?topic=t&channel=c"} {
		s, text := sessionOf(t, n, "", query)
		if s.May == nil || *s.May != (api.May{Publish: true, Subscribe: true, View: true, Admin: true}) || !s.Creates {
			t.Errorf("%s: %s", query, text)
		}
	}
	if s, text := sessionOf(t, n, "", ""); s.May != nil || !s.Admin || !s.Creates {
		t.Errorf("%s", text)
	}
}

// The channels of an auth server's grant limit topics, too, as in nsqd: a client that may make channels of some names
// need not be allowed anything with the topic.
func TestSessionOfAnAuthServersGrant(t *testing.T) {
	a := newAuthServer(t)
	a.set(200, grantJSON(3600, "^shop-", "^mail$", "admin", "publish", "subscribe"))
	n := startNode(t, node.Options{}, Options{Auth: auth.Options{HTTPAddresses: []string{a.address()}}})
	for query, want := range map[string]struct {
		may     api.May
		creates bool
	}{
		"?topic=shop-a":               {api.May{}, true},
		"?topic=shop-a&channel=mail":  {api.May{Subscribe: true, View: true, Admin: true}, true},
		"?topic=shop-a&channel=bills": {api.May{}, true},
		"?topic=other&channel=mail":   {api.May{}, false},
	} {
		s, text := sessionOf(t, n, "secret", query)
		if s.May == nil || *s.May != want.may || s.Creates != want.creates {
			t.Errorf("%s: %s, want %+v", query, text, want)
		}
	}
	if s, text := sessionOf(t, n, "secret", ""); s.Creates {
		t.Errorf("topics cannot be made, but: %s", text)
	}
}
