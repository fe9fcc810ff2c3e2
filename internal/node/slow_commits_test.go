package node

import (
	"testing"
	"time"
)

// However many commits are slow, one line in ten seconds says so, and each is counted in one line.
func TestSlowCommitsDue(t *testing.T) {
	var s slowCommits
	began := time.Unix(1000, 0)
	for i, x := range []struct {
		at    time.Duration
		total uint64
		count uint64
		due   bool
	}{
		{0, 0, 0, false},
		{time.Second, 3, 3, true},
		{2 * time.Second, 5, 0, false},
		{10 * time.Second, 9, 0, false},
		{11 * time.Second, 9, 6, true},
		{time.Minute, 9, 0, false},
		{time.Minute, 10, 1, true},
	} {
		if count, due := s.due(x.total, began.Add(x.at)); count != x.count || due != x.due {
			t.Errorf("step %d: %d, %v", i, count, due)
		}
	}
}
