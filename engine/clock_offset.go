//go:build clock

package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A build with the tag clock is only for tests of processes whose wall clock is wrong. This variable names a directory;
// the file there that is named like the node has the error of its wall clock, as a duration. The monotonic clock stays
// right.
const clockDirVariable = "PENSTOCK_CLOCK_DIR"

func init() {
	dir, at := os.Getenv(clockDirVariable), slices.Index(os.Args, "--node-id")
	if dir == "" || at < 0 || at+1 == len(os.Args) {
		return
	}
	name := filepath.Join(dir, os.Args[at+1])
	right := time.Now
	wallNow = func() time.Time {
		text, _ := os.ReadFile(name)
		// Without a file, or while one is being written, the offset is 0.
		wrong, _ := time.ParseDuration(strings.TrimSpace(string(text)))
		return right().Add(wrong)
	}
}
