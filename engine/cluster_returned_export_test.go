package engine

import (
	"maps"

	"penstock/engine/meta"
	"penstock/engine/part"
	"penstock/segment"
)

// Holds is what a copy says that it has.
type Holds struct {
	Durable segment.Position // below it everything is on stable storage
	End     segment.Position // of what was appended
}

func partitionOf(e *Engine, topic string, n int) *part.Partition {
	t, ok := e.LookupTopic(topic)
	if !ok {
		panic("no topic " + topic)
	}
	return t.partitions()[n]
}

// HoldsOf returns what a node's follower would acknowledge; of a copy that takes no part, what it knows to be durable.
func HoldsOf(e *Engine, topic string, n int) Holds {
	s := partitionOf(e, topic, n).State()
	return Holds{s.Acked, s.End}
}

// RetireCopy is what happens when the cluster does not need a node's copy any more.
func RetireCopy(e *Engine, topic string, n int) { partitionOf(e, topic, n).Replica().Retire() }

// ReopenCopy is what happens when the cluster needs it again before its bytes went.
func ReopenCopy(e *Engine, topic string, n int) error {
	pt := partitionOf(e, topic, n)
	pt.Replica().Retire()
	t, _ := e.LookupTopic(topic)
	if err := e.openReplica(t, pt); err != nil {
		return err
	}
	pt.Replica().Learn(e.cluster.Rows.Snapshot().Partitions[pt.Identity()])
	return nil
}

// CutRuns says whether a node's copy is being cut.
func CutRuns(e *Engine, topic string, n int) bool {
	return partitionOf(e, topic, n).State().Cutting
}

// LearnRow is what happens when the store says so of a partition; when it returns it has happened.
func LearnRow(e *Engine, row *meta.Partition) {
	snap := *e.cluster.Rows.Snapshot()
	snap.Partitions = maps.Clone(snap.Partitions)
	snap.Partitions[row.ID] = row
	e.cluster.applyRow(&snap, row.ID)
}

// IncomingOf is how many batches of the leader a copy has taken that its log does not have yet.
func IncomingOf(e *Engine, topic string, n int) int {
	return partitionOf(e, topic, n).State().Incoming
}
