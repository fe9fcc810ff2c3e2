package cluster

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
)

// Two nodes expand a topic at the same time, one of them by more partitions than fit into one transaction. The one that
// is slower writes no row over those of the other, which may have another leader and messages by then.
func TestExpandTopicRace(t *testing.T) {
	w := newWorld(t, 3)
	quick := w.nodes[0]
	topic := w.create(quick, meta.Topic{Name: "x", Partitions: 1, Replicas: 2})
	slow := w.prepare("n4", uuid.New())
	var rows map[meta.PartitionID]int64
	slow.s.kv = &tapped{Store: slow.s.kv, before: func(ops []kv.Op) {
		if !strings.Contains(ops[0].Key, "/"+partsDir) || rows != nil {
			return
		}
		// The slower node is about to write its first rows.
		if err := quick.ExpandTopic(ctx(t), topic.ID, 20); err != nil {
			t.Error(err)
		}
		rows = map[meta.PartitionID]int64{}
		for id, p := range quick.s.cur.Load().parts.All() {
			if quick.s.cur.Load().visible(id) {
				rows[id] = p.rev
			}
		}
	}}
	w.join(slow)
	w.until(quick, "the new node to be known", func(s *meta.Snapshot) bool { return s.Nodes[slow.node.ID] != nil })
	if err := quick.Drain(ctx(t), slow.node.ID, true); err != nil { // it gets no replicas
		t.Fatal(err)
	}
	if err := slow.ExpandTopic(ctx(t), topic.ID, 250); err != nil {
		t.Fatal(err)
	}
	if n := slow.Snapshot().Partitions.Len(); n != 250 || len(rows) != 20 {
		t.Fatalf("%d partitions, %d of them before", n, len(rows))
	}
	for id, rev := range rows {
		if now := slow.s.cur.Load().parts.Get(id).rev; now != rev {
			t.Errorf("partition %d was written again, at revision %d", id.Partition, now)
		}
	}
}
