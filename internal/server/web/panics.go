package web

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"

	"penstock/internal/sparing"
)

// panics counts and logs the panics of the handlers behind a gate. Any goroutine may use it.
type panics struct{ all atomic.Uint64 }

// serve serves a request with h. A panic ends the connection, as net/http does it, but is logged as an error: it is a
// fault of this program.
func (p *panics) serve(h http.Handler, w http.ResponseWriter, r *http.Request, log *sparing.Log) {
	defer func() {
		what := recover()
		if what == nil {
			return
		}
		if what != http.ErrAbortHandler {
			p.note(what, r, log)
		}
		panic(http.ErrAbortHandler)
	}()
	h.ServeHTTP(w, r)
}

func (p *panics) note(what any, r *http.Request, log *sparing.Log) {
	p.all.Add(1)
	log.Line(slog.LevelError, "", "a fault of this program ended an HTTP request, whose connection was closed; nothing "+
		"else is affected: report it with this line", "path", r.URL.Path, "panic", fmt.Sprint(what),
		"stack", sparing.Own(debug.Stack()))
}

// Panics returns how many requests have ended with a panic of their handler.
func (g *Gate) Panics() uint64 { return g.panics.all.Load() }
