// Package harness runs real processes of the engine for tests: one node, a cluster on loopback made by `engine dev-cluster`, or
// a cluster whose nodes live in network namespaces of their own. It kills, stops, cuts off and restarts them.
//
// It ends only what it started: a process is held by a pidfd from the moment it is known, so a signal never reaches a stranger who got its
// number. Processes die with the test's process; namespaces go with Close.
package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// BinaryVariable names an engine to test instead of building this module's.
const BinaryVariable = "PENSTOCK_BINARY"

var built struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// Binary builds cmd/engine once per process and returns where it is. Cleanup removes it.
func Binary() (string, error) {
	if path := os.Getenv(BinaryVariable); path != "" {
		return filepath.Abs(path)
	}
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "penstock-cluster"); built.err != nil {
			return
		}
		built.path = filepath.Join(built.dir, "engine")
		if out, err := exec.Command("go", "build", "-o", built.path, "penstock/cmd/engine").CombinedOutput(); err != nil {
			built.err = fmt.Errorf("building the engine: %w\n%s", err, out)
		}
	})
	return built.path, built.err
}

// Cleanup removes what Binary built.
func Cleanup() error {
	if built.dir == "" {
		return nil
	}
	return os.RemoveAll(built.dir)
}
