package server

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/auth"
	"penstock/internal/server/nsq"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
)

// authServer is a server of NSQ's auth protocol over HTTP.
type authServer struct {
	*httptest.Server
	asked  atomic.Int64
	mu     sync.Mutex
	last   url.Values
	method string
	answer string // JSON
	status int
}

func newAuthServer(t testing.TB) *authServer {
	s := &authServer{status: 200}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		s.asked.Add(1)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last, s.method = r.Form, r.Method
		if r.URL.Path != "/auth" {
			w.WriteHeader(404)
			return
		}
		if s.status == http.StatusFound {
			w.Header().Set("Location", s.answer)
		}
		w.WriteHeader(s.status)
		fmt.Fprint(w, s.answer)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *authServer) set(status int, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.answer = status, answer
}

func (s *authServer) question() (url.Values, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.method
}

func (s *authServer) address() string { return strings.TrimPrefix(s.URL, "http://") }

// grantJSON returns an answer with one authorization.
func grantJSON(ttl int, topic, channel string, permissions ...string) string {
	b, _ := json.Marshal(map[string]any{
		"ttl": ttl, "identity": "someone", "identity_url": "http://who", "authorizations": []any{
			map[string]any{"topic": topic, "channels": []string{channel}, "permissions": permissions},
		},
	})
	return string(b)
}

// authCommand returns an AUTH with this secret.
func authCommand(secret string) string { return "AUTH\n" + nsqtest.Sized(secret) }

const someone = `{"identity":"someone","identity_url":"http://who","permission_count":1}`

// B98. The error strings are nsqd's.
func TestAuthFaults(t *testing.T) {
	s := newAuthServer(t)
	n := startNode(t, node.Options{}, Options{
		Settings: nsq.Settings{MaxStrangerBytes: 16 << 10},
		Auth:     auth.Options{HTTPAddresses: []string{s.address()}},
	})
	only := grantJSON(60, "^orders$", "^(billing)?$", "publish", "subscribe")
	for _, x := range []struct {
		status       int
		answer, send string
		want         []string // frames; the last one is fatal
	}{
		{200, only, nsqtest.Pub("orders", "x"), []string{"E_AUTH_FIRST AUTH required before PUB"}},
		{
			200, only, "MPUB orders\n" + nsqtest.Sized(nsqtest.BatchBody("x")),
			[]string{"E_AUTH_FIRST AUTH required before MPUB"},
		},
		{200, only, "DPUB orders 5\n" + nsqtest.Sized("x"), []string{"E_AUTH_FIRST AUTH required before DPUB"}},
		{200, only, "SUB orders billing\n", []string{"E_AUTH_FIRST AUTH required before SUB"}},
		{200, only, "PUB a:b\n" + nsqtest.Sized("x"), []string{`E_BAD_TOPIC PUB topic name "a:b" is not valid`}},
		{
			200, only, authCommand("s") + nsqtest.Pub("other", "x"),
			[]string{someone, `E_UNAUTHORIZED AUTH failed for PUB on "other" ""`},
		},
		{
			200, only, authCommand("s") + nsqtest.Pub("orders", "x") + "MPUB other\n" + nsqtest.Sized(nsqtest.BatchBody("x")),
			[]string{someone, "OK", `E_UNAUTHORIZED AUTH failed for MPUB on "other" ""`},
		},
		{
			200, only, authCommand("s") + nsqtest.Pub("orders", "x") + "SUB orders other\n",
			[]string{someone, "OK", `E_UNAUTHORIZED AUTH failed for SUB on "orders" "other"`},
		},
		{200, only, authCommand("s") + authCommand("s"), []string{someone, "E_INVALID AUTH already set"}},
		{
			200, only, authCommand("s") + "SUB orders billing\n" + authCommand("s"),
			[]string{someone, "OK", "E_INVALID cannot AUTH in current state"},
		},
		{ // no channel pattern matches ""
			200, grantJSON(60, "orders", "^c$", "publish"), authCommand("s") + nsqtest.Pub("orders", "x"),
			[]string{someone, `E_UNAUTHORIZED AUTH failed for PUB on "orders" ""`},
		},
		{ // patterns match anywhere
			200, grantJSON(60, "ord", "", "subscribe"), authCommand("s") + "SUB orders c\n", []string{someone, "OK"},
		},
		{
			200, grantJSON(60, "orders", "", "subscribe"), authCommand("s") + nsqtest.Pub("orders", "x"),
			[]string{someone, `E_UNAUTHORIZED AUTH failed for PUB on "orders" ""`},
		},
		{200, `{"ttl":60,"authorizations":[]}`, authCommand("s"), []string{"E_UNAUTHORIZED AUTH no authorizations found"}},
		{200, grantJSON(0, "", "", "publish"), authCommand("s"), []string{"E_AUTH_FAILED AUTH failed"}},
		{200, grantJSON(60, "", "", "fly"), authCommand("s"), []string{"E_AUTH_FAILED AUTH failed"}},
		{200, grantJSON(60, "(", "", "publish"), authCommand("s"), []string{"E_AUTH_FAILED AUTH failed"}},
		{200, "{", authCommand("s"), []string{"E_AUTH_FAILED AUTH failed"}},
		{200, strings.Repeat(" ", auth.MaxAnswerBytes+1), authCommand("s"), []string{"E_AUTH_FAILED AUTH failed"}},
		{403, only, authCommand("s"), []string{"E_AUTH_FAILED AUTH failed"}},
		{500, only, authCommand("s"), []string{"E_AUTH_FAILED AUTH failed"}},
		{302, only, authCommand("s"), []string{"E_AUTH_FAILED AUTH failed"}},
		{200, only, authCommand(strings.Repeat("s", auth.MaxSecretBytes+1)), []string{"E_AUTH_FAILED AUTH failed"}},
	} {
		s.set(x.status, x.answer)
		c := n.dial(t)
		c.Send(x.send)
		for i, want := range x.want {
			kind := uint32(nsqtest.FrameResponse)
			if strings.HasPrefix(want, "E_") {
				kind = nsqtest.FrameError
			}
			k, d, err := c.Frame(nsqtest.Patience)
			if err != nil || k != kind || string(d) != want {
				t.Fatalf("%.60q with %.80s: frame %d is %d %q %v, want %q", x.send, x.answer, i, k, d, err, want)
			}
			if kind == nsqtest.FrameError {
				c.Closed()
			}
		}
	}
	if got := n.e.Stats("other", ""); len(got) != 0 {
		t.Errorf("a refused command made its topic: %+v", got)
	}
}

// An auth server is told the client's address, its TLS and its certificate's name, with either HTTP method. If one
// server fails, another one is asked.
func TestAuthQuestions(t *testing.T) {
	ca := nsqtest.NewAuthority(t)
	for _, method := range []string{"GET", "POST"} {
		s, broken := newAuthServer(t), newAuthServer(t)
		s.set(200, grantJSON(60, ".*", ".*", "publish"))
		broken.set(500, "")
		o := tlsOptions(t, ca)
		o.TLS.ClientAuth, o.TLS.Required, o.TLS.RootCAFile = clientAuthVerify, requiredTCP, ca.File("ca.pem")
		o.Auth = auth.Options{HTTPAddresses: []string{broken.address(), s.URL + "/auth", "127.0.0.1:1"}, HTTPMethod: method}
		n := startNode(t, node.Options{}, o)
		for range 5 { // whichever server is asked first
			c := n.dial(t).Wrap(ca.Client(t, "a client"), "", 0)
			c.Send(authCommand("a secret & more"))
			c.Expect(nsqtest.FrameResponse, someone)
		}
		q, used := s.question()
		want := url.Values{
			"remote_ip":   {"127.0.0.1"},
			"tls":         {"true"},
			"secret":      {"a secret & more"},
			"common_name": {"a client"},
		}
		if used != method || q.Encode() != want.Encode() {
			t.Errorf("%s: %s %v", method, used, q)
		}
	}
	s := newAuthServer(t)
	s.set(200, grantJSON(60, ".*", ".*", "publish"))
	n := startNode(t, node.Options{}, Options{Auth: auth.Options{HTTPAddresses: []string{s.address()}}})
	c := n.dial(t)
	if got := c.Negotiate(map[string]any{}); !got.AuthRequired {
		t.Error("auth_required is false")
	}
	c.Send(authCommand("s") + nsqtest.Pub("t", "x"))
	c.Expect(nsqtest.FrameResponse, someone)
	c.OK()
	if q, _ := s.question(); q.Get("tls") != "false" || q.Get("common_name") != "" {
		t.Errorf("without TLS: %v", q)
	}
	if st := n.stats.Collect("", "", true).Producers[0]; !st.Authed || st.AuthIdentity != "someone" ||
		st.AuthIdentityURL != "http://who" {
		t.Errorf("in the statistics: %+v", st)
	}
}

// A server's answer is valid for its ttl. Then the server is asked again, and the new answer counts.
func TestAuthExpires(t *testing.T) {
	t.Parallel()
	s := newAuthServer(t)
	s.set(200, grantJSON(1, ".*", ".*", "publish"))
	o := auth.Options{HTTPAddresses: []string{s.address()}, HoldTime: auth.NoHold}
	n := startNode(t, node.Options{}, Options{Auth: o})
	c := n.dial(t)
	start, published := time.Now(), 0
	c.Send(authCommand("s"))
	c.Expect(nsqtest.FrameResponse, someone)
	for s.asked.Load() == 1 {
		c.Send(nsqtest.Pub("t", "x"))
		c.OK()
		if published++; time.Since(start) > nsqtest.Patience {
			t.Fatal("it is never asked again")
		}
	}
	if d := time.Since(start); d < 900*time.Millisecond || published < 2 {
		t.Errorf("asked again after %v and %d messages", d, published)
	}
	s.set(200, grantJSON(1, "other", ".*", "publish"))
	nsqtest.Eventually(t, "the refusal", func() bool {
		c.Send(nsqtest.Pub("t", "x"))
		k, d, err := c.Frame(nsqtest.Patience)
		if err != nil {
			t.Fatal(err)
		}
		return k == nsqtest.FrameError && string(d) == `E_UNAUTHORIZED AUTH failed for PUB on "t" ""`
	})
	s.set(500, "")
	d := n.dial(t)
	d.Send(authCommand("s"))
	d.Fatal("E_AUTH_FAILED AUTH failed")
}

// B98
func TestTokenFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tokens.toml")
	authtest.Write(t, name,
		authtest.Token("shop", "shop-token", `permissions = ["publish"]`+"\n"+`topics = ["orders", "orders.*"]`)+
			authtest.Token(
				"billing", "billing-token", `permissions = ["subscribe"]`+"\n"+`topics = ["orders"]`+"\n"+`channels = ["billing*"]`,
				`permissions = ["publish"]`+"\n"+`topics = ["invoices"]`,
			))
	n := startNode(t, node.Options{}, Options{Auth: auth.Options{File: name}})
	login := func(secret, identity string, grants int) *nsqtest.Client {
		c := n.dial(t)
		c.Send(authCommand(secret))
		c.Expect(nsqtest.FrameResponse, fmt.Sprintf(`{"identity":%q,"identity_url":"","permission_count":%d}`, identity,
			grants))
		return c
	}
	shop := login("shop-token", "shop", 1)
	shop.Send(nsqtest.Pub("orders", "x") + nsqtest.Pub("orders.new", "x") + nsqtest.Pub("orders", "x"))
	shop.OK()
	shop.OK()
	shop.OK()
	shop.Send(nsqtest.Pub("myorders", "x")) // a glob matches whole names
	shop.Fatal(`E_UNAUTHORIZED AUTH failed for PUB on "myorders" ""`)
	shop = login("shop-token", "shop", 1)
	shop.Send("SUB orders billing\n")
	shop.Fatal(`E_UNAUTHORIZED AUTH failed for SUB on "orders" "billing"`)

	billing := login("billing-token", "billing", 2)
	billing.Send(nsqtest.Pub("invoices", "x"))
	billing.OK()
	billing.Sub("orders", "billing-eu")
	narrowed := login("billing-token", "billing", 2)
	narrowed.Sub("orders", "billing-us")
	other := login("billing-token", "billing", 2)
	other.Send("SUB orders audit\n")
	other.Fatal(`E_UNAUTHORIZED AUTH failed for SUB on "orders" "audit"`)
	for _, secret := range []string{"shop-toke", "shop-tokens", "x", authtest.Hash("shop-token")} {
		c := n.dial(t)
		c.Send(authCommand(secret))
		c.Fatal("E_AUTH_FAILED AUTH failed")
	}

	// A permission that is no longer in the file ends: at once for a subscription, with the next command for
	// publishing.
	shop = login("shop-token", "shop", 1)
	authtest.Write(t, name, authtest.Token("shop", "shop-token", `permissions = ["publish"]`+"\n"+`topics = ["o?ders"]`)+
		authtest.Token(
			"billing", "billing-token",
			`permissions = ["subscribe"]`+"\n"+`topics = ["orders"]`+"\n"+`channels = ["billing-us"]`,
		))
	if err := n.ReloadTokens(); err != nil {
		t.Fatal(err)
	}
	billing.Closed()
	narrowed.Silent(50 * time.Millisecond)
	shop.Send(nsqtest.Pub("orders", "x") + nsqtest.Pub("orders.new", "x"))
	shop.OK()
	shop.Fatal(`E_UNAUTHORIZED AUTH failed for PUB on "orders.new" ""`)

	authtest.Write(t, name, authtest.Token("shop", "shop-token", `permissions = ["publish"]`+"\n"+`topics = ["o?ders"]`))
	if err := n.ReloadTokens(); err != nil {
		t.Fatal(err)
	}
	narrowed.Closed() // its token was removed

	// An unusable file changes nothing.
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := n.ReloadTokens(); err == nil || !strings.Contains(err.Error(), "chmod o=") {
		t.Errorf("a file that everybody may read: %v", err)
	}
	shop = login("shop-token", "shop", 1)
	shop.Send(nsqtest.Pub("orders", "x"))
	shop.OK()
}

// A server that was given a token file does not start without it.
func TestTokenFileIsNeeded(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{dir, filepath.Join(dir, "none")} {
		o := Options{TCPAddress: "127.0.0.1:0", HTTPAddress: Off, LookupAddress: Off, Auth: auth.Options{File: name}}
		if _, err := Listen(nil, o); err == nil {
			t.Errorf("a server starts with the token file %s", name)
		}
	}
}

// While the auth server is away, clients go on with what it said last; 403 ends that at once, also for subscriptions on
// which nothing happens.
func TestAuthServerIsAway(t *testing.T) {
	t.Parallel()
	s := newAuthServer(t)
	s.set(200, grantJSON(1, ".*", ".*", "publish", "subscribe"))
	var log lockedText
	n := startNode(t, node.Options{}, Options{
		Auth:   auth.Options{HTTPAddresses: []string{s.address()}, HTTPMethod: "POST"},
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	consumer := n.dial(t)
	consumer.Send(authCommand("s"))
	consumer.Expect(nsqtest.FrameResponse, someone)
	consumer.Sub("quiet", "c")
	var all []*nsqtest.Client
	for range 20 {
		c := n.dial(t)
		c.Send(authCommand("s"))
		c.Expect(nsqtest.FrameResponse, someone)
		all = append(all, c)
	}
	s.set(500, "")
	asked := s.asked.Load()
	for began := time.Now(); time.Since(began) < 3*time.Second; {
		for _, c := range all {
			c.Send(nsqtest.Pub("t", "x"))
			c.OK()
		}
	}
	if more := s.asked.Load() - asked; more < 1 || more > 8 {
		t.Errorf("the server was asked %d times in 3 s", more)
	}
	late := n.dial(t) // the same credential
	late.Send(authCommand("s"))
	late.Expect(nsqtest.FrameResponse, someone)
	stranger := n.dial(t)
	stranger.Send(authCommand("other"))
	stranger.Fatal("E_AUTH_FAILED AUTH failed")
	if silent, held := n.auth.Silence(time.Now()); silent < time.Second || held != 1 {
		t.Errorf("silent for %v, %d held", silent, held)
	}
	_, note := n.auth.Note()
	v, faults := n.e.Verdict(), n.e.Warnings()
	i := slices.IndexFunc(faults, func(f node.Fault) bool { return f.Name == "auth_silent_s" })
	if !strings.Contains(v.Health, "; "+note[:40]) || v.Note == "" || i < 0 || faults[i].Count < 1 {
		t.Errorf("%+v, %+v", v, faults)
	}
	if !strings.Contains(note, "1 clients go on") || strings.Count(log.String(), "level=WARN") != 1 {
		t.Errorf("%q, and the log:\n%s", note, log.String())
	}
	s.set(403, "")
	consumer.Closed()
	all[0].Send(nsqtest.Pub("t", "x"))
	all[0].Fatal("E_AUTH_FAILED AUTH failed")
	if silent, held := n.auth.Silence(time.Now()); silent != 0 || held != 0 || len(n.e.Warnings()) > 0 ||
		n.e.Verdict().Note != "" {
		t.Errorf("it answers, but: silent for %v, %d held", silent, held)
	}
	s.set(500, "") // what was refused does not hold when it falls silent again
	late = n.dial(t)
	late.Send(authCommand("s"))
	late.Fatal("E_AUTH_FAILED AUTH failed")
}

// The hold ends.
func TestAuthHoldEnds(t *testing.T) {
	t.Parallel()
	s := newAuthServer(t)
	s.set(200, grantJSON(1, ".*", ".*", "subscribe"))
	o := auth.Options{HTTPAddresses: []string{s.address()}, HoldTime: time.Second}
	n := startNode(t, node.Options{}, Options{Auth: o})
	c := n.dial(t)
	began := time.Now()
	c.Send(authCommand("s"))
	c.Expect(nsqtest.FrameResponse, someone)
	c.Sub("quiet", "c")
	s.Close() // nobody listens any more
	c.Closed()
	if d := time.Since(began); d < 1900*time.Millisecond {
		t.Errorf("it ends after %v already", d)
	}
}

// lockedText is a text that several goroutines write.
type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
