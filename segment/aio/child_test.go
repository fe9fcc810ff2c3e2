package aio_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
)

// childEnv names the function of children that a re-run of the test binary executes in place of the tests. The re-run
// is another process, with other limits, or one to kill.
const childEnv = "AIO_TEST_CHILD"

var children = map[string]func(args []string) error{
	"hold":      holdDisk,
	"write":     writeAndReport,
	"seccomp":   underSeccomp,
	"memlock":   underMemlock,
	"overwrite": overwriteForever,
}

func TestMain(m *testing.M) {
	if child := children[os.Getenv(childEnv)]; child != nil {
		if err := child(os.Args[1:]); err != nil {
			fmt.Println("FAILED:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is a running re-execution.
type child struct {
	cmd *exec.Cmd
	out *bufio.Reader
	in  io.Closer // closing it asks the child to end
}

func startChild(t *testing.T, name string, args ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd, out: bufio.NewReader(out), in: in}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return c
}

// line is the next line that the child prints.
func (c *child) line(t *testing.T) string {
	t.Helper()
	text, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the child said %q, then: %v", text, err)
	}
	return text[:len(text)-1]
}

// untilStdinCloses waits for the parent.
func untilStdinCloses() { _, _ = io.Copy(io.Discard, os.Stdin) }
