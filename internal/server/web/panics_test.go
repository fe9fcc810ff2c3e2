package web

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"penstock/internal/sparing"
)

// A panic of a handler is an error with its stack in the log, once for many of them, and is counted. What aborts a
// request on purpose is neither.
func TestPanicIsLogged(t *testing.T) {
	var out bytes.Buffer
	log := sparing.New(slog.New(slog.NewTextHandler(&out, nil))) // at the default level
	gate := NewGate(nil, nil, nil)
	s := httptest.NewUnstartedServer(nil)
	s.Config = NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/panics":
			faultyHandler()
		case "/aborts":
			panic(http.ErrAbortHandler)
		}
	}), gate, log)
	s.Start()
	// A request on a connection that was used before would be sent again by the client.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) error {
		answer, err := client.Get(s.URL + path)
		if err == nil {
			answer.Body.Close()
		}
		return err
	}
	for path, want := range map[string]bool{"/": true, "/aborts": false, "/panics": false} {
		if err := get(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	for range 3 {
		if err := get("/panics"); err == nil {
			t.Error("a request whose handler has panicked was answered")
		}
	}
	s.Close() // its handlers have ended
	if n := gate.Panics(); n != 4 {
		t.Errorf("%d panics are counted", n)
	}
	text := out.String()
	if strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, "faultyHandler") ||
		!strings.Contains(text, "out of order") || !strings.Contains(text, "path=/panics") {
		t.Errorf("the log says %s", text)
	}
}

func faultyHandler() { panic("out of order") }
