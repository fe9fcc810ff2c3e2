package nsq

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock/engine"
	"penstock/engine/health"
)

// A Front answers the probes with the progress of the start and everything else with 503. The Server answers on the
// same listener afterwards, and no request in between is refused.
func TestFrontAnswersBeforeTheServer(t *testing.T) {
	startup := new(health.Startup)
	startup.Enter("reads the commit log")
	startup.Bytes(1 << 20)
	o := Options{
		TCPAddress: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0", LookupAddress: "127.0.0.1:0", Hostname: "h",
		MaxConnections: 8,
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
	n := startNode(t, engine.Options{}, o)
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
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
	front, err := OpenFront(o, "", new(health.Startup), patience)
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
