// Package loglimit keeps the log from flooding and from stopping what logs. A Limiter lets one line of a kind through
// per interval; a Queue carries the lines to a logger that may be slow. Lines that strangers can cause have package
// sparing. It imports only package lock.
package loglimit

import (
	"time"

	"penstock/internal/lock"
)

// Limiter lets one log line through per interval, and counts the others. Any goroutine may call Allow. mu guards the
// fields.
type Limiter struct {
	mu      lock.Mutex[lock.LogLimiter]
	last    int64 // when the last line was allowed, in ns
	said    bool
	skipped int
}

// Allow says whether the line may be written at the time at, in ns. others is the number of lines that were dropped
// since the last allowed one.
func (s *Limiter) Allow(at int64, interval time.Duration) (others int, may bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.said && at-s.last < int64(interval) {
		s.skipped++
		return 0, false
	}
	others, s.last, s.said, s.skipped = s.skipped, at, true, 0
	return others, true
}
