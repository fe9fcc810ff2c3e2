//go:build docs

package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every command of every document does what the document shows, in the document's order. Blocks that cannot be run here
// are printed with their reasons.
func TestDocuments(t *testing.T) {
	needRoot(t)
	chosen, err := regexp.Compile(os.Getenv("TEST_DOCUMENTS")) // of paths, seen from the top of the tree
	if err != nil {
		t.Fatal(err)
	}
	k := newKit(t)
	for _, path := range paths(t) {
		name, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		if !chosen.MatchString(name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := load(t, path)
			if slices.ContainsFunc(d.Blocks, func(b Block) bool { return b.Runs() }) {
				if err := runDocument(t, d, k); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// runDocument runs a document's blocks, and returns the first thing that is not as the document shows it.
func runDocument(t *testing.T, d Document, k kit) error {
	machines := startMachines(t, d, k)
	ran, left := 0, 0
	for _, b := range d.Blocks {
		switch {
		case !b.Runs():
			continue
		case b.NotRun != "":
			t.Logf("line %d is not run: %s", b.Line, b.NotRun)
			left++
			continue
		}
		ran++
		for _, m := range machines {
			if len(b.On) == 0 && m == machines[0] || slices.Contains(b.On, m.name) {
				if err := m.run(t, b); err != nil {
					return fmt.Errorf("line %d: %s%w", b.Line, m.at(), err)
				}
			}
		}
	}
	t.Logf("%d blocks ran, %d cannot be run here", ran, left)
	for _, m := range machines {
		for _, x := range m.remaining {
			if out, err := x.interrupt(); err != nil {
				return fmt.Errorf("%sthe end of what stays: %w, after\n%s", m.at(), err, out)
			}
		}
	}
	return nil
}

func startMachines(t *testing.T, d Document, k kit) (machines []*machine) {
	t.Helper()
	begin := "/home/reader"
	if d.Checkout {
		begin = "/src/penstock"
	}
	if len(d.Machines) == 0 {
		return append(machines, startMachine(t, "", t.TempDir(), begin, k))
	}
	var addresses []string
	shared := t.TempDir()
	for _, said := range d.Machines {
		name, address, _ := strings.Cut(said, "=")
		machines = append(machines, startMachine(t, name, shared, begin, k))
		addresses = append(addresses, address)
	}
	connect(t, machines, addresses, k)
	return machines
}

// run runs a block's commands, and compares what each prints.
func (m *machine) run(t *testing.T, b Block) error {
	t.Helper()
	steps, err := b.Steps()
	if err != nil {
		return err
	}
	x := m.terminal
	if b.Stays {
		x = m.open(t, x.directory(t))
	}
	for i, s := range steps {
		last := i == len(steps)-1
		var enough func(string) bool
		if last && b.Stays {
			enough = func(out string) bool { return s.Want == "" || Match(s.Want, out, true, b.Like) }
			m.remaining = append(m.remaining, x)
		}
		want := 0
		if last {
			want = b.Exit
		}
		if err := x.start(b.script(s)); err != nil {
			return err
		}
		out, code, err := x.wait(enough)
		switch {
		case err != nil:
			return fmt.Errorf("%w:\n%s\nprinted\n%s", err, s.Command, out)
		case enough != nil && code == -1: // it goes on
		case enough != nil:
			return fmt.Errorf("it does not stay, but ended with %d:\n%s\nprinted\n%s", code, s.Command, out)
		case code != want:
			return fmt.Errorf("exit code %d, want %d:\n%s\nprinted\n%s", code, want, s.Command, out)
		case s.Want != "" && !Match(s.Want, out, false, b.Like):
			return fmt.Errorf("%s\nprinted\n%s\nwant\n%s", s.Command, out, s.Want)
		}
	}
	return nil
}

// script is what a terminal gets to run a step. Any command that fails ends what is not a console; a comment's commands
// end the terminal with it, because they may change its directory and its variables.
func (b *Block) script(s Step) string {
	switch b.Language {
	case "sh":
		return "(set -euo pipefail\n" + s.Command + ")"
	case "hidden":
		return "set -e\n" + s.Command + "set +e"
	}
	return s.Command
}

// at says which machine it is, if there are several.
func (m *machine) at() string {
	if m.name == "" {
		return ""
	}
	return "on " + m.name + ": "
}

// Documents that are wrong fail, each for its reason.
func TestDocumentsThatAreWrong(t *testing.T) {
	needRoot(t)
	k := newKit(t)
	console := func(marks, text string) string { return marks + "\n```console\n" + text + "```\n" }
	for name, x := range map[string]struct{ text, want string }{
		"output":      {console("", "$ echo one\ntwo\n"), "want\ntwo"},
		"code":        {console("", "$ false\n"), "exit code 1, want 0"},
		"no code":     {console("<!-- exit: 10 -->", "$ true\n"), "exit code 0, want 10"},
		"ends":        {console("<!-- stays -->", "$ echo one\ntwo\n"), "it does not stay, but ended with 0"},
		"fails later": {console("<!-- stays -->", "$ penstock nothing\n") + "<!-- run sleep 1 -->\n", "it ended with 2"},
		"script":      {"```sh\nfalse\ntrue\n```\n", "exit code 1, want 0"},
		"hidden":      {"<!-- run\nfalse\ntrue\n-->\n", "the shell has ended"},
		"no network":  {console("", "$ curl -sS http://10.0.0.1/\n"), "exit code 7, want 0"},
		"right":       {console("<!-- like -->", "$ cd /tmp; x=3\n") + console("", "$ pwd; echo $x\n/tmp\n3\n"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := Parse(x.text)
			if err != nil {
				t.Fatal(err)
			}
			switch err := runDocument(t, d, k); {
			case x.want == "" && err != nil:
				t.Error(err)
			case x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)):
				t.Errorf("%v, want %s", err, x.want)
			}
		})
	}
}
