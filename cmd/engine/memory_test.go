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
)

// The least limit of the process's cgroups holds, of either version, also where the path is that of the host; without
// one, the machine's memory.
func TestFindMemoryLimit(t *testing.T) {
	const unlimited = "9223372036854771712"
	type files = map[string]string
	for name, tc := range map[string]struct {
		files files
		want  memoryLimit
	}{
		"nothing": {files{}, memoryLimit{from: "the machine's memory"}},
		"no limit, version 1": {
			files{"proc/self/cgroup": "4:memory:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": unlimited},
			memoryLimit{bytes: 8 << 20, from: "the machine's memory"},
		},
		"no limit, version 2": {
			files{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"},
			memoryLimit{bytes: 8 << 20, from: "the machine's memory"},
		},
		"version 1": {
			files{"proc/self/cgroup": "4:cpu,memory:/a\n0::/\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4096\n"},
			memoryLimit{4096, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", true},
		},
		"version 2, above": {
			files{
				"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "8192\n", "sys/fs/cgroup/a/memory.max": "4096\n",
			},
			memoryLimit{4096, "/sys/fs/cgroup/a/memory.max", true},
		},
		"version 2 beside version 1": {
			files{"proc/self/cgroup": "4:cpu:/\n0::/a\n", "sys/fs/cgroup/unified/a/memory.max": "4096\n"},
			memoryLimit{4096, "/sys/fs/cgroup/unified/a/memory.max", true},
		},
		"in a container": {
			files{"proc/self/cgroup": "4:memory:/docker/0f\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "4096\n"},
			memoryLimit{4096, "/sys/fs/cgroup/memory/memory.limit_in_bytes", true},
		},
	} {
		root := t.TempDir()
		if name != "nothing" {
			tc.files["proc/meminfo"] = "MemFree: 1 kB\nMemTotal:    8192 kB\n"
		}
		for file, text := range tc.files {
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755))
			must(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o644))
		}
		if got := findMemoryLimit(root); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestDivideMemory(t *testing.T) {
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		limit, buffers, goLimit int64
		want                    memoryBudget
		refused                 string
	}{
		"1 GiB":             {1000 * mib, 64 * mib, 0, memoryBudget{820 * mib, 820 * mib / 3, 820 * mib / 6}, ""},
		"GOMEMLIMIT":        {1000 * mib, 64 * mib, 300 * mib, memoryBudget{300 * mib, 100 * mib, 50 * mib}, ""},
		"GOMEMLIMIT, above": {200 * mib, 64 * mib, 300 * mib, memoryBudget{200 * mib, 200 * mib / 3, 200 * mib / 6}, ""},
		"the least":         {160 * mib, 64 * mib, 0, memoryBudget{64 * mib, 64 * mib / 3, 64 * mib / 6}, ""},
		"too little": {
			150 * mib, 64 * mib, 0,
			memoryBudget{},
			"may use 150 MiB of memory, and a node with --buffer-bytes 64 MiB needs 160 MiB",
		},
	} {
		got, err := divideMemory(tc.limit, tc.buffers, tc.goLimit)
		if tc.refused != "" {
			if err == nil || !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("%s: %v", name, err)
			}
		} else if err != nil || got != tc.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, tc.want)
		}
	}
}

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
		if code := p.cmd.ProcessState.ExitCode(); code != exitMemory || !strings.Contains(p.log.String(), words) {
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
