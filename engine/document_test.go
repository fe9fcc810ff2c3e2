package engine_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The program in docs/start/embedded.md does what the page says.
func TestProgramInDocument(t *testing.T) {
	page, err := os.ReadFile("../docs/start/embedded.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(page), "```go\n")
	program, _, ok := strings.Cut(program, "```\n")
	if !ok {
		t.Fatal("the page has no program")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	run := exec.Command("go", "run", file, filepath.Join(dir, "data"))
	run.Stderr = os.Stderr
	out, err := run.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for line := range strings.Lines(string(out)) {
		_, body, _ := strings.Cut(strings.TrimSpace(line), " ")
		got = append(got, body)
	}
	for i := range 10 {
		want = append(want, fmt.Sprint("order ", i))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("it prints %q, want %q", got, want)
	}
}
