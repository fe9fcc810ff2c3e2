package node

import (
	"context"

	"penstock/internal/node/errs"
	"penstock/replicate/wire"
)

// This file executes operations (wire.Operation) that other nodes ask for. Package fanout carries them between nodes;
// package topic executes those on topics.

// execute executes an operation that another node has asked for, on a goroutine of its own: it may wait for commits.
func (cn *clusterNode) execute(ctx context.Context, op wire.Operation) ([]byte, error) {
	if op.Kind == wire.OpFaults {
		s := cn.e.Storage()
		return wire.EncodeResult(s.Faults(), nil)
	}
	if op.Kind == wire.OpClock {
		return wire.EncodeResult(wire.ClockAnswer{NowNs: cn.e.clock.NowNs()}, nil)
	}
	if op.Kind == wire.OpAsk {
		return cn.e.answerQuestion(ctx, op.Ask)
	}
	t, ok := cn.e.catalog.LookupTopicID(op.Topic)
	if !ok {
		return nil, errs.ErrNoTopic
	}
	return t.Local().Execute(ctx, op)
}
