package fanout

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"penstock/internal/lock"
	"penstock/internal/node/errs"
	"penstock/internal/node/platform"
	"penstock/internal/node/reason"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// Env is what an Operations needs of its node.
type Env struct {
	Host    platform.Host
	Peers   *platform.Peers
	Timeout func() time.Duration // of one operation: Options.PublishTimeout of now
	News    *platform.Notice     // raised when leaders change
	First   uint64               // number of the first request; no earlier process may have used it
	Level   func() int           // the feature level that is in force
	// Execute executes an operation of another node. It may wait for commits.
	Execute func(ctx context.Context, op wire.Operation) (result []byte, err error)
}

// Operations sends requests to other nodes and executes theirs. mu guards next, sent and shut; it is a leaf. Any
// goroutine may call Ask and Gather; the connections' readers call HandleRequest, HandleAck and PeerLost. If the node
// that executes a request crashes, the requester gets errLost and repeats the request.
type Operations struct {
	n     Env
	host  platform.Host
	peers *platform.Peers

	mu   lock.Mutex[lock.Operations]
	next uint64
	sent map[uint64]*request
	shut bool
}

// request is a request that waits for its answer. Operations.mu guards the table that holds it. The goroutine in Ask
// creates the request and reads the result.
type request struct {
	to     replicate.NodeID
	done   chan error
	result []byte // set before done gets a nil
}

var errLost = errors.New("engine: the connection to the partition's leader was lost")

// reasonLevel is the feature level from which a ForwardOpAck carries the number of its error. Below it, only the text
// identifies the error. Versions that do not know the numbers ignore the field, so such a version may be in a cluster
// of any level.
const reasonLevel = 2

// New returns the Operations of a node. Nothing may be asked before the node has joined.
func New(n Env) *Operations {
	return &Operations{n: n, host: n.Host, peers: n.Peers, next: n.First, sent: map[uint64]*request{}}
}

// Ask sends op to a node and waits for its answer. The caller holds no lock.
func (o *Operations) Ask(ctx context.Context, to replicate.NodeID, op wire.Operation) ([]byte, error) {
	body, err := wire.EncodeOperation(&op)
	if err != nil {
		return nil, err
	}
	r := &request{to: to, done: make(chan error, 1)}
	o.mu.Lock()
	if o.shut {
		o.mu.Unlock()
		return nil, errs.ErrClosed
	}
	o.next++
	id := o.next
	o.sent[id] = r
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		delete(o.sent, id)
		o.mu.Unlock()
	}()
	if err := o.peers.TrySend(to, &netproto.Frame{Type: netproto.TypeForwardOp, Request: id, Head: body}); err != nil {
		return nil, err
	}
	err, ok := o.host.Result(r.done, ctx.Done())
	switch {
	case !ok:
		return nil, ctx.Err()
	case err != nil:
		return nil, err
	}
	return r.result, nil
}

// HandleRequest executes a request of another node on a goroutine of its own, because it may wait for a commit.
func (o *Operations) HandleRequest(from replicate.NodeID, f *netproto.Received) {
	id := f.Header.Request
	op, err := wire.DecodeOperation(f.Payload)
	if err != nil {
		o.reply(from, id, nil, errs.ErrUnknown)
		return
	}
	o.peers.Spawn(func() {
		ctx, cancel := o.host.WithTimeout(o.peers.Ctx, o.n.Timeout())
		defer cancel()
		result, err := o.n.Execute(ctx, op)
		o.reply(from, id, result, err)
	})
}

func (o *Operations) reply(to replicate.NodeID, request uint64, result []byte, err error) {
	f := ack(o.n.Level(), request, result, err)
	o.peers.Reply(to, &f)
}

// ack builds the answer to a request, in the format of the feature level.
func ack(level int, request uint64, result []byte, err error) netproto.Frame {
	f := netproto.Frame{Type: netproto.TypeForwardOpAck, Request: request, Head: result}
	if err != nil {
		f.Status, f.Head = netproto.StatusRejected, []byte(err.Error())
		if level >= reasonLevel {
			f.Stream = uint32(reason.Number(wire.AnswerOperation, err))
		}
	}
	return f
}

// HandleAck handles another node's answer.
func (o *Operations) HandleAck(f *netproto.Received) {
	o.mu.Lock()
	r := o.sent[f.Header.Request]
	delete(o.sent, f.Header.Request)
	o.mu.Unlock()
	if r == nil {
		return
	}
	var err error
	if f.Header.Status != netproto.StatusOK {
		err = reason.OfOperation(f.Header.Stream, string(f.Payload))
	} else {
		r.result = bytes.Clone(f.Payload)
	}
	r.end(err)
}

// end lets Ask return err, unless the request was ended before.
func (r *request) end(err error) {
	select {
	case r.done <- err:
	default:
	}
}

// PeerLost fails the requests that were sent to a node whose connection is lost; the requesters repeat them.
func (o *Operations) PeerLost(node replicate.NodeID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.endAll(errLost, func(r *request) bool { return r.to == node })
}

// endAll fails the requests that which selects, in the order in which they were made: their goroutines continue in that
// order, and a simulation must be repeatable. mu is held.
func (o *Operations) endAll(why error, which func(*request) bool) {
	for _, id := range slices.Sorted(maps.Keys(o.sent)) {
		if r := o.sent[id]; which(r) {
			r.end(why)
		}
	}
}

// Close fails all present and later requests with errs.ErrClosed.
func (o *Operations) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shut = true
	o.endAll(errs.ErrClosed, func(*request) bool { return true })
}
