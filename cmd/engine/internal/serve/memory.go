package serve

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/settings"
)

// A process that uses more memory than its container or service may is killed, and killed again when it starts, as a
// start needs what running did. So a node reads its limit, lets Go's garbage collector know it, and derives from it how
// much of what clients make it keep may lie in memory.

// memoryLimit is how much memory the process may use, and which file or variable sets that limit.
type memoryLimit struct {
	bytes int64
	from  string // for the log
	hard  bool   // a cgroup: the process is killed at the limit
}

// findMemoryLimit returns the least limit of the process's cgroups, of version 1 or 2, and of those above, or the
// memory of the machine. root is "/", except in tests. bytes is 0 if nothing can be read.
func findMemoryLimit(root string) (l memoryLimit) {
	l.bytes, l.from = machineMemory(filepath.Join(root, "proc/meminfo")), "the machine's memory"
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return l
	}
	for line := range strings.Lines(string(text)) { // hierarchy:controllers:path
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		var mounts []string
		name := "memory.max"
		switch {
		case parts[0] == "0" && parts[1] == "":
			mounts = []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}
		case strings.Contains(","+parts[1]+",", ",memory,"):
			mounts, name = []string{"sys/fs/cgroup/memory"}, "memory.limit_in_bytes"
		}
		for _, mount := range mounts {
			// In a container the path may be the host's, and the container's own group is mounted at the top.
			for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
				file := filepath.Join("/", mount, group, name)
				if n := readLimit(filepath.Join(root, file)); n > 0 && (l.bytes == 0 || n < l.bytes) {
					l = memoryLimit{n, file, true}
				}
				if group == "/" {
					break
				}
			}
		}
	}
	return l
}

// readLimit returns the number in a file; 0 if there is none, as in the file of a cgroup without a limit.
func readLimit(file string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// machineMemory returns the MemTotal of a file like /proc/meminfo; 0 if it does not say it.
func machineMemory(file string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) >= 2 && f[0] == "MemTotal:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n << 10
		}
	}
	return 0
}

// memoryBudget is how a limit is divided. All are bytes.
type memoryBudget struct {
	heap  int64 // for Go's garbage collector: what is left after a tenth, the buffers, and what the kernel needs
	state int64 // for deferred messages and confirmed ranges
	inbox int64 // for publishes that wait to be stored; as much again may be on its way to other nodes
}

const (
	// leastHeapBytes is the least heap with which a node can do its work.
	leastHeapBytes = 64 << 20
	// kernelBytes is for what the kernel counts as the process's: sockets, page tables, the program itself.
	kernelBytes = 16 << 20
)

// divideMemory divides the limit of the process among its uses. goLimit is the limit that GOMEMLIMIT sets for the heap,
// or 0 if it sets none. divideMemory returns an error if too little is left.
func divideMemory(limit, buffers, goLimit int64) (b memoryBudget, err error) {
	b.heap = limit - limit/10 - buffers - kernelBytes
	if goLimit > 0 {
		b.heap = min(goLimit, limit)
	}
	if b.heap < leastHeapBytes {
		needs := (leastHeapBytes + buffers + kernelBytes) * 10 / 9
		return b, fmt.Errorf("the process may use %d MiB of memory, and a node with --buffer-bytes %d MiB needs %d MiB: "+
			"raise the limit of the container or the service (MemoryMax), or lower --buffer-bytes; nothing was touched",
			limit>>20, buffers>>20, (needs+1<<20-1)>>20)
	}
	b.state, b.inbox = b.heap/3, b.heap/6
	return b, nil
}

// applyMemory gives Go and the engine their shares of the memory limit. serve calls it before it opens anything, and
// for the settings of each reload, which get the same shares. The node's own settings for state and inboxes stay, but
// inboxes that would not fit are made smaller.
func applyMemory(n *settings.Options, l memoryLimit, logger *slog.Logger) error {
	o := &n.Engine
	goLimit := debug.SetMemoryLimit(-1)
	if goLimit == math.MaxInt64 {
		goLimit = 0
	}
	if l.bytes == 0 && goLimit == 0 {
		return nil
	}
	if l.bytes == 0 {
		l.bytes, l.from = goLimit, "GOMEMLIMIT"
	}
	b, err := divideMemory(l.bytes, o.BufferBytes, goLimit)
	if err != nil {
		return cli.Fail(cli.ExitMemory, err)
	}
	if l.hard && goLimit == 0 {
		debug.SetMemoryLimit(b.heap)
	}
	if l.hard || goLimit > 0 {
		o.MaxHeapBytes = b.heap
	}
	if o.MaxStateBytes == 0 {
		o.MaxStateBytes = b.state
	}
	o.MaxNodeInboxBytes = min(o.MaxNodeInboxBytes, max(b.inbox, 1<<20))
	o.MaxInboxBytes = min(o.MaxInboxBytes, o.MaxNodeInboxBytes)
	logger.Info("memory", "limit", l.bytes, "from", l.from, "heap", b.heap, "buffers", o.BufferBytes,
		"state", o.MaxStateBytes, "inboxes", o.MaxNodeInboxBytes)
	return nil
}
