package native

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/internal/clip"
	"penstock/internal/netio"
	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
	"penstock/internal/server/native/wire"
	"penstock/internal/shares"
	"penstock/internal/strangers"
	"penstock/netproto"
)

// errUnread ends the connection of a client that sends requests and does not read the answers.
var errUnread = errors.New("native: the client does not read its answers")

// task is a request in a session's inbox.
type task struct {
	request uint64
	bytes   int   // that it takes of the limits
	message any   // the decoded payload; nil: a Produce
	arrived int64 // ns from Server.started until it was read, if its duration is measured; else 0

	produce wire.Produce
	batch   []byte // in buf
	buf     *netproto.RecvBuf
}

// session is one connection and what its client has asked for. The connection's reader calls Frames, and the goroutine
// work does what may wait. Any goroutine may call the other methods. mu is a leaf: its holders call nothing.
type session struct {
	srv    *Server
	conn   *netproto.Conn // set by Opened, before anything else happens
	remote string
	// address is who pays for an Auth, and payer for all else, see pays.
	address string
	payer   atomic.Pointer[string]
	tls     *tls.ConnectionState // nil: not encrypted

	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	expiry *time.Timer // of a stranger; nil: it never was one

	mu    sync.Mutex
	phase phase
	inbox []task
	// serving says that work has taken requests out of the inbox, or the reader has (lone). Whoever has set it has the
	// session's turn: it serves requests, and uses the fields below spare.
	serving bool
	load    load // requests that are not answered yet
	// mostBytes is Options.MaxConnInFlightBytes as it was when the session was made.
	mostBytes int
	// topics are the names of which the client hears. Whoever has the turn changes them; a slice that is here stays as it
	// is.
	topics        []string
	creations     []task // of a Metadata whose topics are to be created; createTopics serves them if there are any
	readings      opened[reading]
	subscriptions opened[subscription]
	leaving       map[uint64]*channel.Consumer // see remember

	wake  chan struct{} // holds a token if inbox or stale may have something for work
	stale atomic.Bool   // the metadata may have changed
	// published has, by the names of topics, how many messages of the client were answered OK. mu guards the map.
	// produced is the topic of the last batch with its number, which only whoever has the turn uses.
	published map[string]*atomic.Uint64
	produced  struct {
		topic *node.Topic
		count *atomic.Uint64
	}
	// opening is how many producers are being opened; at most maxOpeningCount
	opening atomic.Int32

	began  time.Time
	client atomic.Pointer[string] // name of the client's program, as its Auth says; nil: none came
	login  atomic.Pointer[login]  // nil: the client has proved nothing
	// stranger is the session's place in Server.strangers until it has sent Auth. It is nil if the server demands no Auth.
	stranger *strangers.Stranger
	counted  auth.Place // among the known clients; mu guards it
	gone     bool       // the connection has ended; mu guards it
	output   output
	place    netio.Place // among those to whom answers are due

	// checked is scratch of takeOrder, on the connection's reader.
	checked struct {
		handles  wire.Handles
		requeues wire.Requeue
	}

	spare []task // work's; empty; exchanged for inbox
	// See serving.
	told    told
	asked   uint64                    // lists of topics that the client has sent
	known   map[uuid.UUID]*node.Topic // topics that requests have named
	granted granted
}

func newSession(srv *Server, nc net.Conn) *session {
	s := &session{
		srv: srv, remote: nc.RemoteAddr().String(), address: strangers.Of(nc.RemoteAddr()).String(),
		wake:      make(chan struct{}, 1),
		mostBytes: srv.now.Load().MaxConnInFlightBytes,
		began:     time.Now(), known: map[uuid.UUID]*node.Topic{}, published: map[string]*atomic.Uint64{},
		readings: newOpened[reading]("readers", srv.opts.MaxConnReaders, srv.readers, srv.opts.MaxReaders),
		subscriptions: newOpened[subscription](
			"subscriptions", srv.opts.MaxConnSubscriptions, srv.subscribed, srv.opts.MaxSubscriptions),
	}
	s.place.Output = s
	s.payer.Store(&s.address)
	s.output = newOutput(srv.opts.MaxConnOutputBytes, srv.output, s.pays)
	if srv.opts.Auth == nil {
		s.phase = known
	} else {
		s.stranger = srv.strangers.Stranger(nc.RemoteAddr(), s.makeRoom)
	}
	if t, ok := nc.(*tls.Conn); ok {
		state := t.ConnectionState()
		s.tls = &state
	}
	s.ctx, s.cancel = context.WithCancel(srv.ctx)
	return s
}

func (s *session) Opened(c *netproto.Conn) {
	s.conn = c
	if s.phase == unproven {
		patience := s.srv.now.Load().StrangerTime
		s.expiry = time.AfterFunc(patience, func() {
			s.expel("time", fmt.Sprintf("no Auth came within %v (max-unauthenticated-time)", patience))
		})
	}
	s.srv.enter(s)
	go s.work()
}

func (s *session) Closed(*netproto.Conn, error) {
	if s.expiry != nil {
		s.expiry.Stop()
	}
	s.cancel()
	s.srv.leave(s)
}

// Frames implements netproto.Handler: it puts requests into the inbox, and answers those that it refuses. It serves a
// lone Produce itself.
func (s *session) Frames(c *netproto.Conn, frames []netproto.Received) error {
	var err error
	for i := range frames {
		if err = s.take(&frames[i]); err != nil {
			break
		}
	}
	if err == nil {
		if t, ok := s.lone(); ok {
			s.serveLone(&t)
			return nil
		}
	}
	s.rouse()
	return err
}

// take looks at one frame. An error ends the connection.
func (s *session) take(f *netproto.Received) error {
	s.mu.Lock()
	d := decide(s.phase, &f.Header)
	s.mu.Unlock()
	switch d.ruling {
	case end:
		s.srv.meter.count(f.Type, netproto.StatusRejected)
		return fmt.Errorf("%w: %s", netproto.ErrInvalid, d.text)
	case refuse:
		if d.status == netproto.StatusUnproven {
			s.refused(typeName(f.Type), "", d.text)
		}
		return s.refuse(f, d.status, d.text)
	}
	if isOrder(f.Type) {
		return s.takeOrder(f)
	}
	t := task{request: f.Request, bytes: netproto.HeaderBytes + len(f.Payload)}
	if err := t.decode(f); err != nil {
		s.srv.meter.count(f.Type, netproto.StatusRejected)
		return fmt.Errorf("%w: %s: %w", netproto.ErrInvalid, typeName(f.Type), err)
	}
	switch m := t.message.(type) {
	case *wire.ReadCredit:
		if r := s.reader(f.Request); r != nil {
			r.give(m.Bytes)
		}
		return nil
	case *wire.Outcome:
		if r := s.reader(f.Request); r != nil {
			r.cancel()
		}
		return nil
	case *wire.Read:
		over, err := s.openReader(f.Request, m)
		if err != nil {
			return fmt.Errorf("%w: %w", netproto.ErrInvalid, err)
		}
		if over != nil {
			return s.refuse(f, netproto.StatusFull, later(over))
		}
	case *wire.Subscribe:
		over, err := s.openSubscription(f.Request, m)
		if err != nil {
			return fmt.Errorf("%w: %w", netproto.ErrInvalid, err)
		}
		if over != nil {
			return s.refuse(f, netproto.StatusFull, later(over))
		}
	}
	if f.Type == wire.TypeProduce {
		t.arrived = s.srv.sample()
	}
	over := s.push(t)
	if over == nil {
		return nil
	}
	s.forget(&t)
	return s.refuse(f, netproto.StatusFull, later(over))
}

func (t *task) decode(f *netproto.Received) error {
	if f.Type == wire.TypeProduce {
		t.batch, t.buf = f.Payload[f.CheckedBytes():], f.Buf
		t.bytes = len(t.batch)
		return wire.Decode(f.Payload, &t.produce)
	}
	var m wire.Payload
	switch f.Type {
	case wire.TypeAuth:
		m = new(wire.Auth)
	case wire.TypeMetadata:
		m = new(wire.MetadataRequest)
	case wire.TypeOpenProducer:
		m = new(wire.OpenProducer)
	case wire.TypeRead:
		m = new(wire.Read)
	case wire.TypeReadCredit:
		m = new(wire.ReadCredit)
	case wire.TypeReadEnd:
		m = new(wire.Outcome)
	case wire.TypeSubscribe:
		m = new(wire.Subscribe)
	default:
		panic("BUG: native: a " + typeName(f.Type) + " was not refused")
	}
	t.message = m
	return wire.Decode(f.Payload, m)
}

// push appends a request to the inbox, or returns the limit that does not allow it.
func (s *session) push(t task) *errs.LimitError {
	if over := s.reserve(t.payer(s), t.bytes); over != nil {
		return over
	}
	t.buf.Retain()
	s.mu.Lock()
	s.inbox = append(s.inbox, t)
	s.mu.Unlock()
	return nil
}

// reserve takes a request's part of the limits, or returns the one that does not allow it.
func (s *session) reserve(who string, bytes int) *errs.LimitError {
	o := &s.srv.opts
	if err := s.srv.inFlight.TryTake(who, int64(bytes)); err != nil {
		over := &errs.LimitError{
			What:  "with this one the size in bytes of the requests of all native connections that wait for an answer",
			Value: s.srv.inFlight.Used() + int64(bytes), Most: o.MaxInFlightBytes,
		}
		if errors.Is(err, shares.ErrShare) {
			over.What = "with this one the size in bytes of the native requests of this token or address that wait for an answer"
			over.Value, over.Most = "more", s.srv.inFlight.Share()
		}
		return over
	}
	s.mu.Lock()
	over := s.load.beyond(bytes, limits{o.MaxConnInFlightCount, s.mostBytes})
	if over == nil {
		s.load.count++
		s.load.bytes += bytes
	}
	s.mu.Unlock()
	if over != nil {
		s.srv.inFlight.Give(who, int64(bytes))
	}
	return over
}

// payer is who pays for the request. An Auth ends with another payer of the session than it began with.
func (t *task) payer(s *session) string {
	if _, ok := t.message.(*wire.Auth); ok {
		return s.address
	}
	return s.pays()
}

// done gives back what a request took of the limits.
func (s *session) done(t *task) { s.giveBack(t.payer(s), t.bytes, t.buf) }

// giveBack returns to the limits what reserve took for a request of who, and releases the request's buffer, which may
// be nil.
func (s *session) giveBack(who string, bytes int, buf *netproto.RecvBuf) {
	buf.Release()
	s.srv.inFlight.Give(who, int64(bytes))
	s.mu.Lock()
	s.load.count--
	s.load.bytes -= bytes
	s.mu.Unlock()
}

// forget removes the reader or the subscription of a request that is refused, which the session has entered already.
func (s *session) forget(t *task) {
	switch t.message.(type) {
	case *wire.Read:
		s.forgetReader(s.reader(t.request))
	case *wire.Subscribe:
		s.forgetSubscription(s.subscription(t.request))
	}
}

// rouse wakes work.
func (s *session) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// work serves the requests in the inbox until the connection ends.
func (s *session) work() {
	defer s.srv.workers.Done()
	for {
		select {
		case <-s.wake:
		case <-s.ctx.Done():
			s.drop()
			return
		}
		tasks, ok := s.takeAll()
		if !ok {
			continue // the reader serves a lone request, and rouses this goroutine afterwards
		}
		for i := range tasks {
			if s.ctx.Err() != nil {
				s.discard(&tasks[i])
				continue
			}
			s.serve(&tasks[i])
		}
		clear(tasks)
		s.spare = tasks[:0]
		if s.stale.Swap(false) {
			s.announce()
		}
		s.mu.Lock()
		s.serving = false
		s.mu.Unlock()
	}
}

// takeAll takes the turn and all requests in the inbox, unless the reader has the turn.
func (s *session) takeAll() ([]task, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving {
		return nil, false
	}
	s.serving = true
	tasks := s.inbox
	s.inbox = s.spare
	return tasks, true
}

// drop gives back what is left in the inbox of a connection that has ended.
func (s *session) drop() {
	s.mu.Lock()
	tasks := s.inbox
	s.inbox = nil
	s.mu.Unlock()
	for i := range tasks {
		s.discard(&tasks[i])
	}
}

// discard gives up a request that was not served: nobody waits for its answer any more.
func (s *session) discard(t *task) {
	s.forget(t)
	s.done(t)
}

func (s *session) serve(t *task) {
	switch m := t.message.(type) {
	case nil:
		s.serveProduce(t, false)
		return
	case *wire.OpenProducer:
		s.serveOpenProducer(*t, m)
		return
	case *wire.Subscribe:
		s.serveSubscribe(*t, m)
		return
	case *wire.MetadataRequest:
		s.serveMetadata(*t, m)
		return
	case *wire.Auth:
		s.authenticate(t.request, m)
	case *creation:
		s.serveCreation(t.request, m)
	case *wire.Read:
		s.serveRead(t.request, m)
	}
	s.done(t)
}

// answer sends the answer to a request. A client that does not read its answers loses its connection.
func (s *session) answer(to netproto.Type, request uint64, status netproto.Status, payload []byte) error {
	s.srv.meter.count(to, status)
	err := s.post(&netproto.Frame{Type: answerOf(to), Request: request, Status: status, Head: payload})
	if errors.Is(err, netproto.ErrTooBig) {
		return s.fail(to, request, netproto.StatusTooBig, "the answer is longer than this client accepts; ask for less")
	}
	return err
}

// post sends a frame. The error is errUnread, or ErrTooBig.
func (s *session) post(f *netproto.Frame) error { return s.posted(s.conn.TrySend(f)) }

// postSoon sends a frame together with the answers to other clients that are due now, if there are any: one system call
// writes them all (netio.Flusher). lone says that there are none, and that the client waits for this frame alone.
func (s *session) postSoon(f *netproto.Frame, lone bool) {
	if s.posted(s.conn.Queue(f)) != nil {
		return
	}
	// While Held, the commit log's goroutine answers. It has more urgent work than one client, but not for long.
	if q := s.srv.opts.Answers; q == nil || lone && !q.Held() {
		s.conn.Flush()
	} else {
		q.Add(&s.place)
	}
}

// Collect, Lend, GiveBack and Flush implement netio.Output.
func (s *session) Collect(int) {}

func (s *session) Lend() (fd int, data []byte, left bool) {
	fd, data = s.conn.Lend()
	return fd, data, false
}

func (s *session) GiveBack(n int, err error) { s.conn.GiveBack(n, err) }

func (s *session) Flush() { s.conn.Flush() }

// posted is what became of a frame: the error is errUnread, or ErrTooBig.
func (s *session) posted(err error) error {
	switch {
	case errors.Is(err, netproto.ErrTooBig):
		return err
	case errors.Is(err, netproto.ErrQueueFull):
		s.conn.Abort(errUnread)
		return errUnread
	}
	return nil // a connection that has ended is reported by Closed
}

// fail answers a request with a status that is not OK.
func (s *session) fail(to netproto.Type, request uint64, status netproto.Status, text string) error {
	return s.outcome(to, request, status, &wire.Outcome{Text: text})
}

// outcome answers a request with a status that is not OK.
func (s *session) outcome(to netproto.Type, request uint64, status netproto.Status, out *wire.Outcome) error {
	out.Text = clip.Text(out.Text, wire.MaxTextBytes)
	payload := []byte(out.Text)
	if answerOf(to) != netproto.TypeError {
		payload = wire.Append(nil, out)
	}
	return s.answer(to, request, status, payload)
}

// refuse answers a frame that the node does not serve, with a status and a text that says why.
func (s *session) refuse(f *netproto.Received, status netproto.Status, text string) error {
	return s.fail(f.Type, f.Request, status, text)
}

// goAway tells the client to connect elsewhere, and refuses further requests. turn is a number that differs from
// session to session.
func (s *session) goAway(turn int) {
	s.mu.Lock()
	s.phase = leaving
	topics, all := s.topics, slices.Collect(maps.Values(s.subscriptions.byRequest))
	s.mu.Unlock()
	for _, u := range all {
		u.stop()
	}
	p := s.srv.place()
	out := wire.Outcome{Text: "this node stops; connect to another one", Address: p.refuge(topics, turn)}
	_ = s.conn.TrySend(&netproto.Frame{Type: wire.TypeGoAway, Status: netproto.StatusClosed, Head: wire.Append(nil, &out)})
}

// makeRoom is the end of a session in Server.strangers.
func (s *session) makeRoom() {
	s.expel(awayCrowded, fmt.Sprintf("no Auth, and %d further clients that have sent none are connected, which is the "+
		"most that there may be (max-unauthenticated-connections)", s.srv.strangers.Most()))
}

// expel ends the connection of a stranger. reason is for the metrics.
func (s *session) expel(reason, why string) {
	s.srv.meter.turnedAway(reason)
	s.refused("connection", "", why)
	_ = s.conn.TrySend(&netproto.Frame{
		Type: netproto.TypeError, Status: netproto.StatusUnproven, Head: []byte(why),
	})
	go s.conn.Close() // the goroutine of a timer, or the reader of another connection, must not wait for this peer
}

// refused tells the audit that the client was refused.
func (s *session) refused(what, names, why string) {
	s.srv.meter.authFailures.Add(1)
	s.srv.opts.Refused(audit.Entry{From: s.remote, What: "native " + what, Names: names, Who: s.who()}, why)
}

var _ interface {
	netproto.Handler
	netproto.Opener
} = (*session)(nil)
