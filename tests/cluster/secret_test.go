//go:build cluster

package cluster

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
)

// maxSwitchGap is the longest time without an acknowledgement while a cluster gets a secret.
const maxSwitchGap = 30 * time.Second

// plain is a cluster whose nodes prove nothing to each other.
func plain(ctx context.Context, o harness.Options) (*harness.Cluster, error) {
	o.Nodes, o.Serve = 3, slices.Concat(usual, o.Serve, []string{"--cluster-insecure"})
	return harness.Dev(ctx, o)
}

// trustSecret makes a node prove a secret from its next start on.
func trustSecret(t *testing.T, n *harness.Node, file string) {
	t.Helper()
	i := slices.Index(n.Args, "--cluster-insecure")
	if i < 0 {
		t.Fatalf("node %s was not started as a plain one: %q", n.Name, n.Args)
	}
	n.Args = slices.Replace(slices.Clone(n.Args), i, i+1, "--cluster-secret-file", file)
}

// A cluster of three plain nodes gets a secret under load, node by node, as docs/operate/operating.md says. The first
// one with the secret is alone and serves nothing, the other two go on. When the second one changes, nobody has a
// majority until it has started: then publishing pauses, once. Nothing acknowledged is lost, and publishing goes on by
// itself.
func TestPlainClusterGetsASecret(t *testing.T) {
	s := begin(t, plain, harness.Options{})
	file := filepath.Join(t.TempDir(), "secret")
	s.try(os.WriteFile(file, []byte(strings.Repeat("s", 40)), 0o600))
	for i, n := range s.c.Nodes {
		s.acks(300)
		trustSecret(t, n, file)
		heal := s.fault("gets the secret", n.Name, func() error { return n.Terminate(stopTimeout) })
		s.try(n.Start())
		if i == 0 {
			s.acks(2000) // without it
			if err := n.Ready(s.within(100 * time.Millisecond)); err == nil {
				t.Error("the first node serves, although the others do not know the secret")
			}
		} else {
			s.try(n.Ready(s.within(startTimeout)))
			s.acks(300)
		}
		heal(func() error { return nil })
	}
	s.try(s.c.Nodes[0].Ready(s.within(startTimeout)))
	s.healthy()
	s.acks(300)
	s.options.LivenessLimit = maxSwitchGap
	r := s.finish()
	for i, w := range r.Windows {
		t.Logf("%s: nothing was acknowledged for %v", w.Node, w.Gap.Round(10*time.Millisecond))
		if limit := []time.Duration{2 * time.Second, maxSwitchGap, 2 * time.Second}[i]; w.Gap > limit {
			t.Errorf("%s: nothing was acknowledged for %v, allowed are %v", w.Node, w.Gap, limit)
		}
	}
}
