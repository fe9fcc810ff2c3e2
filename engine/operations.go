package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// operations sends requests to other nodes and executes theirs. mu guards next, sent and shut; it is a leaf. Any
// goroutine may call ask; the readers of the connections call handleRequest, handleAck and peerLost. After a crash the
// requester gets errOperationLost and repeats the request.
type operations struct {
	cn   *clusterNode
	mu   lock.Mutex[lock.Operations]
	next uint64
	sent map[uint64]*sentOperation
	shut bool
}

type sentOperation struct {
	to     replicate.NodeID
	done   chan error
	result []byte // set before done gets a nil
}

var errOperationLost = errors.New("engine: the connection to the partition's leader was lost")

// onAllLeaders executes op on every node that leads a partition of t, and returns when all of them have committed it.
// While leaders change it repeats op, until ctx ends or Options.PublishTimeout is over.
func (cn *clusterNode) onAllLeaders(ctx context.Context, t *Topic, op wire.Operation) error {
	return cn.gather(ctx, t, op, nil, nil)
}

// gather is onAllLeaders for an operation with a result. It passes the result of each leader to take, unless take is
// nil; the results together cover every partition once. If only is not nil, op concerns only the partitions that it
// selects.
func (cn *clusterNode) gather(
	ctx context.Context, t *Topic, op wire.Operation, only func(*partition) bool, take func([]byte) error,
) error {
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.e.opts.PublishTimeout)
	defer cancel()
	op.Topic = t.uuid
	done := map[*partition]bool{} // every partition that is known so far; true: nothing is left to do for it
	var last error
	for pause := minOperationPause; ; pause = min(2*pause, maxOperationPause) {
		news := cn.e.news.Next()
		for _, pt := range t.partitions() {
			if _, known := done[pt]; !known {
				done[pt] = only != nil && !only(pt)
			}
		}
		left, err := cn.tryLeaders(ctx, t, op, done, take)
		if err != nil {
			last = err
		}
		switch {
		case left == 0:
			return nil
		case final(err):
			return err
		}
		cn.e.host.EitherUntil(cn.e.host.Mono()+pause, news, ctx.Done())
		switch {
		case cn.ctx.Err() != nil:
			return ErrClosed
		case ctx.Err() != nil:
			return errors.Join(last, fmt.Errorf("%w: not every leader of topic %s did it in time", ErrNoLeader, t.name))
		}
	}
}

// A round of asking leaders follows the one before when this node hears of a change, or after a pause: a leader on
// another node may begin to serve without a word. The pause doubles from round to round.
const (
	minOperationPause = 3 * time.Millisecond // an election takes some milliseconds
	maxOperationPause = 50 * time.Millisecond
)

// tryLeaders asks the leaders of the partitions that are not done, once; left is how many are not done afterwards. What
// one leader has committed, every later leader has too, so a change of leader undoes nothing.
func (cn *clusterNode) tryLeaders(
	ctx context.Context, t *Topic, op wire.Operation, done map[*partition]bool, take func([]byte) error,
) (left int, last error) {
	byNode := map[replicate.NodeID][]*partition{}
	op.Known = len(done)
	for _, pt := range t.partitions()[:op.Known] {
		if done[pt] {
			continue
		}
		left++
		if to := replicate.NodeID(pt.rep.target.Load()); to != 0 {
			byNode[to] = append(byNode[to], pt)
		}
	}
	for _, to := range slices.Sorted(maps.Keys(byNode)) {
		op.Partitions = op.Partitions[:0:0]
		for _, pt := range byNode[to] {
			op.Partitions = append(op.Partitions, pt.number)
		}
		var err error
		var result []byte
		if to == cn.self.ID {
			result, err = t.locally(ctx, op)
		} else {
			result, err = cn.ops.ask(ctx, to, op)
		}
		if err == nil && take != nil && len(result) > 0 {
			err = take(result)
		}
		if err != nil {
			if last = err; final(err) {
				return left, err
			}
			continue
		}
		for _, pt := range byNode[to] {
			done[pt] = true
			left--
		}
	}
	return left, last
}

// finalErrors are errors that a repetition does not change.
var finalErrors = []error{ErrVersion, ErrSettings, ErrDisk, ErrNoChannel}

func final(err error) bool {
	return slices.ContainsFunc(finalErrors, func(f error) bool { return errors.Is(err, f) })
}

// ask sends op to a node and waits for its answer. No lock is held.
func (o *operations) ask(ctx context.Context, to replicate.NodeID, op wire.Operation) ([]byte, error) {
	body, err := wire.EncodeOperation(&op)
	if err != nil {
		return nil, err
	}
	s := &sentOperation{to: to, done: make(chan error, 1)}
	o.mu.Lock()
	if o.sent == nil {
		o.sent = map[uint64]*sentOperation{}
	}
	if o.shut {
		o.mu.Unlock()
		return nil, ErrClosed
	}
	o.next++
	id := o.next
	o.sent[id] = s
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		delete(o.sent, id)
		o.mu.Unlock()
	}()
	if err := o.cn.net.TrySend(to, &netproto.Frame{Type: netproto.TypeForwardOp, Request: id, Head: body}); err != nil {
		return nil, err
	}
	err, ok := o.cn.e.host.Result(s.done, ctx.Done())
	switch {
	case !ok:
		return nil, ctx.Err()
	case err != nil:
		return nil, err
	}
	return s.result, nil
}

// handleRequest executes a request of another node on a goroutine of its own, because it may wait for a commit.
func (o *operations) handleRequest(from replicate.NodeID, f *netproto.Received) {
	request := f.Header.Request
	op, err := wire.DecodeOperation(f.Payload)
	if err != nil {
		o.reply(from, request, nil, ErrUnknown)
		return
	}
	o.cn.spawn(func() {
		ctx, cancel := o.cn.e.host.WithTimeout(o.cn.ctx, o.cn.e.opts.PublishTimeout)
		defer cancel()
		if op.Kind == wire.OpFaults {
			result, err := marshal(o.cn.e.FaultsOf(ctx, o.cn.self.ID))
			o.reply(from, request, result, err)
			return
		}
		t := o.cn.e.topicByID(op.Topic)
		if t == nil {
			o.reply(from, request, nil, ErrNoTopic)
			return
		}
		var result []byte
		var err error
		if op.Kind == wire.OpVerify {
			result, err = marshal(t.verifyLocal(op))
		} else {
			result, err = t.locally(ctx, op)
		}
		o.reply(from, request, result, err)
	})
}

func (o *operations) reply(to replicate.NodeID, request uint64, result []byte, err error) {
	f := operationAck(o.cn.e.Level(), request, result, err)
	o.cn.forward.reply(to, &f)
}

// operationAck builds the answer to an operation, in the form of a feature level.
func operationAck(level int, request uint64, result []byte, err error) netproto.Frame {
	f := netproto.Frame{Type: netproto.TypeForwardOpAck, Request: request, Head: result}
	if err != nil {
		f.Status, f.Head = netproto.StatusRejected, []byte(err.Error())
		if level >= reasonLevel {
			f.Stream = uint32(numberOf(wire.AnswerOperation, err))
		}
	}
	return f
}

func (o *operations) handleAck(f *netproto.Received) {
	o.mu.Lock()
	s := o.sent[f.Header.Request]
	delete(o.sent, f.Header.Request)
	o.mu.Unlock()
	if s == nil {
		return
	}
	var err error
	if f.Header.Status != netproto.StatusOK {
		err = operationErrorOf(f.Header.Stream, string(f.Payload))
	} else {
		s.result = bytes.Clone(f.Payload)
	}
	select {
	case s.done <- err:
	default:
	}
}

// peerLost fails the requests that were sent to a node whose connection is lost; the requesters repeat them.
func (o *operations) peerLost(node replicate.NodeID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.sent {
		if s.to == node {
			select {
			case s.done <- errOperationLost:
			default:
			}
		}
	}
}

// close fails all requests, and those to come, with ErrClosed.
func (o *operations) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shut = true
	for _, s := range o.sent {
		select {
		case s.done <- ErrClosed:
		default:
		}
	}
}

// onLeaders executes op in the partitions that only selects (nil: all), on whichever nodes lead them, and passes the
// results to take.
func (t *Topic) onLeaders(
	ctx context.Context, op wire.Operation, only func(*partition) bool, take func([]byte) error,
) error {
	return t.e.members.gather(ctx, t, op, only, take)
}

// performHere executes op with perform on this node, in the partitions that only selects (nil: all), and passes the
// result to take (nil: nobody wants it).
func (t *Topic) performHere(
	ctx context.Context, op wire.Operation, only func(*partition) bool, take func([]byte) error,
	perform func(context.Context, wire.Operation) ([]byte, error),
) error {
	for _, pt := range t.partitions() {
		if only == nil || only(pt) {
			op.Partitions = append(op.Partitions, pt.number)
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
		if parts[n].rep.serving() != epochs[i] {
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
		if mt := t.e.cluster.store.Snapshot().Topics[t.uuid]; mt != nil {
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
			return marshal(t.peekLocal(ctx, op))
		}
	case wire.OpDeleteChannel:
		return deletionOf(t.deleteChannelLocal(ctx, op.Channel))
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
	switch op.Kind {
	case wire.OpPauseChannel:
		return marshal(true, c.pauseLocal(ctx, op.Flag))
	case wire.OpSkipChannel:
		return marshal(true, c.skipLocal(ctx, op.Flag))
	case wire.OpEmptyChannel:
		return marshal(true, c.emptyLocal(ctx))
	case wire.OpResolveSeek:
		return marshal(c.resolveSeek(op))
	case wire.OpSeek:
		return marshal(true, c.seekLocal(ctx, op))
	case wire.OpPeek:
		return marshal(c.peekLocal(ctx, op))
	case wire.OpPending:
		return marshal(c.pendingLocal(op))
	case wire.OpDeferred:
		return marshal(c.deferredLocal(op))
	case wire.OpConfirm:
		return marshal(true, c.confirmLocal(ctx, op))
	case wire.OpSettings:
		return marshal(c.Settings(), nil)
	case wire.OpConfigure:
		return marshal(c.configureLocal(ctx, op))
	}
	panic(fmt.Sprintf("BUG: engine: %q is not an operation of a channel", op.Kind))
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
		epoch := t.adoption.Epoch(int(n), parts[n].rep.serving())
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
		if pt := t.partitions()[n]; !c.isCommittedIn(int(n)) {
			err = errors.Join(err, t.createIn(ctx, pt, c))
		}
	}
	return err
}
