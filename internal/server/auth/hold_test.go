package auth

import (
	"testing"
	"time"
)

func TestHolds(t *testing.T) {
	now := time.Now()
	for _, x := range []struct {
		expired, hold time.Duration // before now
		ok            bool
	}{
		{time.Second, time.Minute, true},
		{-time.Second, time.Minute, true},
		{time.Minute, time.Minute, false},
		{time.Hour, time.Minute, false},
		{time.Second, 0, false},
		{-time.Second, 0, false}, // without a hold, who logs in needs an answer
	} {
		until, ok := holds(now.Add(-x.expired), x.hold, now)
		if ok != x.ok || ok && !until.Equal(now.Add(x.hold-x.expired)) {
			t.Errorf("expired %v ago, held for %v: until %v, %v", x.expired, x.hold, until.Sub(now), ok)
		}
	}
}
