package web

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// panics counts and logs the panics of the handlers behind a gate. A client may be able to cause one again and again:
// so there is a line at most each panicInterval, which has the stack, and says how many came since the line before.
// Any goroutine may use it.
type panics struct {
	all    atomic.Uint64
	told   atomic.Uint64 // of them, those before the last line, that one included
	lineAt atomic.Int64  // when the last line was written, ns since the process began; 0: never
}

const panicInterval = time.Minute

var began = time.Now()

// serve serves a request with h. A panic ends the connection, as net/http does it, but is logged as an error: it is a
// fault of this program.
func (p *panics) serve(h http.Handler, w http.ResponseWriter, r *http.Request, log *slog.Logger) {
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

func (p *panics) note(what any, r *http.Request, log *slog.Logger) {
	all := p.all.Add(1)
	now, last := int64(time.Since(began))+1, p.lineAt.Load()
	if last != 0 && now-last < int64(panicInterval) || !p.lineAt.CompareAndSwap(last, now) {
		return
	}
	log.Error("a fault of this program ended an HTTP request, whose connection was closed; nothing else is affected: "+
		"report it with this line", "path", r.URL.Path, "panic", fmt.Sprint(what), "since_last_line", all-p.told.Swap(all),
		"stack", string(debug.Stack()))
}

// Panics returns how many requests have ended with a panic of their handler.
func (g *Gate) Panics() uint64 { return g.panics.all.Load() }
