package lookup

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/server/listen"
	"penstock/internal/server/web"
	"penstock/internal/sparing"
)

// patience bounds every wait in the tests. It is far longer than a loaded machine needs, so only a test that hangs
// reaches it.
const patience = 20 * time.Second

// service is a Service over a real engine in a directory of its own.
type service struct {
	*Service
	e *node.Engine
}

// ownPort is the port in testSelf that tombstones name.
const ownPort = "4151"

// testSelf is the node under test. Nothing listens at its addresses: these tests connect only to the Service.
func testSelf() Producer {
	return Producer{
		RemoteAddress: "here.example:4150", Hostname: "testhost", BroadcastAddress: "here.example",
		TCPPort: 4150, HTTPPort: 4151, Version: "1.3.0+engine.test",
	}
}

// start starts a Service. Options missing in o are as package server sets them, with free ports and without a TCP port.
func start(t testing.TB, eo node.Options, o Options) *service {
	t.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	eo.Logger, eo.DataPath = quiet, t.TempDir()
	e, err := node.Open(context.Background(), eo)
	if err != nil {
		t.Fatal(err)
	}
	o.Address, o.Log = "127.0.0.1:0", sparing.New(quiet)
	if o.TCPAddress == "" {
		o.TCPAddress = listen.Off
	}
	if o.Self == (Producer{}) {
		o.Self = testSelf()
	}
	if o.InactiveProducerTimeout == 0 {
		o.InactiveProducerTimeout = 5 * time.Minute
	}
	if o.MaxCommandTime == 0 {
		o.MaxCommandTime = time.Minute
	}
	o.Gate = web.NewGate(nil, nil, nil)
	o.Policy.Permit = func(web.Access, *http.Request, url.Values) (string, error) { return "", nil }
	o.MaxConnections, o.WriteTimeout = 1000, 30*time.Second
	s, err := Listen(e, &o)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s.Unregister()
		s.Shutdown(ctx)
		s.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if err := e.Close(); err != nil && !errors.Is(err, errs.ErrClosed) { // a test may have closed it
			t.Errorf("Close: %v", err)
		}
	})
	return &service{s, e}
}

// do sends a request to the HTTP API, and returns the answer and its body.
func (s *service) do(t testing.TB, method, path string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, "http://"+s.HTTPAddr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply, string(body)
}

// post sends a POST, which must succeed.
func (s *service) post(t testing.TB, path string) {
	t.Helper()
	if reply, body := s.do(t, "POST", path); reply.StatusCode != 200 {
		t.Fatalf("POST %s: %d %s", path, reply.StatusCode, body)
	}
}

// eventually polls for an effect of other goroutines that no answer reports.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
