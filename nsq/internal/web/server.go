package web

import (
	"cmp"
	"container/list"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// Limits of all HTTP servers.
const (
	HeaderTimeout  = 10 * time.Second // also for a TLS handshake
	writeTimeout   = 5 * time.Minute  // long, because the client chooses how long a CPU profile takes
	MaxHeaderBytes = 64 << 10

	// minBodyRate is how many bytes a second of a body must arrive once Limits.BodyTime has passed.
	minBodyRate = 1 << 10
)

// Limits are those that differ between nodes, or tests. 0 stands for the default.
type Limits struct {
	IdleTime time.Duration // a connection on which nothing is asked ends; default DefaultIdleTime
	MaxIdle  int           // of these connections; for one beyond it the one that is idle longest ends; default 4096
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
func NewServer(h http.Handler, gate *Gate, log *slog.Logger) *http.Server {
	l := gate.Limits.withDefaults()
	idle := idlers{most: l.MaxIdle}
	return &http.Server{
		Handler:           l.timed(gate.handler(h, log)),
		ReadHeaderTimeout: HeaderTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       l.IdleTime,
		MaxHeaderBytes:    MaxHeaderBytes,
		ConnState:         idle.changed,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// idlers are the connections of a server on which nothing is asked just now. Any goroutine may use them.
type idlers struct {
	most int

	mu    sync.Mutex
	order list.List // of net.Conn; the front one is idle longest
	at    map[net.Conn]*list.Element
}

// changed is http.Server.ConnState.
func (i *idlers) changed(nc net.Conn, state http.ConnState) {
	i.mu.Lock()
	if e := i.at[nc]; e != nil {
		i.order.Remove(e)
		delete(i.at, nc)
	}
	var oldest net.Conn
	if state == http.StateIdle {
		if i.at == nil {
			i.at = make(map[net.Conn]*list.Element)
		}
		i.at[nc] = i.order.PushBack(nc)
		if i.order.Len() > i.most {
			oldest = i.order.Remove(i.order.Front()).(net.Conn)
			delete(i.at, oldest)
		}
	}
	i.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
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
