//go:build clock

package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// clockDirVariable is an environment variable that names a directory. In it, the file whose name is the node's id holds
// the error of that node's wall clock, as a duration; the monotonic clock stays right. Builds with the tag clock are
// only for tests of processes whose wall clock is wrong.
const clockDirVariable = "TEST_CLOCK_DIR"

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
