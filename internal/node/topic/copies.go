package topic

import (
	"fmt"

	"penstock/internal/node/scrub"
	"penstock/replicate/wire"
)

// CopyHere describes this node's copy of op's one partition.
func (l *Local) CopyHere(op wire.Operation) (*wire.CopyAnswer, error) {
	if len(op.Partitions) != 1 || int(op.Partitions[0]) >= l.t.Partitions() {
		return nil, scrub.ErrRequest
	}
	pt := l.t.PartitionList()[op.Partitions[0]]
	if !pt.Replica().Present() { // a present copy has a log
		return nil, fmt.Errorf("engine: the node has no copy of partition %d", pt.Number())
	}
	return pt.Copy(), nil
}

// VerifyHere reads a piece of this node's copy of op's one partition from the disk and verifies it.
func (l *Local) VerifyHere(op wire.Operation) (*wire.VerifyAnswer, error) {
	if op.Verify == nil || len(op.Partitions) != 1 || int(op.Partitions[0]) >= l.t.Partitions() {
		return nil, scrub.ErrRequest
	}
	pt := l.t.PartitionList()[op.Partitions[0]]
	if !pt.Replica().Present() { // pt.Log() is set under the replica's lock; a present copy has a log
		return nil, fmt.Errorf("engine: the node has no copy of partition %d", pt.Number())
	}
	return scrub.ReadCopy(pt.Log(), pt.CommittedEnd(), *op.Verify)
}
