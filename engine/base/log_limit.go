package base

import (
	"time"

	"penstock/internal/lock"
)

// LogLimiter lets one line through per interval, and counts the others. Any goroutine may call Allow. mu guards the
// fields.
type LogLimiter struct {
	mu      lock.Mutex[lock.LogLimiter]
	last    int64 // when the last line was allowed: the at of that call, in ns
	said    bool
	skipped int
}

// Allow says whether the line may be written at the time at, in ns, and how many lines were dropped since the one
// before.
func (s *LogLimiter) Allow(at int64, interval time.Duration) (others int, may bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.said && at-s.last < int64(interval) {
		s.skipped++
		return 0, false
	}
	others, s.last, s.said, s.skipped = s.skipped, at, true, 0
	return others, true
}
