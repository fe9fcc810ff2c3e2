package node

import (
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// A replica that is one too many, or on a node that is being drained, does not stay: balance hands its leadership to
// any replica that can have it, even to one that was stranded before.
func TestStays(t *testing.T) {
	id := meta.PartitionID{Topic: uuid.UUID{7}}
	row := &meta.Partition{ID: id, State: replicate.State{Replicas: []replicate.NodeID{1, 2, 3}}}
	s := &meta.Snapshot{
		Topics: map[uuid.UUID]*meta.Topic{id.Topic: {Replicas: 2}},
		Nodes:  map[replicate.NodeID]*meta.Node{1: {ID: 1}, 2: {ID: 2, Draining: true}, 3: {ID: 3}, 4: {ID: 4}},
	}
	for node, want := range map[replicate.NodeID]bool{1: true, 2: false, 3: false, 4: false, 5: false} {
		if stays(s, row, node) != want {
			t.Errorf("node %d stays: %v", node, !want)
		}
	}
	s.Partitions = meta.Partitions{}.With(row.ID, row)
	for move, want := range map[meta.Move]bool{
		{From: 1, To: 3}: false, {From: 3, To: 1}: true, {From: 3, To: 1, Cancel: true}: false, {From: 1, To: 4}: true,
	} {
		s.Moves = map[meta.PartitionID]meta.Move{id: move}
		if stays(s, row, 1) != want {
			t.Errorf("while %+v goes on, node 1 stays: %v", move, !want)
		}
	}
}
