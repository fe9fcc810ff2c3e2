package cluster

import (
	"testing"

	"penstock/engine/meta"
)

func TestSmoke(t *testing.T) {
	w := newWorld(t, 3)
	a := w.nodes[0]
	topic := w.create(a, meta.Topic{Name: "x", Partitions: 6})
	for _, n := range w.nodes {
		w.until(n, "sees it", func(s *meta.Snapshot) bool { return s.Names["x"] != nil && len(s.Partitions) == 6 })
	}
	t.Log(describe(a.Snapshot()))
	w.kill(w.byID(a.row(part(topic, 0)).Leader))
	w.until(w.nodes[1], "election", func(s *meta.Snapshot) bool { return s.Partitions[part(topic, 0)].State.Epoch == 2 })
}
