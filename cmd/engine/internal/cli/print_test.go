package cli

import "testing"

// A sentence about one thing is not in the plural.
func TestCounted(t *testing.T) {
	for _, x := range []struct{ got, want string }{
		{Counted(0, "message"), "0 messages"},
		{Counted(1, "message"), "1 message"},
		{Counted(uint64(2), "message"), "2 messages"},
		{InNumber(1, "copy is", "copies are"), "1 copy is"},
		{InNumber(3, "copy is", "copies are"), "3 copies are"},
	} {
		if x.got != x.want {
			t.Errorf("%q, want %q", x.got, x.want)
		}
	}
}
