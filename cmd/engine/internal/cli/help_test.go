package cli

import "testing"

func TestWrapText(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"one two three", "one two\nthree\n"},
		{"one\ntwo\n\nthree", "one two\n\nthree\n"},
		{"  a  one two three", "  a  one\n    two\n    three\n"},
		{"  ab  one\n      two\n  c   x", "  ab  one\n    two\n  c   x\n"},
		{"incomprehensible x", "incomprehensible\nx\n"},
	} {
		if got := wrapText(tc.in, 9); got != tc.want {
			t.Errorf("%q becomes %q, want %q", tc.in, got, tc.want)
		}
	}
}
