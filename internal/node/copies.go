package node

import (
	"context"
	"fmt"

	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/node/health"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// This file tells operators in which state the copies of partitions are: see docs/operate/operating.md.

// CopyOf asks a node of the cluster, which may be this one, where its copy of a partition ends and in which state it
// is. It returns an error if the node cannot be reached, does not answer before ctx ends, has no copy, or is of a
// version that does not know the request; ErrOptions on a single node, which has only one copy.
func (e *Engine) CopyOf(ctx context.Context, id meta.PartitionID, node replicate.NodeID) (*wire.CopyAnswer, error) {
	if e.cluster == nil {
		return nil, fmt.Errorf("%w: there is one copy only", errs.ErrOptions)
	}
	op := wire.Operation{Kind: wire.OpCopy, Topic: id.Topic, Partitions: []uint32{id.Partition}}
	if node == e.members.node().ID {
		t, ok := e.catalog.LookupTopicID(id.Topic)
		if !ok {
			return nil, errs.ErrNoTopic
		}
		return t.Local().CopyHere(op)
	}
	result, err := e.cluster.ops.Ask(ctx, node, op)
	if err != nil {
		return nil, err
	}
	a := new(wire.CopyAnswer)
	if err := wire.DecodeResult(result, a); err != nil {
		return nil, fmt.Errorf("engine: node %d answers something else than what its copy is: %w", node, err)
	}
	return a, nil
}

// CopyShortened says whether this node has a copy of a partition that may lack what the node acknowledged.
func (e *Engine) CopyShortened(id meta.PartitionID) bool {
	return e.cluster != nil && e.cluster.Shortened.Has(id)
}

// describeCopies fills in in which states the copies of this node are, by the rows of the store.
func (cn *clusterNode) describeCopies(out *StorageStats) {
	snap := cn.snapshot()
	if snap == nil {
		return
	}
	for _, pt := range cn.e.store.Partitions() {
		row := snap.Partitions.Get(pt.Identity())
		switch {
		case row == nil:
		case replicate.HasNode(row.Contested, cn.Self.ID):
			out.Contested++
		case replicate.HasNode(row.State.Short, cn.Self.ID):
			out.Short++
		}
	}
}

// missing fills in what this node may lack although it acknowledged it.
func (cn *clusterNode) missing(f *health.Facts) {
	f.Shortened, f.ShortenedFor = cn.Counts().Shortened, cn.ShortenedFor()
	f.OlderDirectory, f.UnknownTopics = cn.olderDirectory.Load(), cn.topics.unknown.names()
	f.StoreRenewed = cn.opts.StoreRenewed
}
