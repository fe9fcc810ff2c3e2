package clip

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestPlain(t *testing.T) {
	for _, x := range []struct{ s, want string }{
		{"", ""},
		{"worker-1 (Zürich, 東京) 😀", "worker-1 (Zürich, 東京) 😀"},
		{"\x1b[2J\x1b]0;owned\x07", `\u001b[2J\u001b]0;owned\u0007`},
		{"a\r\nforged  row\t1", `a\u000d\u000aforged  row\u00091`},
		{"\u009b2J \x7f", `\u009b2J \u007f`},
		{"\u202egnp.exe", `\u202egnp.exe`},
		{"\x9b2J \xff", `\x9b2J \xff`},
		{"\U000e0041", `\udb40\udc41`},
		{"\ufffd", "\ufffd"},
	} {
		if got := Plain(x.s); got != x.want {
			t.Errorf("%q is shown as %s, want %s", x.s, got, x.want)
		}
		if strings.Contains(x.s, "\xff") || strings.Contains(x.s, "\x9b") {
			continue
		}
		// Written bit by bit it is the same, except that line ends and tabs stay.
		var b strings.Builder
		w := &Writer{To: &b}
		for i := range len(x.s) {
			if n, err := w.Write([]byte{x.s[i]}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if got := strings.NewReplacer("\n", `\u000a`, "\t", `\u0009`).Replace(b.String()); got != x.want {
			t.Errorf("%q is written as %s, want %s", x.s, got, x.want)
		}
		in, _ := json.Marshal(x.s)
		b.Reset()
		_, _ = w.Write(in)
		var back string
		if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back != x.s {
			t.Errorf("JSON of %q becomes %s: %q %v", x.s, b.String(), back, err)
		}
	}
}
