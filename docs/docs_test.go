// Package docs_test keeps the documents true to the tree: links and names of files resolve, and every number that a comment cites (B17,
// invariant 7, P5, F6) has its meaning in behaviours.md.
package docs_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the top of the tree, seen from this directory.
const root = ".."

// files returns the paths below the top of the tree whose names end in one of the suffixes.
func files(t *testing.T, suffixes ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"bin", "data", "cluster-data"}, d.Name())) {
			return filepath.SkipDir
		}
		if !d.IsDir() && slices.Contains(suffixes, filepath.Ext(path)) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	definition = regexp.MustCompile(`(?m)^- \*\*((?:[BPFDC]|invariant )\d+)\*\*:`)
	citation   = regexp.MustCompile(`\b[BPFDC]\d{1,3}\b`)
	invariants = regexp.MustCompile(`(?i)\binvariants? (\d+(?:(?:, | and | to )\d+)*)`)
	outside    = regexp.MustCompile(`\b(design|behaviours|limits|reliability|failures|nsq-compat|native|operations)\.md\b`)
)

// comment returns what a line says to its reader: in Go what follows "//", elsewhere all of it.
func comment(path, line string) string {
	if filepath.Ext(path) != ".go" {
		return line
	}
	_, text, _ := strings.Cut(line, "//")
	return text
}

func TestCitationsResolve(t *testing.T) {
	defined := make(map[string]bool)
	for _, m := range definition.FindAllStringSubmatch(read(t, "behaviours.md"), -1) {
		if defined[m[1]] {
			t.Errorf("behaviours.md defines %s twice", m[1])
		}
		defined[m[1]] = true
	}
	if len(defined) < 100 {
		t.Fatalf("behaviours.md defines %d numbers", len(defined))
	}
	for _, path := range files(t, ".go", ".md", ".txt") {
		if strings.HasSuffix(path, "mutants.txt") {
			continue // its rows are lines of code
		}
		for n, line := range strings.Split(read(t, path), "\n") {
			text := comment(path, line)
			cited := citation.FindAllString(text, -1)
			for _, m := range invariants.FindAllStringSubmatch(text, -1) {
				for _, number := range regexp.MustCompile(`\d+`).FindAllString(m[1], -1) {
					cited = append(cited, "invariant "+number)
				}
			}
			for _, name := range cited {
				if !defined[name] {
					t.Errorf("%s:%d cites %s, which docs/behaviours.md does not define", path, n+1, name)
				}
			}
			if m := outside.FindString(text); m != "" && !(m == "behaviours.md" && strings.Contains(text, "docs/behaviours.md")) &&
				filepath.Dir(path) != "../docs" && filepath.Base(path) != "docs_test.go" {
				t.Errorf("%s:%d cites %s, which is not in the repository", path, n+1, m)
			}
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notWord = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the names by which links can reach the headings of a document.
func anchors(text string) []string {
	var names []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		name := strings.ReplaceAll(notWord.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		for base, n := name, 1; slices.Contains(names, name); n++ {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		names = append(names, name)
	}
	return names
}

func TestLinksResolve(t *testing.T) {
	for _, path := range files(t, ".md") {
		for _, m := range link.FindAllStringSubmatch(read(t, path), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target, anchor, _ := strings.Cut(m[1], "#")
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			info, err := os.Stat(file)
			if err != nil {
				t.Errorf("%s: there is no %s", path, m[1])
				continue
			}
			if anchor != "" && (info.IsDir() || !slices.Contains(anchors(read(t, file)), anchor)) {
				t.Errorf("%s: %s has no heading %s", path, file, anchor)
			}
		}
	}
}
