package scrub

import (
	"testing"

	"penstock/segment"
)

// A repair may be faster than the scrub that found the damage. Then no range is isolated any more when the scrub looks,
// and it reads the place once more. If this read succeeds, the damage counts. If it fails, the file as a whole is
// unreadable.
func TestFinding(t *testing.T) {
	bad, other := &segment.CorruptError{Detail: "bad"}, &segment.CorruptError{Detail: "other"}
	var f finding
	if err := f.repaired(0); err != nil {
		t.Errorf("nothing was found, and %v is told", err)
	}
	if !f.again(0, bad) {
		t.Error("the place is not read once more")
	}
	if f.again(0, bad) {
		t.Error("the place is read for ever")
	}
	if !f.again(100, other) {
		t.Error("another place is not read once more")
	}
	if err := f.repaired(100); err != error(other) {
		t.Errorf("%v is told of what reads back", err)
	}
	if err := f.repaired(100); err != nil {
		t.Errorf("told twice: %v", err)
	}
	f.again(100, bad)
	if err := f.repaired(200); err != nil {
		t.Errorf("%v is told of another place", err)
	}
}
