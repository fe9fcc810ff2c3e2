package engine_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// deps lists everything a package is built from.
func deps(t *testing.T, pkg string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", pkg).CombinedOutput()
	if err != nil {
		t.Fatalf("go list -deps %s: %v\n%s", pkg, err, out)
	}
	return strings.Fields(string(out))
}

// The picture of the packages, as imports: each stands on what is below it and on nothing else of ours. Whoever embeds the engine
// gets no cluster store, no HTTP server, no command line and no metrics library with it.
func TestImportGraph(t *testing.T) {
	const module = "penstock/"
	ours := map[string][]string{
		module + "segment/aio":    {},
		module + "segment":        {"segment/aio"},
		module + "clog":           {"segment", "segment/aio"},
		module + "netproto":       {},
		module + "replicate":      {"segment", "segment/aio"},
		module + "replicate/wire": {"replicate", "netproto", "segment", "segment/aio"},
		module + "replicate/peer": {"engine/meta", "replicate", "netproto", "segment", "segment/aio"},
		module + "engine/meta":    {"replicate", "segment", "segment/aio"},
		module + "engine/core":    {"segment", "segment/aio"},
		module + "engine": {
			"engine/core", "engine/meta", "clog", "replicate", "replicate/wire", "replicate/peer", "netproto", "segment", "segment/aio",
		},
	}
	foreign := []string{
		"net/http", "go.etcd.io/", "github.com/spf13/", "github.com/prometheus/", "github.com/nsqio/", "google.golang.org/",
		"github.com/pawelgaczynski/", "testing", "flag",
	}
	for pkg, below := range ours {
		t.Run(pkg, func(t *testing.T) {
			for _, dep := range deps(t, pkg) {
				for _, f := range foreign {
					if dep == f || strings.HasPrefix(dep, strings.TrimSuffix(f, "/")+"/") {
						t.Errorf("it is built from %s", dep)
					}
				}
				own, isOurs := strings.CutPrefix(dep, module)
				internal := strings.HasPrefix(own, "segment/aio/internal/") // the disk layer's own
				if isOurs && dep != pkg && !internal && !slices.Contains(below, own) {
					t.Errorf("it is built from %s, which is not below it", dep)
				}
			}
		})
	}
}
