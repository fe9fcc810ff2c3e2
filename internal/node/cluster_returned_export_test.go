package node

import (
	"penstock/internal/meta"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// Holds is how far a copy reaches.
type Holds struct {
	Durable segment.Position // below it everything is on stable storage
	End     segment.Position // behind the last batch that was appended
}

func partitionOf(e *Engine, topic string, n int) *partition.Partition {
	t, ok := e.Catalog().LookupTopic(topic)
	if !ok {
		panic("no topic " + topic)
	}
	return t.PartitionList()[n]
}

// HoldsOf returns how far a node's copy reaches. Durable is the mark that a follower would acknowledge; for a copy that
// takes no part in replication, the mark up to which it is known to be durable.
func HoldsOf(e *Engine, topic string, n int) Holds {
	s := partitionOf(e, topic, n).State()
	return Holds{s.Acked, s.End}
}

// RetireCopy retires a node's copy, as the worker does when the cluster does not need the copy any more.
func RetireCopy(e *Engine, topic string, n int) { partitionOf(e, topic, n).Replica().Retire() }

// ReopenCopy retires a copy and opens it again, as the worker does when the cluster needs the copy again before its
// bytes have been removed.
func ReopenCopy(e *Engine, topic string, n int) error {
	pt := partitionOf(e, topic, n)
	pt.Replica().Retire()
	t, _ := e.Catalog().LookupTopic(topic)
	if err := e.cluster.topics.openReplica(t, pt); err != nil {
		return err
	}
	pt.Replica().Learn(e.cluster.Rows.Snapshot().Partitions.Get(pt.Identity()))
	return nil
}

// CutRuns says whether a node's copy is being cut.
func CutRuns(e *Engine, topic string, n int) bool {
	return partitionOf(e, topic, n).State().Cutting
}

// LearnRow applies a row, as the worker does when the store reports it. The row has been applied when LearnRow returns.
func LearnRow(e *Engine, row *meta.Partition) {
	snap := *e.cluster.Rows.Snapshot()
	snap.Partitions = snap.Partitions.With(row.ID, row)
	e.cluster.topics.applyRow(&snap, row.ID)
}

// IncomingOf returns how many batches a copy has received from the leader and not appended to its log yet.
func IncomingOf(e *Engine, topic string, n int) int {
	return partitionOf(e, topic, n).State().Incoming
}
