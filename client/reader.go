package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// From says where a Reader begins, or a channel that a Consumer creates. The zero value is no place.
type From struct {
	kind  wire.From
	value int64
	set   bool
}

// FromOldest begins at the oldest message that is kept.
func FromOldest() From { return From{set: true, kind: wire.FromOldest} }

// FromNewest begins behind the newest message that is stored when the leader hears of the reader or the channel.
func FromNewest() From { return From{set: true, kind: wire.FromNewest} }

// FromID begins at the message with the id, or the first one above it. An id that does not exist yet is waited for.
func FromID(id ID) From { return From{set: true, kind: wire.FromID, value: int64(id)} }

// FromTime begins at the first message that was stored at t or later, by the clock of the partition's leader.
func FromTime(t time.Time) From {
	ns := t.UnixNano()
	switch { // beyond these ns wraps: the year 1500 would be in the future
	case t.Before(time.Unix(0, math.MinInt64)):
		ns = math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		ns = math.MaxInt64
	}
	return From{set: true, kind: wire.FromTime, value: ns}
}

// maxDamaged is how often a reader asks again for batches that arrived damaged.
const maxDamaged = 3

// Reader reads the messages of one partition, in their order, each once, whatever channels there are. The cluster keeps
// nothing about it: a program that stores Position beside what it made of the messages, in one transaction, goes on
// exactly there after a crash, with FromID.
//
// One goroutine at a time uses a Reader, but any goroutine may call Close.
type Reader struct {
	client    *Client
	topic     string
	id        uuid.UUID // of the topic
	partition int
	kicked    chan struct{}
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc

	using  sync.Mutex // held by Next and by the end of Close; guards the fields below
	closed bool
	node   *node
	stream *stream // where the reader is open; nil: nowhere
	from   From    // where to begin if next is not known
	next   ID      // of the message that Next returns next
	known  bool
	newest ID
	heard  bool // newest is known

	notBefore time.Time // the reader is not opened again before
	fails     int       // since the last batches arrived
	why       error     // the leader did not serve the reader, at the newest of them
	damaged   int       // since the last message was returned

	now     *chunk // whose messages Next returns; nil: none
	credit  int    // bytes of chunks that were used up, for which the leader has no credit yet
	batches batch.BatchIter
	records batch.RecordIter
	header  *batch.Header // of the batch that records walks over; nil: none
	at      batch.MsgID   // of the next record
	scratch []byte        // memory for a decompressed batch
	headers []Header
}

// stream is a reader that is open at a leader.
type stream struct {
	reader  *Reader
	link    *link
	request uint64

	mu     sync.Mutex // guards the rest
	chunks []*chunk   // that arrived and were not taken; ReadCreditBytes, or one
	reason *ended     // why the leader closed it; nil: it did not
}

// chunk is the payload of a Records. Its memory is used again once Next has left it behind: as fresh memory for each,
// it would cost more than to copy and to check the batches.
type chunk struct {
	head  wire.Records
	bytes []byte
}

var chunks = sync.Pool{New: func() any { return new(chunk) }}

// maxSpareBytes bounds the memory of a chunk that is kept for later ones.
const maxSpareBytes = 4 << 20

// free gives the memory of c, which may be nil, to later chunks.
func (c *chunk) free() {
	if c != nil && cap(c.bytes) <= maxSpareBytes {
		chunks.Put(c)
	}
}

// ended is the payload of a ReadEnd: why the leader has closed the reader. The connection's goroutine stores it, and
// Next reads it.
type ended struct {
	status netproto.Status
	wire.Outcome
}

// Reader opens a reader of one partition. It waits for the topic until ctx ends, and does not create it. The reader
// outlives ctx: Close ends it.
func (c *Client) Reader(ctx context.Context, topicName string, partition int, from From) (*Reader, error) {
	if err := checkName("topic", topicName); err != nil {
		return nil, err
	}
	if err := c.view.want(topicName, false); err != nil {
		return nil, err
	}
	t, err := c.view.topic(ctx, topicName, false)
	if err == nil && (partition < 0 || partition >= len(t.leaders)) {
		err = because(ErrNoTopic, fmt.Errorf("topic %s has %d partitions", topicName, len(t.leaders)))
	}
	if err != nil {
		c.view.unwant(topicName, false)
		return nil, err
	}
	r := &Reader{
		client: c, topic: topicName, id: t.id, partition: partition, from: from, kicked: make(chan struct{}, 1),
	}
	r.ctx, r.cancel = context.WithCancel(c.ctx)
	if from.kind == wire.FromID {
		r.next, r.known = ID(from.value), true
	}
	return r, nil
}

// Topic is the name of the reader's topic.
func (r *Reader) Topic() string { return r.topic }

// Position is the id of the message that Next returns next, or would return if it existed. ok is false as long as that
// is not known: before the first answer of the leader to a reader that does not begin at an id.
func (r *Reader) Position() (id ID, ok bool) { return r.next, r.known }

// Newest is the id that the partition's next message was to get when the leader sent the messages that Next returns
// now: a reader whose Position has reached it had then read everything. ok is false before the first answer of the
// leader.
func (r *Reader) Newest() (id ID, ok bool) { return r.newest, r.heard }

func (r *Reader) wake() { signal(r.kicked) }

// Next returns the next message, and waits for it until ctx ends. Key, Headers and Body are valid until the following
// call of Next. After a failover the reader goes on at the new leader by itself; nothing is left out or returned twice.
//
// The error is ctx's, ErrClosed, ErrNoTopic if the topic was deleted, ErrUnauthorized, ErrRefused if the partition has
// no such place, ErrDamaged, or a *TrimmedError if messages were removed before the reader got there. After a
// TrimmedError and after an error of ctx, Next may be called again. If nothing can come, because there is no leader or
// it cannot be reached, Next waits for that to end; the text of ctx's error says so.
func (r *Reader) Next(ctx context.Context) (Message, error) {
	r.using.Lock()
	defer r.using.Unlock()
	for {
		if r.ctx.Err() != nil {
			return Message{}, ErrClosed
		}
		if m, ok := r.record(); ok {
			return m, nil
		}
		ok, err := r.advance()
		if err == nil {
			err = r.pay(ctx, !ok)
		}
		if err == nil && !ok {
			err = r.await(ctx)
		}
		if err != nil {
			return Message{}, err
		}
	}
}

// Close ends the reader. A Next that waits returns ErrClosed.
func (r *Reader) Close() {
	r.cancel()
	r.using.Lock()
	defer r.using.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	r.drop()
	r.moveTo("")
	r.client.view.unwant(r.topic, false)
}

// record returns the next message of the batch that is being read.
func (r *Reader) record() (m Message, ok bool) {
	for r.header != nil {
		rec := r.records.NextRef()
		if rec == nil {
			break
		}
		id := batch.MakeID(uint32(r.partition), r.at)
		r.at++
		if id < r.next {
			continue
		}
		r.next, r.damaged = id+1, 0
		m = Message{
			ID: id, Body: rec.Body, Time: time.Unix(0, r.header.Created).Add(time.Duration(rec.TimeDelta) * time.Microsecond),
		}
		if len(rec.Headers) > 0 {
			r.headers = m.take(r.headers[:0], rec.Headers)
			m.Headers = r.headers
		}
		return m, true
	}
	return m, false
}

// advance goes to the next batch or chunk that has arrived. It returns false if there is none.
func (r *Reader) advance() (bool, error) {
	if r.header != nil && r.records.Err() != nil {
		return true, r.damage(r.records.Err())
	}
	r.header = nil
	for {
		h, body, ok := r.batches.Next()
		if !ok {
			break
		}
		end := batch.MakeID(uint32(r.partition), h.FirstID) + ID(h.Count)
		if h.Control() || end <= r.next {
			continue
		}
		err := batch.VerifyBody(h, body)
		var records []byte
		if err == nil {
			records, err = batch.DecompressBody(h, body, r.scratch)
		}
		if err != nil {
			return true, r.damage(err)
		}
		if h.Codec != batch.CodecNone {
			r.scratch = records
		}
		r.records.Reset(h, records)
		r.header, r.at = h, h.FirstID
		return true, nil
	}
	if err := r.batches.Err(); err != nil {
		return true, r.damage(err)
	}
	return r.chunk(), nil
}

// chunk begins the next chunk that has arrived, if there is one. The one before is used up.
func (r *Reader) chunk() (ok bool) {
	if r.now != nil {
		r.credit += len(r.now.bytes)
	}
	r.now.free()
	r.now = nil
	r.batches.Reset(nil)
	s := r.stream
	if s == nil {
		return false
	}
	s.mu.Lock()
	if ok = len(s.chunks) > 0; ok {
		r.now = s.chunks[0]
		s.chunks[0] = nil
		s.chunks = s.chunks[1:]
	}
	s.mu.Unlock()
	if ok {
		r.batches.Reset(r.now.bytes)
		r.newest, r.heard, r.fails, r.why = r.own(r.now.head.Newest), true, 0, nil
		if next := r.own(r.now.head.Next); !r.known || next > r.next {
			r.next, r.known = next, true
		}
	}
	return ok
}

// pay gives the leader credit for what was used up, if that is much. If there is no room in the connection's queue, it
// waits for some, or leaves that to a later call.
func (r *Reader) pay(ctx context.Context, wait bool) error {
	s := r.stream
	if s == nil || r.credit < ReadCreditBytes/2 {
		return nil
	}
	m := wire.ReadCredit{Bytes: uint32(r.credit)}
	f := netproto.Frame{Type: wire.TypeReadCredit, Request: s.request, Head: wire.Append(nil, &m)}
	err := s.link.conn.TrySend(&f)
	if errors.Is(err, netproto.ErrQueueFull) {
		if !wait {
			return nil
		}
		ctx, cancel := r.within(ctx)
		defer cancel()
		err = s.link.conn.Send(ctx, &f)
	}
	if errors.Is(err, netproto.ErrQueueFull) {
		return r.over(ctx)
	}
	r.credit = 0 // another error means that the connection ends, which await sees
	return nil
}

// within returns a context that ends with ctx, and when the reader is closed. It is a roomWait.
func (r *Reader) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(r.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// over is why a wait has ended, or nil: neither ctx has ended nor is the reader closed.
func (r *Reader) over(ctx context.Context) error {
	if r.ctx.Err() != nil {
		return ErrClosed
	}
	return context.Cause(ctx)
}

// own is a message id as the leader sent it, with the partition.
func (r *Reader) own(id uint64) ID { return batch.MakeID(uint32(r.partition), ID(id).MsgID()) }

// damage handles batches that are not valid: the reader asks for them again, a few times.
func (r *Reader) damage(err error) error {
	r.drop()
	r.delay()
	if r.damaged++; r.damaged > maxDamaged {
		r.damaged = 0
		return because(ErrDamaged, err)
	}
	return nil
}

func (r *Reader) delay() {
	r.fails++
	r.notBefore = time.Now().Add(r.client.o.delay(r.fails))
}

// await opens the reader at the leader if it is not open there, and waits until something happens.
func (r *Reader) await(ctx context.Context) error {
	known := r.client.view.known.Load()
	live, err := r.follow(known)
	if err != nil {
		return err
	}
	if s := r.stream; s != nil {
		s.mu.Lock()
		reason, arrived := s.reason, len(s.chunks) > 0
		s.mu.Unlock()
		switch {
		case arrived:
			return nil
		case reason != nil:
			r.stream = nil
			r.drop()
			if err := r.explain(reason); err != nil {
				return err
			}
		case s.link != live:
			r.drop()
		}
	}
	var due <-chan time.Time
	if r.stream == nil && live != nil {
		pause := time.Until(r.notBefore)
		if pause <= 0 {
			return r.open(ctx, live)
		}
		timer := time.NewTimer(pause)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-due:
	case <-r.kicked:
	case <-known.changed:
	case <-r.ctx.Done():
		return ErrClosed
	case <-ctx.Done():
		return endedBy(ctx, r.heldUp())
	}
	return nil
}

// heldUp returns the error because of which nothing comes now, although the reader tries again. It returns nil if no
// such error is known.
func (r *Reader) heldUp() error {
	if r.node == nil {
		return errors.New("client: no node leads the partition")
	}
	if live, _, err := r.node.state(); live == nil {
		return unreached(r.node.address, err)
	}
	if r.fails > 0 {
		return r.why
	}
	return nil
}

// follow sets node to the leader that known names, and returns the connection to it, or nil if there is none now.
func (r *Reader) follow(known *knowledge) (*link, error) {
	t := known.topics[r.topic]
	if t != nil && meaning(t.status) == verdictRefused {
		return nil, topicRefused(t.status, r.topic)
	}
	address := ""
	if t != nil && t.status == netproto.StatusOK {
		if t.id != r.id {
			return nil, topicRemade(r.topic)
		}
		if r.partition < len(t.leaders) {
			address = t.leaders[r.partition]
		}
	}
	if address != "" {
		r.moveTo(address)
	}
	if r.node != nil {
		if live, _, _ := r.node.state(); live.alive() {
			return live, nil
		}
	}
	return nil, nil
}

func (r *Reader) moveTo(address string) {
	if r.node != nil && r.node.address != address {
		r.client.release(r.node, r)
		r.node = nil
	}
	if r.node == nil && address != "" {
		r.node = r.client.acquire(address, r)
	}
}

// open asks the leader for the messages from next on. The error is ErrClosed, or ctx's.
func (r *Reader) open(ctx context.Context, at *link) error {
	m := wire.Read{
		Topic: r.id, Partition: uint32(r.partition), From: r.from.kind, Value: r.from.value, Credit: ReadCreditBytes,
	}
	if r.known {
		m.From, m.Value = wire.FromID, int64(r.next)
	}
	s := &stream{reader: r, link: at}
	ask := netproto.Frame{Type: wire.TypeRead, Head: wire.Append(nil, &m)}
	var err error
	if s.request, err = at.sendFor(ctx, &ask, s, 0, r.within); err != nil {
		r.delay()
		return r.over(ctx)
	}
	r.stream, r.credit = s, 0
	return nil
}

// drop forgets what has arrived, and tells the leader that the reader is closed.
func (r *Reader) drop() {
	r.now, r.header = nil, nil // not freed: whoever called Next may still use the message
	r.batches.Reset(nil)
	s := r.stream
	if r.stream = nil; s == nil {
		return
	}
	s.link.forget(s.request)
	if s.link.alive() {
		f := netproto.Frame{Type: wire.TypeReadEnd, Request: s.request, Head: wire.Append(nil, new(wire.Outcome))}
		if errors.Is(s.link.conn.TrySend(&f), netproto.ErrQueueFull) {
			go s.link.conn.Send(s.link.ctx, &f) // until there is room, or the connection ends
		}
	}
}

// explain returns the error of Next after the leader has closed the reader, or nil if the reader tries again.
func (r *Reader) explain(why *ended) error {
	if why.First != 0 {
		r.next, r.known = r.own(why.First), true
		return &TrimmedError{First: r.next}
	}
	r.delay()
	if why.status == netproto.StatusNotLeader {
		from := ""
		if r.node != nil {
			from = r.node.address
		}
		r.client.view.redirect(r.topic, r.partition, from, why.Address)
	}
	if meaning(why.status) != verdictRefused {
		const text = "client: the leader does not serve the reader now, and it is tried again: %w"
		r.why = fmt.Errorf(text, &StatusError{why.status, why.Text})
		return nil
	}
	if err := errorOf(why.status, why.Text); errors.Is(err, ErrUnauthorized) {
		return err
	}
	const text = "client: the leader refused the reader; nothing was returned: open one at a place in the partition"
	return &consumerError{ErrRefused, text, &StatusError{why.status, why.Text}}
}

// answer is link's call.
func (s *stream) answer(_ *link, f *netproto.Received) bool {
	defer s.reader.wake()
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Type == wire.TypeRecords && f.Status == netproto.StatusOK {
		c := chunks.Get().(*chunk)
		if wire.Decode(f.Payload, &c.head) == nil {
			c.bytes = append(c.bytes[:0], f.Payload[wire.RecordsBytes:]...)
			s.chunks = append(s.chunks, c)
			return true
		}
		s.reason = &ended{status: netproto.StatusCorrupt}
		return false
	}
	s.reason = &ended{status: f.Status}
	if f.Type == wire.TypeReadEnd {
		_ = wire.Decode(f.Payload, &s.reason.Outcome) // without the text the status says enough
	} else {
		s.reason.Text = textOf(f.Type, f.Payload)
	}
	return false
}

// lost is link's call; the reader sees the end of the connection itself.
func (s *stream) lost(*link, uint64) { s.reader.wake() }
