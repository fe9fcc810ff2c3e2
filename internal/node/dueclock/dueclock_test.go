package dueclock

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node/clock"
	"penstock/internal/node/fold"
	"penstock/internal/node/platform"
	"penstock/segment"
)

// Delays are corrected once: before the next correction, this process has been the writer itself.
func TestDelaysAreCorrectedOnce(t *testing.T) {
	const second = int64(1e9)
	c := bare(slog.DiscardHandler)
	var w fold.WriterClock
	now := &fold.Cursors{Deferred: []fold.DeferredMessage{{ID: 1, DueMs: 100_000}}}
	w.Saw(&segment.Header{Epoch: 1, Created: 90 * second, Appended: 90 * second}, 80*second)
	for range 2 {
		c.Correct(&w, now, nil, 0, "t", 0)
		if due := now.Deferred[0].DueMs; due != 90_000 {
			t.Fatalf("it is due at %d ms", due)
		}
	}
}

// More delayed messages than a batch can tell the other replicas of are not corrected, and the log says so.
func TestTooManyDelaysAreTold(t *testing.T) {
	const second = int64(1e9)
	var log bytes.Buffer
	c := bare(slog.NewTextHandler(&log, nil))
	var w fold.WriterClock
	now := new(fold.Cursors)
	for id := segment.MsgID(1); now.MaxBytes(0) <= segment.MaxBatchBytes/2; id += 1000 {
		for i := range segment.MsgID(1000) {
			now.Deferred = append(now.Deferred, fold.DeferredMessage{ID: id + i, DueMs: 100_000})
		}
	}
	w.Saw(&segment.Header{Epoch: 1, Created: 90 * second, Appended: 90 * second}, 80*second)
	c.Correct(&w, now, nil, 0, "t", 0)
	if due := now.Deferred[0].DueMs; due != 100_000 {
		t.Errorf("it is due at %d ms", due)
	}
	if text := log.String(); !strings.Contains(text, "too many delayed messages") || !strings.Contains(text, "ahead=10s") {
		t.Errorf("the log says %q", text)
	}
}

// bare returns a Corrector that logs to h.
func bare(h slog.Handler) *Corrector {
	host := platform.NewMachine()
	return &Corrector{
		Log: slog.New(h), Clock: clock.New(host.Wall, host.Mono), FromTheFuture: new(atomic.Uint64),
		Corrected: new(atomic.Uint64),
	}
}

// The longest delay that was ever allowed counts: what was stored with it is right.
func TestAllowNeverForgets(t *testing.T) {
	c := bare(slog.DiscardHandler)
	c.Allow(time.Hour)
	c.Allow(time.Minute)
	if d := time.Duration(c.longest.Load()); d != time.Hour {
		t.Errorf("%v", d)
	}
	if c.Allow(2 * time.Hour); time.Duration(c.longest.Load()) != 2*time.Hour {
		t.Error("a longer one is not allowed")
	}
}
