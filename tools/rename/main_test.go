package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// write makes a tree that git tracks.
func write(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	return root
}

// Everything that names a package is renamed, and nothing else; the renamed module builds.
func TestRename(t *testing.T) {
	const main = `// Command x uses [penstock/engine], has /etc/penstock/x, is named penstock/x.
package main

import "penstock/engine"

const (
	key     = "/penstock/v1/"
	module  = "penstock/"
	pattern = "penstock/..."
	other   = "notpenstock/engine"
)

func main() { println(engine.Name, key, module, pattern, other) }
`
	root := write(t, map[string]string{
		"go.mod":           "module penstock\n\ngo 1.26\n",
		"engine/engine.go": "package engine\n\nconst Name = \"penstock\"\n",
		"cmd/x/main.go":    main,
		"cmd/y/go.mod":     "module penstock/cmd/y\n\nrequire penstock v0.0.0\n\nreplace penstock => ../..\n",
		"README.md":        "`import \"penstock/engine\"`; penstock listens.\n",
		"picture":          "\x00 penstock/engine",
	})
	changed, err := rename(root, "example.org/team/stock")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"README.md", "cmd/x/main.go", "cmd/y/go.mod", "go.mod"}; !slices.Equal(changed, want) {
		t.Errorf("changed %q, want %q", changed, want)
	}
	for name, want := range map[string]string{
		"go.mod": "module example.org/team/stock\n\ngo 1.26\n",
		"cmd/y/go.mod": "module example.org/team/stock/cmd/y\n\nrequire example.org/team/stock v0.0.0\n\n" +
			"replace example.org/team/stock => ../..\n",
		"README.md": "`import \"example.org/team/stock/engine\"`; penstock listens.\n",
		"cmd/x/main.go": `// Command x uses [example.org/team/stock/engine], has /etc/penstock/x, is named penstock/x.
package main

import "example.org/team/stock/engine"

const (
	key     = "/penstock/v1/"
	module  = "example.org/team/stock/"
	pattern = "example.org/team/stock/..."
	other   = "notpenstock/engine"
)

func main() { println(engine.Name, key, module, pattern, other) }
`,
	} {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || string(got) != want {
			t.Errorf("%s is %v\n%s\nwant\n%s", name, err, got, want)
		}
	}
	cmd := exec.Command("go", "build", "./...")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the renamed module does not build: %v\n%s", err, out)
	}
	if again, err := rename(root, "penstock"); err != nil || len(again) != len(changed) {
		t.Errorf("back: %q, %v", again, err)
	}
}

func TestRenameRefuses(t *testing.T) {
	root := write(t, map[string]string{"go.mod": "module penstock\n"})
	for _, to := range []string{"", "/x", "a b", "x//y", "Example.org/x", "x/"} {
		if _, err := rename(root, to); err == nil {
			t.Errorf("%q is taken for the path of a module", to)
		}
	}
}
