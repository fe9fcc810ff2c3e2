package engine

import "penstock/segment"

// Holds is what a copy says that it has.
type Holds struct {
	Durable segment.Position // below it everything is on stable storage
	End     segment.Position // of what was appended
}

func partitionOf(e *Engine, topic string, n int) *partition {
	t, ok := e.LookupTopic(topic)
	if !ok {
		panic("no topic " + topic)
	}
	return t.partitions()[n]
}

// HoldsOf returns what a node's follower would acknowledge; of a copy that takes no part, what it knows to be durable.
func HoldsOf(e *Engine, topic string, n int) (h Holds) {
	r := partitionOf(e, topic, n).rep
	r.mu.Lock()
	defer r.mu.Unlock()
	h.Durable, h.End = r.durable, r.pt.machine.State().Next
	if f := r.follower; f != nil {
		h.Durable = f.Log().Durable
	}
	return h
}

// RetireCopy is what happens when the cluster does not need a node's copy any more.
func RetireCopy(e *Engine, topic string, n int) { partitionOf(e, topic, n).rep.retire() }

// ReopenCopy is what happens when the cluster needs it again before its bytes went.
func ReopenCopy(e *Engine, topic string, n int) error {
	pt := partitionOf(e, topic, n)
	pt.rep.retire()
	if err := e.openReplica(pt); err != nil {
		return err
	}
	pt.rep.learn(pt.rep.row.Load())
	return nil
}
