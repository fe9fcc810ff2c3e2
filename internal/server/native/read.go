package native

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/server/auth"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// readChunkBytes is how much one Records has at most, unless a single batch has more.
const readChunkBytes = 1 << 20

// credit is how many bytes of batches a client has allowed its leader to send, and the leader has not sent. Sending
// goes on while there is any, so the last batch may make it negative: then it must be paid back first. The zero value
// is no credit.
type credit struct{ left int64 }

// give adds what the client allows. More than wire.MaxCreditBytes is cut to that.
func (c *credit) give(n uint32) { c.left = min(c.left+int64(n), wire.MaxCreditBytes) }

// chunk returns how many bytes may be read for the next Records. 0 means that the client has given no credit.
func (c *credit) chunk() int { return int(max(min(c.left, readChunkBytes), 0)) }

// spend subtracts what was sent.
func (c *credit) spend(n int) { c.left -= int64(n) }

// reading is one reader of a client. The connection's reader makes it, gives it credit and ends it; its own goroutine,
// run, reads and sends.
type reading struct {
	s       *session
	request uint64
	ask     *wire.Read
	ctx     context.Context // ends with the connection, and when the client ends the reader
	cancel  context.CancelFunc
	more    chan struct{} // holds a token if credit may have become positive
	held    int           // only run uses it: bytes of room for output that were waited for, for what is read again

	mu     sync.Mutex // a leaf; guards credit
	credit credit
}

// give adds to the credit.
func (r *reading) give(n uint32) {
	r.mu.Lock()
	r.credit.give(n)
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
}

func (r *reading) chunk() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.credit.chunk()
}

func (r *reading) spend(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.credit.spend(n)
}

// openReader registers the reader that a Read asks for. It returns the limit if there are too many, and an error if
// the request already names one.
func (s *session) openReader(request uint64, m *wire.Read) (*errs.LimitError, error) {
	r := &reading{s: s, request: request, ask: m, more: make(chan struct{}, 1)}
	r.credit.give(m.Credit)
	r.ctx, r.cancel = context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	over, err := s.readings.add(s.pays(), request, r)
	if over != nil || err != nil {
		r.cancel()
	}
	return over, err
}

// reader returns an open reader, or nil: it may have ended while the client's frame was on its way.
func (s *session) reader(request uint64) *reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readings.byRequest[request]
}

// forgetReader removes a reader.
func (s *session) forgetReader(r *reading) {
	r.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readings.remove(s.pays(), r.request)
}

// serveRead starts the reader that openReader has registered.
func (s *session) serveRead(request uint64, m *wire.Read) {
	r := s.reader(request)
	topic, status, why := s.use(wire.TypeRead, m.Topic, auth.Subscribe)
	if topic == nil {
		s.forgetReader(r)
		_ = s.fail(wire.TypeRead, request, status, why)
		return
	}
	s.srv.workers.Go(func() {
		err := r.run(topic)
		s.forgetReader(r)
		if !errors.Is(err, context.Canceled) {
			s.endReader(r, topic, err)
		}
	})
}

// endReader tells the client why the leader has closed its reader.
func (s *session) endReader(r *reading, topic *node.Topic, err error) {
	trimmed := new(node.TrimmedError)
	if errors.As(err, &trimmed) {
		out := wire.Outcome{Text: err.Error(), First: uint64(trimmed.First)}
		_ = s.outcome(wire.TypeRead, r.request, netproto.StatusGap, &out)
		return
	}
	s.failed(wire.TypeRead, r.request, topic, r.ask.Partition, err)
}

// start is the place where the client wants to begin.
func start(m *wire.Read) node.Start {
	switch m.From {
	case wire.FromID:
		return node.Start{Kind: node.StartAtID, ID: node.ID(m.Value)}
	case wire.FromTime:
		return node.Start{Kind: node.StartAtTime, Time: time.Unix(0, m.Value)}
	case wire.FromNewest:
		return node.Start{Kind: node.StartNewest}
	}
	return node.Start{Kind: node.StartOldest}
}

// errRevoked ends a reader whose client may not read the topic any more.
var errRevoked = errors.New("the token does not allow to read the topic any more")

// run reads and sends until the reader ends, and returns why.
func (r *reading) run(topic *node.Topic) error {
	r.s.srv.meter.count(wire.TypeRead, netproto.StatusOK)
	from := start(r.ask)
	var reader *node.Reader
	defer func() {
		if reader != nil {
			reader.Close()
		}
		if r.held > 0 {
			r.s.output.give(r.held)
		}
	}()
	for {
		most, err := r.awaitCredit()
		if err != nil {
			return err
		}
		if reader == nil {
			if reader, err = topic.OpenReader(int(min(r.ask.Partition, math.MaxInt32)), from); err != nil {
				return err
			}
			if err := r.sayEmpty(reader); err != nil {
				return err
			}
		}
		got, err := reader.Next(r.ctx, most)
		if err != nil {
			return err
		}
		if err := r.mayRead(topic); err != nil {
			got.Release()
			return err
		}
		if n := len(got.Batches); !r.room(n) {
			// What was read pins memory of the node, so it must not wait for this client: it is read again later.
			from = node.Start{Kind: node.StartAtID, ID: got.Next}
			got.Release()
			reader.Close()
			reader = nil
			if err := r.s.output.take(r.ctx, n); err != nil {
				return err
			}
			r.held = n
			continue
		}
		if err := r.send(&got); err != nil {
			return err
		}
	}
}

// room reserves n bytes of the connection's output. If the reader has waited for room and holds some, room changes that
// to n bytes. It returns false if there is no room.
func (r *reading) room(n int) bool {
	held := r.held
	if r.held = 0; held > 0 {
		return r.s.output.resize(held, n)
	}
	return r.s.output.try(n)
}

// sayEmpty tells the client that there is nothing to read yet, which it could not know otherwise.
func (r *reading) sayEmpty(reader *node.Reader) error {
	next, newest := reader.Place()
	if newest > next {
		return nil
	}
	head := wire.Records{Next: uint64(next), Newest: uint64(newest)}
	err := r.s.conn.Send(r.ctx, &netproto.Frame{
		Type: wire.TypeRecords, Flags: netproto.FlagSelfChecked, Request: r.request, Head: wire.Append(nil, &head),
	})
	if err != nil {
		return context.Canceled // the connection has ended, or the client has ended the reader
	}
	return nil
}

// send sends what was read. Its room was taken.
func (r *reading) send(got *node.Stored) error {
	n, srv := len(got.Batches), r.s.srv
	p := &parcel{output: &r.s.output, bytes: n, pinned: &srv.pinned, release: got.Release}
	body := got.Batches
	if srv.pinned.Add(int64(n)) > srv.opts.MaxPinnedBytes {
		body = slices.Clone(body)
		p.unpin()
	}
	head := wire.Records{Next: uint64(got.Next), Newest: uint64(got.Newest)}
	err := r.s.conn.Send(r.ctx, &netproto.Frame{
		Type: wire.TypeRecords, Flags: netproto.FlagSelfChecked, Request: r.request, Head: wire.Append(nil, &head),
		Body: [][]byte{body}, Owner: p,
	})
	if err != nil {
		p.Release()
	}
	switch {
	case err == nil:
		r.spend(n)
		return nil
	case errors.Is(err, netproto.ErrTooBig):
		return errs.ErrBatchTooBig
	}
	return context.Canceled // the connection has ended, or the client has ended the reader
}

// awaitCredit waits for credit, and returns how many bytes may be read.
func (r *reading) awaitCredit() (int, error) {
	for {
		if n := r.chunk(); n > 0 {
			return n, nil
		}
		select {
		case <-r.more:
		case <-r.ctx.Done():
			return 0, context.Canceled
		}
	}
}

// mayRead says whether the client may still read the topic.
func (r *reading) mayRead(topic *node.Topic) error {
	who, err := r.s.principal()
	if err != nil || !auth.May(who, auth.Subscribe, whole(auth.Subscribe, topic.Name())) {
		return errRevoked
	}
	return nil
}
