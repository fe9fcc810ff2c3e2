package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// operation is something that every leader of a topic has to do with its partitions. Each repeats harmlessly.
type operation struct {
	Kind    operationKind `json:"kind"`
	Topic   uuid.UUID     `json:"topic"`
	Channel string        `json:"channel,omitempty"`
	Flag    bool          `json:"flag,omitempty"`

	Seek     *SeekTo          `json:"seek,omitempty"`
	Targets  []ID             `json:"targets,omitempty"` // opSeek: where to, at most one per partition
	IDs      []ID             `json:"ids,omitempty"`     // opConfirm
	Peek     *peekRequest     `json:"peek,omitempty"`
	Count    int              `json:"count,omitempty"`
	Verify   *verifyRequest   `json:"verify,omitempty"`
	Settings *ChannelSettings `json:"settings,omitempty"`

	// Known is how many partitions the topic has for who asks: see outgrown.
	Known int `json:"known,omitempty"`

	// Partitions are those that the node should lead. If it does not it refuses, and who asked looks again.
	Partitions []uint32 `json:"partitions"`
}

type operationKind string

const (
	opCreateChannel operationKind = "create-channel"
	opDeleteChannel operationKind = "delete-channel"
	opPauseChannel  operationKind = "pause-channel" // Flag: or unpause
	opSkipChannel   operationKind = "skip-channel"
	opEmptyChannel  operationKind = "empty-channel"
	opPauseTopic    operationKind = "pause-topic" // Flag: or unpause
	opEmptyTopic    operationKind = "empty-topic"

	opResolveSeek operationKind = "where-to"  // Seek. Result: []ID
	opSeek        operationKind = "seek"      // Targets
	opPeek        operationKind = "peek"      // Peek; Channel or, if empty, the topic's log. Result: []PeekedMessage
	opPending     operationKind = "pending"   // Count. Result: []PendingMessage
	opDeferred    operationKind = "deferred"  // Count. Result: []PendingMessage
	opConfirm     operationKind = "confirm"   // IDs: they count as confirmed, whoever has them
	opSettings    operationKind = "settings"  // Result: ChannelSettings
	opConfigure   operationKind = "configure" // Settings. Result: ChannelSettings
	opState       operationKind = "state"     // Result: topicState
	opVerify      operationKind = "verify"    // Verify, of one partition, led or not. Result: verifyAnswer
	opFaults      operationKind = "faults"    // of the node; no topic. Result: []Fault
)

const maxOperationBytes = 1 << 20 // the numbers of all partitions of a topic

// operations carries them to other nodes.
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
	result json.RawMessage // set before a nil comes in done
}

var errOperationLost = errors.New("engine: the connection to the partition's leader was lost")

// onAllLeaders does op on this node and on every other node that leads a partition of t, and returns when all of them have it committed. It
// repeats itself while leaders change, until ctx ends or Options.PublishTimeout is over.
func (cn *clusterNode) onAllLeaders(ctx context.Context, t *Topic, op operation) error {
	return cn.gather(ctx, t, op, nil, nil)
}

// gather is everywhere for an operation with a result: take, if not nil, gets that of each leader, which speaks of every partition once. With
// only it is about the partitions that only chooses.
func (cn *clusterNode) gather(ctx context.Context, t *Topic, op operation, only func(*partition) bool, take func(json.RawMessage) error) error {
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.e.opts.PublishTimeout)
	defer cancel()
	op.Topic = t.uuid
	done := map[*partition]bool{} // false: it is known, and not done
	var last error
	for {
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
		switch err := cn.sleep(ctx, operationPause); {
		case errors.Is(err, ErrClosed):
			return ErrClosed
		case err != nil:
			return errors.Join(last, fmt.Errorf("%w: not every leader of topic %s did it in time", ErrNoLeader, t.name))
		}
	}
}

// operationPause is between two rounds of asking leaders: a new one is there after some milliseconds.
const operationPause = 3 * time.Millisecond

// tryLeaders asks the leaders of the partitions that are not done; left counts those that are left then. What a leader has committed
// the next one has, too.
func (cn *clusterNode) tryLeaders(ctx context.Context, t *Topic, op operation, done map[*partition]bool, take func(json.RawMessage) error) (left int, last error) {
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
		var result json.RawMessage
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

// finalErrors are answers that asking again does not change.
var finalErrors = []error{ErrVersion, ErrSettings, ErrDisk, ErrNoChannel}

func final(err error) bool {
	return slices.ContainsFunc(finalErrors, func(f error) bool { return errors.Is(err, f) })
}

// ask sends op to a node and waits for its answer.
func (o *operations) ask(ctx context.Context, to replicate.NodeID, op operation) (json.RawMessage, error) {
	body, err := json.Marshal(op)
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

// handleRequest does what another node asks for, on a goroutine: it may wait for a commit.
func (o *operations) handleRequest(from replicate.NodeID, f *netproto.Received) {
	var op operation
	request := f.Header.Request
	if len(f.Payload) > maxOperationBytes || json.Unmarshal(f.Payload, &op) != nil {
		o.reply(from, request, nil, ErrUnknown)
		return
	}
	o.cn.spawn(func() {
		ctx, cancel := o.cn.e.host.WithTimeout(o.cn.ctx, o.cn.e.opts.PublishTimeout)
		defer cancel()
		if op.Kind == opFaults {
			result, err := marshal(o.cn.e.FaultsOf(ctx, o.cn.self.ID))
			o.reply(from, request, result, err)
			return
		}
		t := o.cn.e.topicByID(op.Topic)
		if t == nil {
			o.reply(from, request, nil, ErrNoTopic)
			return
		}
		var result json.RawMessage
		var err error
		if op.Kind == opVerify {
			result, err = marshal(t.verifyLocal(op))
		} else {
			result, err = t.locally(ctx, op)
		}
		o.reply(from, request, result, err)
	})
}

func (o *operations) reply(to replicate.NodeID, request uint64, result json.RawMessage, err error) {
	f := operationAck(o.cn.e.Level(), request, result, err)
	o.cn.forward.reply(to, &f)
}

// operationAck is the answer to an operation, at a feature level.
func operationAck(level int, request uint64, result json.RawMessage, err error) netproto.Frame {
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

// peerLost ends what a node was asked for; who asked repeats it.
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

// onLeaders does op in every partition that only chooses (nil: all), wherever it is led, and hands the results over.
func (t *Topic) onLeaders(ctx context.Context, op operation, only func(*partition) bool, take func(json.RawMessage) error) error {
	if cn := t.e.cluster; cn != nil {
		return cn.gather(ctx, t, op, only, take)
	}
	for _, pt := range t.partitions() {
		if only == nil || only(pt) {
			op.Partitions = append(op.Partitions, pt.number)
		}
	}
	result, err := t.perform(ctx, op)
	if err == nil && take != nil && len(result) > 0 {
		err = take(result)
	}
	return err
}

// locally does op to the partitions that it names, which this node leads, or refuses it.
func (t *Topic) locally(ctx context.Context, op operation) (json.RawMessage, error) {
	epochs, ok := t.assignedEpochs(op.Partitions)
	if !ok {
		return nil, ErrNoLeader
	}
	return t.performIn(ctx, op, epochs)
}

// performIn is perform for who served the partitions in epochs a moment ago. If it does not any more, perform may have passed them over: it is not
// done, whatever it says, and who asked looks again.
func (t *Topic) performIn(ctx context.Context, op operation, epochs []segment.Epoch) (json.RawMessage, error) {
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

// checkPartitionCount refuses a change that was asked for by a node that does not know all partitions of the topic: a new one has taken what the log of partition
// 0 said, and would not hear of a change after that. So who adopts that state says how many partitions there are, and from then on, at the latest, the
// leader of partition 0 knows; one that leads after it was elected after they were made. Who asked asks again when it has heard.
func (t *Topic) checkPartitionCount(op operation) error {
	switch op.Kind {
	case opState:
		if op.Flag && t.Partitions() < op.Known {
			return errPartitionCount
		}
	case opCreateChannel, opDeleteChannel, opPauseChannel, opSkipChannel, opEmptyChannel, opPauseTopic, opEmptyTopic, opConfigure:
		known := t.Partitions()
		if cn := t.e.cluster; cn != nil {
			if mt := cn.store.Snapshot().Topics[t.uuid]; mt != nil {
				known = max(known, mt.Partitions)
			}
		}
		if known > op.Known {
			return errPartitionCount
		}
	}
	return nil
}

func (t *Topic) perform(ctx context.Context, op operation) (json.RawMessage, error) {
	switch op.Kind {
	case opState:
		return marshal(t.stateLocal(), nil)
	case opCreateChannel:
		if err := t.initPartitions(ctx, t.partitions()); err != nil {
			return nil, err
		}
		c, err := t.createChannelLocal(ctx, op.Channel)
		if err != nil {
			return nil, err
		}
		return nil, t.createMissing(ctx, c, op.Partitions)
	case opPauseTopic:
		return nil, t.pauseLocal(ctx, op.Flag)
	case opEmptyTopic:
		return nil, t.emptyLocal(ctx)
	case opPeek:
		if op.Channel == "" {
			return marshal(t.peekLocal(ctx, op))
		}
	case opDeleteChannel:
		return deletionOf(t.deleteChannelLocal(ctx, op.Channel))
	}
	c, ok := t.LookupChannel(op.Channel)
	if !ok {
		return nil, nil // it is not there, or not any more: no result says so, see Channel.ask
	}
	return c.perform(ctx, op)
}

// perform has a result whatever it does.
func (c *Channel) perform(ctx context.Context, op operation) (json.RawMessage, error) {
	switch op.Kind {
	case opPauseChannel:
		return marshal(true, c.pauseLocal(ctx, op.Flag))
	case opSkipChannel:
		return marshal(true, c.skipLocal(ctx, op.Flag))
	case opEmptyChannel:
		return marshal(true, c.emptyLocal(ctx))
	case opResolveSeek:
		return marshal(c.resolveSeek(op))
	case opSeek:
		return marshal(true, c.seekLocal(ctx, op))
	case opPeek:
		return marshal(c.peekLocal(ctx, op))
	case opPending:
		return marshal(c.pendingLocal(op))
	case opDeferred:
		return marshal(c.deferredLocal(op))
	case opConfirm:
		return marshal(true, c.confirmLocal(ctx, op))
	case opSettings:
		return marshal(c.Settings(), nil)
	case opConfigure:
		return marshal(c.configureLocal(ctx, op))
	}
	return nil, fmt.Errorf("engine: this version does not know the operation %q", op.Kind)
}

// marshal is the result of an operation as it travels.
func marshal(result any, err error) (json.RawMessage, error) {
	if err != nil {
		return nil, err
	}
	return json.Marshal(result)
}

// about says whether the operation is meant for a partition.
func (op *operation) about(number uint32) bool { return slices.Contains(op.Partitions, number) }

// assignedEpochs are the epochs in which the channels on this node have all these partitions; false: they have not.
func (t *Topic) assignedEpochs(numbers []uint32) (epochs []segment.Epoch, ok bool) {
	t.e.host.Lock(&t.changing)
	defer t.changing.Unlock()
	parts := t.partitions()
	for _, n := range numbers {
		if int(n) >= len(t.assigned) || t.assigned[n] == 0 || t.assigned[n] != parts[n].rep.serving() {
			return nil, false
		}
		epochs = append(epochs, t.assigned[n])
	}
	return epochs, true
}

// createMissing writes the channel into the partitions that do not have it, or not for good: one may have come to this node after the channel.
func (t *Topic) createMissing(ctx context.Context, c *Channel, numbers []uint32) error {
	var err error
	for _, n := range numbers {
		if pt := t.partitions()[n]; !c.isCommittedIn(int(n)) {
			err = errors.Join(err, t.createIn(ctx, pt, c))
		}
	}
	return err
}
