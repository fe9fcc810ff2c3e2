package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The table fits the tree: every line that it replaces is there, once, and every test that it names exists. A test that
// moved to another package would otherwise only be missed when its mutant has its turn.
func TestTable(t *testing.T) {
	t.Chdir("../..")
	all, err := readTable("tools/mutants/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	const least = 160
	if len(all) < least {
		t.Errorf("%d mutants, want at least %d", len(all), least)
	}
	for _, m := range all {
		if _, err := m.planted(); err != nil {
			t.Errorf("mutant %s: %v", m.name, err)
		}
		for _, test := range m.tests {
			for _, name := range missingTests(t, test) {
				t.Errorf("mutant %s: no test of %s matches %q", m.name, test.pkg, name)
			}
		}
	}
}

// missingTests returns those alternatives of a test's regular expression that match no test function of its package.
// The alternatives are those of the top level: the names of subtests are not checked.
func missingTests(t *testing.T, of test) (missing []string) {
	t.Helper()
	functions := testFunctions(t, of.pkg)
	if of.run == "" && functions == "" {
		return []string{"."}
	}
	if of.run == "" {
		return nil
	}
	top, _, _ := strings.Cut(of.run, "/")
	for alternative := range strings.SplitSeq(top, "|") {
		if !regexp.MustCompile(`(?m)` + alternative).MatchString(functions) {
			missing = append(missing, alternative)
		}
	}
	return missing
}

// functionsOf has what testFunctions has found: mutants share packages.
var functionsOf = map[string]string{}

// testFunctions returns the names of the test functions in a directory, one on each line.
func testFunctions(t *testing.T, dir string) string {
	t.Helper()
	if names, found := functionsOf[dir]; found {
		return names
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunction.FindAllSubmatch(text, -1) {
			names.Write(append(m[1], '\n'))
		}
	}
	functionsOf[dir] = names.String()
	return functionsOf[dir]
}

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w*)\(`)

func TestPlant(t *testing.T) {
	m := &mutant{file: "f.go", old: "a()", new: "b()"}
	for _, c := range []struct{ source, want, err string }{
		{"x\n\ta()\ny\n", "x\n\tb()\ny\n", ""},
		{"x\n", "", "is not in"},
		{"a()\n  a()\n", "", "2 times"},
	} {
		got, err := m.plant([]byte(c.source))
		if c.err == "" && (err != nil || string(got) != c.want) ||
			c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%q: %q, %v", c.source, got, err)
		}
	}
}

func TestReadTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	for _, c := range []struct{ text, err string }{
		{"mutant: m\nfile: f\nold: a: b\nnew:\nsays: c d\ntest: ./p TestX tag\n", ""},
		{"mutant: m\nfile: f\nold: a\nnew: a\ntest: ./p\n", "differs"},
		{"mutant: m\nfile: f\nold: a\nnew: b\n", "a test"},
		{"mutant: m\nfile: f\nold: a\nnew: b\ntest: ./p\nmutant: m\n", "two mutants"},
		{"file: f\n", "no line of a table"},
		{"mutant: m\nwhat: f\n", "no line of a table"},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := readTable(path)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: %v", c.text, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
		} else if m := all[0]; m.old != "a: b" || m.new != "" || m.says != "c d" ||
			m.tests[0] != (test{"./p", "TestX", "tag"}) {
			t.Errorf("%+v", m)
		}
	}
	m := &mutant{file: "f"}
	if m.set("old", `a\n\tb`); m.old != "a\n\tb" {
		t.Errorf("%q", m.old)
	}
	if !m.set("limit", "5m") || m.limit != 5*time.Minute || m.set("limit", "soon") || m.set("limit", "0s") {
		t.Errorf("a limit of %v", m.limit)
	}
}

// A table is tried in pieces that together are all of it.
func TestSpan(t *testing.T) {
	all := []*mutant{{name: "a"}, {name: "b"}, {name: "c"}}
	for rows, want := range map[string]string{
		"": "abc", "1-2": "ab", "3-9": "c", "2-2": "b", "0-2": "", "2-1": "", "4-5": "", "2": "", "x": "",
	} {
		some, err := span(all, rows)
		got := ""
		for _, m := range some {
			got += m.name
		}
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v; want %q", rows, got, err, want)
		}
	}
}

// Only a test that fails has noticed something: none of those that were cut off by their limit, and of those that must
// say something, those that say it.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	for i, c := range []struct{ script, says, by, err string }{
		{"echo '--- PASS: TestX (0.00s)'", "", "", ""},
		{"echo 'testing: no tests to run'", "", "", "no test ran"},
		{"echo '--- FAIL: TestX (0.00s)'; exit 1", "", "TestX of ./p in", ""},
		{"echo '--- FAIL: TestX (0.00s)'; exit 1", "LOST", "", "does not say"},
		{"echo '--- FAIL: TestX (0.00s)'; echo LOST; exit 1", "LOST", "TestX of ./p in", ""},
		{"echo '=== RUN   TestX'; echo 'panic: nil'; exit 2", "", "a panic (TestX)", ""},
		{"echo 'panic: building the binary: exit status 1'; exit 2", "", "", "did not begin"},
		{"echo '=== RUN   TestX'; echo 'panic: test timed out after 7s'; exit 2", "", "", "did not end within 7s (TestX)"},
		{"case \"$*\" in *'-test.timeout 7s'*) echo '--- FAIL: TestX (0.00s)'; exit 1;; esac", "", "TestX of ./p in", ""},
	} {
		binary := filepath.Join(dir, fmt.Sprintf("test%d", i))
		err := errors.Join(os.MkdirAll(filepath.Join(dir, "p"), 0o700),
			os.WriteFile(binary, []byte("#!/bin/sh\n"+c.script+"\n"), 0o700))
		if err != nil {
			t.Fatal(err)
		}
		w := &workshop{ctx: t.Context(), root: dir, timeout: time.Minute}
		by, err := w.run(test{pkg: "./p"}, binary, 7*time.Second, c.says)
		if !strings.HasPrefix(by, c.by) || (by == "") != (c.by == "") || (err == nil) != (c.err == "") ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: killed by %q, %v; want %q, %q", c.script, by, err, c.by, c.err)
		}
	}
}

// Every mutant compiles: one that does not is noticed by no test. Many are planted at once, to check each package only
// a few times; of those that replace the same line each has its turn.
func TestTableCompiles(t *testing.T) {
	t.Chdir("../..")
	left, err := readTable("tools/mutants/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	packages := listPackages(t)
	for len(left) > 0 {
		texts, names := map[string][]byte{}, map[string][]string{} // by directory of a package: names of mutants
		var later []*mutant
		for _, m := range left {
			text := texts[m.file]
			if text == nil {
				if text, err = os.ReadFile(m.file); err != nil {
					t.Fatal(err)
				}
			}
			planted, err := m.plant(text)
			if err != nil {
				later = append(later, m)
				continue
			}
			dir := filepath.Dir(m.file)
			texts[m.file], names[dir] = planted, append(names[dir], m.name)
		}
		if len(later) == len(left) {
			t.Fatalf("mutant %s cannot be planted", left[0].name)
		}
		for dir := range names {
			if err := packages.check(dir, texts); err != nil {
				t.Errorf("with the mutants %v:\n%v", names[dir], err)
			}
		}
		left = later
	}
}

// builtPackages are all packages of the module and what they import, by import path, as the go command has built them.
type builtPackages map[string]*builtPackage

type builtPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

func listPackages(t *testing.T) builtPackages {
	t.Helper()
	fields := "-json=ImportPath,Dir,Export,GoFiles"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", fields, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := builtPackages{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &builtPackage{}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
	}
}

// check checks the types of the package in a directory, with other texts of some files.
func (b builtPackages) check(dir string, texts map[string][]byte) error {
	path := "penstock/" + filepath.ToSlash(dir)
	p := b[path]
	if p == nil {
		return fmt.Errorf("there is no package in %s", dir)
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		name = filepath.Join(dir, name)
		var text any // nil: it is read
		if planted, ok := texts[name]; ok {
			text = planted
		}
		f, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	lookup := func(path string) (io.ReadCloser, error) { return os.Open(b[path].Export) }
	var wrong []error
	config := types.Config{
		Importer: importer.ForCompiler(set, "gc", lookup), Error: func(err error) { wrong = append(wrong, err) },
	}
	_, _ = config.Check(path, set, files, nil)
	return errors.Join(wrong...)
}
