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

// built has the binaries by their package and build tags.
var built struct {
	mu    sync.Mutex
	dir   string
	paths map[string]string
}

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
	built.mu.Lock()
	defer built.mu.Unlock()
	if path := built.paths[program+tags]; path != "" {
		return path, nil
	}
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "penstock-cluster")
		if err != nil {
			return "", err
		}
		built.dir, built.paths = dir, map[string]string{}
	}
	path := filepath.Join(built.dir, filepath.Base(program)+tags)
	if out, err := exec.Command("go", "build", "-tags", tags, "-o", path, program).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", program, err, out)
	}
	built.paths[program+tags] = path
	return path, nil
}

// Cleanup removes what Binary built.
func Cleanup() error {
	if built.dir == "" {
		return nil
	}
	return os.RemoveAll(built.dir)
}
