package node_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"penstock/internal/node"
)

// openWithin opens an engine in a process that may map only so many more MiB of memory. It returns what Open said, or
// what ended the process.
func openWithin(t *testing.T, mib int) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestOpenInAChild$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("TEST_OPEN_WITHIN=%d", mib), "TEST_OPEN_DIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("it ended with %v: %s", err, out)
	}
	return string(out)
}

// TestOpenInAChild is the process of openWithin.
func TestOpenInAChild(t *testing.T) {
	var mib, pages uint64
	if _, err := fmt.Sscan(os.Getenv("TEST_OPEN_WITHIN"), &mib); err != nil {
		t.Skip("it is a part of TestOpenWithoutMemory")
	}
	// The runtime takes address space for its heap in steps of 64 MiB, and begins at a random place of the first step.
	// A large block makes it take what Open needs before the limit holds; what is refused then is asked for by Open.
	runtime.KeepAlive(make([]byte, 32<<20))
	runtime.GC()
	statm, err := os.ReadFile("/proc/self/statm")
	must(t, err)
	_, err = fmt.Sscan(string(statm), &pages)
	must(t, err)
	limit := pages*uint64(os.Getpagesize()) + mib<<20
	must(t, syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: limit, Max: limit}))
	e, err := node.Open(context.Background(), node.Options{DataPath: os.Getenv("TEST_OPEN_DIR")})
	if err != nil {
		fmt.Println("refused:", err)
		return
	}
	must(t, e.Close())
	fmt.Println("opened")
}

// A program that embeds the engine gets an error when the system refuses the memory, whichever part of it, and no
// panic. The error names the option.
func TestOpenWithoutMemory(t *testing.T) {
	t.Parallel()
	for mib, want := range map[int]string{
		32: "BufferBytes (buffer-bytes), which is 64 MiB", // not even the buffers
		65: "BufferBytes (buffer-bytes), which is 64 MiB", // the buffers, and little else
		68: "BufferBytes (buffer-bytes), which is 64 MiB",
		72: "BufferBytes (buffer-bytes), which is 64 MiB",
	} {
		got := openWithin(t, mib)
		if !strings.Contains(got, "refused: ") || !strings.Contains(got, want) {
			t.Errorf("with %d MiB: %s", mib, got)
		}
	}
	if got := openWithin(t, 1024); !strings.Contains(got, "opened") {
		t.Errorf("with enough: %s", got)
	}
}
