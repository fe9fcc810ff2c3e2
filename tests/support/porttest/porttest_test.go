package porttest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
)

// Processes that ask at the same time, and listen on nothing, are given different ports.
func TestPortsOfProcesses(t *testing.T) {
	if count := os.Getenv("PORTTEST_CHILD"); count != "" {
		give(t)
		return
	}
	const children, each = 4, 60
	seen := map[string]int{}
	for child := range children {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestPortsOfProcesses$")
		cmd.Env = append(os.Environ(), fmt.Sprint("PORTTEST_CHILD=", each))
		cmd.Stderr = os.Stderr
		stop, err := cmd.StdinPipe()
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
		t.Cleanup(func() {
			_ = stop.Close() // it keeps its ports until then
			_ = cmd.Wait()
		})
		lines := bufio.NewScanner(out)
		for n := 0; n < each; n++ {
			if !lines.Scan() {
				t.Fatalf("child %d ended after %d ports", child, n)
			}
			if other, ok := seen[lines.Text()]; ok {
				t.Fatalf("%s was given to child %d and to child %d", lines.Text(), other, child)
			}
			seen[lines.Text()] = child
		}
	}
}

// give prints ports, and waits until nobody needs them.
func give(t *testing.T) {
	base, err := Range(25)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 25 {
		fmt.Println(address(base + i))
	}
	for range 35 {
		fmt.Println(Address(t))
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// A block is given once, and never one of which somebody uses a port.
func TestPortsInUse(t *testing.T) {
	base, err := Range(1)
	if err != nil {
		t.Fatal(err)
	}
	if hold(base, 1) {
		t.Error("a block was given twice")
	}
	l, err := net.Listen("tcp", address(base+3))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if unused(base) == nil {
		t.Errorf("somebody listens on %d", base+3)
	}
}
