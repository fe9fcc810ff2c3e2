package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"penstock/internal/node"
)

// penstock health and penstock status work with a single node as with a cluster, and so does penstock cluster status.
func TestStatusOfSingleNode(t *testing.T) {
	p := startNode(t, t.TempDir(), "--node-id", "n1")
	t.Setenv("PENSTOCK_SERVER", p.http)
	t.Setenv("PENSTOCK_HTTP_ADDRESS", "127.0.0.1:1") // where a node would listen, and nobody whom a command asks
	execute(t, "topic", "create", "orders").well(t)
	execute(t, "channel", "create", "orders", "billing").well(t)
	execute(t, "channel", "pause", "orders", "billing").well(t)
	o := execute(t, "health")
	if o.code != 0 || !strings.HasPrefix(o.stdout, "healthy: the node serves; channel billing") {
		t.Errorf("health: %+v", o)
	}
	for _, args := range [][]string{{"status"}, {"cluster", "status"}} {
		o := execute(t, args...)
		for _, want := range []string{
			"node     n1, in no cluster\n", "topics   1\n", "health   healthy: the node serves; ", "1      paused channels: ",
		} {
			if o.code != 0 || !strings.Contains(o.stdout, want) {
				t.Errorf("%q does not say %q: %+v", args, want, o)
			}
		}
		var st struct {
			Version string
			Healthy bool
			Faults  []node.Fault
		}
		must(t, json.Unmarshal([]byte(execute(t, append(slices.Clone(args), "--json")...).well(t)), &st))
		if !st.Healthy || len(st.Faults) != 1 || st.Version == "" {
			t.Errorf("%q: %+v", args, st)
		}
	}
}
