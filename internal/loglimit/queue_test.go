package loglimit

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// stuckHandler is a logger that can be stopped.
type stuckHandler struct {
	slog.Handler
	gate chan struct{} // receives are what lets a line through; nil: all pass
}

func (h stuckHandler) Handle(ctx context.Context, r slog.Record) error {
	if h.gate != nil {
		<-h.gate
	}
	return h.Handler.Handle(ctx, r)
}

// A logger that answers writes each line before the call returns, as without the queue.
func TestQueueKeepsOrder(t *testing.T) {
	var text bytes.Buffer
	q := NewQueue()
	log := q.Logger(slog.New(slog.NewTextHandler(&text, nil))).With("a", 1).WithGroup("g")
	for _, line := range []string{"one", "two"} {
		log.Info(line, "b", 2)
		q.End() // also the goroutine's memory is seen here
		if !strings.Contains(text.String(), "msg="+line+" a=1 g.b=2") {
			t.Errorf("the log is %q", text.String())
		}
	}
}

// A logger that does not come back holds nobody up for long; what does not fit is dropped, counted and told.
func TestQueueOfAStuckLogger(t *testing.T) {
	var mu sync.Mutex
	var text bytes.Buffer
	gate := make(chan struct{})
	h := stuckHandler{slog.NewTextHandler(lockedWriter{&mu, &text}, nil), gate}
	q := NewQueue()
	log := q.Logger(slog.New(h))
	began := time.Now()
	for range maxLines + 100 {
		log.Info("line")
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the lines took %v", took)
	}
	if n := q.Dropped(); n < 90 || n > 100 {
		t.Errorf("%d lines were dropped", n)
	}
	close(gate)
	q.End()
	mu.Lock()
	defer mu.Unlock()
	got := strings.Count(text.String(), "msg=line")
	if got < maxLines || !strings.Contains(text.String(), "were dropped") {
		t.Errorf("%d lines were written: %.300s", got, text.String())
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(p)
}
