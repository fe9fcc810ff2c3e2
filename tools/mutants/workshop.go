package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"penstock/tests/support/patience"
)

// workshop builds and runs test binaries. Its methods are safe for concurrent use.
type workshop struct {
	ctx     context.Context
	root    string // of the module
	dir     string // temporary
	timeout time.Duration
}

// try returns which test killed the mutant, or why none did.
func (w *workshop) try(m *mutant) (by string, err error) {
	dir := filepath.Join(w.dir, m.name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	source, err := m.planted()
	if err != nil {
		return "", err
	}
	planted, overlay := filepath.Join(dir, "planted.go"), filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{
		"Replace": map[string]string{filepath.Join(w.root, filepath.FromSlash(m.file)): planted},
	})
	if err == nil {
		err = errors.Join(os.WriteFile(planted, source, 0o600), os.WriteFile(overlay, text, 0o600))
	}
	if err != nil {
		return "", err
	}
	for i, t := range m.tests {
		binary := filepath.Join(dir, fmt.Sprintf("test%d", i))
		if err := w.build(t, binary, "-overlay", overlay); err != nil {
			return "", fmt.Errorf("it does not compile: %w", err)
		}
		// some build the product themselves
		by, err := w.run(t, binary, m.limit, m.says, enoughCuts,
			"GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
		if err != nil || by != "" {
			return by, err
		}
	}
	return "", fmt.Errorf("it SURVIVED %v", m.tests)
}

// baseline runs every test that the mutants name on the tree as it is.
func (w *workshop) baseline(all []*mutant) error {
	began, seen := time.Now(), map[test]bool{}
	binaries := map[test]string{} // one for all tests of a package
	var failed []error
	for _, m := range all {
		for _, t := range m.tests {
			if seen[t] {
				continue
			}
			seen[t] = true
			of := test{pkg: t.pkg, tags: t.tags}
			if binaries[of] == "" {
				binaries[of] = filepath.Join(w.dir, fmt.Sprintf("base-%d", len(binaries)))
				if err := w.build(of, binaries[of]); err != nil {
					return err
				}
			}
			by, err := w.run(t, binaries[of], m.limit, "")
			if err == nil && by != "" {
				err = fmt.Errorf("%s fails without a mutant: %s", t, by)
			}
			if w.ctx.Err() != nil {
				return w.ctx.Err()
			}
			if err != nil {
				fmt.Println(err)
				failed = append(failed, err)
			}
		}
	}
	for _, binary := range binaries {
		failed = append(failed, os.Remove(binary))
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	fmt.Printf("%d sets of tests pass without a mutant, in %v\n", len(seen), time.Since(began).Round(time.Second))
	return nil
}

func (w *workshop) build(t test, binary string, flags ...string) error {
	args := append([]string{"test", "-c", "-vet=off", "-o", binary}, flags...)
	if t.tags != "" {
		args = append(args, "-tags", t.tags)
	}
	cmd := exec.CommandContext(w.ctx, "go", append(args, t.pkg)...)
	cmd.Dir = w.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the tests of %s: %w\n%s", t.pkg, err, out)
	}
	return nil
}

var failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// atMost is how long tests wait for what a mutant may keep from happening, where their own patience is for machines
// that are much busier.
const atMost = "20s"

// enoughCuts is how often the power is cut at most: the first cut that loses a message ends the test, and chance says
// which one that is.
const enoughCuts = "TEST_POWER_CUTS=90"

// run returns the test that failed; empty: all passed, and at least one ran. With says, one that fails without saying
// it is an error. One that did not end within the limit has seen nothing: a busy machine may be all there was.
func (w *workshop) run(t test, binary string, limit time.Duration, says string, env ...string) (by string, err error) {
	began := time.Now()
	if limit == 0 {
		limit = w.timeout
	}
	args := []string{"-test.failfast", "-test.short", "-test.v", "-test.timeout", limit.String()}
	if t.run != "" {
		args = append(args, "-test.run", t.run)
	}
	cmd := exec.CommandContext(w.ctx, binary, args...)
	cmd.Dir = filepath.Join(w.root, filepath.FromSlash(strings.TrimPrefix(t.pkg, "./")))
	cmd.Env = append(append(os.Environ(), patience.Variable+"="+atMost), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	took := time.Since(began).Round(100 * time.Millisecond)
	var exit *exec.ExitError
	switch {
	case err == nil && !bytes.Contains(out.Bytes(), []byte("--- PASS: ")):
		return "", fmt.Errorf("no test ran in %s, or all were skipped: %.300s", t, out.String())
	case err == nil:
		return "", nil
	case !errors.As(err, &exit) || w.ctx.Err() != nil:
		return "", err
	}
	if says != "" && !bytes.Contains(out.Bytes(), []byte(says)) {
		text := out.Bytes()
		return "", fmt.Errorf("%s failed, and does not say %q: %s", t, says, text[max(0, len(text)-2000):])
	}
	how := "a test that ended the process"
	switch text := out.Bytes(); {
	case failedTest.Match(text):
		how = string(failedTest.FindSubmatch(text)[1])
	case bytes.Contains(text, []byte("panic: test timed out")):
		return "", fmt.Errorf("%s did not end within %v (%s)", t, limit, lastRun(text))
	case bytes.Contains(text, []byte("panic: "+cannotBuild)):
		return "", fmt.Errorf("%s did not begin: it could not build the program of this tree: %.300s", t, text)
	case bytes.Contains(text, []byte("panic: ")):
		how = "a panic (" + lastRun(text) + ")"
	}
	by = fmt.Sprintf("%s of %s in %v", how, t.pkg, took)
	if seed := failedSeed.FindSubmatch(out.Bytes()); seed != nil {
		by += ", seed " + string(seed[1])
	}
	return by, nil
}

// cannotBuild is how a TestMain begins its panic when it cannot build the program that its tests run. They run that of
// the tree, which somebody is editing just now: nothing has noticed the mutant.
const cannotBuild = "building the binary: "

// failedSeed is what simulations say of the seed that fails.
var failedSeed = regexp.MustCompile(`(?m)^ +\w+\.go:\d+: seed (\d+)`)

var runningTest = regexp.MustCompile(`(?m)^=== (?:RUN|CONT)\s+(\S+)`)

// lastRun is the test that was begun last.
func lastRun(text []byte) string {
	all := runningTest.FindAllSubmatch(text, -1)
	if len(all) == 0 {
		return "none"
	}
	return string(all[len(all)-1][1])
}
