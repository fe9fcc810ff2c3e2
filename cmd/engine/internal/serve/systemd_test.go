package serve

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The watchdog of a node that needs a restart gets no pings; one log line says why.
func TestWatchdogFallsSilent(t *testing.T) {
	const period = 30 * time.Second
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		var pings atomic.Int64
		var lives atomic.Bool
		lives.Store(true)
		live := func() (bool, string) { return lives.Load(), "the commit log failed" }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			watchdog(ctx, period, live, func(string) { pings.Add(1) }, slog.New(slog.NewTextHandler(&log, nil)))
		}()
		during := func(d time.Duration) int64 {
			before := pings.Load()
			time.Sleep(d)
			synctest.Wait()
			return pings.Load() - before
		}
		if n := during(10 * period); n < 10*pingsPerPeriod {
			t.Errorf("%d pings in ten periods", n)
		}
		lives.Store(false)
		if n := during(10 * period); n != 0 || strings.Count(log.String(), "the commit log failed") != 1 {
			t.Errorf("%d pings although a restart is needed; the log says\n%s", n, log.String())
		}
		lives.Store(true)
		if n := during(period); n == 0 {
			t.Error("no pings after the node lives again")
		}
		cancel()
		<-ended
	})
}
