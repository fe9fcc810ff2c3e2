package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The table fits the tree: every line that it replaces is there, once.
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
			if _, err := os.Stat(test.pkg); err != nil {
				t.Errorf("mutant %s: %v", m.name, err)
			}
		}
	}
}

func TestPlant(t *testing.T) {
	m := &mutant{file: "f.go", old: "a()", new: "b()"}
	for _, c := range []struct{ source, want, err string }{
		{"x\n\ta()\ny\n", "x\n\tb()\ny\n", ""},
		{"x\n", "", "is not in"},
		{"a()\n  a()\n", "", "2 times"},
	} {
		got, err := m.plant([]byte(c.source))
		if c.err == "" && (err != nil || string(got) != c.want) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
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
		} else if m := all[0]; m.old != "a: b" || m.new != "" || m.says != "c d" || m.tests[0] != (test{"./p", "TestX", "tag"}) {
			t.Errorf("%+v", m)
		}
	}
	m := &mutant{file: "f"}
	if m.set("old", `a\n\tb`); m.old != "a\n\tb" {
		t.Errorf("%q", m.old)
	}
}
