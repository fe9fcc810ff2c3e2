package main

import (
	"bufio"
	be "encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"penstock/cmd/engine/internal/cli"
)

// A node in a cgroup refuses delayed messages before the kernel kills it, goes on with all others, and starts again
// with what it holds after a crash. In a smaller cgroup it says how much it needs, and ends with an exit code of its
// own.
func TestMemoryLimitOfACgroup(t *testing.T) {
	group := newCgroup(t)
	dir := t.TempDir()
	start := func(mib int) *process {
		t.Helper()
		group.limit(int64(mib) << 20)
		return launch(t, "", "/bin/sh", []string{
			"-c", `echo $$ >` + filepath.Join(group.dir, "cgroup.procs") + ` && exec "$@"`, "sh", binary(t),
			"serve", "--data-path", dir, "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--lookup-address",
			"127.0.0.1:0",
		})
	}
	p := start(320)
	p.ready()
	for _, args := range [][]string{{"topic", "create", "t"}, {"channel", "create", "t", "c"}} {
		if o := execute(t, append(args, "--http-address", p.http)...); o.code != 0 {
			t.Fatalf("%q: %+v", args, o)
		}
	}
	stored, refusal := delayUntilRefused(t, p.nsq, 600_000)
	t.Logf("%d were stored, then %s", stored, refusal)
	if stored < 100_000 || !strings.Contains(refusal, "MaxStateBytes") {
		t.Errorf("after %d delayed messages: %s", stored, refusal)
	}
	p.publish("t", 1) // without a delay
	for range 2 {
		must(t, p.cmd.Process.Signal(syscall.SIGKILL))
		<-p.exited
		p = start(320)
		p.ready()
	}
	used, limit := p.metric("state_bytes"), p.metric("state_limit_bytes")
	if used < 0.95*limit || used > limit {
		t.Errorf("the state is %.0f bytes, the limit %.0f", used, limit)
	}
	must(t, p.cmd.Process.Signal(syscall.SIGKILL))
	<-p.exited

	for mib, words := range map[int]string{180: "MiB of memory, and the process may use", 120: "raise the limit"} {
		p = start(mib)
		err := <-p.exited
		if code := p.cmd.ProcessState.ExitCode(); code != cli.ExitMemory || !strings.Contains(p.log.String(), words) {
			t.Errorf("with %d MiB: %v\n%s", mib, err, p.log.String())
		}
	}
}

// cgroup is a cgroup of version 1 or 2 with a limit on memory.
type cgroup struct {
	t         *testing.T
	dir, file string
}

func newCgroup(t *testing.T) *cgroup {
	t.Helper()
	g := &cgroup{t, "/sys/fs/cgroup/memory", "memory.limit_in_bytes"}
	if text, err := os.ReadFile("/sys/fs/cgroup/cgroup.subtree_control"); err == nil {
		if !strings.Contains(string(text), "memory") {
			t.Skip("the machine's cgroups do not limit memory: memory is not in cgroup.subtree_control")
		}
		g.dir, g.file = "/sys/fs/cgroup", "memory.max"
	}
	g.dir = filepath.Join(g.dir, fmt.Sprintf("penstock-test-%d", os.Getpid()))
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		t.Skipf("a cgroup that limits memory cannot be made: %v", err)
	}
	t.Cleanup(func() {
		for err := error(syscall.EBUSY); errors.Is(err, syscall.EBUSY); { // until the last process has gone
			err = syscall.Rmdir(g.dir)
		}
	})
	return g
}

func (g *cgroup) limit(bytes int64) {
	g.t.Helper()
	must(g.t, os.WriteFile(filepath.Join(g.dir, g.file), []byte(strconv.FormatInt(bytes, 10)), 0o644))
}

// delayUntilRefused publishes to t with a delay until the node refuses, and returns how many it stored and its words.
func delayUntilRefused(t *testing.T, addr string, most int) (stored int, refusal string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	must(t, err)
	defer func() { _ = c.Close() }()
	go func() {
		w := bufio.NewWriter(c)
		_, _ = w.WriteString("  V2")
		for range most {
			if _, err := w.WriteString("DPUB t 3000000\n\x00\x00\x00\x01x"); err != nil {
				return
			}
		}
		_ = w.Flush()
	}()
	r := bufio.NewReader(c)
	for stored < most {
		var head [8]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return stored, err.Error()
		}
		body := make([]byte, be.BigEndian.Uint32(head[:])-4)
		if _, err := io.ReadFull(r, body); err != nil {
			return stored, err.Error()
		}
		switch text := string(body); {
		case text == "OK":
			stored++
		case text != "_heartbeat_":
			return stored, text
		}
	}
	return stored, "nothing was refused"
}
