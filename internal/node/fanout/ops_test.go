package fanout

import (
	"errors"
	"fmt"
	"testing"

	"penstock/internal/node/reason"
	"penstock/netproto"
)

// A final error, which ends the rounds of asking leaders, is recognized whichever node returns it.
func TestFinalErrorsHaveNumbers(t *testing.T) {
	for _, err := range finalErrors {
		for level := 1; level <= 3; level++ {
			f := ack(level, 7, nil, fmt.Errorf("%w: and why", err))
			got := reason.OfOperation(f.Stream, string(f.Head))
			if f.Status != netproto.StatusRejected || f.Request != 7 || !errors.Is(got, err) || !final(got) {
				t.Errorf("at level %d %v comes back as %v in %+v", level, err, got, f)
			}
			if got.Error() != err.Error()+": and why" {
				t.Errorf("at level %d its text is %q", level, got)
			}
			if (f.Stream != 0) != (level >= reasonLevel) {
				t.Errorf("at level %d its number is %d", level, f.Stream)
			}
		}
	}
	f := ack(reasonLevel, 7, []byte("[]"), nil)
	if f.Status != netproto.StatusOK || f.Stream != 0 || string(f.Head) != "[]" {
		t.Errorf("a result travels as %+v", f)
	}
}
