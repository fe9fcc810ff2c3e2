package clock

import (
	"testing"
	"time"
)

// A lease that is ended is over at once, and not earlier than it was over already.
func TestLeaseEnds(t *testing.T) {
	now := time.Duration(0)
	var l Lease
	l.Begin(func() time.Duration { return now })
	l.Extend(100)
	now = 40
	if !l.Leased() {
		t.Fatal("there is no lease")
	}
	if l.End(); l.Leased() || l.Until() != 40 || !l.Lapsed(0) {
		t.Errorf("it ends at %d", l.Until())
	}
	now = 90
	if l.End(); l.Until() != 40 {
		t.Errorf("it was over at 40, and now at %d", l.Until())
	}
}
