package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// link is one connection to a node, after the node has accepted the client's token. It gives each answer to the one who
// asked. It is the connection's Handler.
type link struct {
	node   *node
	conn   *netproto.Conn
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	// window is how many bytes of batches the node takes without having answered; window.size is in its Hello.
	window      *semaphore.Weighted
	windowBytes int64
	leaving     atomic.Bool // the node said GoAway
	renewing    atomic.Bool // doubtToken's goroutine runs
	era         netproto.ID // see eraOf

	mu    sync.Mutex // guards the rest
	token string     // that the node has accepted
	calls map[uint64]call
	next  uint64
	ended bool
}

// call is a request without a final answer.
type call struct {
	by     receiver
	window int64 // bytes of the window to give back
}

// receiver gets the answers to requests. Its methods run on the goroutine that reads, and must
// not block.
type receiver interface {
	// answer borrows f. It says whether more answers to the same request will follow.
	answer(l *link, f *netproto.Received) (more bool)
	// lost says that the connection ended before the last answer.
	lost(l *link, request uint64)
}

var errLinkEnded = errors.New("client: the connection has ended")

func newLink(n *node) *link {
	l := &link{node: n, calls: make(map[uint64]call)}
	l.ctx, l.cancel = context.WithCancel(n.ctx)
	return l
}

// register gives the next request to by.
func (l *link) register(by receiver, window int64) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 0, errLinkEnded
	}
	l.next++
	l.calls[l.next] = call{by, window}
	return l.next, nil
}

// forget removes a request, and returns its part of the window.
func (l *link) forget(request uint64) {
	l.mu.Lock()
	c, ok := l.calls[request]
	delete(l.calls, request)
	l.mu.Unlock()
	if ok && c.window > 0 {
		l.window.Release(c.window)
	}
}

// send sends f as a new request of by and returns its number. With an error, f was not taken, and by hears nothing.
func (l *link) send(ctx context.Context, f *netproto.Frame, by receiver, window int64) (uint64, error) {
	return l.sendFor(ctx, f, by, window, nil)
}

// roomWait makes of a context the one until which a frame waits for room.
type roomWait func(context.Context) (context.Context, context.CancelFunc)

// sendFor sends like send, but waits for room only as long as wait says, or until ctx ends if wait is nil.
func (l *link) sendFor(
	ctx context.Context, f *netproto.Frame, by receiver, window int64, wait roomWait,
) (uint64, error) {
	window = min(window, l.windowBytes)
	if window > 0 && !l.window.TryAcquire(window) {
		ctx, cancel := wait.of(ctx)
		defer cancel()
		if err := l.window.Acquire(ctx, window); err != nil {
			return 0, fmt.Errorf("client: the node has not answered %d bytes of batches: %w", l.windowBytes,
				context.Cause(ctx))
		}
	}
	request, err := l.register(by, window)
	if err != nil {
		if window > 0 {
			l.window.Release(window)
		}
		return 0, err
	}
	f.Request = request
	if err := l.conn.TrySend(f); err != nil {
		if errors.Is(err, netproto.ErrQueueFull) {
			ctx, cancel := wait.of(ctx)
			defer cancel()
			err = l.conn.Send(ctx, f)
		}
		if err != nil {
			l.forget(request)
			return 0, err
		}
	}
	return request, nil
}

func (w roomWait) of(ctx context.Context) (context.Context, context.CancelFunc) {
	if w == nil {
		return ctx, func() {}
	}
	return w(ctx)
}

// Frames is netproto's call for frames that arrived together.
func (l *link) Frames(c *netproto.Conn, frames []netproto.Received) error {
	for i := range frames {
		if err := l.frame(c, &frames[i]); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) frame(c *netproto.Conn, f *netproto.Received) error {
	switch f.Type {
	case wire.TypeGoAway:
		var m wire.Outcome
		if wire.Decode(f.Payload, &m) == nil {
			l.node.client.view.hint(m.Address)
		}
		l.leaving.Store(true)
		l.node.notify()
		return nil
	case wire.TypeMetadataReply:
		if f.Request == 0 {
			return l.node.client.view.learn(l, f.Payload, question{})
		}
	case wire.TypeAuthAck, wire.TypeProducer, wire.TypeProduced, wire.TypeRecords, wire.TypeReadEnd,
		wire.TypeSubscribed, wire.TypeDeliver, wire.TypeRefused, wire.TypeSynced, wire.TypeSubscribeEnd,
		wire.TypeDeliverOrdered, wire.TypeRecall,
		netproto.TypeError:
	default: // a later version may have more types, and must hear that this one does not know them
		return c.TrySend(&netproto.Frame{Type: netproto.TypeError, Status: netproto.StatusRejected, Request: f.Request})
	}
	if f.Status == netproto.StatusUnproven && f.Type != wire.TypeAuthAck {
		l.doubtToken()
	}
	l.mu.Lock()
	to, ok := l.calls[f.Request]
	l.mu.Unlock()
	if ok && !to.by.answer(l, f) {
		l.forget(f.Request)
	}
	return nil
}

// renewPause is the time from one look for a new token to the next one, for each connection.
const renewPause = time.Second

// doubtToken looks in the background whether there is a new token, because the node says that the one it has does not
// allow something: it may have been replaced since the connection began.
func (l *link) doubtToken() {
	if l.node.client.o.Token == nil || !l.renewing.CompareAndSwap(false, true) {
		return
	}
	l.node.client.goroutines.Go(func() { // node.run counts there, too, until the connection has ended
		defer l.renewing.Store(false)
		if err := l.renew(); err != nil && l.ctx.Err() == nil {
			l.node.client.o.Logger.Warn("cannot renew the token", "node", l.node.address, "error", err)
		}
		timer := time.NewTimer(renewPause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.ctx.Done():
		}
	})
}

// renew asks the application for the token, and gives it to the node if it is another one. If the node refuses that
// one, too, the connection ends.
func (l *link) renew() error {
	ctx, cancel := context.WithTimeout(l.ctx, connectTimeout)
	defer cancel()
	token, err := l.node.client.o.Token(ctx, l.node.address)
	l.mu.Lock()
	same := token == l.token
	l.mu.Unlock()
	if err != nil || same {
		return err
	}
	if err = l.prove(ctx, token); errors.Is(err, ErrUnauthorized) {
		l.conn.Abort(err)
	}
	return err
}

// prove gives the node a token.
func (l *link) prove(ctx context.Context, token string) error {
	if len(token) > wire.MaxTokenBytes {
		return because(ErrUnauthorized, errors.New("the token is too long"))
	}
	auth := wire.Auth{Token: token, Client: clientName}
	_, err := l.ask(ctx, wire.TypeAuth, wire.Append(nil, &auth))
	var answer *StatusError
	if errors.As(err, &answer) && meaning(answer.Status) == verdictRefused {
		err = because(ErrUnauthorized, answer)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.token = token
	l.mu.Unlock()
	return nil
}

// Closed is netproto's last call.
func (l *link) Closed(_ *netproto.Conn, _ error) {
	l.mu.Lock()
	calls := l.calls
	l.calls, l.ended = nil, true
	l.mu.Unlock()
	l.cancel()
	for request, c := range calls {
		if c.window > 0 {
			l.window.Release(c.window)
		}
		c.by.lost(l, request)
	}
}

// alive says whether requests can still be sent.
func (l *link) alive() bool { return l != nil && l.ctx.Err() == nil }

// inquiry is a request with one answer that a goroutine waits for.
type inquiry struct {
	done    chan struct{}
	typ     netproto.Type
	status  netproto.Status
	payload []byte
	err     error
}

func (q *inquiry) answer(_ *link, f *netproto.Received) bool {
	q.typ, q.status, q.payload = f.Type, f.Status, append([]byte(nil), f.Payload...)
	close(q.done)
	return false
}

func (q *inquiry) lost(*link, uint64) {
	q.err = errLinkEnded
	close(q.done)
}

// ask sends a request and waits for its answer. The error is one of the connection, of ctx, or says what the node
// answered if that is not OK.
func (l *link) ask(ctx context.Context, typ netproto.Type, payload []byte) ([]byte, error) {
	q := &inquiry{done: make(chan struct{})}
	request, err := l.send(ctx, &netproto.Frame{Type: typ, Head: payload}, q, 0)
	if err != nil {
		return nil, err
	}
	select {
	case <-q.done:
	case <-ctx.Done():
		l.forget(request)
		return nil, context.Cause(ctx)
	}
	if q.err == nil && q.status != netproto.StatusOK {
		q.err = errorOf(q.status, textOf(q.typ, q.payload))
	}
	return q.payload, q.err
}

// outcomeOf is what the node says in an Outcome, or in a netproto.TypeError, which has only a text.
func outcomeOf(typ netproto.Type, payload []byte) (o wire.Outcome) {
	if typ == netproto.TypeError {
		return wire.Outcome{Text: string(payload[:min(len(payload), netproto.MaxTextBytes)])}
	}
	if wire.Decode(payload, &o) != nil {
		return wire.Outcome{}
	}
	return o
}

// textOf is what the node says to people.
func textOf(typ netproto.Type, payload []byte) string {
	o := outcomeOf(typ, payload)
	return o.Text
}
