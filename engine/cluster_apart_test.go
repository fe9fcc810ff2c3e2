package engine_test

import (
	"slices"
	"testing"

	"penstock/engine"
	"penstock/engine/health"
)

// Members of the metadata store that the one on a node cannot reach are a fault of that node, which every node that is
// asked for the state of the cluster shows.
func TestFaultsOfMembersApart(t *testing.T) {
	tc := newTestCluster(t, 2, func(o *engine.Options) {
		if o.NodeID == "n1" {
			o.Cluster.StoreState = func() health.Store { return health.Store{Apart: []string{"n2 (10.0.0.2:4255)"}} }
		}
	})
	n1 := engine.NumberOf(tc.nodes[0].e)
	for _, asked := range tc.nodes {
		var of []engine.Fault
		tc.eventually(asked.name+" is answered", func() (ok bool) {
			var err error
			of, err = asked.e.FaultsOf(t.Context(), n1)
			return err == nil
		})
		i := slices.IndexFunc(of, func(f engine.Fault) bool { return f.Name == "store_members_apart" })
		if i < 0 || of[i].Count != 1 {
			t.Errorf("%s says of %s: %+v", asked.name, tc.nodes[0].name, of)
		}
	}
}
