package health

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// A missing connection explains that a partition is under-replicated only if one of its two nodes leads the partition
// and the other one should follow, or if the other one could get a replica that is missing.
func TestMissingConnectionExplains(t *testing.T) {
	const sentence = "node n1 has no connection to node n2, which is alive, since 40.0s: neither side stores what the " +
		"other leads, and no replica is placed there from here"
	for name, tc := range map[string]struct {
		change func(s *meta.Snapshot, v *View)
		says   string // "": nothing of the connection
	}{
		"all are in sync": {func(*meta.Snapshot, *View) {}, sentence + "; see whether"},
		"it leads, and the other is not in sync": {func(s *meta.Snapshot, _ *View) {
			partitionOf(s, 0).State.ISR = []replicate.Member{{Node: 1}, {Node: 3}}
		}, sentence + " (1 partition is under-replicated because of that); see whether"},
		"the other leads, and it is not in sync": {func(s *meta.Snapshot, _ *View) {
			partitionOf(s, 1).State.ISR = []replicate.Member{{Node: 2}, {Node: 3}}
		}, sentence + " (1 partition is under-replicated because of that); see whether"},
		"a third node leads": {func(s *meta.Snapshot, _ *View) {
			partitionOf(s, 2).State.ISR = []replicate.Member{{Node: 1}, {Node: 3}}
		}, sentence + "; see whether"},
		"the third one is not in sync": {func(s *meta.Snapshot, _ *View) {
			partitionOf(s, 0).State.ISR = []replicate.Member{{Node: 1}, {Node: 2}}
		}, sentence + "; see whether"},
		"replicas could not be placed": {func(s *meta.Snapshot, _ *View) {
			s.Topics[uuid.UUID{1}].Replicas = 3
			for n := range uint32(2) {
				p := partitionOf(s, n)
				p.State.Replicas, p.State.ISR = []replicate.NodeID{1, 3}, []replicate.Member{{Node: 1}, {Node: 3}}
				p.State.Leader, p.State.Boot = 1, uuid.UUID{1}
			}
		}, sentence + " (2 partitions are under-replicated because of that); see whether"},
		"they would not go to a node that is being drained": {func(s *meta.Snapshot, _ *View) {
			s.Nodes[2].Draining = true
			s.Topics[uuid.UUID{1}].Replicas = 3
			p := partitionOf(s, 0)
			p.State.Replicas, p.State.ISR = []replicate.NodeID{1, 3}, []replicate.Member{{Node: 1}, {Node: 3}}
		}, sentence + "; see whether"},
		"the other one is dead":  {func(s *meta.Snapshot, _ *View) { s.Nodes[2].Live = false }, ""},
		"nothing is known of it": {func(_ *meta.Snapshot, v *View) { v.StoreAge = time.Minute }, ""},
		"two are missing": {
			func(_ *meta.Snapshot, v *View) { v.Unconnected[3] = time.Minute },
			"node n1 has no connection to nodes n2, n3, which are alive, the longest since 1m0s: neither side stores what " +
				"the other leads",
		},
	} {
		s := threeNodes()
		v := View{
			Self: 1, Leased: true, LeaseLength: time.Second,
			Unconnected: map[replicate.NodeID]time.Duration{2: 40 * time.Second},
		}
		tc.change(s, &v)
		all := Look(s, v).troubles()
		i := slices.IndexFunc(all, func(says string) bool { return strings.Contains(says, "no connection") })
		switch {
		case tc.says == "" && i >= 0:
			t.Errorf("%s: %s", name, all[i])
		case tc.says != "" && (i < 0 || !strings.HasPrefix(all[i], tc.says)):
			t.Errorf("%s: want %q in %q", name, tc.says, all)
		}
	}
}

func partitionOf(s *meta.Snapshot, n uint32) *meta.Partition {
	return s.Partitions.Get(meta.PartitionID{Topic: uuid.UUID{1}, Partition: n})
}
