package web

import (
	"bytes"
	"cmp"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"penstock/internal/shares"
	"penstock/internal/strangers"
)

// Turns makes answers that cost much, such as the statistics of all topics, one after the other or a few at a time, so
// that who asks for many of them takes neither the processors nor the memory from others. A place rests after an answer
// for as long as the answer took, so places leave half of a processor's time each to all other work. An answer is made
// completely before any of it is sent: a client that reads slowly holds no place. Any goroutine may use it.
type Turns struct {
	patience time.Duration
	places   chan struct{} // one value for each answer that is being made, or place that rests
	unsent   *shares.Budget
	late     atomic.Uint64 // requests that got no turn in time
	unread   atomic.Uint64 // answers that were made and not sent, because too many are not read
}

// TurnCounts are what /metrics shows of Turns.
type TurnCounts struct {
	UnreadBytes  int64 // of answers that clients have not read yet
	Late, Unread uint64
}

// Counts returns what is unread now, and how many requests were refused so far.
func (t *Turns) Counts() TurnCounts {
	return TurnCounts{t.unsent.Used(), t.late.Load(), t.unread.Load()}
}

const (
	turnPatience = 5 * time.Second
	maxTurnRest  = 250 * time.Millisecond

	// maxUnsentBytes bounds the answers that clients have not read yet; of one address they are a quarter, or one answer
	// of maxUnsentAnswer, as which larger ones count.
	maxUnsentBytes  = 128 << 20
	maxUnsentAnswer = 32 << 20
)

// NewTurns returns Turns with so many places.
func NewTurns(places int) *Turns {
	return &Turns{
		patience: turnPatience, places: make(chan struct{}, places),
		unsent: shares.New(&shares.UnreadAnswers, maxUnsentBytes, maxUnsentAnswer),
	}
}

// InTurn returns the route with answers in turns. of says whose turns those of a request are.
func (rt Route) InTurn(of func(r *http.Request) *Turns) Route {
	plain := rt
	rt.Serve, rt.Raw = nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of(r).serve(w, r, func(w http.ResponseWriter) {
			q, err := url.ParseQuery(r.URL.RawQuery)
			if err != nil {
				WriteError(w, Fail(400, "INVALID_REQUEST"))
				return
			}
			_ = plain.serve(w, r, q)
		})
	})
	return rt
}

// serve waits for a place, has the answer made, and sends it.
func (t *Turns) serve(w http.ResponseWriter, r *http.Request, answer func(http.ResponseWriter)) {
	timer := time.NewTimer(t.patience)
	defer timer.Stop()
	select {
	case t.places <- struct{}{}:
	case <-r.Context().Done():
		return
	case <-timer.C:
		t.late.Add(1)
		WriteError(w, &Error{Status: 503, code: "TOO_MANY_ANSWERS", detail: "other requests for answers of this kind, " +
			"which cost much, have taken all turns for " + t.patience.String() +
			": ask again later, less often, or with a token"})
		return
	}
	made := &unsent{header: w.Header()}
	t.make(made, answer)
	who, n := AddressOf(r), int64(min(made.body.Len(), maxUnsentAnswer))
	if err := t.unsent.TryTake(who, n); err != nil {
		t.unread.Add(1)
		WriteError(w, &Error{Status: 503, code: "TOO_MANY_ANSWERS", detail: "other answers have not been read by the " +
			"clients that asked for them: read them, or ask again later"})
		return
	}
	defer t.unsent.Give(who, n)
	w.WriteHeader(cmp.Or(made.code, 200))
	_, _ = w.Write(made.body.Bytes())
}

// make has the answer made, and lets the place rest afterwards.
func (t *Turns) make(w *unsent, answer func(http.ResponseWriter)) {
	began := time.Now()
	defer func() {
		time.AfterFunc(min(time.Since(began), maxTurnRest), func() { <-t.places })
	}()
	answer(w)
}

// AddressOf returns the address that a request is counted for: see strangers.Of.
func AddressOf(r *http.Request) string {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return strangers.Of(net.TCPAddrFromAddrPort(at)).String()
}

// unsent is an answer that is being made.
type unsent struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (u *unsent) Header() http.Header { return u.header }

func (u *unsent) WriteHeader(code int) { u.code = cmp.Or(u.code, code) }

func (u *unsent) Write(p []byte) (int, error) {
	u.WriteHeader(200)
	return u.body.Write(p)
}
