package client

import (
	"bytes"
	"context"
	"slices"
	"time"

	"penstock/batch"
	"penstock/internal/server/native/wire"
)

// Delivery is one delivery of a message to a Consumer. It stays in flight until it is finished or requeued, until its
// time is over (ConsumerOptions.Timeout after its delivery, or after the newest Touch), or until the connection to its
// leader is lost; then it is over. A message whose delivery is over without Finish is delivered again, as another
// Delivery with the same ID.
//
// Key, Headers and Body stay valid and unchanged for as long as the program refers to them; the program must not change
// them. They lie in memory that deliveries which came together share, up to about 256 KiB, so copy what is kept for
// long (bytes.Clone).
//
// The methods send in the background and return at once. With an error, which matches ErrNotInFlight, they did nothing.
// Whether what they sent came in time and is stored is what Consumer.Sync says. A Delivery may be copied; the copies
// are the same delivery.
type Delivery struct {
	Message
	// Attempts is how often the message was delivered, this delivery included.
	Attempts int

	sub   *subscription
	index uint64 // in the subscription's ledger
	seq   uint64 // of the consumer's deliveries
}

// Next returns the next delivery, and waits for it until ctx ends. Several goroutines may call it, and each delivery is
// returned once. A delivery whose time was over while it waited in the client is left out, because the message is
// delivered again. A delivery of an ordered channel waits while its leader does not permit to begin it, because another
// consumer may have got the next message. Next allocates no memory for a message.
//
// The error is ctx's, ErrClosed, ErrNoTopic if the topic was deleted, or what a node answered that refuses the
// consumer: ErrUnauthorized, ErrRefused. What can be handled by trying again, such as lost connections and new leaders,
// is not an error; if ctx ends meanwhile, the text of its error says what it is. After an error other than ErrClosed,
// Next may be called again: the consumer goes on trying.
func (c *Consumer) Next(ctx context.Context) (Delivery, error) {
	for {
		var d [1]Delivery
		c.mu.Lock()
		got := c.take(c.clock(), d[:])
		err := c.waitOn()
		c.mu.Unlock()
		switch {
		case got > 0:
			c.hook(&d[0])
			return d[0], nil
		case err != nil:
			return Delivery{}, err
		}
		if err := c.await(ctx); err != nil {
			return Delivery{}, err
		}
	}
}

// Batch waits like Next, and returns all deliveries that are there, at least one and at most limit. It allocates the
// slice, which then belongs to the caller.
func (c *Consumer) Batch(ctx context.Context, limit int) ([]Delivery, error) {
	return c.AppendBatch(ctx, nil, limit)
}

// AppendBatch does what Batch does, for programs that use their slice again. It appends the deliveries to dst, and
// allocates nothing if dst has room for limit more. With an error it returns dst as it was. Deliveries that stay in the
// slice keep their memory, so a program that goes on without new ones for long should clear them.
func (c *Consumer) AppendBatch(ctx context.Context, dst []Delivery, limit int) ([]Delivery, error) {
	limit = max(limit, 1)
	for {
		all := dst
		c.mu.Lock()
		now := c.clock()
		n := min(c.waiting(limit), limit)
		all = slices.Grow(all, n)
		for got := 1; n > 0 && got > 0; n -= got {
			got = c.take(now, all[len(all):len(all)+n])
			all = all[:len(all)+got]
		}
		err := c.waitOn()
		c.mu.Unlock()
		switch {
		case len(all) > len(dst):
			if c.client.o.Hooks.Delivered != nil {
				for i := range all[len(dst):] {
					c.hook(&all[len(dst)+i])
				}
			}
			return all, nil
		case err != nil:
			return dst, err
		}
		if err := c.await(ctx); err != nil {
			return dst, err
		}
	}
}

// waitOn returns the error that ends the wait for the next delivery, or nil if the caller should wait. If another
// waiting Next has something to return, waitOn wakes it. The caller holds mu.
func (c *Consumer) waitOn() error {
	err := c.failure()
	if c.closing || c.ctx.Err() != nil {
		err = ErrClosed
	}
	if err != nil || c.bring() {
		signal(c.ready)
	}
	return err
}

// await waits until there may be something to return.
func (c *Consumer) await(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-c.ctx.Done():
		return ErrClosed
	case <-ctx.Done():
		return endedBy(ctx, c.heldUp())
	}
}

func (c *Consumer) hook(d *Delivery) {
	if hook := c.client.o.Hooks.Delivered; hook != nil {
		hook(c.topic, c.channel, *d)
	}
}

// waiting is how many deliveries have arrived and were not taken; it does not count on from limit on. The caller holds
// mu.
func (c *Consumer) waiting(limit int) int {
	n := 0
	for i := c.next; i < len(c.parcels) && n < limit; i++ {
		n += c.parcels[i].count
	}
	return n
}

// take overwrites ds with the next deliveries, and returns how many it found. All come from one parcel, so there may be
// more. The caller holds mu.
func (c *Consumer) take(now time.Duration, ds []Delivery) int {
	for !c.closing && c.bring() {
		p := &c.parcels[c.next]
		l := &p.sub.ledger
		late := l.timeout > 0 && now-p.arrived >= l.timeout
		if late || p.sub.over || p.sub.leaving {
			c.pass(p)
			continue
		}
		if !c.walking {
			_ = c.walk.Reset(p.bytes) // which it did before, without an error
			for range c.walk.Count - p.count {
				c.walk.Next()
			}
			c.walking = true
		}
		n := c.takeFrom(p, now, ds)
		if p.count == 0 || c.walk.Err() != nil || n == 0 {
			if err := c.walk.Err(); err != nil {
				p.sub.link.conn.Abort(err)
			}
			c.pass(p)
		}
		if n > 0 {
			return n
		}
	}
	return 0
}

// bring makes the first parcel whose deliveries may be begun, or dropped, the next one. It returns false if there is
// none. A subscription without a permit does not hold up the others. The caller holds mu.
func (c *Consumer) bring() bool {
	var now time.Duration
	for i := c.next; i < len(c.parcels); i++ {
		s := c.parcels[i].sub
		if s.permit.ordered && !s.over && !s.leaving {
			if now == 0 {
				now = awake()
			}
			if !s.permit.begins(now) {
				continue
			}
		}
		if i > c.next {
			p := c.parcels[i]
			copy(c.parcels[c.next+1:], c.parcels[c.next:i])
			c.parcels[c.next], c.walking = p, false
		}
		return true
	}
	return false
}

// takeFrom takes the next deliveries of a parcel, which c.walk walks through, until the parcel ends or ds is full. The
// caller holds mu.
func (c *Consumer) takeFrom(p *parcel, now time.Duration, ds []Delivery) (n int) {
	l := &p.sub.ledger
	walk := c.walk // for the loop, because the garbage collector has to hear of each pointer that is written to the heap
	e := entry{arrived: p.arrived, due: l.dueOf(p.arrived)}
	l.sweep(now)
	for n < len(ds) {
		w := walk.Next()
		if w == nil {
			break
		}
		e.id, e.number, e.bytes = ID(w.ID), walk.First+uint64(walk.Count-p.count), wire.DeliverySize(w)
		p.left -= e.bytes
		p.count--
		if p.sub.permit.drops(e.id, e.number) {
			l.skip(e.bytes)
			l.giveUp(now, e.number)
			continue
		}
		c.seq++
		e.seq = c.seq
		if w.Attempts > 1 {
			l.supersede(now, e.id)
		}
		d := &ds[n]
		// Field by field, because a Delivery is too large to copy for each message. Pointers that are nil already are not
		// written, because each write costs more while the garbage collector runs.
		d.ID, d.Body, d.Time = e.id, w.Body, time.Unix(0, w.Timestamp)
		d.Attempts, d.index, d.seq = int(w.Attempts), l.add(&e), c.seq
		if d.sub != p.sub {
			d.sub = p.sub
		}
		if d.Key != nil || d.Headers != nil {
			d.Key, d.Headers = nil, nil
		}
		if len(w.Headers) > 0 {
			c.keep(&d.Message, w.Headers)
		}
		n++
	}
	c.walk = walk
	return n
}

// headersAtOnce is how many headers the memory has that is allocated for them.
const headersAtOnce = 256

// keep copies the list of headers, not what they say, into the message.
func (c *Consumer) keep(m *Message, headers []batch.KV) {
	if cap(c.headers)-len(c.headers) < len(headers) {
		c.headers = make([]Header, 0, max(headersAtOnce, len(headers)))
	}
	at := len(c.headers)
	c.headers = m.take(c.headers, headers)
	if n := len(c.headers); n > at {
		m.Headers = c.headers[at:n:n]
	}
}

// take takes the key from headers that were stored, and appends the others to list.
func (m *Message) take(list []Header, headers []batch.KV) []Header {
	for _, h := range headers {
		if m.Key == nil && bytes.Equal(h.Key, keyHeader) {
			m.Key = h.Value
		} else {
			list = append(list, Header(h))
		}
	}
	return list
}

// pass goes on to the next parcel. The caller holds mu.
func (c *Consumer) pass(p *parcel) {
	if p.count > 0 {
		if !c.walking {
			_ = c.walk.Reset(p.bytes) // which it did before, without an error
		}
		p.sub.ledger.giveUp(c.clock(), c.walk.First+uint64(c.walk.Count-p.count))
	}
	p.sub.ledger.skip(p.left)
	p.sub.wake() // it may have credit to give
	*p = parcel{}
	c.next++
	c.walking = false
}

// settle runs f with the ledger of the delivery's subscription, and wakes the subscription if f returns true.
func (d *Delivery) settle(f func(l *ledger, now time.Duration) bool) error {
	s := d.sub
	if s == nil {
		return ErrNotInFlight
	}
	c := s.consumer
	c.mu.Lock()
	ok := !s.over && !s.leaving && f(&s.ledger, c.clock())
	c.mu.Unlock()
	if !ok {
		return ErrNotInFlight
	}
	s.wake()
	return nil
}

// Finish says that the message is done: it is not delivered again, to no consumer of the channel. A program that
// handles messages in order calls FinishThrough once for many messages instead.
func (d *Delivery) Finish() error {
	return d.settle(func(l *ledger, now time.Duration) bool { return l.finish(now, d.index) })
}

// FinishThrough says that this delivery is done, and all that Next and Batch returned before it, whoever called them
// and wherever they came from, except those that were requeued. It costs the same for one delivery and for thousands,
// except soon after a Requeue, or after deliveries came too late for the program: then as much as that many calls of
// Finish.
//
// ErrNotInFlight says that this delivery is over. Those before it that are still in flight are finished all the same,
// and those that are not are delivered again without a further error.
func (d *Delivery) FinishThrough() error {
	s := d.sub
	if s == nil {
		return ErrNotInFlight
	}
	c := s.consumer
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock()
	var err error
	if s.over || s.leaving || s.ledger.live(now, d.index) == nil {
		err = ErrNotInFlight
	}
	for _, p := range c.posts {
		if p.sub != nil && p.sub.ledger.through(now, d.seq) {
			p.sub.wake()
		}
	}
	return err
}

// Requeue gives the message back, to be delivered again to any consumer of the channel after the delay, which counts in
// milliseconds and which nodes limit (--max-req-timeout).
func (d *Delivery) Requeue(delay time.Duration) error {
	return d.settle(func(l *ledger, now time.Duration) bool {
		return l.requeue(now, d.index, milliseconds(max(delay, 0)))
	})
}

// Touch begins the delivery's time anew, for a message that takes long. Nodes limit how long a delivery may be in
// flight altogether (--max-msg-timeout, 15 minutes). If it comes too late, the Finish that follows says so, or Sync.
func (d *Delivery) Touch() error {
	return d.settle(func(l *ledger, now time.Duration) bool { return l.touch(now, d.index) })
}

// Sync waits until everything that was finished or requeued before is stored on every replica that must have it: it
// survives any failure that the topic's replication survives, and what was finished is not delivered again.
//
// Otherwise the error matches ErrNotInFlight if something came too late at the node, and ErrUnknown if a leader was
// lost before it confirmed something; such messages are delivered again, those of ErrUnknown perhaps. Each is reported
// once, of all that happened since the Sync before. Other errors are ctx's and ErrClosed. Sync may be called at any
// time, for instance after each batch of a program that must know; consuming itself does not need it.
func (c *Consumer) Sync(ctx context.Context) error {
	type wait struct {
		sub  *subscription
		sync uint64 // the number of the Sync
	}
	var waits []wait
	c.mu.Lock()
	ask := func(s *subscription) {
		if n := s.ledger.promise(); n > 0 {
			waits = append(waits, wait{s, n})
			s.wake()
		}
	}
	for _, s := range c.leaving {
		ask(s)
	}
	for _, p := range c.posts {
		if p.sub != nil {
			ask(p.sub)
		}
	}
	for len(waits) > 0 {
		w, changed := waits[0], c.changed
		if w.sub.over || w.sub.ledger.answered >= w.sync {
			waits = waits[1:]
			continue
		}
		c.mu.Unlock()
		select {
		case <-changed:
		case <-c.ctx.Done():
			return ErrClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	err := c.refusal
	if c.unsure {
		err = because(errUnconfirmed, err)
	}
	c.refusal, c.unsure = nil, false
	return err
}

// Close ends the consumer. Next returns ErrClosed from now on. Close waits until what was finished is stored, as Sync
// does, and until the nodes have taken back the messages in flight, which go to other consumers at once. If ctx ends
// before that, the consumer ends all the same. Close returns the error of Sync.
func (c *Consumer) Close(ctx context.Context) error {
	c.mu.Lock()
	again := c.closing
	c.closing = true
	clear(c.parcels)
	c.parcels, c.next, c.walking = nil, 0, false
	c.mu.Unlock()
	signal(c.ready)
	if again {
		select {
		case <-c.done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	err := c.Sync(ctx)
	c.leave(ctx)
	c.cancel()
	<-c.done
	return err
}

// leave ends all subscriptions, and waits for the nodes' answers until ctx ends.
func (c *Consumer) leave(ctx context.Context) {
	var all []*subscription
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.posts {
		if p.sub != nil && !p.sub.over {
			p.sub.leaving = true
			p.sub.wake()
			all = append(all, p.sub)
		}
	}
	for len(all) > 0 {
		if all[0].over {
			all = all[1:]
			continue
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-c.ctx.Done():
		case <-ctx.Done():
		}
		c.mu.Lock()
		if c.ctx.Err() != nil || ctx.Err() != nil {
			return
		}
	}
}
