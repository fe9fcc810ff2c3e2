package clip

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for _, x := range []struct {
		s    string
		max  int
		want string
	}{
		{"", 3, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc"},
		{"äöü", 3, "ä"},
		{"äöü", 4, "äö"},
		{"a😀", 4, "a"},
		{"a😀", 5, "a😀"},
		{"😀", 0, ""},
		{"\x80\x80\x80\x80\x80\x80", 5, "\x80\x80\x80\x80\x80"},
	} {
		if got := Text(x.s, x.max); got != x.want {
			t.Errorf("%q in %d bytes is %q, want %q", x.s, x.max, got, x.want)
		}
	}
	for text, n := strings.Repeat("aä€😀", 3), 0; n < len(text); n++ {
		if got := Text(text, n); !utf8.ValidString(got) || len(got) > n || len(got) < n-3 {
			t.Errorf("in %d bytes it is %q", n, got)
		}
	}
}
