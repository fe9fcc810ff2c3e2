// Package docs_test keeps the documents true to the tree: links, files and identifiers that they name are there, the
// map of packages is right, and every number that a comment cites (B17, invariant 7, P5, F6) has its meaning in
// behaviours.md.
package docs_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
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
		made := strings.HasPrefix(d.Name(), ".") ||
			slices.Contains([]string{"bin", "data", "cluster-data", "node_modules"}, d.Name())
		if d.IsDir() && path != root && made {
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

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
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
	document   = regexp.MustCompile(`[\w/.-]*\w\.md\b`)
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
	for _, m := range definition.FindAllStringSubmatch(read(t, "contribute/behaviours.md"), -1) {
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
					t.Errorf("%s:%d cites %s, which docs/contribute/behaviours.md does not define", path, n+1, name)
				}
			}
			for _, m := range document.FindAllString(text, -1) {
				var places []string
				for _, dir := range []string{filepath.Dir(path), root, ".", "operate", "contribute"} {
					places = append(places, filepath.Join(dir, m))
				}
				if m != "FORMAT.md" && !slices.ContainsFunc(places, exists) { // FORMAT.md: one of several
					t.Errorf("%s:%d cites %s, which is not in the repository", path, n+1, m)
				}
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

var (
	fence  = regexp.MustCompile("(?s)```.*?```")
	code   = regexp.MustCompile("`([^`\n]+)`")
	path   = regexp.MustCompile(`^[\w.*-]+(/[\w.*-]+)*(/|\.go|\.md|\.txt|\.toml)$|^[\w-]+(/[\w-]+)+$`)
	name   = regexp.MustCompile(`^\w+(\.\w+)*(\(\))?$`)
	aWord  = regexp.MustCompile(`\w+`)
	inTree = []string{
		"../ARCHITECTURE.md", "../CONTRIBUTING.md", "contribute/concurrency.md", "contribute/decisions.md",
		"contribute/where.md", "operate/limits.md",
	}
)

// The documents about the source name files and identifiers in backquotes: they are there. A renaming that forgets the
// documents fails here.
func TestNamesAreInTheTree(t *testing.T) {
	words := make(map[string]bool)
	for _, file := range append(files(t, ".go", ".toml", ".txt"), "../Makefile") {
		for _, w := range aWord.FindAllString(read(t, file), -1) {
			words[w] = true
		}
	}
	for _, doc := range inTree {
		for _, m := range code.FindAllStringSubmatch(fence.ReplaceAllString(read(t, doc), ""), -1) {
			switch said := m[1]; {
			case said == "FORMAT.md", said == "doc.go", strings.HasPrefix(said, "bin/"): // one of several; what a build makes
			case path.MatchString(said):
				found, _ := filepath.Glob(filepath.Join(root, said))
				below, _ := filepath.Glob(filepath.Join(root, "internal", said))
				if len(found)+len(below) == 0 {
					t.Errorf("%s names %s, which is not in the tree", doc, said)
				}
			case name.MatchString(said):
				parts := aWord.FindAllString(said, -1)
				if !words[parts[len(parts)-1]] {
					t.Errorf("%s names %s, which is not in the tree", doc, said)
				}
			}
		}
	}
}

// aside are packages that are no part of the product.
var aside = regexp.MustCompile(`^(tools|tests|bench|docs)\b`)

// importers returns every package of the product, and which others of the product import it, by their paths without
// internal/ in front.
func importers(t *testing.T) map[string][]string {
	t.Helper()
	format := `{{$p := .ImportPath}}{{$p}} -{{range .Imports}}{{"\n"}}{{.}} {{$p}}{{end}}`
	out, err := exec.Command("go", "list", "-f", format, "penstock/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	by := make(map[string][]string)
	for line := range strings.Lines(string(out)) {
		pkg, importer, _ := strings.Cut(strings.TrimSpace(line), " ")
		pkg, ours := strings.CutPrefix(pkg, "penstock/")
		pkg = strings.TrimPrefix(pkg, "internal/")
		importer = strings.TrimPrefix(strings.TrimPrefix(importer, "penstock/"), "internal/")
		if strings.HasPrefix(importer, "cmd/engine/internal/") { // a group of its commands
			importer = "cmd/engine"
		}
		switch {
		case !ours, aside.MatchString(importer), aside.MatchString(pkg) && importer == "-":
		case aside.MatchString(pkg):
			t.Errorf("%s imports %s, which is no part of the product", importer, pkg)
		case importer == "-":
			by[pkg] = append(by[pkg], []string{}...)
		default:
			by[pkg] = append(by[pkg], importer)
		}
	}
	return by
}

// covers says whether what a row says is pkg: "x" is x, "x/*" are the packages below x, "x*" is both.
func covers(said, pkg string) bool {
	if below, ok := strings.CutSuffix(said, "/*"); ok {
		return strings.HasPrefix(pkg, below+"/")
	}
	base, wide := strings.CutSuffix(said, "*")
	return pkg == base || wide && strings.HasPrefix(pkg, base+"/")
}

// The map in ARCHITECTURE.md has every package of the product, and its last column says who imports each.
func TestMapIsTrue(t *testing.T) {
	by := importers(t)
	row := regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\| [^|]+ \\| ([^|]+) \\|$")
	mapped := make(map[string]bool)
	for _, m := range row.FindAllStringSubmatch(read(t, "../ARCHITECTURE.md"), -1) {
		pkg, said := m[1], strings.Split(m[2], ", ")
		mapped[pkg] = true
		for _, s := range said {
			if s == "applications" { // outside of the tree
				continue
			}
			if !slices.ContainsFunc(by[pkg], func(importer string) bool { return covers(s, importer) }) {
				t.Errorf("the map says that %s is imported by %s, and it is not", pkg, s)
			}
		}
		for _, importer := range by[pkg] {
			if !slices.ContainsFunc(said, func(s string) bool { return covers(s, importer) }) {
				t.Errorf("%s is imported by %s, and the map does not say so", pkg, importer)
			}
		}
	}
	for pkg := range by {
		if !mapped[pkg] && !covers("cmd*", pkg) && !covers("cluster/kv/*", pkg) && !covers("segment/aio/*", pkg) {
			t.Errorf("the map has no row for %s", pkg)
		}
	}
}

// Lines of the documents fit into 120 columns, except rows of tables and what must not be broken.
func TestDocumentsFit(t *testing.T) {
	for _, doc := range files(t, ".md") {
		if filepath.Base(doc) == "FORMAT.md" {
			continue
		}
		for n, line := range strings.Split(read(t, doc), "\n") {
			if len([]rune(line)) > 120 && (!strings.HasPrefix(line, "|") || doc == "../ARCHITECTURE.md") {
				t.Errorf("%s:%d has %d columns", doc, n+1, len([]rune(line)))
			}
		}
	}
	if n := strings.Count(read(t, "../ARCHITECTURE.md"), "\n"); n > 210 {
		t.Errorf("ARCHITECTURE.md has %d lines: details belong into docs/contribute/decisions.md", n)
	}
}

// maxDocumentBytes bounds all documents together, without those of the formats: more is not read.
const maxDocumentBytes = 350 << 10

// The documents together stay below a limit: a new page or row needs a shorter one elsewhere.
func TestDocumentsAreShort(t *testing.T) {
	type document struct {
		name  string
		bytes int
	}
	var all []document
	sum := 0
	for _, name := range files(t, ".md") {
		if filepath.Base(name) != "FORMAT.md" {
			all = append(all, document{name, len(read(t, name))})
			sum += all[len(all)-1].bytes
		}
	}
	if sum > maxDocumentBytes {
		slices.SortFunc(all, func(a, b document) int { return b.bytes - a.bytes })
		t.Errorf("the documents have %d bytes, and %d are allowed; the longest are %v", sum, maxDocumentBytes, all[:10])
	}
	if n := strings.Count(read(t, root+"/README.md"), "\n"); n > 200 {
		t.Errorf("README.md has %d lines, and 200 are allowed", n)
	}
}
