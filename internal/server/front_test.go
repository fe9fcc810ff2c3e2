package server

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/health"
	"penstock/internal/server/nsq"
	"penstock/tests/support/nsqtest"
)

// A Front answers the probes with the progress of the start and everything else with 503. The Server answers on the
// same listener afterwards, and no request in between is refused.
func TestFrontAnswersBeforeTheServer(t *testing.T) {
	startup := new(health.Startup)
	startup.Enter("reads the commit log")
	startup.Bytes(1 << 20)
	o := Options{
		Settings: nsq.Settings{MaxConnections: 8}, TCPAddress: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0",
		LookupAddress: "127.0.0.1:0", Hostname: "h",
	}
	front, err := OpenFront(o, "a", startup, 0)
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + front.ln.Addr().String()
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/startupz": {503, "the node is starting: reads the commit log: 1.0 MiB"},
		"/livez":    {200, "ok"},
		"/readyz":   {503, "[-]recovered failed: the node is starting: reads the commit log: 1.0 MiB\nreadyz check failed\n"},
		"/ping":     {503, `{"message":"the node is starting: reads the commit log: 1.0 MiB"}`},
		"/stats":    {503, `{"message":"the node is starting: reads the commit log: 1.0 MiB"}`},
	} {
		if code, text := get(path); code != want.code || text != want.text {
			t.Errorf("%s answers %d %q, want %+v", path, code, text, want)
		}
	}
	var v health.Verdict
	if code, text := get("/health"); code != 503 || json.Unmarshal([]byte(text), &v) != nil || v.Node != "a" || v.Healthy {
		t.Errorf("%d %s", code, text)
	}
	asked := make(chan struct{})
	refused := make(chan string, 1)
	go func() { // asks all the time while the server takes over
		defer close(refused)
		for {
			select {
			case <-asked:
				return
			default:
			}
			resp, err := http.Get(base + "/livez")
			if err != nil || resp.StatusCode != 200 {
				refused <- "a probe was not answered"
				return
			}
			resp.Body.Close()
		}
	}()
	o.Front = front
	n := startNode(t, node.Options{}, o)
	for end := time.Now().Add(nsqtest.Patience); ; time.Sleep(time.Millisecond) {
		if code, text := get("/startupz"); code == 200 && text == "ok" {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d %s", code, text)
		}
	}
	close(asked)
	if why, ok := <-refused; ok {
		t.Error(why)
	}
	if code, text := get("/ping"); code != 200 || text != "OK" {
		t.Errorf("%d %s", code, text)
	}
	if n.HTTPAddr().String() != front.ln.Addr().String() {
		t.Errorf("the server is at %v", n.HTTPAddr())
	}
}

// What is refused on the Front's listener is in the audit, before and after the Server serves there.
func TestFrontIsAudited(t *testing.T) {
	o := Options{TCPAddress: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0", LookupAddress: "127.0.0.1:0", Hostname: "h"}
	front, err := OpenFront(o, "a", new(health.Startup), 0)
	if err != nil {
		t.Fatal(err)
	}
	l := listenerUnderTest{base: "http://" + front.ln.Addr().String(), client: http.DefaultClient}
	refused := func() {
		t.Helper()
		if status, body := gateAsk(t, l, "GET", "/audit", "evil.example", "Cookie", "a=b"); status != 421 {
			t.Errorf("a foreign host: %d %s", status, body)
		}
		status, body := gateAsk(t, l, "POST", "/topic/delete?topic=t", "", "Origin", "http://evil.example")
		if status != 403 {
			t.Errorf("a foreign page: %d %s", status, body)
		}
	}
	refused()
	o.Front = front
	n := startNode(t, node.Options{}, o)
	refused()
	var got []string
	for _, e := range n.audit.List().Entries {
		got = append(got, string(e.Kind)+" "+e.What)
	}
	want := []string{"refused GET /audit", "refused POST /topic/delete"}
	if want = append(want, want...); !slices.Equal(got, want) {
		t.Errorf("the audit has %q, want %q", got, want)
	}
}

// With HTTP off, HTTPS answers the probes while the node starts, and everything afterwards.
func TestFrontOverHTTPS(t *testing.T) {
	ca := nsqtest.NewAuthority(t)
	o := tlsOptions(t, ca)
	o.TCPAddress, o.HTTPAddress, o.HTTPSAddress, o.LookupAddress = "127.0.0.1:0", Off, "127.0.0.1:0", Off
	o.Hostname = "h"
	front, err := OpenFront(o, "a", new(health.Startup), 0)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: ca.Client(t, "")}
	defer transport.CloseIdleConnections()
	l := listenerUnderTest{base: "https://" + front.ln.Addr().String(), client: &http.Client{Transport: transport}}
	for path, want := range map[string]int{"/livez": 200, "/startupz": 503, "/ping": 503} {
		if status, body := gateAsk(t, l, "GET", path, ""); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	e, err := node.Open(t.Context(), node.Options{DataPath: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	o.Front = front
	s, err := Listen(e, o)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	for path, want := range map[string]int{"/livez": 200, "/startupz": 200, "/ping": 200, "/pub?topic=t": 405} {
		if status, body := gateAsk(t, l, "GET", path, ""); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if s.HTTPAddr() != nil || s.HTTPSAddr().String() != front.ln.Addr().String() || s.meter().Connections["https"] != 1 {
		t.Errorf("HTTP is at %v, HTTPS at %v with %v", s.HTTPAddr(), s.HTTPSAddr(), s.meter().Connections)
	}
	if err := errors.Join(s.ReloadTLS(), s.ReloadTokens()); err != nil {
		t.Error(err)
	}
	if err := errors.Join(s.Shutdown(t.Context()), <-served); err != nil {
		t.Error(err)
	}
}

// An address that is in use, or is named twice, is found before the Server is made. All listeners but HTTP are closed
// again.
func TestFrontTriesAllAddresses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := Options{TCPAddress: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0", LookupAddress: Off, HTTPSAddress: Off}
	for what, change := range map[string]func(*Options) []string{
		"clients":     func(o *Options) []string { o.TCPAddress = taken.Addr().String(); return nil },
		"HTTP":        func(o *Options) []string { o.HTTPAddress = taken.Addr().String(); return nil },
		"lookups":     func(o *Options) []string { o.LookupAddress = taken.Addr().String(); return nil },
		"other nodes": func(*Options) []string { return []string{taken.Addr().String()} },
	} {
		o := free
		others := change(&o)
		front, err := OpenFront(o, "", new(health.Startup), 0, others...)
		if err == nil || !strings.Contains(err.Error(), "cannot listen for "+what) {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil {
			front.Close()
		}
	}
	began := time.Now()
	o := free
	o.TCPAddress = taken.Addr().String()
	if _, err := OpenFront(o, "", new(health.Startup), 150*time.Millisecond); err == nil ||
		time.Since(began) < 150*time.Millisecond {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	time.AfterFunc(100*time.Millisecond, func() { taken.Close() })
	front, err := OpenFront(o, "", new(health.Startup), nsqtest.Patience)
	if err != nil {
		t.Fatalf("the address became free: %v", err)
	}
	defer front.Close()
	ln, err := net.Listen("tcp", o.TCPAddress)
	if err != nil {
		t.Fatalf("the address of the clients stays taken: %v", err)
	}
	ln.Close()
}

// Ports that the kernel has chosen are known before the Server listens, stay taken until then, and are the Server's.
func TestFrontKeepsChosenPorts(t *testing.T) {
	ca := nsqtest.NewAuthority(t)
	for _, http := range []string{"127.0.0.1:0", Off} {
		o := tlsOptions(t, ca)
		o.TCPAddress, o.HTTPAddress, o.HTTPSAddress, o.LookupAddress = "127.0.0.1:0", http, "localhost:0", "127.0.0.1:0"
		o.LookupTCPAddress = "127.0.0.1:0"
		front, err := OpenFront(o, "", new(health.Startup), 0)
		if err != nil {
			t.Fatal(err)
		}
		front.Ports(&o)
		for _, address := range []string{o.TCPAddress, o.LookupAddress, o.HTTPSAddress} {
			if ln, err := net.Listen("tcp", address); err == nil {
				t.Errorf("%s is free", address)
				ln.Close()
			}
		}
		e, err := node.Open(t.Context(), node.Options{DataPath: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		o.Front = front
		s, err := Listen(e, o)
		if err != nil {
			t.Fatal(err)
		}
		for announced, real := range map[string]net.Addr{
			o.TCPAddress: s.TCPAddr(), o.LookupAddress: s.LookupAddr(), o.HTTPSAddress: s.HTTPSAddr(),
		} {
			if _, port, _ := net.SplitHostPort(announced); port == "0" || !strings.HasSuffix(real.String(), ":"+port) {
				t.Errorf("%s is announced, and the server listens at %s", announced, real)
			}
		}
		if http != Off && o.HTTPAddress != s.HTTPAddr().String() {
			t.Errorf("%s is announced for HTTP, and the server listens at %s", o.HTTPAddress, s.HTTPAddr())
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve() }()
		if err := errors.Join(s.Shutdown(t.Context()), <-served, e.Close()); err != nil {
			t.Error(err)
		}
	}
}
