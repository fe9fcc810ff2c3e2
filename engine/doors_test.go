package engine_test

import (
	"bytes"
	"os/exec"
	"regexp"
	"testing"
)

// What a program may import is small: both doors fit on two screens, each has one name for each thing, and no type
// hides its fields behind an alias of another package's.
func TestDoorsAreSmall(t *testing.T) {
	t.Parallel()
	lines := 0
	for _, door := range []string{"engine", "client"} {
		out, err := exec.Command("go", "doc", module+door).Output()
		if err != nil {
			t.Fatal(err)
		}
		lines += bytes.Count(out, []byte("\n"))
		if n := len(regexp.MustCompile(`(?m)^type `).FindAll(out, -1)); n > 20 {
			t.Errorf("%s has %d types", door, n)
		}
	}
	if lines > 120 {
		t.Errorf("go doc of engine and client has %d lines", lines)
	}
}
