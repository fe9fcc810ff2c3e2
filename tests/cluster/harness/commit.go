package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// ErrNoCommit says that a commit is not in this clone: it may be a shallow one.
var ErrNoCommit = errors.New("the commit is not in this clone")

// BuildCommit builds cmd/engine of a commit of this repository, once per test process, and returns where it is. Cleanup
// removes it. -trimpath lets the build cache know what other trees have built.
func BuildCommit(commit string) (string, error) {
	return built.once("engine-"+commit, func(path string) error {
		tree, err := Checkout(path+"-tree", commit)
		if err != nil {
			return err
		}
		cmd := exec.Command("go", "build", "-trimpath", "-o", path, "./cmd/engine")
		cmd.Dir = tree
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building the engine of %s: %w\n%s", commit, err, out)
		}
		return nil
	})
}

// Checkout writes the files of a commit to dir. The clone and its work trees stay as they are.
func Checkout(dir, commit string) (string, error) {
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoCommit, err)
	}
	git := func(args ...string) *exec.Cmd {
		cmd := exec.Command("git", args...)
		cmd.Dir = strings.TrimSpace(string(root))
		return cmd
	}
	if err := git("cat-file", "-e", commit+"^{commit}").Run(); err != nil {
		return "", fmt.Errorf("%w: %s", ErrNoCommit, commit)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	archive, err := git("archive", commit).Output()
	if err != nil {
		return "", fmt.Errorf("reading the files of %s: %w", commit, err)
	}
	tar := exec.Command("tar", "-x", "-C", dir)
	tar.Stdin = bytes.NewReader(archive)
	if out, err := tar.CombinedOutput(); err != nil {
		return "", fmt.Errorf("writing the files of %s: %w\n%s", commit, err, out)
	}
	return dir, nil
}
