package loglimit

import (
	"testing"
	"time"
)

// An event that hits all partitions at once gives one log line. The next line says how many events there were.
func TestSeldom(t *testing.T) {
	var s Limiter
	lines, told := 0, 0
	for at := time.Duration(0); at < 10*time.Second; at += 10 * time.Millisecond {
		if others, may := s.Allow(int64(at), time.Second); may {
			lines++
			told += others + 1
		}
	}
	if lines != 10 || told != 901 {
		t.Errorf("%d lines tell of %d", lines, told)
	}
}
