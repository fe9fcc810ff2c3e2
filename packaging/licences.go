package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

// licenceFile matches the names of files that a copy of a module has to bring with it.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// modules returns the modules that a program contains, without the main one, and the version of Go, all in a fixed
// order.
func modules(binary string) ([]*debug.Module, string, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, "", err
	}
	var all []*debug.Module
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *debug.Module) int { return strings.Compare(a.Path, b.Path) })
	return all, info.GoVersion, nil
}

// licences returns one text with the licence of Penstock, of every module that the program contains, of Go's standard
// library and of the console's libraries. A module without a licence is an error: it could not be passed on.
func (r *release) licences(ctx context.Context, binary string) ([]byte, error) {
	var b bytes.Buffer
	own, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return nil, err
	}
	b.WriteString("Penstock is distributed under this licence.\n\n")
	b.Write(own)
	b.WriteString("\n\nThe program contains what follows, under the licences that are given.\n")
	list, _, err := modules(binary)
	if err != nil {
		return nil, err
	}
	cache, err := output(ctx, r.source, "go", "env", "GOMODCACHE", "GOROOT")
	if err != nil {
		return nil, err
	}
	modCache, goRoot, _ := strings.Cut(cache, "\n")
	for _, m := range list {
		name := m.Path + "@" + m.Version
		if err := appendLicences(&b, name, filepath.Join(modCache, escapeCase(name))); err != nil {
			return nil, err
		}
	}
	if err := appendLicences(&b, "Go's standard library", goRoot); err != nil {
		return nil, err
	}
	vendored := filepath.Join(r.source, "internal/server/console/static/vendor")
	err = appendLicences(&b, "libraries of the web console", vendored)
	return b.Bytes(), err
}

var capital = regexp.MustCompile(`[A-Z]`)

// escapeCase is how the module cache writes capital letters in paths.
func escapeCase(path string) string {
	return capital.ReplaceAllStringFunc(path, func(s string) string { return "!" + strings.ToLower(s) })
}

// appendLicences appends the licences in dir, which are those of name.
func appendLicences(b *bytes.Buffer, name, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("the licence of %s: %w", name, err)
	}
	found := false
	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "\n%s\n%s: %s\n\n", strings.Repeat("-", 80), name, e.Name())
		b.Write(text)
		found = true
	}
	if !found {
		return fmt.Errorf("%s has no file with a licence in %s", name, dir)
	}
	return nil
}
