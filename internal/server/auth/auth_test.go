package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/tests/support/authtest"
)

// grantJSON returns an answer with one authorization.
func grantJSON(ttl int, topic, channel string, permissions ...string) string {
	b, _ := json.Marshal(map[string]any{
		"ttl": ttl, "identity": "someone", "identity_url": "http://who", "authorizations": []any{
			map[string]any{"topic": topic, "channels": []string{channel}, "permissions": permissions},
		},
	})
	return string(b)
}

func TestTokenFileErrors(t *testing.T) {
	grant := `permissions = ["publish"]` + "\n" + `topics = ["t"]`
	for _, x := range []struct{ text, want string }{
		{"token = 5 =", "not valid TOML at line 1"},
		{"[[token]]\nname = \"a\"\nsecret = \"topsecret\"\n", "line 3 has an unknown key"},
		{"[[token]]\nname = 5\nsha256 = \"topsecret\"\n", "not valid TOML at line 2"},
		{authtest.Token("", "a", grant), "needs a name"},
		{authtest.Token("a", "a", grant) + authtest.Token("a", "b", grant), "token 2 needs a name of its own"},
		{authtest.Token("a", "a", grant) + authtest.Token("b", "a", grant), `sha256 of token "b"`},
		{"[[token]]\nname = \"a\"\nsha256 = \"topsecret\"\n", `sha256 of token "a" is not 64 hex digits`},
		{
			"[[token]]\nname = \"a\"\nsha256 = \"" + strings.Repeat("topsecret", 20)[:64] + "\"\n",
			`sha256 of token "a" is not 64 hex digits`,
		},
		{authtest.Token("a", "a"), "has 0 grants"},
		{authtest.Token("a", "a", `permissions = ["fly"]`+"\n"+`topics = ["t"]`), `the permission "fly"`},
		{authtest.Token("a", "a", `topics = ["t"]`), "needs permissions and topics"},
		{authtest.Token("a", "a", `permissions = ["admin"]`), "needs permissions and topics"},
		{authtest.Token("a", "a", `permissions = ["admin"]`+"\n"+`topics = ["[t"]`), `"[t" is no pattern`},
		{authtest.Token("a", "a", `permissions = ["admin"]`+"\n"+`topics = [""]`), `"" is no pattern`},
	} {
		_, err := parseTokens([]byte(x.text))
		if err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "topsecret") {
			t.Errorf("%s\ngives %v, want %s", x.text, err, x.want)
		}
	}
	dir := t.TempDir()
	open := filepath.Join(dir, "open.toml")
	authtest.Write(t, open, authtest.Token("a", "a", grant))
	for _, mode := range []os.FileMode{0o644, 0o641} {
		if err := os.Chmod(open, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := readTokens(open, false); err == nil || !strings.Contains(err.Error(), "may be used by everybody") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
}

// FuzzTokens: no file makes the parser panic, and every token of an accepted file has a principal with at least one
// grant.
func FuzzTokens(f *testing.F) {
	f.Add([]byte(authtest.Token("a", "a", `permissions = ["admin"]`+"\n"+`topics = ["*"]`)))
	f.Add([]byte("[[token]]\n[[token.grant]]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parseTokens(data)
		if err == nil {
			for i := range file.tokens {
				if file.tokens[i].principal.file != file || len(file.tokens[i].principal.grants) == 0 {
					t.Errorf("%+v", file.tokens[i])
				}
			}
		}
	})
}

// FuzzAuthAnswer: whatever a server answers, an accepted answer has an expiry and patterns that work.
func FuzzAuthAnswer(f *testing.F) {
	f.Add([]byte(grantJSON(60, "^t$", ".*", "publish", "admin")))
	f.Add([]byte(`{"ttl":9223372036854775807,"authorizations":[{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		now := time.Now()
		p, err := parseAnswer(data, now)
		if err != nil {
			return
		}
		if !p.expires.After(now) {
			t.Errorf("%s expires at %v", data, p.expires)
		}
		for i := range p.grants {
			if len(p.grants[i].topics) != 1 {
				t.Errorf("%+v", p.grants[i])
			}
		}
		for on := ofNode; on <= ofSomeTopic; on++ {
			May(p, Publish|Admin, Resource{scope: on, topic: "t"})
		}
	})
}

// However many secrets arrive, the cache keeps to its bound, and a secret that is in use stays.
// Who may use a file of secrets is judged by its mode; a setting accepts what others may read, not what they may
// change.
func TestReadPrivate(t *testing.T) {
	name := filepath.Join(t.TempDir(), "secret")
	for mode, want := range map[os.FileMode]struct{ usual, readable string }{
		0o600: {}, 0o440: {},
		0o444: {"or set readable-secrets", ""}, 0o441: {"chmod o=", ""},
		0o442: {"may be changed by everybody", "may be changed by everybody"},
		0o666: {"may be changed by everybody", "may be changed by everybody"},
	} {
		_ = os.Remove(name)
		if err := errors.Join(os.WriteFile(name, []byte("x"), mode), os.Chmod(name, mode)); err != nil {
			t.Fatal(err)
		}
		for readable, says := range map[bool]string{false: want.usual, true: want.readable} {
			text, err := ReadPrivate(name, 1, readable)
			if says == "" && (err != nil || string(text) != "x") ||
				says != "" && (err == nil || !strings.Contains(err.Error(), says) || len(text) > 0) {
				t.Errorf("mode %04o, readable %v: %q, %v", mode, readable, text, err)
			}
		}
	}
	if _, err := ReadPrivate(name, 0, true); err == nil || !strings.Contains(err.Error(), "at most 0 bytes") {
		t.Errorf("a file that is too long: %v", err)
	}
}

// Auth servers are replaced while clients ask them. What is no server, or none at all, leaves the old ones.
func TestSetServers(t *testing.T) {
	server := func(identity string) (address string) {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"ttl":1,"identity":%q,"authorizations":[{"topic":".*","channels":[".*"],`+
				`"permissions":["publish"]}]}`, identity)
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	o := Options{HTTPAddresses: []string{server("old")}}
	if err := o.SetDefaults(); err != nil {
		t.Fatal(err)
	}
	a, err := Open(&o)
	if err != nil {
		t.Fatal(err)
	}
	asked := func() string {
		t.Helper()
		p, err := a.Find(t.Context(), &Credential{Secret: "x"})
		if err != nil {
			t.Fatal(err)
		}
		return p.Name()
	}
	for _, wrong := range [][]string{nil, {"no address"}} {
		if err := a.SetServers(wrong); err == nil || asked() != "old" {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if err := a.SetServers([]string{server("new")}); err != nil || asked() != "new" {
		t.Errorf("%s answers, %v", asked(), err)
	}
	o.HTTPMethod, o.RequestTimeout, o.HoldTime = "POST", time.Minute, NoHold
	if err := a.Change(o); err != nil || asked() != "new" || a.holdTime() != 0 {
		t.Errorf("%s answers, for %v, %v", asked(), a.holdTime(), err)
	}
	if now := a.servers.Load(); now.o.HTTPMethod != "POST" || now.client.Timeout != time.Minute {
		t.Errorf("they are asked as before: %+v", now.o)
	}
	if err := (*Authority)(nil).Change(o); err != nil {
		t.Error(err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	a, err := Open(&Options{HTTPAddresses: []string{"127.0.0.1:1"}, HTTPMethod: "GET", RequestTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	used, now := Credential{Secret: "in use"}, time.Now()
	a.cache.Add(used.key(), &Principal{expires: now.Add(time.Hour)})
	for i := range 2 * maxCachedSecrets {
		c := Credential{Secret: "secret " + strconv.Itoa(i)}
		a.cache.Add(c.key(), &Principal{expires: now.Add(time.Hour)})
		if _, err := a.FindCached(t.Context(), &used); err != nil {
			t.Fatalf("after %d others: %v", i+1, err)
		}
	}
	if k := a.cache.Len(); k != maxCachedSecrets {
		t.Errorf("%d secrets are remembered", k)
	}
	old := Credential{Secret: "expired"}
	a.cache.Add(old.key(), &Principal{expires: now.Add(-time.Second)})
	if _, err := a.FindCached(t.Context(), &old); err == nil {
		t.Error("an answer that has expired is used")
	}
}
