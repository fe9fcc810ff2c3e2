package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxGroupLines bounds a package of commands, without its tests: one that is larger does several things.
const maxGroupLines = 3000

// The packages of commands import of each other what the comment of package main says, and each stays small.
func TestGroups(t *testing.T) {
	text, err := os.ReadFile("main.go")
	must(t, err)
	may := make(map[string][]string)
	for _, row := range regexp.MustCompile(`(?m)^//\t.*$`).FindAllString(string(text), -1) {
		cells := append(regexp.MustCompile(` {2,}`).Split(strings.TrimPrefix(row, "//\t"), -1), "")
		for name := range strings.SplitSeq(cells[0], ", ") {
			may[name] = strings.Split(cells[2], ", ")
		}
	}
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./internal/...").Output()
	must(t, err)
	const below = "penstock/cmd/engine/internal/"
	for line := range strings.Lines(string(out)) {
		packages := strings.Fields(line)
		name := strings.TrimPrefix(packages[0], below)
		if name == "clitest" {
			continue
		}
		said, listed := may[name]
		if !listed {
			t.Errorf("the comment of package main does not list %s", name)
		}
		for _, p := range packages[1:] {
			if of, ours := strings.CutPrefix(p, below); ours && !slices.Contains(said, of) {
				t.Errorf("%s imports %s, and the comment of package main does not say so", name, of)
			}
		}
		files, err := filepath.Glob(filepath.Join("internal", name, "*.go"))
		must(t, err)
		lines := 0
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				source, err := os.ReadFile(file)
				must(t, err)
				lines += strings.Count(string(source), "\n")
			}
		}
		if lines > maxGroupLines {
			t.Errorf("%s has %d lines", name, lines)
		}
	}
}
