package world

import (
	"maps"
	"slices"

	"penstock/internal/node"
)

// checkPuts looks at the puts of publishers that number nothing: each message stands in its log once, the messages of
// one put stand there next to each other, or not at all (B14), and what one process was given for a partition stands
// there in the order in which it was given (C7), although leaders change and puts are forwarded. What retention has
// removed is not looked for. A world that forgets may lose and repeat what was not acknowledged.
func (w *World) checkPuts(logs logs) {
	if w.has(FeatureForget) {
		return
	}
	for _, t := range w.topics {
		log, ids, starts := logs[t], map[int]node.ID{}, map[uint32]node.ID{}
		for _, id := range slices.Sorted(maps.Keys(log)) {
			if _, ok := starts[id.Partition()]; !ok {
				starts[id.Partition()] = id
			}
			s := log[id]
			if old, ok := ids[s.value]; ok && s.only == "" {
				w.fail("value %d of topic %s is stored twice, as %v and %v", s.value, t.name, old, id)
			}
			if s.only == "" {
				ids[s.value] = id
			}
		}
		w.checkWhole(t, ids, starts)
		w.checkOrder(t, ids)
	}
}

// checkWhole: the messages of a put are stored together. ids are those of the values, starts where the logs begin.
func (w *World) checkWhole(t *topicModel, ids map[int]node.ID, starts map[uint32]node.ID) {
	for _, v := range slices.Sorted(maps.Keys(ids)) {
		val := &w.book.values[v]
		if val.count == 0 {
			continue // of a producer: see checkProduced
		}
		first := ids[v] - node.ID(v-val.first)
		for i := range val.count {
			id, ok := ids[val.first+i]
			if want := first + node.ID(i); ok && id != want || !ok && want >= starts[ids[v].Partition()] {
				w.fail("value %d of topic %s is stored as %v, and value %d of the same put as %v (%v)",
					v, t.name, ids[v], val.first+i, id, ok)
				return
			}
		}
	}
}

// giver is a process that publishers gave puts of a partition.
type giver struct {
	n         *host
	life      int
	partition uint32
}

// checkOrder: what one process was given and has answered OK is stored in the order in which it was given. Worlds of
// packets, and those without features in which a process is stopped twice (host.do), bring frames in another order than
// they were sent in, as no connection does.
func (w *World) checkOrder(t *topicModel, ids map[int]node.ID) {
	last := map[giver]int{}
	if w.opt.packets || w.features == 0 {
		return
	}
	for _, v := range slices.Sorted(maps.Keys(ids)) {
		val := &w.book.values[v]
		if val.count == 0 || val.fate != acked {
			continue
		}
		from := giver{val.by, val.life, ids[v].Partition()}
		if before, ok := last[from]; ok && ids[v] < ids[before] {
			w.fail("%s was given value %d of topic %s before value %d, which is stored as %v, before %v",
				val.by.name, before, t.name, v, ids[v], ids[before])
			return
		}
		last[from] = v
	}
}
