package engine

import "testing"

// An engine that is closing may owe its commit log a mark when the log ends: nothing is due for that any more, or time would stand still until the
// process ends.
func TestManualOwesAnEndedLogNothing(t *testing.T) {
	m := &Manual{owes: 7, markAt: 5, logging: true}
	if at := m.due(); at != 5 {
		t.Errorf("the mark is due at %v", at)
	}
	m.logging = false
	if at := m.due(); at != never {
		t.Errorf("something is due at %v, and the log has ended", at)
	}
}
