package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, data string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(name, []byte(data), 0o600))
	return name
}

// O4: what --http-address may be, and that everything else is refused before anything is sent.
func TestParseAddress(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:4151": "http://127.0.0.1:4151", "[::1]:4151": "http://[::1]:4151", ":4151": "http://:4151",
		"http://db1:4151": "http://db1:4151", "https://db1:4152/": "https://db1:4152", "https://db1": "https://db1",
		"": "", "db1": "", "off": "", "ftp://db1:4151": "", "https://": "", "https://db1/stats": "",
		"https://me:secret@db1": "", "http://db1?x=1": "", "db1:4151/x": "",
	} {
		u, err := parseAddress(in)
		switch {
		case want == "" && !errors.Is(err, ErrUsage):
			t.Errorf("%q: %v, %v", in, u, err)
		case want != "" && (err != nil || u.String() != want):
			t.Errorf("%q becomes %v, %v; want %s", in, u, err, want)
		}
	}
	if _, err := parseAddress("https://me:secret@db1"); strings.Contains(err.Error(), "secret") {
		t.Errorf("the error shows a password: %v", err)
	}
}

// O4: a token travels in clear only where nobody else can listen, or if that was said.
func TestPlaintextToken(t *testing.T) {
	for _, tc := range []struct {
		host, token string
		allow, ok   bool
	}{
		{"127.0.0.1", "s", false, true},
		{"127.1.2.3", "s", false, true},
		{"::1", "s", false, true},
		{"localhost", "s", false, true},
		{"0.0.0.0", "s", false, true},
		{"10.0.0.1", "s", false, false},
		{"db1", "s", false, false},
		{"localhost.example.com", "s", false, false},
		{"127.0.0.1.example.com", "s", false, false},
		{"db1", "s", true, true},
		{"db1", "", false, true},
	} {
		f := Flags{AllowPlaintextToken: tc.allow}
		err := f.CheckPlaintext(tc.token, tc.host, "tls")
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, ErrUsage) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
	t.Setenv(EnvToken, "s3cret")
	c := &Client{Flags: Flags{Address: "192.0.2.1:4151"}}
	err := c.Get(t.Context(), "/stats", nil, nil)
	if !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), "--allow-plaintext-token") ||
		strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
}

// O4: the token comes from the file, else from the environment.
func TestToken(t *testing.T) {
	t.Setenv(EnvToken, "from-env")
	for _, tc := range []struct{ file, want string }{
		{"", "from-env"},
		{write(t, "from-file\n"), "from-file"},
		{write(t, ""), ""},
		{write(t, "two words"), ""},
		{write(t, strings.Repeat("x", maxTokenBytes+1)), ""},
		{"/nonexistent", ""},
	} {
		f := Flags{TokenFile: tc.file}
		got, err := f.Token()
		if got != tc.want || (err == nil) != (tc.want != "") || err != nil && !errors.Is(err, ErrUsage) {
			t.Errorf("%.30q: %q, %v", tc.file, got, err)
		}
	}
}

// O4: requests over TLS, and what is said when the two ends do not fit together.
func TestTLS(t *testing.T) {
	var got *http.Request
	serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, "/stats", http.StatusMovedPermanently)
			return
		}
		got = r
		_, _ = w.Write([]byte(`{"health":"OK"}`))
	})
	secure, plain := httptest.NewUnstartedServer(serve), httptest.NewServer(serve)
	secure.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	secure.StartTLS()
	defer secure.Close()
	defer plain.Close()
	cert := secure.Certificate()
	ca := write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})))
	key, err := x509.MarshalPKCS8PrivateKey(secure.TLS.Certificates[0].PrivateKey)
	must(t, err)
	keyFile := write(t, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	t.Setenv(EnvToken, "s3cret")
	_, port, _ := strings.Cut(strings.TrimPrefix(secure.URL, "https://"), ":")
	for _, tc := range []struct {
		name  string
		flags Flags
		want  string // in the error; empty: the request succeeds
	}{
		{"trusted", Flags{Address: secure.URL, CAFile: ca}, ""},
		{"mutual", Flags{Address: secure.URL, CAFile: ca, CertFile: ca, KeyFile: keyFile}, ""},
		{"unchecked", Flags{Address: secure.URL, SkipVerify: true}, ""},
		{"plain", Flags{Address: plain.URL}, ""},
		{"stranger", Flags{Address: secure.URL}, "--tls-ca"},
		{"other name", Flags{Address: "https://localhost:" + port, CAFile: ca}, "another name"},
		{"http to https", Flags{Address: strings.TrimPrefix(secure.URL, "https://")}, "say https://"},
		{"https to http", Flags{Address: strings.Replace(plain.URL, "http", "https", 1)}, "does not speak TLS"},
		{"no such CA", Flags{Address: secure.URL, CAFile: "/nonexistent"}, "--tls-ca"},
		{"no CA in it", Flags{Address: secure.URL, CAFile: keyFile}, "no PEM certificate"},
		{"half a pair", Flags{Address: secure.URL, CertFile: ca}, "belong together"},
		{"not a pair", Flags{Address: secure.URL, CertFile: ca, KeyFile: ca}, "--tls-cert"},
	} {
		got = nil
		c := &Client{Flags: tc.flags}
		err := c.Get(t.Context(), "/stats", nil, nil)
		switch {
		case tc.want == "" && (err != nil || got.Header.Get("Authorization") != "Bearer s3cret"):
			t.Errorf("%s: %v", tc.name, err)
		case tc.want != "" && (!errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), tc.want) || got != nil):
			t.Errorf("%s: %v, want %s", tc.name, err, tc.want)
		}
		if tc.name == "mutual" && (got == nil || len(got.TLS.PeerCertificates) != 1) {
			t.Errorf("%s: no certificate was shown", tc.name)
		}
	}
	c := &Client{Flags: Flags{Address: plain.URL}}
	if status, _, err := c.Exchange(t.Context(), "GET", "/moved", nil, nil); err != nil || status != 301 {
		t.Errorf("a redirection gives %d, %v", status, err)
	}
	c = &Client{Flags: Flags{Address: secure.URL, CAFile: ca}}
	other, err := c.At("10.0.0.1:4151", strings.TrimPrefix(secure.URL, "https://"))
	must(t, err)
	must(t, other.Get(t.Context(), "/stats", nil, nil))
	if _, err := c.At("10.0.0.1:4151", ""); err == nil {
		t.Error("a node without https is asked in clear")
	}
}

// O12: the old names of --http-address work and are not shown.
func TestAliases(t *testing.T) {
	for _, args := range [][]string{
		{"--http-address", "https://db1:1"}, {"--http=https://db1:1"},
	} {
		var f Flags
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.Add(set, "http")
		must(t, set.Parse(args))
		if f.Address != "https://db1:1" {
			t.Errorf("%q: %s", args, f.Address)
		}
		if strings.Contains(set.FlagUsages(), "--http ") {
			t.Errorf("help shows the old name:\n%s", set.FlagUsages())
		}
	}
	t.Setenv(EnvAddress, "db2:1")
	var f Flags
	f.Add(pflag.NewFlagSet("", pflag.ContinueOnError), "http")
	if f.Address != "db2:1" {
		t.Errorf("the environment is not read: %s", f.Address)
	}
}

// Refusals of a node become sentences.
func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		status     int
		body, path string
		want       string
		is         error
	}{
		{404, `{"message":"NOT_FOUND"}`, "/cluster/status", "is not part of a cluster", ErrNoSuchRequest},
		{404, `{"message":"NOT_FOUND"}`, "/topic/x", "does not know this request", ErrNoSuchRequest},
		{404, `{"message":"TOPIC_NOT_FOUND"}`, "/topic/x", "there is no topic orders (node at", nil},
		{400, `{"message":"INVALID_TOPIC"}`, "/topic/x", `"orders" is not the name of a topic`, ErrUsage},
		{401, `{"message":"AUTH_FIRST"}`, "/topic/x", "--token-file", nil},
		{403, `{"message":"UNAUTHORIZED"}`, "/topic/x", "the token does not allow /topic/x of topic orders: docs/", nil},
		{403, `{"message":"TLS_REQUIRED","https_port":4152}`, "/topic/x", "its port for that is 4152", nil},
		{409, `{"message":"the moon is full"}`, "/cluster/x", "the moon is full (node at", nil},
		{500, `<html>`, "/topic/x", "it is no Penstock node's HTTP address", nil},
		{503, `{"message":""}`, "/topic/x", "no Penstock node", nil},
	} {
		n := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tc.status)
			_, _ = w.Write([]byte(tc.body))
		}))
		c := &Client{Flags: Flags{Address: n.URL}}
		err := c.Post(t.Context(), tc.path, map[string][]string{"topic": {"orders"}}, nil, nil)
		if err == nil || !strings.Contains(err.Error(), tc.want) || tc.is != nil && !errors.Is(err, tc.is) ||
			tc.is == nil && errors.Is(err, ErrUsage) {
			t.Errorf("%d %s: %v", tc.status, tc.body, err)
		}
		n.Close()
	}
}

// A change that a node got and did not answer may have been done. A question, and a change that nobody got, may not. An
// interruption is not the node's.
func TestNoAnswer(t *testing.T) {
	got, done := make(chan struct{}, 8), make(chan struct{})
	n := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		got <- struct{}{}
		<-done
	}))
	defer n.Close()
	defer close(done)
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, tc := range []struct {
		method, address, wants string
		interrupt, unknown     bool
	}{
		{"POST", n.URL, "does not answer", false, true},
		{"PUT", n.URL, "does not answer", false, true},
		{"GET", n.URL, "does not answer: say another one with --http-address", false, false},
		{"POST", gone.URL, "does not answer: say another one with --http-address", false, false},
		{"POST", n.URL, "interrupted before the node at", true, true},
		{"GET", n.URL, "interrupted before the node at", true, false},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if !tc.interrupt {
			ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		} else {
			go func() { <-got; cancel() }()
		}
		_, _, err := (&Client{Flags: Flags{Address: tc.address}}).Exchange(ctx, tc.method, "/channel/redrive", nil, nil)
		cancel()
		if err == nil || !strings.Contains(err.Error(), tc.wants) || errors.Is(err, ErrNoAnswer) == tc.interrupt ||
			strings.Contains(err.Error(), "may have been done") != tc.unknown {
			t.Errorf("%+v: %v", tc, err)
		}
		for len(got) > 0 {
			<-got
		}
	}
}

// Nobody named a node that the cluster has announced: another --http-address is no way out.
func TestNoAnswerOfAnAnnouncedNode(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	named := &Client{Flags: Flags{Address: "127.0.0.1:1"}}
	other, err := named.At(strings.TrimPrefix(gone.URL, "http://"), "")
	if err != nil {
		t.Fatal(err)
	}
	err = other.Get(t.Context(), "/stats", nil, nil)
	if !errors.Is(err, ErrNoAnswer) || strings.Contains(err.Error(), "--http-address") {
		t.Error(err)
	}
}

// TLS 1.2 is spoken only if that is said.
func TestMinVersion(t *testing.T) {
	old := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("{}"))
	}))
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS12}
	old.StartTLS()
	defer old.Close()
	ca := write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: old.Certificate().Raw})))
	for version, want := range map[string]string{
		"": "--tls-min-version 1.2", "1.3": "--tls-min-version 1.2", "1.2": "", "1.1": "must be 1.3 or 1.2",
	} {
		c := &Client{Flags: Flags{Address: old.URL, CAFile: ca, MinVersion: version}}
		err := c.Get(t.Context(), "/stats", nil, nil)
		if (err == nil) != (want == "") || err != nil && (!errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", version, err, want)
		}
	}
}
