package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"penstock/netproto"
	"penstock/replicate"
)

// operation is something that every leader of a topic has to do with its partitions. Each repeats harmlessly.
type operation struct {
	Kind    operationKind `json:"kind"`
	Topic   uuid.UUID     `json:"topic"`
	Channel string        `json:"channel,omitempty"`
	Flag    bool          `json:"flag,omitempty"`
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
)

const maxOperationBytes = 1 << 20 // the numbers of all partitions of a topic

// operations carries them to other nodes.
type operations struct {
	cn   *clusterNode
	mu   sync.Mutex
	next uint64
	sent map[uint64]*sentOperation
	shut bool
}

type sentOperation struct {
	to   replicate.NodeID
	done chan error
}

var errOperationLost = errors.New("engine: the connection to the partition's leader was lost")

// everywhere does op on this node and on every other node that leads a partition of t, and returns when all of them have it committed. It
// repeats itself while leaders change, until ctx ends or Options.PublishTimeout is over.
func (cn *clusterNode) everywhere(ctx context.Context, t *Topic, op operation) error {
	ctx, cancel := cn.e.withTimeout(ctx, cn.e.opts.PublishTimeout)
	defer cancel()
	op.Topic = t.uuid
	done := map[*partition]bool{}
	var last error
	for {
		left, err := cn.everyLeader(ctx, t, op, done)
		if err != nil {
			last = err
		}
		if left == 0 {
			return nil
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

// everyLeader asks the leaders of the partitions that are not done; left counts those that are left then. What a leader has committed
// the next one has, too.
func (cn *clusterNode) everyLeader(ctx context.Context, t *Topic, op operation, done map[*partition]bool) (left int, last error) {
	byNode := map[replicate.NodeID][]*partition{}
	for _, pt := range t.partitions() {
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
		if to == cn.self.ID {
			err = t.locally(ctx, op)
		} else {
			err = cn.ops.ask(ctx, to, op)
		}
		if err != nil {
			last = err
			continue
		}
		for _, pt := range byNode[to] {
			done[pt] = true
			left--
		}
	}
	return left, last
}

// ask sends op to a node and waits for its answer.
func (o *operations) ask(ctx context.Context, to replicate.NodeID, op operation) error {
	body, err := json.Marshal(op)
	if err != nil {
		return err
	}
	s := &sentOperation{to: to, done: make(chan error, 1)}
	o.mu.Lock()
	if o.sent == nil {
		o.sent = map[uint64]*sentOperation{}
	}
	if o.shut {
		o.mu.Unlock()
		return ErrClosed
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
		return err
	}
	err, ok := o.cn.e.result(s.done, ctx.Done())
	if !ok {
		return ctx.Err()
	}
	return err
}

// serve does what another node asks for, on a goroutine: it may wait for a commit.
func (o *operations) serve(from replicate.NodeID, f *netproto.Received) {
	var op operation
	request := f.Header.Request
	if len(f.Payload) > maxOperationBytes || json.Unmarshal(f.Payload, &op) != nil {
		o.reply(from, request, ErrUnknown)
		return
	}
	o.cn.spawn(func() {
		ctx, cancel := o.cn.e.withTimeout(o.cn.ctx, o.cn.e.opts.PublishTimeout)
		defer cancel()
		t := o.cn.e.topicByID(op.Topic)
		if t == nil {
			o.reply(from, request, ErrNoTopic)
			return
		}
		o.reply(from, request, t.locally(ctx, op))
	})
}

func (o *operations) reply(to replicate.NodeID, request uint64, err error) {
	f := netproto.Frame{Type: netproto.TypeForwardOpAck, Request: request}
	if err != nil {
		f.Status, f.Head = netproto.StatusRejected, []byte(err.Error())
	}
	o.cn.forward.answer(to, &f)
}

func (o *operations) answered(f *netproto.Received) {
	var err error
	if f.Header.Status != netproto.StatusOK {
		err = errors.New(string(f.Payload))
	}
	o.mu.Lock()
	s := o.sent[f.Header.Request]
	o.mu.Unlock()
	if s != nil {
		select {
		case s.done <- err:
		default:
		}
	}
}

// lost ends what a node was asked for; who asked repeats it.
func (o *operations) lost(node replicate.NodeID) {
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

// locally does op to the partitions that it names, which this node leads, or refuses it.
func (t *Topic) locally(ctx context.Context, op operation) error {
	if !t.serves(op.Partitions) {
		return ErrNoLeader
	}
	switch op.Kind {
	case opCreateChannel:
		c, err := t.createChannelHere(ctx, op.Channel)
		if err != nil {
			return err
		}
		return t.createMissing(ctx, c, op.Partitions)
	case opPauseTopic:
		return t.pauseHere(ctx, op.Flag)
	case opEmptyTopic:
		return t.emptyHere(ctx)
	}
	c, ok := t.LookupChannel(op.Channel)
	if !ok {
		return nil // it is not there, or not any more
	}
	switch op.Kind {
	case opDeleteChannel:
		return t.deleteChannelHere(ctx, op.Channel)
	case opPauseChannel:
		return c.pauseHere(ctx, op.Flag)
	case opSkipChannel:
		return c.skipHere(ctx, op.Flag)
	case opEmptyChannel:
		return c.emptyHere(ctx)
	}
	return fmt.Errorf("engine: this version does not know the operation %q", op.Kind)
}

// serves says whether the channels on this node have all these partitions.
func (t *Topic) serves(numbers []uint32) bool {
	t.changing.lock(t.e)
	defer t.changing.unlock()
	parts := t.partitions()
	for _, n := range numbers {
		if int(n) >= len(t.served) || t.served[n] == 0 || t.served[n] != parts[n].rep.serving() {
			return false
		}
	}
	return true
}

// createMissing writes the channel into the partitions that do not have it: one may have come to this node after the channel.
func (t *Topic) createMissing(ctx context.Context, c *Channel, numbers []uint32) error {
	var err error
	for _, n := range numbers {
		if pt := t.partitions()[n]; !c.hasPartition(int(n)) {
			err = errors.Join(err, t.createIn(ctx, pt, c))
		}
	}
	return err
}
