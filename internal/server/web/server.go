package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"penstock/internal/sparing"
	"penstock/internal/strangers"
)

// Limits of all HTTP servers.
const (
	HeaderTimeout  = 10 * time.Second // also for a TLS handshake
	writeTimeout   = 5 * time.Minute  // long, because the client chooses how long a CPU profile takes
	MaxHeaderBytes = 64 << 10

	// minBodyRate is how many bytes a second of a body must arrive once Limits.BodyTime has passed.
	minBodyRate = 16 << 10
)

// Limits are those that differ between nodes, or tests. 0 stands for the default.
type Limits struct {
	IdleTime time.Duration // a connection on which nothing is asked ends; default DefaultIdleTime
	// MaxIdle bounds the connections on which no request is served; for one beyond it, the oldest of the address that has
	// the most ends. Default 4096.
	MaxIdle  int
	BodyTime time.Duration // a body may take so long at any rate; default 60 s
}

// DefaultIdleTime is longer than the balancers of the large clouds keep connections (350 to 620 s): the side that ends
// them must not be the one that gets requests.
const DefaultIdleTime = 11 * time.Minute

func (l Limits) withDefaults() Limits {
	return Limits{cmp.Or(l.IdleTime, DefaultIdleTime), cmp.Or(l.MaxIdle, 4096), cmp.Or(l.BodyTime, time.Minute)}
}

// NewServer returns a server for requests that pass the gate, with the gate's limits. All HTTP listeners of a node have
// a server that NewServer made. Messages from net/http are logged at the debug level, panics of handlers as errors.
func NewServer(h http.Handler, gate *Gate, log *sparing.Log) *http.Server {
	l := gate.Limits.withDefaults()
	lobby := &lobby{room: strangers.New(l.MaxIdle), at: map[net.Conn]*waiting{}}
	return &http.Server{
		Handler:           lobby.keep(l.timed(gate.handler(h, log))),
		ReadHeaderTimeout: HeaderTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       l.IdleTime,
		MaxHeaderBytes:    MaxHeaderBytes,
		ConnState:         lobby.changed,
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, nc)
		},
		ErrorLog: slog.NewLogLogger(log.Logger().Handler(), slog.LevelDebug),
	}
}

// lobby bounds the connections of a server on which no request is being served: those on which nothing has been asked
// yet, those whose request has not come completely, and those that are kept for the next one. Any goroutine may use it.
type lobby struct {
	room *strangers.Room

	mu sync.Mutex
	at map[net.Conn]*waiting
}

// waiting is one open connection.
type waiting struct {
	place   *strangers.Stranger
	serving int // requests; lobby.mu guards it
}

type connKey struct{}

// changed is http.Server.ConnState.
func (l *lobby) changed(nc net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		l.mu.Lock()
		w := &waiting{place: l.enter(nc)}
		l.at[nc] = w
		l.mu.Unlock()
		w.place.Enter()
	case http.StateClosed, http.StateHijacked:
		l.mu.Lock()
		w := l.at[nc]
		delete(l.at, nc)
		l.mu.Unlock()
		if w != nil {
			w.place.Leave()
		}
	}
}

func (l *lobby) enter(nc net.Conn) *strangers.Stranger {
	return l.room.Stranger(nc.RemoteAddr(), func() { _ = nc.Close() })
}

// begin takes a connection out while a request of it is served. It returns false if the connection had to go already:
// then its client will not hear of the request, and takes it for not served.
func (l *lobby) begin(nc net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.at[nc]
	if w == nil {
		return true
	}
	w.serving++
	return w.serving > 1 || w.place.Leave()
}

// end puts a connection back after begin.
func (l *lobby) end(nc net.Conn) {
	l.mu.Lock()
	w := l.at[nc]
	if w == nil {
		l.mu.Unlock()
		return
	}
	w.serving--
	if w.serving > 0 {
		l.mu.Unlock()
		return
	}
	w.place = l.enter(nc)
	place := w.place
	l.mu.Unlock()
	place.Enter()
}

// keep has the connections of a server's requests leave the lobby while h serves them.
func (l *lobby) keep(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		nc, _ := r.Context().Value(connKey{}).(net.Conn)
		if nc == nil {
			h.ServeHTTP(w, r)
			return
		}
		if l.begin(nc) {
			defer l.end(nc)
			h.ServeHTTP(w, r)
		}
	})
}

// bodyDeadline is the rule for a body of which so many bytes have arrived: when more of it must have come, after its
// beginning.
func (l *Limits) bodyDeadline(arrived int64) time.Duration {
	return max(l.BodyTime, time.Duration(float64(arrived)/minBodyRate*float64(time.Second)))
}

// errBodySlow is what a handler finds that reads a body which comes too slowly.
var errBodySlow = Fail(http.StatusRequestTimeout, fmt.Sprintf("the request's body came at less than %d bytes a "+
	"second; nothing of it was stored: send it again, on a better connection or in smaller parts", minBodyRate))

// timed bounds how slowly bodies may come, for all of h.
func (l *Limits) timed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			b := &timedBody{
				ReadCloser: r.Body, limits: l, began: time.Now(), control: http.NewResponseController(w),
			}
			b.extend()
			r.Body = b
		}
		h.ServeHTTP(w, r)
	})
}

// timedBody moves the deadline with the bytes that arrive. The handler's goroutine uses it.
type timedBody struct {
	io.ReadCloser
	limits  *Limits
	control *http.ResponseController
	began   time.Time
	arrived int64
}

// extend sets the deadline. An error means that the connection is gone, which shows at the next read.
func (b *timedBody) extend() {
	_ = b.control.SetReadDeadline(b.began.Add(b.limits.bodyDeadline(b.arrived)))
}

// Read implements io.Reader. When the body is there, the answer gets its whole time.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.arrived += int64(n)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, errBodySlow
	case err == nil:
		b.extend()
	case err == io.EOF:
		_ = b.control.SetReadDeadline(time.Time{}) // the connection waits for the client to go, or for its next request
		_ = b.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	}
	return n, err
}

// BodyFailure is what a client hears whose body could not be read.
func BodyFailure(err error) error {
	var slow *Error
	if errors.As(err, &slow) {
		return slow
	}
	return Fail(http.StatusInternalServerError, "INTERNAL_ERROR")
}
