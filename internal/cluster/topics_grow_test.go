package cluster

import (
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
)

// A topic that is made while the first node is alone has one replica, and gets the others when more nodes join. Until
// then the first node leads it and takes writes. min_isr rises with the number of replicas in sync.
func TestTopicGrowsWithTheCluster(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 1})
	id := meta.PartitionID{Topic: topic.ID}
	st := &w.nodes[0].Snapshot().Partitions.Get(id).State
	if len(st.Replicas) != 1 || st.MinISR != 1 || topic.Replicas != 3 ||
		topic.MinISR != 2 {
		t.Fatalf("%+v of %+v", st, topic)
	}
	w.start("n2", uuid.New())
	w.until(w.nodes[0], "a second replica", func(s *meta.Snapshot) bool {
		return len(s.Partitions.Get(id).State.Replicas) == 2
	})
}
