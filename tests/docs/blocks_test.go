package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the top of the tree, seen from this directory.
const root = "../.."

// paths returns README.md and the documents below docs/.
func paths(t *testing.T) []string {
	t.Helper()
	found := []string{filepath.Join(root, "README.md")}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, d fs.DirEntry, err error) error {
		if d.IsDir() && d.Name() == "node_modules" {
			return filepath.SkipDir
		}
		if err == nil && filepath.Ext(path) == ".md" {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// load parses the document at path.
func load(t *testing.T, path string) Document {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Parse(string(text))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return d
}

// Every block of every document is run, only shows something, or says why it cannot be run.
func TestBlocksSayHowTheyRun(t *testing.T) {
	for _, path := range paths(t) {
		d := load(t, path)
		for _, b := range d.Blocks {
			if !b.Runs() || b.NotRun != "" {
				continue
			}
			if _, err := b.Steps(); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			for _, name := range b.On {
				if !slices.ContainsFunc(d.Machines, func(m string) bool { return strings.HasPrefix(m, name+"=") }) {
					t.Errorf("%s:%d: there is no machine %s", path, b.Line, name)
				}
			}
		}
	}
}

func TestParse(t *testing.T) {
	text := strings.Join([]string{
		"<!-- machines: a=10.0.0.1, b=10.0.0.2 -->", "# Title", "<!-- run on: a", "mkdir x", "-->", "",
		"<!-- on: a, b; stays -->", "```console", "$ penstock serve \\", "    --x", "ready ...", "$ cat <<'END' >f", "$ in f",
		"END", "```", "",
		"<!-- not run: needs two", "hands -->", "```sh", "clap", "```", "",
		"- item", "", "  ```sh", "  if true", "    then", "  ```", "```text", "a picture", "```", "",
	}, "\n")
	d, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(d.Machines, []string{"a=10.0.0.1", "b=10.0.0.2"}) || len(d.Blocks) != 5 {
		t.Fatalf("%+v", d)
	}
	if b := d.Blocks[0]; b.Language != "hidden" || b.Text != "mkdir x\n" || !slices.Equal(b.On, []string{"a"}) {
		t.Errorf("%+v", b)
	}
	steps, err := d.Blocks[1].Steps()
	if err != nil || !slices.Equal(steps, []Step{
		{"penstock serve \\\n    --x", "ready ...\n"}, {"cat <<'END' >f\n$ in f\nEND", ""},
	}) || !d.Blocks[1].Stays || !slices.Equal(d.Blocks[1].On, []string{"a", "b"}) {
		t.Errorf("%q %v %+v", steps, err, d.Blocks[1])
	}
	if b := d.Blocks[2]; b.NotRun != "needs two hands" || b.Line != 19 {
		t.Errorf("%+v", b)
	}
	if b := d.Blocks[3]; b.Text != "if true\n  then\n" {
		t.Errorf("%q", b.Text)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"```\nls\n```\n":                          "line 1: the block has no language",
		"```sh\nls\n":                             "line 1: the block does not end",
		"\n<!-- x\n":                              "line 2: the comment does not end",
		"```text\npenstock serve\n```\n":          "line 1: a block of text has the command",
		"```perl\n1\n```\n":                       "line 1: nothing runs a block of perl",
		"<!-- not-run: x -->\n```sh\nls\n```\n":   "line 2: the comment above the block says",
		"<!-- not run: -->\n```console\n$ x\n```": "line 2: the block is not run, and does not say why",
	} {
		if _, err := Parse(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	b := Block{Line: 3, Language: "console", Text: "ls\n"}
	if _, err := b.Steps(); err == nil {
		t.Error("a console without a command")
	}
}

func TestMatch(t *testing.T) {
	for _, x := range []struct {
		want, got string
		open, ok  bool
		like      bool
	}{
		{"OK\n", "OK", false, true, false},
		{"OK\n", "OK \n\n", false, true, false},
		{"OK\n", "NO\n", false, false, false},
		{"OK\n", "OK\nmore\n", false, false, false},
		{"OK\n", "OK\nmore\n", true, true, false},
		{"took ... ms\n", "took 13 ms\n", false, true, false},
		{"took ... ms\n", "took 13\nms\n", false, false, false},
		{"a\n...\nz\n", "a\nb\nc\nz\n", false, true, false},
		{"a\n...\nz\n", "a\nz\n", false, true, false},
		{"a\n...\nz\n", "b\nz\n", false, false, false},
		{"...\nz\n", "a\nb\nz\n", false, true, false},
		{"a\n...\n", "a\nb\nz\n", false, true, false},
		{"a.c\n", "abc\n", false, false, false},
		{"  deep\n", "  deep\n", false, true, false},
		{"took 12 ms\n", "took 9 ms\n", false, false, false},
		{"took 12 ms\n", "took 9 ms\n", false, true, true},
		{"took 12 ms\n", "took long ms\n", false, false, true},
		{"id 0aa000000000001f  x\n", "id 0bb0000000000ffe    x\n", false, true, true},
		{"1.5 ... 2\n", "10.25 and 0\n", false, true, true},
	} {
		if Match(x.want, x.got, x.open, x.like) != x.ok {
			t.Errorf("%q and %q: %v", x.want, x.got, !x.ok)
		}
	}
}
