package transcripttest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Replay plays a transcript and compares the answers with its results. With update it replaces the results.
func Replay(t *testing.T, path string, update bool, play func(t *testing.T, text string) string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := play(t, string(text))
	if update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, have := strings.Split(string(text), "\n"), strings.Split(got, "\n")
	for i := range max(len(want), len(have)) {
		if i >= len(want) || i >= len(have) || want[i] != have[i] {
			t.Fatalf("%s:%d\n want %q\n have %q\nall of it:\n%s", path, i+1, line(want, i), line(have, i), got)
		}
	}
}

func line(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(nothing)"
}

// Play writes the lines of a transcript to out, without the old results, and calls one for each call. one writes the
// results.
func Play(text string, out *strings.Builder, one func(words []string)) {
	for _, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		switch {
		case strings.HasPrefix(l, " "): // an old result
		case l == "" || l[0] == '#':
			fmt.Fprintln(out, l)
		default:
			fmt.Fprintln(out, l)
			one(strings.Fields(l))
		}
	}
}

// Args are the key=value words of a line.
type Args struct {
	T      *testing.T
	Line   []string
	Values map[string]string
}

// Parse returns the arguments of a line.
func Parse(t *testing.T, words []string) Args {
	a := Args{T: t, Line: words, Values: map[string]string{}}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		a.Values[key] = value
	}
	return a
}

// Int returns a number; 0: it is not there.
func (a Args) Int(key string) int64 {
	a.T.Helper()
	text, ok := a.Values[key]
	if !ok {
		return 0
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		a.T.Fatalf("%v: %v", a.Line, err)
	}
	return v
}

// Has says whether the line has the word.
func (a Args) Has(word string) bool { _, ok := a.Values[word]; return ok }

// List returns the items of a value, which commas separate.
func (a Args) List(key string) []string {
	if a.Values[key] == "" {
		return nil
	}
	return strings.Split(a.Values[key], ",")
}

// Scan scans a text as fmt.Sscanf does.
func (a Args) Scan(text, format string, to ...any) {
	a.T.Helper()
	if _, err := fmt.Sscanf(text, format, to...); err != nil {
		a.T.Fatalf("%v: %q: %v", a.Line, text, err)
	}
}
