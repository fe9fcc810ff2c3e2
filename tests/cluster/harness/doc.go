// Package harness runs real processes of the engine for tests: one node, a cluster on loopback made by `penstock
// dev-cluster`, or a cluster whose nodes live in network namespaces of their own. It kills, stops, cuts off and
// restarts them.
//
// It ends only what it started: a process is held by a pidfd from the moment it is known, so a signal never reaches a
// stranger who got its number. Processes die with the test's process; namespaces go with Close.
package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// BinaryVariable names an engine to test instead of building this module's.
const BinaryVariable = "TEST_BINARY"

// programs are what this process has built, in a directory of its own.
type programs struct {
	mu    sync.Mutex
	dir   string
	paths map[string]string // by name
}

var built programs

// Binary builds cmd/engine once per process and returns where it is. Cleanup removes it.
func Binary() (string, error) { return tagged("") }

// tagged is Binary with build tags; those are never those of BinaryVariable's.
func tagged(tags string) (string, error) {
	if path := os.Getenv(BinaryVariable); path != "" && tags == "" {
		return filepath.Abs(path)
	}
	return build("penstock/cmd/engine", tags)
}

func build(program, tags string) (string, error) {
	return built.once(filepath.Base(program)+tags, func(path string) error {
		if out, err := exec.Command("go", "build", "-tags", tags, "-o", path, program).CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", program, err, out)
		}
		return nil
	})
}

// once returns the path of a program. If it was not made yet, make does that.
func (b *programs) once(name string, make func(path string) error) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if path := b.paths[name]; path != "" {
		return path, nil
	}
	if b.dir == "" {
		dir, err := os.MkdirTemp("", "penstock-cluster")
		if err != nil {
			return "", err
		}
		b.dir, b.paths = dir, map[string]string{}
	}
	path := filepath.Join(b.dir, name)
	if err := make(path); err != nil {
		return "", err
	}
	b.paths[name] = path
	return path, nil
}

// Cleanup removes what Binary and BuildCommit built.
func Cleanup() error {
	if built.dir == "" {
		return nil
	}
	return os.RemoveAll(built.dir)
}
