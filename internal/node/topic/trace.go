package topic

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/internal/node/trace"
	"penstock/replicate/wire"
	"penstock/segment"
)

// ErrNoMessage says that no message of the topic ever had this id.
var ErrNoMessage = trace.ErrNoMessage

// Trace tells the life of a message from the log of its partition: when and where it was stored, and what became of it
// in each channel. The leader of the partition reads the log from the message on, without any lock that clients need,
// until all channels are done with the message or a limit (trace.MaxBytes, trace.MaxTime) is reached;
// Trace.Cut says which. Trace returns ErrNoMessage or ErrClosed, and in a cluster ErrNoLeader.
func (t *Topic) Trace(ctx context.Context, id message.ID) (*wire.Trace, error) {
	only, err := t.onlyPartition(int(id.Partition()))
	if err != nil {
		return nil, fmt.Errorf("%w: it names partition %d, and topic %s has %d", ErrNoMessage,
			id.Partition(), t.Name(), t.Partitions())
	}
	if t.env.Closed() {
		return nil, errs.ErrClosed
	}
	var tr *wire.Trace
	op := wire.Operation{Kind: wire.OpTrace, IDs: []message.ID{id}}
	err = t.onLeaders(ctx, op, only, func(result []byte) error {
		tr = new(wire.Trace)
		return wire.DecodeResult(result, tr)
	})
	switch {
	case err != nil:
		return nil, err
	case tr == nil || tr.ID == "":
		return nil, ErrNoMessage
	}
	t.nameLeaders(tr, id.Partition())
	return tr, nil
}

// traceLocal traces op's one message on this node, which leads its partition. A result without an id says that there is
// no such message.
func (l *Local) traceLocal(ctx context.Context, op wire.Operation) (*wire.Trace, error) {
	if len(op.IDs) != 1 || !op.About(op.IDs[0].Partition()) {
		return nil, errors.New("engine: a trace is about one message of one partition")
	}
	id := op.IDs[0]
	env := trace.Env{Topic: l.t.Name(), Log: l.t.env.Log, Mono: l.t.env.Host.Mono}
	tr, err := trace.Message(ctx, env, l.t.PartitionList()[id.Partition()], id.MsgID(), trace.Limits{})
	if errors.Is(err, ErrNoMessage) {
		return new(wire.Trace), nil
	}
	if err != nil {
		return nil, err
	}
	for i := range tr.Channels {
		l.traceDelivery(&tr.Channels[i], id)
	}
	return tr, nil
}

// traceDelivery adds facts that only the leader's memory has: the consumer of a message in flight, and the number of
// deliveries.
func (l *Local) traceDelivery(c *wire.TraceChannel, id message.ID) {
	ch, ok := l.t.LookupChannel(c.Channel)
	if !ok || !slices.Contains([]fold.TraceState{fold.StateWaiting, fold.StateDeferred}, c.State) {
		return
	}
	m, ok := ch.local.Find(id)
	if !ok {
		return
	}
	c.Attempts = &m.Attempts
	if !m.Since.IsZero() {
		c.State, c.At, c.Due, c.Client = fold.StateInFlight, m.Since.UTC(), m.Due.UTC(), m.Client
	}
}

// nameLeaders names the nodes that led in the epochs of a trace, as far as the cluster's metadata says. A single node
// led in all of them.
func (t *Topic) nameLeaders(tr *wire.Trace, partition uint32) {
	nameOf := func(segment.Epoch) string { return t.env.NodeID }
	if t.env.Cluster != nil {
		snap := t.env.Cluster.Rows.Snapshot()
		row := snap.Partitions.Get(segment.Identity{Topic: t.shared.ID, Partition: partition})
		nameOf = func(epoch segment.Epoch) string {
			if row == nil {
				return ""
			}
			if n := snap.Nodes[row.LeaderIn(epoch)]; n != nil {
				return n.Name
			}
			return ""
		}
	}
	if tr.Stored != nil {
		tr.Stored.Leader = nameOf(tr.Stored.Epoch)
	}
	for i := range tr.Events {
		tr.Events[i].Leader = nameOf(tr.Events[i].Epoch)
	}
	for i := range tr.Channels {
		if c := &tr.Channels[i]; c.Epoch != 0 {
			c.Leader = nameOf(c.Epoch)
		}
	}
}
