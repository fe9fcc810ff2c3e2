//go:build packages

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// make release, in a clone: it refuses what is not ready, then makes packages and a tag. The tests are left out.
func TestRelease(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "clone")
	source, err := filepath.Abs("..")
	must(t, err)
	run := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "RELEASE_CI=true", "ARCH=amd64", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@localhost",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@localhost", "MAKEFLAGS=")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	git := func(args ...string) string {
		t.Helper()
		out, err := run("git", args...)
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return out
	}
	refused := func(why string) {
		t.Helper()
		if out, err := run("make", "release", "VERSION=8.7.6"); err == nil || !strings.Contains(out, why) {
			t.Errorf("make release: %v, and not refused because %q:\n%s", err, why, out)
		}
		if tags := git("tag", "--list", "v8*"); tags != "" {
			t.Errorf("refused, and tagged: %s", tags)
		}
	}
	edit := func(name, old, now string) {
		t.Helper()
		path := filepath.Join(dir, name)
		text := readFile(t, path)
		if !strings.Contains(text, old) {
			t.Fatalf("%s has no %q", name, old)
		}
		must(t, os.WriteFile(path, []byte(strings.Replace(text, old, now, 1)), 0o644))
	}
	must(t, os.Mkdir(dir, 0o755))
	git("clone", "--quiet", "--shared", source, ".")

	version, err := sourceVersion(dir)
	must(t, err)
	refused("version.go does not say")
	edit("cmd/engine/version.go", `= "`+version+`"`, `= "8.7.6"`)
	refused("not clean")
	git("commit", "--quiet", "--all", "--message", "version")
	refused("CHANGELOG.md has no heading")
	edit("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n## [8.7.6] - 2026-12-01\n")
	git("commit", "--quiet", "--all", "--message", "changelog")

	if out, err := run("make", "release", "VERSION=8.7.6"); err != nil {
		t.Fatalf("make release: %v\n%s", err, out)
	}
	if notes := git("tag", "--list", "--format=%(contents)", "v8.7.6"); !strings.Contains(notes, "### Added\n") {
		t.Errorf("the tag says\n%s", notes)
	}
	if sums := readFile(t, filepath.Join(dir, "dist", sumsName)); !strings.Contains(sums, "penstock_8.7.6-1_amd64.deb") {
		t.Errorf("the packages are\n%s", sums)
	}
	if out, err := run("make", "release", "VERSION=8.7.6"); err == nil || !strings.Contains(out, "exists already") {
		t.Errorf("the second release: %v\n%s", err, out)
	}
}
