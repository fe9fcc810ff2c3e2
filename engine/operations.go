package engine

import (
	"context"
	"errors"
	"fmt"

	"penstock/engine/channel"
	"penstock/engine/ops"
	"penstock/replicate/wire"
	"penstock/segment"
)

// What each operation (wire.Operation) does on this node. Package engine/ops carries them to other nodes.

// gather is ops.Operations.Gather.
func (cn *clusterNode) gather(
	ctx context.Context, t *Topic, op wire.Operation, only func(partition uint32) bool, take func([]byte) error,
) error {
	return cn.ops.Gather(ctx, topicView{t}, op, only, take)
}

// execute executes an operation of another node.
func (cn *clusterNode) execute(ctx context.Context, op wire.Operation) ([]byte, error) {
	if op.Kind == wire.OpFaults {
		return marshal(cn.e.FaultsOf(ctx, cn.Self.ID))
	}
	t := cn.e.topicByID(op.Topic)
	switch {
	case t == nil:
		return nil, ErrNoTopic
	case op.Kind == wire.OpVerify:
		return marshal(t.verifyLocal(op))
	}
	return t.locally(ctx, op)
}

// onLeaders executes op in the partitions that only selects (nil: all), on whichever nodes lead them, and passes the
// results to take.
func (t *Topic) onLeaders(
	ctx context.Context, op wire.Operation, only func(partition uint32) bool, take func([]byte) error,
) error {
	return t.e.members.gather(ctx, t, op, only, take)
}

// performHere executes op with perform on this node, in the partitions that only selects (nil: all), and passes the
// result to take (nil: nobody wants it).
func (t *Topic) performHere(
	ctx context.Context, op wire.Operation, only func(partition uint32) bool, take func([]byte) error,
	perform func(context.Context, wire.Operation) ([]byte, error),
) error {
	for _, pt := range t.partitions() {
		if only == nil || only(pt.Number()) {
			op.Partitions = append(op.Partitions, pt.Number())
		}
	}
	result, err := perform(ctx, op)
	if err == nil && take != nil && len(result) > 0 {
		err = take(result)
	}
	return err
}

// locally executes op for the partitions that it names. It returns ErrNoLeader if this node does not lead all of them.
func (t *Topic) locally(ctx context.Context, op wire.Operation) ([]byte, error) {
	epochs, ok := t.assignedEpochs(op.Partitions)
	if !ok {
		return nil, ErrNoLeader
	}
	return t.performIn(ctx, op, epochs)
}

// performIn is perform for a node that served the partitions of op in these epochs a moment ago. If it no longer does
// after perform, perform may have skipped some of them: then performIn returns ErrNoLeader whatever perform returned,
// and the requester looks up the leaders again.
func (t *Topic) performIn(ctx context.Context, op wire.Operation, epochs []segment.Epoch) ([]byte, error) {
	if err := t.checkPartitionCount(op); err != nil {
		return nil, err
	}
	result, err := t.perform(ctx, op)
	if err != nil {
		return nil, err
	}
	if err := t.checkPartitionCount(op); err != nil {
		return nil, err
	}
	parts := t.partitions()
	for i, n := range op.Partitions {
		if parts[n].ServingEpoch() != epochs[i] {
			return nil, ErrNoLeader
		}
	}
	return result, nil
}

var errPartitionCount = errors.New("engine: the topic has got partitions that one of the nodes has not heard of yet")

// checkPartitionCount refuses a change whose requester does not know all partitions of the topic. A new partition
// adopts the channels' state from the log of partition 0, and would miss a change that is made later without it. For
// this to hold, partition 0's leader must know of the new partition before the state is adopted. So the node that
// adopts it (OpState with Flag) says how many partitions it knows, and is refused until the leader knows as many. A
// later leader of partition 0 was elected after the new partitions were made, and knows them. The requester tries again
// when it has heard of them.
func (t *Topic) checkPartitionCount(op wire.Operation) error {
	switch op.Kind {
	case wire.OpState:
		if op.Flag && t.Partitions() < op.Known {
			return errPartitionCount
		}
	case wire.OpCreateChannel, wire.OpDeleteChannel, wire.OpPauseChannel, wire.OpSkipChannel, wire.OpEmptyChannel,
		wire.OpPauseTopic, wire.OpEmptyTopic, wire.OpConfigure:
		known := t.Partitions()
		if mt := t.e.cluster.Rows.Snapshot().Topics[t.shared.ID]; mt != nil {
			known = max(known, mt.Partitions)
		}
		if known > op.Known {
			return errPartitionCount
		}
	}
	return nil
}

// perform executes op on this node. It returns no result for a channel that this node does not have. What a newer
// version asks for is an error, whether the channel is here or not: it must not look like something that is done.
func (t *Topic) perform(ctx context.Context, op wire.Operation) ([]byte, error) {
	switch op.Kind {
	case wire.OpState:
		return marshal(t.stateLocal(), nil)
	case wire.OpCreateChannel:
		if err := t.initPartitions(ctx, t.partitions()); err != nil {
			return nil, err
		}
		c, err := t.createChannelLocal(ctx, op.Channel)
		if err != nil {
			return nil, err
		}
		return nil, t.createMissing(ctx, c, op.Partitions)
	case wire.OpPauseTopic:
		return nil, t.pauseLocal(ctx, op.Flag)
	case wire.OpEmptyTopic:
		return nil, t.emptyLocal(ctx)
	case wire.OpPeek:
		if op.Channel == "" {
			return marshal(channel.PeekTopic(channelTopic{t}, op, t.e.opts.ReadAheadBytes))
		}
	case wire.OpDeleteChannel:
		return ops.DeletionResult(t.deleteChannelLocal(ctx, op.Channel))
	case wire.OpPauseChannel, wire.OpSkipChannel, wire.OpEmptyChannel, wire.OpResolveSeek, wire.OpSeek, wire.OpPending,
		wire.OpDeferred, wire.OpConfirm, wire.OpSettings, wire.OpConfigure:
	default:
		return nil, fmt.Errorf("engine: this version does not know the operation %q", op.Kind)
	}
	c, ok := t.LookupChannel(op.Channel)
	if !ok {
		return nil, nil // the missing result says that the channel is not here: see Channel.ask
	}
	return c.perform(ctx, op)
}

// perform executes op, which Topic.perform knows to be a channel's, on this node. Unless it fails it returns a result,
// even if that is only true: see Topic.perform.
func (c *Channel) perform(ctx context.Context, op wire.Operation) ([]byte, error) {
	if op.Kind == wire.OpSettings {
		return marshal(c.Settings(), nil)
	}
	return c.local.Perform(ctx, op)
}

// marshal encodes the result of an operation.
func marshal(result any, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return wire.EncodeResult(result)
}

// assignedEpochs returns the epochs in which this node's channels serve these partitions; false: they do not serve all.
func (t *Topic) assignedEpochs(numbers []uint32) (epochs []segment.Epoch, ok bool) {
	t.e.host.Lock(&t.changing)
	defer t.changing.Unlock()
	parts := t.partitions()
	for _, n := range numbers {
		if int(n) >= len(parts) { // the requester knows of more
			return nil, false
		}
		epoch := t.adoption.Epoch(int(n), parts[n].ServingEpoch())
		if epoch == 0 {
			return nil, false
		}
		epochs = append(epochs, epoch)
	}
	return epochs, true
}

// createMissing creates the channel in the partitions that do not have it, or where its creation is not committed: a
// partition may have come to this node after the channel.
func (t *Topic) createMissing(ctx context.Context, c *Channel, numbers []uint32) error {
	var err error
	for _, n := range numbers {
		if pt := t.partitions()[n]; !c.local.CommittedIn(int(n)) {
			err = errors.Join(err, t.createIn(ctx, pt, c))
		}
	}
	return err
}
