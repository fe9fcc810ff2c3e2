package web

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"penstock/internal/sparing"

	"penstock/internal/strangers"
)

// serveWith serves "OK", after the whole body was read, under limits.
func serveWith(t *testing.T, l Limits) (address string) {
	t.Helper()
	gate := NewGate(nil, nil, nil)
	gate.Limits = l
	s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			WriteError(w, BodyFailure(err))
			return
		}
		writeReply(w, "OK")
	}), gate, sparing.New(slog.New(slog.DiscardHandler)))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-done; err != http.ErrServerClosed {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

// asking is a connection to a server.
type asking struct {
	t  *testing.T
	nc net.Conn
	r  *bufio.Reader
}

func ask(t *testing.T, address string) *asking {
	t.Helper()
	return askFrom(t, "127.0.0.1", address)
}

func askFrom(t *testing.T, ip, address string) *asking {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	nc, err := d.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	return &asking{t, nc, bufio.NewReader(nc)}
}

func (a *asking) send(text string) {
	a.t.Helper()
	if _, err := io.WriteString(a.nc, text); err != nil {
		a.t.Fatal(err)
	}
}

func (a *asking) answer() (int, string) {
	a.t.Helper()
	reply, err := http.ReadResponse(a.r, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return reply.StatusCode, string(body)
}

const get = "GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"

// An upload may take any time while its bytes flow, and one that stops is told so.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	const limit, parts, size = 300 * time.Millisecond, 20, 4 << 10
	address := serveWith(t, Limits{BodyTime: limit})
	post := fmt.Sprintf("POST /pub HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", parts*size)
	steady := ask(t, address)
	steady.send(post)
	began := time.Now()
	pace := time.NewTicker(2 * limit / parts)
	defer pace.Stop()
	for range parts {
		<-pace.C
		steady.send(strings.Repeat("x", size))
	}
	if took := time.Since(began); took < limit {
		t.Fatalf("sent in %v already", took)
	}
	if status, body := steady.answer(); status != 200 || body != "OK" {
		t.Errorf("a steady upload is answered %d %s", status, body)
	}
	steady.send(get) // and the connection goes on
	if status, body := steady.answer(); status != 200 || body != "OK" {
		t.Errorf("the next request is answered %d %s", status, body)
	}
	stuck := ask(t, address)
	stuck.send(post + "x")
	status, body := stuck.answer()
	if status != http.StatusRequestTimeout || !strings.Contains(body, "nothing of it was stored") {
		t.Errorf("an upload that stops is answered %d %s", status, body)
	}
}

func TestBodyDeadline(t *testing.T) {
	l := Limits{}.withDefaults()
	for arrived, want := range map[int64]time.Duration{
		0: time.Minute, 960 << 10: time.Minute, 1920 << 10: 2 * time.Minute, 100 << 20: 6400 * time.Second,
	} {
		if got := l.bodyDeadline(arrived); got != want {
			t.Errorf("after %d bytes: %v, want %v", arrived, got, want)
		}
	}
	if l.IdleTime <= 620*time.Second {
		t.Errorf("a balancer that keeps connections for 620 s finds them closed after %v", l.IdleTime)
	}
}

// Of the connections on which no request is served, only so many stay. Whoever opens many pays for it, also if they are
// silent or send their headers slowly.
func TestWaitingConnections(t *testing.T) {
	address := serveWith(t, Limits{MaxIdle: 3})
	ended := func(a *asking) {
		t.Helper()
		if _, err := a.r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection did not have to go: %v", err)
		}
	}
	idle := ask(t, address)
	idle.send(get)
	idle.answer()
	silent, slow := ask(t, address), ask(t, address)
	slow.send(get[:5])
	honest := askFrom(t, "127.0.0.2", address)
	ended(idle)
	last := ask(t, address)
	ended(silent)
	for range 20 {
		ask(t, address)
	}
	ended(slow)
	ended(last)
	for range 3 {
		honest.send(get)
		if code, body := honest.answer(); code != 200 || body != "OK" {
			t.Errorf("a client of another address: %d %q", code, body)
		}
	}
}

// A connection on which a request is served is no stranger's, and none that has ended counts.
func TestLobby(t *testing.T) {
	l := &lobby{room: strangers.New(1), at: map[net.Conn]*waiting{}}
	var near []net.Conn
	for range 3 {
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		near = append(near, a)
	}
	l.changed(near[0], http.StateNew)
	for range 2 { // requests at the same time
		if !l.begin(near[0]) {
			t.Error("a connection that waits cannot be served")
		}
	}
	l.changed(near[1], http.StateNew)
	l.end(near[0]) // one of its two requests
	if l.room.Size() != 1 {
		t.Errorf("%d wait", l.room.Size())
	}
	l.end(near[0])
	if l.begin(near[1]) || !l.begin(near[0]) { // the second one had to go for the first
		t.Error("the wrong one had to go")
	}
	l.changed(near[2], http.StateNew)
	for _, nc := range near {
		l.changed(nc, http.StateClosed)
		l.end(nc)
	}
	if l.room.Size() != 0 || len(l.at) != 0 {
		t.Errorf("%d wait, %d are known", l.room.Size(), len(l.at))
	}
}
