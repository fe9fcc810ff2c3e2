package serve

import (
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/settings"
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

// A reload cannot let inboxes take more than they may since the start: the same limit gives the same shares.
func TestReloadKeepsTheShareOfInboxes(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	limit := memoryLimit{bytes: 512 << 20, from: "a test", hard: true}
	var first int64
	for range 2 {
		var n settings.Options
		n.Engine.BufferBytes, n.Engine.MaxInboxBytes, n.Engine.MaxNodeInboxBytes = 64<<20, 4<<30, 4<<30
		if err := applyMemory(&n, limit, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		got := n.Engine.MaxNodeInboxBytes
		if first == 0 {
			first = got
		}
		if got != first || got > limit.bytes/6 || n.Engine.MaxInboxBytes > got {
			t.Errorf("inboxes may take %d bytes, at first %d; one of them %d", got, first, n.Engine.MaxInboxBytes)
		}
	}
}
