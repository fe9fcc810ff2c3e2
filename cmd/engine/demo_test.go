package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/tests/support/patience"
)

// The demonstration that kills a leader runs any number of times: the node comes back, and nothing is left.
func TestDemoRunsAgain(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl")
	}
	makefile, err := os.ReadFile("../../Makefile")
	must(t, err)
	if !strings.Contains(string(makefile), "--base-port $(or $(BASE_PORT),14150) --restart") {
		t.Error("make cluster does not start a node again that ends")
	}
	p := startDevAs(t, realNodes, t.TempDir(), "--restart")
	nodes := p.ready(3)
	var port int
	_, err = fmt.Sscanf(nodes["n1"].NSQ, "127.0.0.1:%d", &port)
	must(t, err)
	for run := range 2 {
		cmd := exec.CommandContext(t.Context(), "bash", "../../docs/kill-the-leader.sh")
		cmd.Env = append(os.Environ(), "BASE_PORT="+strconv.Itoa(port), "MESSAGES=2000",
			"PATH="+filepath.Dir(built)+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), " 0 of the acknowledged are missing\n") {
			t.Fatalf("run %d: %v\n%s", run, err, out)
		}
	}
	for end := time.Now().Add(patience.Or(30 * time.Second)); ; time.Sleep(100 * time.Millisecond) {
		o := execute(t, "topic", "list", "--json", "--http-address", nodes["n1"].HTTP) // n1 hears of the deletion last
		if !strings.Contains(o.stdout, "demo") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("topics are left: %s", o.stdout)
		}
	}
}
