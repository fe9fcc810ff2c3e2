package topic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
	"penstock/internal/node/fanout"
	"penstock/internal/node/scrub"
	"penstock/replicate/wire"
	"penstock/segment"
)

// This file executes operations (wire.Operation) on this node. Package internal/node/fanout carries them to other
// nodes.

// onLeaders executes op in the partitions that only selects (nil: all), on the nodes that lead them, and passes the
// results to take (nil: they are discarded).
func (t *Topic) onLeaders(
	ctx context.Context, op wire.Operation, only func(partition uint32) bool, take func([]byte) error,
) error {
	if t.env.Cluster == nil {
		return t.performHere(ctx, op, only, take, t.local.perform)
	}
	return t.env.Cluster.Operations.Gather(ctx, t.View(), op, only, take)
}

// performHere executes op with perform on this node, in the partitions that only selects (nil: all), and passes the
// result to take (nil: it is discarded).
func (t *Topic) performHere(
	ctx context.Context, op wire.Operation, only func(partition uint32) bool, take func([]byte) error,
	perform func(context.Context, wire.Operation) ([]byte, error),
) error {
	for _, pt := range t.PartitionList() {
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

// Execute executes op for the partitions that it names. It returns ErrNoLeader if this node does not lead all of them;
// what only concerns copies it executes for those of this node.
func (l *Local) Execute(ctx context.Context, op wire.Operation) ([]byte, error) {
	switch op.Kind {
	case wire.OpVerify:
		return wire.EncodeResult(l.VerifyHere(op))
	case wire.OpCopy:
		return wire.EncodeResult(l.CopyHere(op))
	}
	epochs, ok := l.assignedEpochs(op.Partitions)
	if !ok {
		return nil, errs.ErrNoLeader
	}
	return l.performIn(ctx, op, epochs)
}

// performIn calls perform, given that this node served the partitions of op in these epochs a moment ago. If the node
// no longer serves all of them in these epochs after perform has succeeded, perform may have skipped some: then
// performIn returns ErrNoLeader, and the requester looks up the leaders again.
func (l *Local) performIn(ctx context.Context, op wire.Operation, epochs []segment.Epoch) ([]byte, error) {
	if err := l.checkPartitionCount(op); err != nil {
		return nil, err
	}
	result, err := l.perform(ctx, op)
	if err != nil {
		return nil, err
	}
	if err := l.checkPartitionCount(op); err != nil {
		return nil, err
	}
	parts := l.t.PartitionList()
	for i, n := range op.Partitions {
		if parts[n].ServingEpoch() != epochs[i] {
			return nil, errs.ErrNoLeader
		}
	}
	return result, nil
}

var errPartitionCount = errors.New("engine: the topic has got partitions that one of the nodes has not heard of yet")

// checkPartitionCount returns errPartitionCount for a change whose requester (op.Known) does not know all partitions of
// the topic. A new partition adopts the channels' state from the log of partition 0; it would miss a change that is
// made after that and does not include the new partition. So the leader of partition 0 must know of the new partition
// before it gives the state away. For this reason the node that adopts the state (OpState with Flag) also says how many
// partitions it knows, and is refused until the leader knows as many. A later leader of partition 0 knows the new
// partitions, because it was elected after they were made. A refused requester tries again.
func (l *Local) checkPartitionCount(op wire.Operation) error {
	switch op.Kind {
	case wire.OpState:
		if op.Flag && l.t.Partitions() < op.Known {
			return errPartitionCount
		}
	case wire.OpCreateChannel, wire.OpDeleteChannel, wire.OpPauseChannel, wire.OpSkipChannel, wire.OpEmptyChannel,
		wire.OpPauseTopic, wire.OpEmptyTopic, wire.OpConfigure:
		known := l.t.Partitions()
		if mt := l.t.env.Cluster.Rows.Snapshot().Topics[l.t.shared.ID]; mt != nil {
			known = max(known, mt.Partitions)
		}
		if known > op.Known {
			return errPartitionCount
		}
	}
	return nil
}

// perform executes op on this node. It returns no result for a channel that this node does not have: the requester
// takes a missing result for a missing channel. An operation of a newer version is an error, whether the channel is
// here or not; otherwise the requester would take the operation for done.
func (l *Local) perform(ctx context.Context, op wire.Operation) ([]byte, error) {
	if op.Settings != nil {
		if err := l.t.checkSettingsLevel(op.Settings); err != nil {
			return nil, err
		}
	}
	switch op.Kind {
	case wire.OpState:
		s := l.state()
		s.Ephemeral = l.ephemeralCount()
		for _, n := range op.Partitions {
			if op.AgeMs > 0 {
				count, last := dueAfterRetention(l.t.PartitionList()[n], time.Duration(op.AgeMs)*time.Millisecond)
				s.Early, s.LastDueMs = s.Early+count, max(s.LastDueMs, last)
			}
		}
		return wire.EncodeResult(s, nil)
	case wire.OpCreateChannel:
		if err := l.initPartitions(ctx, l.t.PartitionList()); err != nil {
			return nil, err
		}
		c, err := l.create(ctx, op.Channel, originOf(&op))
		if err != nil {
			return nil, err
		}
		return nil, l.createMissing(ctx, c, op)
	case wire.OpPauseTopic:
		return nil, l.pause(ctx, op.Flag)
	case wire.OpEmptyTopic:
		return nil, l.empty(ctx)
	case wire.OpPeek:
		if op.Channel == "" {
			return wire.EncodeResult(channel.PeekTopic(channelTopic{l.t}, op, l.t.env.options().ReadAheadBytes))
		}
	case wire.OpTrace:
		return wire.EncodeResult(l.traceLocal(ctx, op))
	case wire.OpOpenProducer:
		return wire.EncodeResult(l.openProducerLocal(ctx, op))
	case wire.OpProducers:
		return wire.EncodeResult(l.producersLocal(op), nil)
	case wire.OpRemoveProducer:
		return wire.EncodeResult(l.removeProducerLocal(ctx, op))
	case wire.OpDeleteChannel:
		return fanout.DeletionResult(l.deleteNamed(ctx, op.Channel))
	case wire.OpPauseChannel, wire.OpSkipChannel, wire.OpEmptyChannel, wire.OpConfigure:
		// A new partition may have asked for the channels' state already. It must have that state before the change, or it
		// would get the old one after it.
		if err := l.lockInitialized(ctx); err != nil {
			return nil, err
		}
		l.changing.Unlock()
	case wire.OpResolveSeek, wire.OpSeek, wire.OpPending, wire.OpDeferred, wire.OpConfirm, wire.OpSettings,
		wire.OpRedrive:
	default:
		return nil, fmt.Errorf("engine: this version does not know the operation %q", op.Kind)
	}
	c, ok := l.t.LookupChannel(op.Channel)
	if !ok {
		return nil, nil // the missing result says that the channel is not here: see Channel.ask
	}
	return c.perform(ctx, op)
}

// perform executes an operation of a channel on this node; Topic.perform has checked its kind. Unless it fails it
// returns a result, if only true, because a missing result means that the channel is not here.
func (c *Channel) perform(ctx context.Context, op wire.Operation) ([]byte, error) {
	if op.Kind == wire.OpSettings {
		return wire.EncodeResult(c.Settings(), nil)
	}
	return c.local.Perform(ctx, op)
}

// assignedEpochs returns the epochs in which this node's channels serve these partitions. ok is false if they do not
// serve all of them. It takes changing.
func (l *Local) assignedEpochs(numbers []uint32) (epochs []segment.Epoch, ok bool) {
	l.t.env.Host.Lock(&l.changing)
	defer l.changing.Unlock()
	parts := l.t.PartitionList()
	for _, n := range numbers {
		if int(n) >= len(parts) { // the requester knows of more
			return nil, false
		}
		epoch := l.adoption.Epoch(int(n), parts[n].ServingEpoch())
		if epoch == 0 {
			return nil, false
		}
		epochs = append(epochs, epoch)
	}
	return epochs, true
}

// createMissing creates the channel in those of op's partitions whose log lacks it, or where its creation is not
// committed. This happens when this node has begun to lead a partition after it got the channel.
func (l *Local) createMissing(ctx context.Context, c *Channel, op wire.Operation) error {
	var err error
	for _, n := range op.Partitions {
		if pt := l.t.PartitionList()[n]; !c.local.CommittedIn(int(n)) {
			err = errors.Join(err, l.createIn(ctx, pt, c, originOf(&op)))
		}
	}
	return err
}

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
