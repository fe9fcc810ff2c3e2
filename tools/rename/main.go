// Command rename gives the module another path, everywhere in the tree at once:
//
//	go run ./tools/rename example.org/team/penstock
//
// It changes the module lines of go.mod files, and each place in other text files that names a package of the module:
// imports, links in comments, arguments of the go command in tests and scripts. It does not touch the name of the
// product, paths of files such as /etc/penstock, or keys in stored data. It only writes files that git tracks, so that
// git shows and can undo all it did.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./tools/rename MODULE   (for example example.org/team/penstock)")
		os.Exit(2)
	}
	changed, err := rename(".", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "rename:", err)
		os.Exit(1)
	}
	fmt.Printf("%d files changed; now run: go build ./... && go test ./docs ./engine\n", len(changed))
}

// validPath is what the go command accepts as a module's path, or a little less.
var validPath = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*(/[A-Za-z0-9][A-Za-z0-9._~-]*)*$`)

// rename renames the module in the directory root, and returns the files that it changed.
func rename(root, to string) (changed []string, err error) {
	if !validPath.MatchString(to) {
		return nil, fmt.Errorf("%q is not the path of a module; nothing was changed", to)
	}
	from, err := modulePath(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	files, err := tracked(root)
	if err != nil {
		return nil, err
	}
	places := packages(from, files)
	for _, name := range files {
		path := filepath.Join(root, name)
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || strings.HasPrefix(name, "tools/rename/") {
			continue // deleted in the work tree, a link, or the examples of this program's own test
		}
		old, err := os.ReadFile(path)
		if err != nil {
			return changed, err
		}
		if bytes.IndexByte(old, 0) >= 0 {
			continue // no text
		}
		now := places.ReplaceAll(old, []byte("${1}"+to+"${2}"))
		if filepath.Base(name) == "go.mod" {
			now = renameModule(now, from, to)
		}
		if bytes.Equal(old, now) {
			continue
		}
		if err := os.WriteFile(path, now, info.Mode().Perm()); err != nil {
			return changed, err
		}
		changed = append(changed, name)
	}
	return changed, nil
}

// modulePath returns the path in the module line of a go.mod.
func modulePath(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "module "); ok {
			return strings.TrimSpace(path), nil
		}
	}
	return "", fmt.Errorf("%s has no module line; nothing was changed", file)
}

// renameModule renames the module where a go.mod names it as a whole: in its module line, and in require and replace.
// Modules below it are packages as far as packages is concerned.
func renameModule(mod []byte, from, to string) []byte {
	whole := regexp.MustCompile(`(?m)(^module |^\s*|^require |^replace |=> )` + regexp.QuoteMeta(from) + `( |$)`)
	return whole.ReplaceAll(mod, []byte("${1}"+to+"${2}"))
}

func tracked(root string) ([]string, error) {
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), nil
}

// packages matches places that name a package of the module: its path, where a path may begin, and then one of the
// module's directories with Go files, a pattern, or the end of a string.
func packages(from string, files []string) *regexp.Regexp {
	var tops []string
	for _, f := range files {
		top, _, below := strings.Cut(f, "/")
		if below && strings.HasSuffix(f, ".go") && !slices.Contains(tops, regexp.QuoteMeta(top)) {
			tops = append(tops, regexp.QuoteMeta(top))
		}
	}
	return regexp.MustCompile(`(^|[^A-Za-z0-9_./-])` + regexp.QuoteMeta(from) +
		`(/(?:(?:` + strings.Join(tops, "|") + `)\b|\.\.\.|"))`)
}
