package node

import (
	"context"
	"fmt"

	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/node/scrub"
	"penstock/replicate/wire"
	"penstock/segment"
)

// Verified is the result of one call of VerifySome.
type Verified = scrub.Verified

// Difference is a run of messages in which copies differ.
type Difference = scrub.Difference

// VerifySome compares the bytes that the in-sync replicas of a partition have from offset at on. It works for about a
// second at a bounded rate, while the cluster serves. Each node reads its own copy from its disk and verifies it;
// damage is isolated and repaired as if a reader had met it. The first call passes 0 for at, which begins at the oldest
// bytes that all copies have; the caller then passes Verified.Next until Verified.Done. VerifySome returns ErrNoTopic
// if there is no such topic or partition, and ErrOptions on a single node, which has only one copy.
func (e *Engine) VerifySome(ctx context.Context, topic string, partition uint32, at segment.Offset) (*Verified, error) {
	t, ok := e.catalog.LookupTopic(topic)
	if !ok || int(partition) >= t.Partitions() {
		return nil, errs.ErrNoTopic
	}
	if e.cluster == nil {
		return nil, fmt.Errorf("%w: there is one copy only, which the scrub reads", errs.ErrOptions)
	}
	return e.cluster.verifySome(ctx, t, partition, at)
}

// verifySome compares the copies of a partition for about a second. This node asks the in-sync replicas, and need not
// have a copy itself.
func (cn *clusterNode) verifySome(
	ctx context.Context, t *Topic, partition uint32, at segment.Offset,
) (*Verified, error) {
	c := scrub.Comparison{
		Host: cn.e.host, Log: cn.Log, Topic: t.Name(), ID: meta.PartitionID{Topic: t.ID(), Partition: partition},
		Sleep: cn.sleep,
		Ask: func(ctx context.Context, n *meta.Node, q wire.VerifyRequest) (*wire.VerifyAnswer, error) {
			return cn.askCopy(ctx, t, partition, n, q)
		},
	}
	return c.Compare(ctx, cn.Rows.Snapshot(), at)
}

// askCopy asks a node, which may be this one, to verify a piece of its copy of a partition.
func (cn *clusterNode) askCopy(
	ctx context.Context, t *Topic, partition uint32, n *meta.Node, q wire.VerifyRequest,
) (*wire.VerifyAnswer, error) {
	op := wire.Operation{Kind: wire.OpVerify, Topic: t.ID(), Partitions: []uint32{partition}, Verify: &q}
	if n.ID == cn.Self.ID {
		return t.Local().VerifyHere(op)
	}
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.e.publishTimeout())
	defer cancel()
	result, err := cn.ops.Ask(ctx, n.ID, op)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Name, err)
	}
	a := new(wire.VerifyAnswer)
	if err := wire.DecodeResult(result, a); err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Name, err)
	}
	return a, nil
}
