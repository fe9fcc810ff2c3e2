package health

import (
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// A former leader is remembered as stranded only if the store had nothing against it.
func TestGiverOf(t *testing.T) {
	boot, store := uuid.UUID{1}, uuid.UUID{2}
	for name, tt := range map[string]struct {
		change func(before, row *meta.Partition, n *meta.Node)
		want   bool
	}{
		"given away":       {func(*meta.Partition, *meta.Partition, *meta.Node) {}, true},
		"led here before":  {func(before, _ *meta.Partition, _ *meta.Node) { before.State.Leader = 2 }, false},
		"to somebody else": {func(_, row *meta.Partition, _ *meta.Node) { row.State.Leader = 3 }, false},
		"the same epoch": {func(before, row *meta.Partition, _ *meta.Node) {
			before.State.Epoch = row.State.Epoch
		}, false},
		"died":                 {func(_, _ *meta.Partition, n *meta.Node) { n.Live = false }, false},
		"was restarted":        {func(_, _ *meta.Partition, n *meta.Node) { n.Boot[0]++ }, false},
		"is drained":           {func(_, _ *meta.Partition, n *meta.Node) { n.Draining = true }, false},
		"has a slow disk":      {func(_, _ *meta.Partition, n *meta.Node) { n.Disk = meta.DiskSlow }, false},
		"left the ISR with it": {func(_, row *meta.Partition, _ *meta.Node) { row.State.ISR = row.State.ISR[1:] }, false},
		"gives way to the preferred leader": {func(_, row *meta.Partition, _ *meta.Node) {
			row.State.Replicas = []replicate.NodeID{2, 1}
		}, false},
		"was preferred": {func(_, row *meta.Partition, _ *meta.Node) { row.State.Replicas = []replicate.NodeID{1, 2} }, true},
		"is damaged":    {func(_, row *meta.Partition, _ *meta.Node) { row.Damaged = row.State.ISR[:1] }, false},
	} {
		isr := []replicate.Member{{Node: 1, Store: store}, {Node: 2, Store: uuid.UUID{3}}}
		before := &meta.Partition{State: replicate.State{Epoch: 4, Leader: 1, Boot: boot, ISR: isr}}
		row := &meta.Partition{State: replicate.State{Epoch: 5, Leader: 2, Boot: uuid.UUID{9}, ISR: isr}}
		n := &meta.Node{ID: 1, Store: store, Boot: boot, Live: true}
		tt.change(before, row, n)
		if g := Giver(2, before, row, map[replicate.NodeID]*meta.Node{1: n}); (g != nil) != tt.want {
			t.Errorf("%s: %+v", name, g)
		}
	}
	if Giver(2, nil, &meta.Partition{State: replicate.State{Epoch: 1, Leader: 2}}, nil) != nil {
		t.Error("a giver without a row before")
	}
}
