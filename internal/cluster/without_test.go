package cluster

import (
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// A replica is removed only if one that has everything stays: one whose disk was replaced, who forgot what it had
// acknowledged, or whose messages do not read back may lack what only the one that goes has.
func TestWithout(t *testing.T) {
	old, present := uuid.UUID{1}, uuid.UUID{2}
	type nodes = map[replicate.NodeID]*meta.Node
	goes, stays := replicate.Member{Node: 1, Store: present}, replicate.Member{Node: 2, Store: present}
	for name, c := range map[string]struct {
		nodes nodes // nil: both, with their present disks
		p     meta.Partition
		kept  bool
	}{
		"it stays":                          {},
		"it is dead":                        {nodes: nodes{1: {Store: present, Live: true}, 2: {Store: present}}},
		"its disk was replaced":             {nodes: nodes{1: {Store: present}, 2: {Store: old}}, kept: true},
		"its node was removed":              {nodes: nodes{1: {Store: present}}, kept: true},
		"it forgot":                         {p: partitionWithShort(stays), kept: true},
		"it is damaged":                     {p: meta.Partition{Damaged: []replicate.Member{stays}}, kept: true},
		"the one that goes is damaged, too": {p: meta.Partition{Damaged: []replicate.Member{goes, stays}}},
		"the one that goes forgot":          {p: partitionWithShort(goes)},
	} {
		s, p := &meta.Snapshot{Nodes: c.nodes}, c.p
		if s.Nodes == nil {
			s.Nodes = nodes{1: {Store: present}, 2: {Store: present}}
		}
		p.State.MinISR, p.State.Replicas = 1, []replicate.NodeID{1, 2}
		p.State.ISR = []replicate.Member{goes, stays}
		next := without(s, &p, 1)
		if (next == nil) != c.kept {
			t.Errorf("%s: it becomes %+v", name, next)
		}
		if next != nil && (len(next.State.Replicas) != 1 || len(next.State.ISR) != 1 ||
			replicate.HasNode(next.State.Short, 1) || replicate.HasNode(next.Damaged, 1)) {
			t.Errorf("%s: something of the replica is left: %+v", name, next)
		}
	}
}

func partitionWithShort(m replicate.Member) meta.Partition {
	return meta.Partition{State: replicate.State{Short: []replicate.Member{m}}}
}

// Whoever leaves the ISR leaves it to those that stay: the row is written only if they are the processes of the state
// in which it was planned. One that has ended since may have come back with another disk.
func TestWhoStaysIsChosen(t *testing.T) {
	w := newModel(t, 1)
	w.faults = false
	w.step()
	_, err := w.nodes[0].s.CreateTopic(t.Context(), meta.Topic{Name: "t", Partitions: 1, Replicas: 2, MinISR: 1})
	if err != nil {
		t.Fatal(err)
	}
	p := &planner{st: w.state(), prefix: DefaultPrefix, busy: map[meta.PartitionID]bool{}}
	next := edit(&p.row(p.st.snap.Partitions.IDs()[0]).Partition)
	goes, stays := next.State.ISR[0].Node, next.State.ISR[1].Node
	if c := p.change("a test", without(p.st.snap, next, goes)); len(c.chosen) != 1 || c.chosen[0] != stays {
		t.Errorf("of %+v, %v are chosen", next.State, c.chosen)
	}
	if c := p.change("a test", next); len(c.chosen) > 0 {
		t.Errorf("nobody leaves, and %v are chosen", c.chosen)
	}
}
