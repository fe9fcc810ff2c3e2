package stepped

import (
	"testing"

	"penstock/internal/node/platform"
)

// The commit log of a closing engine may still owe a mark when the log ends. That mark is not due any more; otherwise
// time would stand still until the process ends.
func TestAnEndedLogIsOwedNothing(t *testing.T) {
	s := &Host{owes: 7, markAt: 5, log: struct{ platform.Log }{}}
	if at := s.due(); at != 5 {
		t.Errorf("the mark is due at %v", at)
	}
	s.log = nil
	if at := s.due(); at != never {
		t.Errorf("something is due at %v, and the log has ended", at)
	}
}
