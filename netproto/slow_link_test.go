package netproto

import (
	"testing"
	"time"
)

func TestCrossing(t *testing.T) {
	for _, test := range []struct {
		name         string
		earlier, now sample
		want         bool
	}{
		{"nothing was ever written", sample{}, sample{}, false},
		{"everything arrived", sample{100, 100}, sample{100, 100}, false},
		{"a quick link to a process that stands still", sample{1000, 1000}, sample{2000, 2000}, false},
		{"the same, while new bytes are just on their way", sample{1000, 1000}, sample{1500, 2500}, false},
		{"a full window of a process that stands still", sample{1000, 9000}, sample{1000, 9000}, false},
		{"a slow link", sample{1000, 9000}, sample{2000, 9500}, true},
		{"a slow link whose last byte has arrived", sample{1000, 9000}, sample{9000, 9000}, false},
	} {
		if got := crossing(test.earlier, test.now); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

func TestFrameLate(t *testing.T) {
	for _, test := range []struct {
		arrived int
		took    time.Duration
		want    bool
	}{
		{0, 30 * time.Second, false},
		{100, 31 * time.Second, true},
		{40 << 10, 31 * time.Second, false},
		{40 << 10, 41 * time.Second, true},
		{8 << 20, time.Hour, false},
	} {
		if got := frameLate(test.arrived, test.took, 30*time.Second); got != test.want {
			t.Errorf("%d bytes in %v: %v", test.arrived, test.took, got)
		}
	}
}
