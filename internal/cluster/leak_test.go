package cluster

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// When the tests have ended, so have all goroutines that they started.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		code = leaks()
	}
	os.Exit(code)
}

func leaks() int {
	deadline := time.Now().Add(time.Minute)
	for {
		buf := make([]byte, 1<<20)
		var left []string
		for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(stack, "penstock/") && !strings.Contains(stack, "cluster.TestMain") {
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			return 0
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, "goroutines are left:\n"+strings.Join(left, "\n\n"))
			return 1
		}
		runtime.Gosched()
	}
}
