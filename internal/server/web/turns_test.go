package web

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Of answers that cost much so many are made at a time as there are places, and a client that does not read holds none.
func TestTurns(t *testing.T) {
	var now, most atomic.Int64
	size := 8 << 20 // more than the sockets take
	rt := On("GET", func(*http.Request, url.Values) (any, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		time.Sleep(20 * time.Millisecond) // the work
		return strings.Repeat("x", size), nil
	}, Open)
	turns := NewTurns(2)
	rt = rt.InTurn(func(*http.Request) *Turns { return turns })
	anybody := func(Access, *http.Request, url.Values) (string, error) { return "", nil }
	s := httptest.NewServer(Table{"/stats": rt}.Handler(Policy{Permit: anybody}))
	defer s.Close()
	stuck, err := http.Get(s.URL + "/stats") // and it reads nothing yet
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Body.Close()
	size = 100
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			reply, err := http.Get(s.URL + "/stats")
			if err != nil {
				t.Error(err)
				return
			}
			defer reply.Body.Close()
			body, err := io.ReadAll(reply.Body)
			if err != nil || reply.StatusCode != 200 || len(body) != 100 || reply.Header.Get("Content-Type") == "" {
				t.Errorf("%d, %d bytes, %v", reply.StatusCode, len(body), err)
			}
		})
	}
	all.Wait()
	if n := most.Load(); n != 2 {
		t.Errorf("%d answers were made at the same time", n)
	}
	if body, err := io.ReadAll(stuck.Body); err != nil || len(body) != 8<<20 {
		t.Errorf("the slow client: %d bytes, %v", len(body), err)
	}
}

// Who finds no turn, and who leaves too much unread, is told so. A panic gives the place back.
func TestTurnsRefuse(t *testing.T) {
	turns := NewTurns(1)
	turns.patience = 10 * time.Millisecond
	ask := func(f func(http.ResponseWriter)) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		turns.serve(w, httptest.NewRequest("GET", "/stats", nil), f)
		return w
	}
	turns.places <- struct{}{}
	if w := ask(nil); w.Code != 503 || !strings.Contains(w.Header().Get(DetailHeader), "all turns for 10ms") {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	<-turns.places
	turns.patience = time.Minute
	func() {
		defer func() { _ = recover() }()
		ask(func(http.ResponseWriter) { panic("a bug") })
	}()
	for i := range 2 {
		r := httptest.NewRequest("GET", "/stats", nil)
		r.RemoteAddr = fmt.Sprintf("10.0.0.%d:1", i)
		if err := turns.unsent.TryTake(AddressOf(r), maxUnsentAnswer); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		turns.serve(w, r, func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")) })
		if w.Code != 503 || !strings.Contains(w.Header().Get(DetailHeader), "have not been read") {
			t.Errorf("%d %v", w.Code, w.Header())
		}
	}
	if w := ask(func(w http.ResponseWriter) { w.WriteHeader(404) }); w.Code != 404 {
		t.Errorf("%d", w.Code)
	}
	if got, want := turns.Counts(), (TurnCounts{2 * maxUnsentAnswer, 1, 2}); got != want {
		t.Errorf("counted are %+v, want %+v", got, want)
	}
}
