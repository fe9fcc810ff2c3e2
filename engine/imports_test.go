package engine_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// deps lists all packages that each package of the module is built from. The go command is asked once, for all: one
// takes as long.
func deps(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := make(map[string][]string)
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 0 {
			all[f[0]] = f[1:]
		}
	}
	return all
}

const module = "penstock/"

// onlyBelow checks that pkg is built, as all says, from no package of this project but those below it, and from no
// package of others that it must not bring.
func onlyBelow(t *testing.T, all map[string][]string, pkg string, below, foreign []string) {
	t.Run(pkg, func(t *testing.T) {
		if all[module+pkg] == nil {
			t.Error("there is no such package")
		}
		for _, dep := range all[module+pkg] {
			for _, f := range foreign {
				if dep == f || strings.HasPrefix(dep, strings.TrimSuffix(f, "/")+"/") {
					t.Errorf("it is built from %s", dep)
				}
			}
			own, isOurs := strings.CutPrefix(dep, module)
			internal := strings.HasPrefix(own, "segment/aio/internal/") || // the disk layer's own
				own == "internal/uring" || // and io_uring's
				own == "internal/failpoint" || // nothing, in the product
				own == "internal/lock" || // sync's mutexes
				own == "internal/jsonbody" || // encoding/json's errors, in words
				own == "internal/clip" || // texts, shortened between characters
				own == "internal/sparing" || // a log with few lines about strangers
				own == "internal/shares" || // who has how much of a budget
				own == "internal/strangers" || // a list of connections that have proved nothing
				own == "nsq/internal/lines" && strings.HasPrefix(pkg, "nsq") || // files of lines
				own == "batch" && slices.Contains(below, "segment") // the codec of what it stores
			if isOurs && own != pkg && !internal && !slices.Contains(below, own) {
				t.Errorf("it is built from %s, which is not below it", dep)
			}
		}
	})
}

// The import graph is the picture of the packages: each package imports only packages below it. A program that embeds
// the engine gets no cluster store, no HTTP server, no command line and no metrics library with it.
func TestImportGraph(t *testing.T) {
	t.Parallel()
	all := deps(t)
	engine := []string{
		"internal/descriptors",
		"engine/aside", "engine/backup",
		"engine/base", "engine/channel", "engine/checkpoint", "engine/core", "engine/dir", "engine/diskwatch",
		"engine/flush", "engine/forward", "engine/health", "engine/host", "engine/inbox", "engine/meta", "engine/ops",
		"engine/outgoing", "engine/part", "engine/pull", "engine/reason", "engine/remote", "engine/replay", "engine/retain",
		"engine/route", "engine/scrub", "clog", "replicate", "replicate/wire", "replicate/peer", "netproto", "segment",
		"segment/aio",
	}
	foreign := []string{
		"net/http", "go.etcd.io/", "github.com/spf13/", "github.com/prometheus/", "github.com/nsqio/", "google.golang.org/",
		"github.com/pawelgaczynski/", "testing", "flag",
	}
	for pkg, below := range map[string][]string{
		"internal/uring": {},
		"internal/netio": {"internal/uring"},
		"segment/aio":    {"internal/uring"},
		"batch":          {},
		"segment":        {"batch", "segment/aio"},
		"clog":           {"segment", "segment/aio"},
		"netproto":       {},
		"native/wire":    {"batch", "netproto"},
		"client":         {"batch", "native/wire", "netproto"},
		"replicate":      {"segment", "segment/aio"},
		"replicate/wire": {"engine/core", "replicate", "netproto", "segment", "segment/aio"},
		"replicate/peer": {"replicate", "netproto", "segment", "segment/aio"},
		"engine/meta":    {"replicate", "segment", "segment/aio"},
		"engine/core":    {"segment", "segment/aio"},
		"engine/base":    {"engine/core", "engine/meta", "replicate", "segment", "segment/aio"},
		"engine/dir":     {"clog", "engine/base", "engine/core", "engine/meta", "replicate", "segment", "segment/aio"},
		"engine/aside": {
			"clog", "engine/base", "engine/core", "engine/dir", "engine/meta", "replicate", "segment", "segment/aio",
		},
		"engine/backup": {
			"clog", "engine/base", "engine/checkpoint", "engine/core", "engine/dir", "engine/meta", "replicate", "segment",
			"segment/aio",
		},
		"engine/inbox": {
			"engine/base", "engine/core", "engine/host", "engine/meta", "netproto", "replicate", "replicate/peer",
			"segment", "segment/aio",
		},
		"engine/outgoing": {"engine/core", "replicate", "replicate/wire", "netproto", "segment", "segment/aio"},
		"engine/part": {
			"engine/aside", "engine/base", "engine/checkpoint", "engine/core", "engine/dir", "engine/flush", "engine/health",
			"engine/host",
			"engine/inbox", "engine/meta", "engine/outgoing", "engine/replay", "engine/retain", "clog", "netproto", "replicate",
			"replicate/peer", "replicate/wire", "segment", "segment/aio",
		},
		"engine/replay": {
			"clog", "engine/base", "engine/checkpoint", "engine/core", "engine/meta", "replicate", "segment", "segment/aio",
		},
		"engine/flush": {
			"engine/base", "engine/core", "engine/dir", "engine/host", "engine/meta", "engine/retain", "clog", "netproto",
			"replicate", "replicate/peer", "segment", "segment/aio",
		},
		"engine/pull":   {"engine/base", "engine/core", "engine/meta", "replicate", "segment", "segment/aio"},
		"engine/health": {"engine/meta", "replicate", "segment", "segment/aio"},
		"engine/route":  {"replicate", "segment", "segment/aio"},
		"engine/host":   {"replicate", "replicate/peer", "netproto", "segment", "segment/aio"},
		"engine/reason": {
			"engine/base", "engine/core", "engine/meta", "replicate", "replicate/wire", "netproto", "segment", "segment/aio",
		},
		"engine/forward": {
			"engine/base", "engine/core", "engine/host", "engine/inbox", "engine/meta", "engine/reason", "engine/route",
			"replicate", "replicate/wire", "replicate/peer", "netproto", "segment", "segment/aio",
		},
		"engine/ops": {
			"engine/base", "engine/core", "engine/host", "engine/meta", "engine/reason", "replicate", "replicate/wire",
			"replicate/peer", "netproto", "segment", "segment/aio",
		},
		"engine/diskwatch": {
			"engine/base", "engine/core", "engine/host", "engine/meta", "replicate", "replicate/peer", "netproto", "segment",
			"segment/aio",
		},
		"engine/scrub": {
			"engine/base", "engine/core", "engine/dir", "engine/host", "engine/meta", "clog", "replicate", "replicate/wire",
			"replicate/peer", "netproto", "segment", "segment/aio",
		},
		"engine/remote": {
			"engine/base", "engine/core", "engine/host", "engine/meta", "engine/reason", "engine/route", "replicate",
			"replicate/wire", "replicate/peer", "netproto", "segment", "segment/aio",
		},
		"engine/channel": {
			"engine/base", "engine/core", "engine/host", "engine/meta", "replicate", "replicate/wire", "replicate/peer",
			"netproto", "segment", "segment/aio",
		},
		"engine": engine,
	} {
		onlyBelow(t, all, pkg, below, foreign)
	}
	// Packages above or beside the engine: the protocols do not know the cluster, the cluster does not know the engine,
	// and only one package knows etcd.
	foreign = []string{"go.etcd.io/", "google.golang.org/grpc", "github.com/spf13/", "github.com/nsqio/", "testing"}
	for pkg, below := range map[string][]string{
		"nsq": append([]string{
			"engine", "internal/netio", "native", "native/wire", "nsq/auth", "nsq/lookup", "nsq/metrics", "nsq/internal/audit",
			"nsq/internal/handshakes", "nsq/internal/history", "nsq/internal/listen", "nsq/internal/web", "console",
			"internal/descriptors", "internal/shares",
		}, engine...),
		"nsq/metrics": append([]string{
			"engine", "internal/netio", "native", "native/wire", "nsq/auth", "nsq/internal/audit", "nsq/internal/handshakes",
			"nsq/internal/web", "internal/descriptors", "internal/shares",
		}, engine...),
		"native": append([]string{
			"engine", "internal/netio", "native/wire", "nsq/auth", "internal/descriptors",
		}, engine...),
		"nsq/auth": {},
		"nsq/lookup": append([]string{
			"engine", "nsq/internal/audit", "nsq/internal/listen", "nsq/internal/web", "internal/descriptors",
			"internal/shares",
		}, engine...),
		"console":              {},
		"nsq/internal/audit":   {},
		"nsq/internal/history": append([]string{"engine"}, engine...),
		"nsq/internal/listen":  {"internal/descriptors"},
		"nsq/internal/web":     append([]string{"engine", "nsq/internal/audit", "internal/shares"}, engine...),
		"cluster":              {"cluster/kv", "engine/meta", "replicate", "segment", "segment/aio"},
		"cluster/admin": {
			"cluster", "cluster/kv", "engine/base", "engine/core", "engine/health", "engine/meta", "replicate", "segment",
			"segment/aio",
		},
		"cluster/kv":      {},
		"cluster/kv/file": {"cluster/kv", "cluster/kv/memory"},
		"migrate":         {},
		"cmd/engine/load": {"batch", "client", "native/wire", "netproto"},
	} {
		onlyBelow(t, all, pkg, below, foreign)
	}
	onlyBelow(t, all, "cluster/etcd", []string{"cluster/kv", "netproto", "internal/descriptors"}, []string{"testing"})
}
