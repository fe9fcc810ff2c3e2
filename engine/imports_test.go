package engine_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// deps lists all packages that each package of the module is built from, by its path without internal/ in front. The go
// command is asked once, for all: one takes as long.
func deps(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := make(map[string][]string)
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 0 {
			all[strings.Replace(f[0], module+"internal/", module, 1)] = f[1:]
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
			own = strings.TrimPrefix(own, "internal/")
			internal := own == "segment/aio/contract" || // what every disk checks
				own == "uring" || // io_uring
				own == "failpoint" || // nothing, in the product
				own == "lock" || // sync's mutexes
				own == "jsonbody" || // encoding/json's errors, in words
				own == "clip" || // texts, shortened between characters
				own == "sparing" || // a log with few lines about strangers
				own == "settings" || // settings as rows of a table
				own == "shares" || // who has how much of a budget
				own == "strangers" || // a list of connections that have proved nothing
				own == "server/lines" && strings.HasPrefix(pkg, "server") || // files of lines
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
	node := []string{
		"descriptors", "node/aside", "node/backup", "loglimit", "node/clock", "node/errs", "node/inflate", "node/message",
		"node/names", "node/channel", "node/faults", "node/topic", "node/checkpoint", "node/delivery", "node/fold",
		"node/machine", "node/datadir", "node/diskwatch", "node/flush", "node/forward", "node/health", "node/platform",
		"node/inbox", "meta", "node/fanout", "node/catalog",
		"node/budget", "node/carry", "node/driver", "node/dueclock", "node/events", "node/logread",
		"node/seal", "node/trace",
		"node/outgoing", "node/partition", "node/pull", "node/reason", "node/remote", "node/replay", "node/retain",
		"node/route", "node/scrub", "clog", "replicate", "replicate/wire", "replicate/peer", "netproto", "segment",
		"segment/aio",
	}
	foreign := []string{
		"net/http", "go.etcd.io/", "github.com/spf13/", "github.com/prometheus/", "github.com/nsqio/", "google.golang.org/",
		"github.com/pawelgaczynski/", "testing", "flag",
	}
	for pkg, below := range map[string][]string{
		"uring":              {},
		"netio":              {"uring"},
		"segment/aio":        {"uring"},
		"batch":              {},
		"segment":            {"batch", "segment/aio"},
		"clog":               {"segment", "segment/aio"},
		"netproto":           {},
		"server/native/wire": {"batch", "netproto"},
		"client":             {"batch", "server/native/wire", "netproto"},
		"replicate":          {"segment", "segment/aio"},
		"replicate/wire":     {"node/fold", "replicate", "netproto", "segment", "segment/aio"},
		"replicate/peer":     {"replicate", "netproto", "segment", "segment/aio"},
		"meta":               {"replicate", "segment", "segment/aio"},
		"node/fold":          {"segment", "segment/aio"},
		"node/delivery":      {"node/fold", "segment", "segment/aio"},
		"node/machine":       {"segment", "segment/aio"},
		"node/clock":         {},
		"node/errs":          {"node/delivery", "node/fold", "node/machine", "segment", "segment/aio"},
		"node/names":         {},
		"node/inflate":       {"batch"},
		"node/message":       {"node/errs", "node/delivery", "node/fold", "node/machine", "segment", "segment/aio"},
		"node/datadir":       {"clog", "node/names", "meta", "replicate", "segment", "segment/aio"},
		"node/aside":         {"clog", "node/names", "node/datadir", "meta", "replicate", "segment", "segment/aio"},
		"node/backup": {
			"clog", "node/names", "node/checkpoint", "node/fold", "node/datadir", "meta", "replicate", "segment",
			"segment/aio",
		},
		"node/inbox": {
			"node/errs", "node/inflate", "node/message", "node/delivery", "node/fold", "node/machine", "node/platform",
			"meta", "netproto", "replicate", "replicate/peer", "segment", "segment/aio",
		},
		"node/outgoing": {"node/fold", "replicate", "replicate/wire", "netproto", "segment", "segment/aio"},
		"node/partition": {
			"node/aside", "node/budget", "node/carry", "node/driver", "node/dueclock", "node/events", "loglimit",
			"node/clock", "node/errs", "node/inflate", "node/message", "node/names",
			"node/checkpoint", "node/delivery", "node/fold", "node/machine", "node/datadir", "node/flush",
			"node/health", "node/platform", "node/inbox", "meta", "node/logread", "node/outgoing", "node/replay",
			"node/retain", "node/seal",
			"clog", "netproto", "replicate", "replicate/peer", "replicate/wire", "segment", "segment/aio",
		},
		"node/replay": {
			"clog", "node/clock", "node/checkpoint", "node/fold", "meta", "replicate", "segment", "segment/aio",
		},
		"node/flush": {
			"node/clock", "node/errs", "node/names", "node/delivery", "node/fold", "node/machine", "node/datadir",
			"node/platform", "meta", "node/retain", "clog", "netproto", "replicate", "replicate/peer", "segment",
			"segment/aio",
		},
		"node/pull": {
			"node/errs", "node/message", "node/delivery", "node/fold", "node/machine", "meta", "replicate", "segment",
			"segment/aio",
		},
		"node/health":   {"meta", "replicate", "segment", "segment/aio"},
		"node/route":    {"replicate", "segment", "segment/aio"},
		"node/platform": {"replicate", "replicate/peer", "netproto", "segment", "segment/aio"},
		"node/reason": {
			"node/errs", "node/delivery", "node/fold", "node/machine", "meta", "replicate", "replicate/wire",
			"netproto", "segment", "segment/aio",
		},
		"node/forward": {
			"node/clock", "node/errs", "node/inflate", "node/message", "node/delivery", "node/fold", "node/machine",
			"node/platform", "node/inbox", "meta", "node/reason", "node/route", "replicate", "replicate/wire",
			"replicate/peer", "netproto", "segment", "segment/aio",
		},
		"node/fanout": {
			"node/errs", "node/delivery", "node/fold", "node/machine", "node/platform", "meta", "node/reason",
			"replicate", "replicate/wire", "replicate/peer", "netproto", "segment", "segment/aio",
		},
		"node/diskwatch": {
			"node/errs", "node/delivery", "node/fold", "node/machine", "node/platform", "meta", "replicate",
			"replicate/peer", "netproto", "segment", "segment/aio",
		},
		"node/scrub": {
			"node/errs", "node/message", "node/names", "node/delivery", "node/fold", "node/machine", "node/datadir",
			"node/platform", "meta", "clog", "replicate", "replicate/wire", "replicate/peer", "netproto", "segment",
			"segment/aio",
		},
		"node/remote": {
			"node/errs", "node/message", "node/names", "node/delivery", "node/fold", "node/machine", "node/platform",
			"meta", "node/reason", "node/route", "replicate", "replicate/wire", "replicate/peer", "netproto",
			"segment", "segment/aio",
		},
		"node/channel": {
			"node/clock", "node/errs", "node/inflate", "node/message", "node/names", "node/delivery", "node/fold",
			"node/machine", "node/platform", "meta", "replicate", "replicate/wire", "replicate/peer", "netproto",
			"segment", "segment/aio",
		},
		"node/faults": {
			"meta", "node/health", "node/fold", "netproto", "replicate", "replicate/wire", "segment", "segment/aio",
		},
		"node/offline": {
			"clog", "meta", "node/aside", "node/checkpoint", "node/datadir", "node/errs", "node/delivery", "node/fold",
			"node/machine", "node/names", "node/platform", "netproto", "replicate", "replicate/peer", "segment",
			"segment/aio",
		},
		"node/topic": {
			"clog", "loglimit", "meta", "node/aside", "node/budget", "node/carry", "node/driver", "node/dueclock",
			"node/events", "node/channel", "node/checkpoint", "node/clock", "node/datadir",
			"node/errs", "node/fanout", "node/flush", "node/health", "node/inbox", "node/inflate", "node/delivery",
			"node/fold", "node/logread", "node/machine", "node/message", "node/names", "node/outgoing", "node/partition",
			"node/platform", "node/pull", "node/reason", "node/remote", "node/replay", "node/retain", "node/route",
			"node/scrub", "node/seal", "node/trace", "netproto", "replicate", "replicate/peer", "replicate/wire",
			"segment", "segment/aio",
		},
		"node/catalog": {
			"node/topic", "clog", "loglimit", "meta", "node/aside", "node/budget", "node/carry", "node/driver",
			"node/dueclock",
			"node/events", "node/channel", "node/checkpoint", "node/clock", "node/datadir",
			"node/errs", "node/fanout", "node/flush", "node/health", "node/inbox", "node/inflate", "node/delivery",
			"node/fold", "node/logread", "node/machine", "node/message", "node/names", "node/outgoing", "node/partition",
			"node/platform", "node/pull", "node/reason", "node/remote", "node/replay", "node/retain", "node/route",
			"node/scrub", "node/seal", "node/trace", "netproto", "replicate", "replicate/peer", "replicate/wire",
			"segment", "segment/aio",
		},
		"node":   node,
		"engine": append([]string{"node", "cluster", "cluster/kv", "cluster/kv/memory"}, node...),
	} {
		onlyBelow(t, all, pkg, below, foreign)
	}
	// Packages above or beside the node: the protocols do not know the cluster, the cluster does not know the node,
	// and only one package knows etcd.
	counted := append([]string{ // what /metrics shows, which the protocols count
		"node", "netio", "server/audit", "server/auth", "server/handshakes", "server/metrics", "server/native",
		"server/native/wire", "server/stats", "server/web", "descriptors", "shares",
	}, node...)
	foreign = []string{"go.etcd.io/", "google.golang.org/grpc", "github.com/spf13/", "github.com/nsqio/", "testing"}
	for pkg, below := range map[string][]string{
		"server": append([]string{
			"node", "netio", "server/native", "server/native/wire", "server/auth", "server/lookup", "server/metrics",
			"server/audit", "server/handshakes", "server/history", "server/listen", "server/web", "server/console",
			"server/api", "server/nsq", "server/nsq/command", "server/publish", "server/stats", "server/statsd",
			"descriptors", "shares",
		}, node...),
		"server/nsq":         append([]string{"server/nsq/command", "server/publish", "server/listen"}, counted...),
		"server/nsq/command": append([]string{"server/publish"}, counted...),
		"server/api": append([]string{
			"server/console", "server/history", "server/listen", "server/lookup", "server/nsq", "server/nsq/command",
			"server/publish",
		}, counted...),
		"server/publish": counted,
		"server/stats":   append([]string{"node", "descriptors"}, node...),
		"server/statsd":  append([]string{"node", "descriptors", "server/stats"}, node...),
		"server/metrics": append([]string{
			"node", "netio", "server/stats", "server/native", "server/native/wire", "server/auth", "server/audit",
			"server/handshakes",
			"server/web", "descriptors", "shares",
		}, node...),
		"server/native": append([]string{
			"node", "netio", "server/native/wire", "server/audit", "server/auth", "server/stats", "descriptors",
		}, node...),
		"server/auth": {},
		"server/lookup": append([]string{
			"node", "server/audit", "server/auth", "server/listen", "server/web", "descriptors", "shares",
		}, node...),
		"server/console": {},
		"server/audit":   {},
		"server/history": append([]string{"node", "server/stats"}, node...),
		"server/listen":  {"descriptors"},
		"server/web":     append([]string{"node", "server/audit", "server/auth", "shares"}, node...),
		"cluster":        {"cluster/kv", "meta", "replicate", "segment", "segment/aio"},
		"cluster/admin": {
			"cluster", "cluster/kv", "node/errs", "node/names", "node/delivery", "node/fold", "node/machine",
			"node/health", "meta", "replicate", "segment", "segment/aio",
		},
		"cluster/kv":        {},
		"cluster/kv/memory": {"cluster/kv"},
		"migrate":           {},
		"load":              {"batch", "client", "server/native/wire", "netproto"},
	} {
		onlyBelow(t, all, pkg, below, foreign)
	}
	onlyBelow(t, all, "cluster/etcd", []string{"cluster/kv", "netproto", "descriptors"}, []string{"testing"})
}
