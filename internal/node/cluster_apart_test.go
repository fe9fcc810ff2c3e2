package node_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/health"
)

// Members of the metadata store that the one on a node cannot reach, or that one itself if it has stopped, are a fault
// of that node, which every node that is asked for the state of the cluster shows.
func TestFaultsOfMembersApart(t *testing.T) {
	tc := newTestCluster(t, 2, func(o *node.Options) {
		if o.NodeID == "n1" {
			o.Cluster.StoreState = func() health.Store {
				return health.Store{Apart: []string{"n2 (10.0.0.2:4255)"}, Fault: "it has stopped"}
			}
		}
	})
	n1 := node.NumberOf(tc.nodes[0].e)
	for _, asked := range tc.nodes {
		var of []node.Fault
		tc.eventually(asked.name+" is answered", func() (ok bool) {
			var err error
			of, err = asked.e.FaultsOf(t.Context(), n1)
			return err == nil
		})
		for _, name := range []string{"store_members_apart", "store_member_failed"} {
			i := slices.IndexFunc(of, func(f node.Fault) bool { return f.Name == name })
			if i < 0 || of[i].Count != 1 {
				t.Errorf("%s says of %s: %+v", asked.name, tc.nodes[0].name, of)
			}
		}
	}
}

// Two nodes that live and have lost the connection to each other say so: each names the other, since when, and that a
// partition is under-replicated because of it. It ends with the connection.
func TestClusterNamesMissingConnection(t *testing.T) {
	t.Parallel()
	tc := prepareTestCluster(t, 2, impatient, strandedSoon)
	tc.store.LeaseTTL = 5 * time.Second
	tc.startAll()
	if _, err := tc.nodes[0].store.CreateTopic(t.Context(), meta.Topic{
		Name: "t", Partitions: 1, Replicas: 2, MinISR: 1,
	}); err != nil {
		t.Fatal(err)
	}
	tc.awaitInSync("t")
	says := func(m *testNode) bool {
		other := tc.others(m)[0]
		v := m.e.Verdict()
		return strings.Contains(v.Health, "node "+m.name+" has no connection to node "+other.name+
			", which is alive, since ") && strings.Contains(v.Health, "(1 partition is under-replicated because of that)")
	}
	faulty := func(m *testNode) bool {
		s := m.e.Storage()
		return slices.ContainsFunc(s.Faults(), func(f node.Fault) bool { return f.Name == "nodes_unconnected" })
	}
	for _, m := range tc.nodes {
		if v := m.e.Verdict(); strings.Contains(v.Health, "no connection") || faulty(m) || m.e.ClusterMeter().Unreached != 0 {
			t.Errorf("%s is connected: %s", m.name, v.Health)
		}
	}
	tc.network.disconnectPair("n1", "n2", true)
	topic := tc.topic(tc.leader("t", 0), "t")
	tc.eventually("the leader goes on alone", func() bool {
		_, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("m")})
		return err == nil
	})
	for _, m := range tc.nodes {
		tc.eventually(m.name+" names the missing connection", func() bool { return says(m) })
		tc.eventually(m.name+" counts it", func() bool { return faulty(m) && m.e.ClusterMeter().Unreached == 1 })
	}
	t.Log(tc.nodes[0].e.Verdict().Health)
	tc.network.disconnectPair("n1", "n2", false)
	for _, m := range tc.nodes {
		tc.eventually(m.name+" is healthy again", func() bool {
			return m.e.Verdict().Healthy && !faulty(m) && m.e.ClusterMeter().Unreached == 0
		})
	}
}
