package health

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// redundant is a cluster of nodes n1 to n3, of which some are dead, with topics of one partition each.
func redundant(dead string, topics ...replicate.State) *meta.Snapshot {
	s := &meta.Snapshot{
		Nodes: map[replicate.NodeID]*meta.Node{}, Topics: map[uuid.UUID]*meta.Topic{}, Names: map[string]*meta.Topic{},
	}
	for id := replicate.NodeID(1); id <= 3; id++ {
		name := fmt.Sprint("n", id)
		s.Nodes[id] = &meta.Node{ID: id, Name: name, Boot: uuid.UUID{byte(id)}, Live: !strings.Contains(dead, name)}
	}
	for i, st := range topics {
		t := &meta.Topic{ID: uuid.UUID{byte(i + 1)}, Name: fmt.Sprint("t", i), Partitions: 1, Replicas: 3}
		if len(st.Replicas) == 1 {
			t.Replicas = 1 // somebody chose that
		}
		s.Topics[t.ID] = t
		p := &meta.Partition{ID: meta.PartitionID{Topic: t.ID}, State: st}
		p.State.Leader = st.ISR[0].Node
		p.State.Boot = s.Nodes[p.State.Leader].Boot
		s.Partitions = s.Partitions.With(p.ID, p)
	}
	return s
}

// on is a partition with replicas on nodes; those from the inSync-th on are not in sync.
func on(minISR, inSync int, nodes ...replicate.NodeID) replicate.State {
	st := replicate.State{MinISR: minISR, Replicas: nodes}
	for _, n := range nodes[:inSync] {
		st.ISR = append(st.ISR, replicate.Member{Node: n})
	}
	return st
}

// Health says what would be lost or stop if one more node failed, and is healthy only if the cluster has all replicas
// that its topics want.
func TestRedundancy(t *testing.T) {
	whole := on(2, 3, 1, 2, 3)
	for name, tc := range map[string]struct {
		dead    string
		apart   []string
		topics  []replicate.State
		healthy bool
		says    string
		lacks   string
	}{
		"nothing would be": {topics: []replicate.State{whole}, healthy: true, lacks: "one more node"},
		"a node is dead": {
			dead: "n3", topics: []replicate.State{whole}, says: "; if one more node failed (n1), the metadata store would " +
				"have no majority, and nothing would be served, and 1 partition would take no messages: too few replicas for " +
				"min_isr",
		},
		"somebody wants one replica": {
			topics: []replicate.State{whole, on(1, 1, 2)}, healthy: true,
			says: "; if one more node failed (n2), 1 partition would not be served, and lost with its disk: no other node " +
				"has them in sync",
		},
		"all replicas are needed": {
			topics: []replicate.State{on(3, 3, 1, 2, 3)}, healthy: true,
			says: "; if one more node failed (n1), 1 partition would take no messages",
		},
		"made while a node was dead": {
			topics: []replicate.State{whole, on(1, 2, 1, 2)}, says: "1 partition under-replicated", lacks: "one more node",
		},
		"members of the store cannot reach each other": {
			apart: []string{"n2 (10.0.0.2:4255)"}, topics: []replicate.State{whole},
			says:  "the etcd member on this node cannot reach n2 (10.0.0.2:4255)",
			lacks: "partition",
		},
		"a member that is dead, too": {
			dead: "n2", apart: []string{"n2 (10.0.0.2:4255)"}, topics: []replicate.State{whole},
			says: "node n2 is dead", lacks: "cannot reach",
		},
	} {
		s := redundant(tc.dead, tc.topics...)
		v := Trusting(1)
		v.StoreNodes, v.Store.Apart = []string{"n1", "n2", "n3"}, tc.apart
		v.Connected = map[replicate.NodeID]bool{2: true, 3: true}
		got := Judge(&Facts{Node: "n1", Cluster: Look(s, v)})
		if got.Healthy != tc.healthy || !strings.Contains(got.Health, tc.says) ||
			tc.lacks != "" && strings.Contains(got.Health, tc.lacks) {
			t.Errorf("%s: healthy %v: %s", name, got.Healthy, got.Health)
		}
	}
}
