package web

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
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
	}), gate, slog.New(slog.DiscardHandler))
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
	nc, err := net.Dial("tcp", address)
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
		0: time.Minute, 60 << 10: time.Minute, 120 << 10: 2 * time.Minute, 100 << 20: 102400 * time.Second,
	} {
		if got := l.bodyDeadline(arrived); got != want {
			t.Errorf("after %d bytes: %v, want %v", arrived, got, want)
		}
	}
	if l.IdleTime <= 620*time.Second {
		t.Errorf("a balancer that keeps connections for 620 s finds them closed after %v", l.IdleTime)
	}
}

// Of the connections on which nothing is asked, only so many stay: the one that is idle longest goes.
func TestIdleConnections(t *testing.T) {
	i := idlers{most: 2}
	var near, far []net.Conn
	for range 3 {
		a, b := net.Pipe()
		defer a.Close()
		near, far = append(near, a), append(far, b)
		i.changed(a, http.StateNew)
		i.changed(a, http.StateActive)
	}
	i.changed(near[0], http.StateIdle)
	i.changed(near[1], http.StateIdle)
	i.changed(near[0], http.StateActive)
	i.changed(near[0], http.StateIdle)
	i.changed(near[2], http.StateIdle)
	closed := func(n int) bool {
		_ = far[n].SetReadDeadline(time.Unix(1, 0))
		_, err := far[n].Read(make([]byte, 1))
		return err == io.EOF
	}
	if closed(0) || !closed(1) || closed(2) {
		t.Errorf("closed: %t %t %t, want the second one", closed(0), closed(1), closed(2))
	}
	i.changed(near[1], http.StateClosed)
	i.changed(near[0], http.StateHijacked)
	if len(i.at) != 1 || i.order.Len() != 1 {
		t.Errorf("%d are left", len(i.at))
	}
	// A server tells of its connections.
	a := ask(t, serveWith(t, Limits{MaxIdle: -1}))
	a.send(get)
	a.answer()
	if _, err := a.r.ReadByte(); err != io.EOF {
		t.Errorf("an idle connection where none may be: %v", err)
	}
}
