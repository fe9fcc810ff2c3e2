package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// Consumer takes messages from a channel: the cluster delivers each message to one of the channel's consumers, and
// again if that one does not finish it in time. A consumer is subscribed at every node that leads partitions of the
// topic, and follows them when they move.
//
// Any number of goroutines may use a Consumer and its deliveries.
type Consumer struct {
	client  *Client
	topic   string
	channel string
	id      uuid.UUID // of the topic
	o       ConsumerOptions
	start   time.Time // deliveries' times count from it

	kicked chan struct{}   // holds a token if run may have something to do
	ready  chan struct{}   // holds a token if a Next that waits may have something to return
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	done   chan struct{} // closed when run has ended

	mu      sync.Mutex // guards the rest, and most of each subscription
	spread  spread
	posts   map[string]*post // by address
	leaving []*subscription  // that the consumer ends because their nodes lead nothing, and that are not over
	changed chan struct{}    // closed, and replaced, when a subscription was synced or has ended
	closing bool             // Next returns nothing any more
	gone    error            // the topic can not be consumed
	refusal error            // of finishes and requeues since the newest Sync; nil: none
	unsure  bool             // a subscription has ended before it confirmed something

	parcels []parcel        // that have arrived; those before next were taken
	next    int             // in parcels
	walking bool            // walk is within parcel next
	walk    wire.Deliveries // over that parcel
	seq     uint64          // of the newest delivery that the application got
	headers []Header        // memory for the headers of deliveries
}

// post is a node that may lead partitions of the topic.
type post struct {
	seat *seat
	node *node
	live *link         // nil: it cannot be reached
	sub  *subscription // nil: none, or it has ended
	why  error         // the newest subscription has ended
}

// Consumer begins to consume a channel of a topic. The channel is created if it does not exist, the topic is not:
// Consumer waits for it until ctx ends, and gives ErrNoTopic if a node says that there is none. Refusals of the nodes
// are returned by Next. The consumer outlives ctx: Close ends it.
func (c *Client) Consumer(ctx context.Context, topicName, channel string, options ConsumerOptions) (*Consumer, error) {
	o, err := options.withDefaults()
	if err == nil {
		err = checkName("topic", topicName)
	}
	if err == nil {
		err = checkName("channel", channel)
	}
	if err == nil {
		err = c.view.want(topicName, false)
	}
	if err != nil {
		return nil, err
	}
	t, err := c.view.topic(ctx, topicName, false)
	if err == nil && o.Partition != nil && *o.Partition >= len(t.leaders) {
		err = because(ErrNoTopic, fmt.Errorf("topic %s has %d partitions", topicName, len(t.leaders)))
	}
	if err != nil {
		c.view.unwant(topicName, false)
		return nil, err
	}
	k := &Consumer{
		client: c, topic: topicName, channel: channel, id: t.id, o: o, start: time.Now(),
		kicked: make(chan struct{}, 1), ready: make(chan struct{}, 1), done: make(chan struct{}),
		posts: make(map[string]*post), changed: make(chan struct{}),
		spread: spread{limit: quota{o.MaxInFlight, o.MaxInFlightBytes}, only: -1, pause: c.o.delay},
	}
	if o.Partition != nil {
		k.spread.only = *o.Partition
	}
	k.ctx, k.cancel = context.WithCancel(c.ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		k.cancel()
		c.view.unwant(topicName, false)
		return nil, ErrClosed
	}
	c.goroutines.Go(k.run)
	return k, nil
}

// Topic is the name of the consumer's topic.
func (c *Consumer) Topic() string { return c.topic }

// Channel is the name of the consumer's channel.
func (c *Consumer) Channel() string { return c.channel }

// clock is the time since the consumer began.
func (c *Consumer) clock() time.Duration { return time.Since(c.start) }

func (c *Consumer) wake() { signal(c.kicked) }

// signal leaves a token in a channel of capacity 1. The goroutine that waits there then looks at its state once more,
// and only once if signal was called several times before.
func signal(token chan struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}

// run is the consumer's goroutine. It keeps a connection to every leader, and does what spread decides.
func (c *Consumer) run() {
	defer close(c.done)
	defer c.release()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		known := c.client.view.known.Load()
		c.mu.Lock()
		c.follow(known)
		var m move
		if !c.closing {
			m = c.spread.step(time.Now())
		}
		c.do(&m)
		c.mu.Unlock()
		if m.do != moveWait {
			continue
		}
		var due <-chan time.Time
		if !m.until.IsZero() {
			timer.Reset(time.Until(m.until))
			due = timer.C
		}
		select {
		case <-due:
		case <-c.kicked:
		case <-known.changed:
		case <-c.ctx.Done():
			return
		}
	}
}

// release gives up all nodes, at the end.
func (c *Consumer) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.posts {
		if p.sub != nil {
			c.overLocked(p.sub)
		}
		if p.node != nil {
			c.client.release(p.node, c)
		}
	}
	clear(c.posts)
	for len(c.leaving) > 0 {
		c.overLocked(c.leaving[0])
	}
	signal(c.ready)
	c.client.view.unwant(c.topic, false)
}

// follow tells spread which nodes lead and which can be reached. The caller holds mu.
func (c *Consumer) follow(known *knowledge) {
	t := known.topics[c.topic]
	switch {
	case t == nil:
	case meaning(t.status) == verdictRefused:
		c.gone = topicRefused(t.status, c.topic)
	case t.status == netproto.StatusOK && t.id != c.id:
		c.gone = topicRemade(c.topic)
	case t.status == netproto.StatusOK:
		c.gone = nil
		c.spread.lead(t.leaders)
	}
	for _, x := range c.spread.seats {
		p := c.posts[x.address]
		if p == nil {
			p = &post{seat: x, node: c.client.acquire(x.address, c)}
			c.posts[x.address] = p
		}
		live, _, err := p.node.state()
		if !live.alive() || live.leaving.Load() && !x.joined {
			live = nil
		}
		if live != p.live || live == nil {
			var refusal error
			if errors.Is(err, ErrUnauthorized) {
				refusal = err
			}
			if p.sub != nil {
				c.overLocked(p.sub)
				p.sub = nil
			}
			c.spread.disconnected(x, refusal)
		}
		if p.live = live; live != nil {
			c.spread.connected(x)
		}
	}
	if c.failure() != nil {
		signal(c.ready)
	}
}

// do does what spread decides. The caller holds mu.
func (c *Consumer) do(m *move) {
	if m.do == moveWait {
		return
	}
	p := c.posts[m.seat.address]
	switch m.do {
	case moveJoin:
		c.join(p, m.share)
	case moveShare:
		p.sub.share, p.sub.ledger.share = m.share, m.share.bytes
		p.sub.wake()
	case moveLeave:
		if p.sub != nil {
			p.sub.leaving = true
			p.sub.kept = c.client.acquire(p.seat.address, p.sub)
			p.sub.wake()
			c.leaving = append(c.leaving, p.sub)
			p.sub = nil
		}
	case moveForget:
		c.client.release(p.node, c)
		delete(c.posts, m.seat.address)
	}
}

// join subscribes at a node. The caller holds mu.
func (c *Consumer) join(p *post, share quota) {
	s := &subscription{consumer: c, seat: p.seat, link: p.live, woken: make(chan struct{}, 1), share: share}
	s.told, s.ledger.share, s.ledger.credit = uint32(share.messages), share.bytes, share.bytes
	p.sub = s
	m := &wire.Subscribe{
		Topic: c.id, Channel: c.channel, Tag: c.o.Tag, Create: true, From: wire.FromDefault,
		SampleRate: uint8(c.o.SampleRate), Partition: wire.NoPartition, TimeoutMs: milliseconds(c.o.Timeout),
		Messages: uint32(share.messages), Bytes: uint32(share.bytes), Stamp: s.stamp(awake()),
	}
	if c.o.From.set {
		m.From, m.Value = c.o.From.kind, c.o.From.value
	}
	if c.o.Partition != nil {
		m.Partition = uint32(*c.o.Partition)
	}
	c.client.goroutines.Go(func() { s.run(m) })
}

// milliseconds is d, rounded up, and cut to what the protocol can say.
func milliseconds(d time.Duration) uint32 {
	if d > math.MaxUint32*time.Millisecond {
		return math.MaxUint32
	}
	return uint32((d + time.Millisecond - 1) / time.Millisecond)
}

// accepted notes that the node has accepted the subscription.
func (c *Consumer) accepted(s *subscription, m *wire.Subscribed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.ledger.timeout = time.Duration(m.TimeoutMs) * time.Millisecond
	s.ledger.most = time.Duration(m.MaxTimeoutMs) * time.Millisecond
	c.spread.accepted(s.seat)
}

// arrived takes deliveries, maybe none, and the permit with which they came.
func (c *Consumer) arrived(p parcel, permit *wire.Permit) {
	p.arrived = c.clock()
	c.mu.Lock()
	if permit != nil {
		// The delivery's time runs from when it was sent: it may have been on its way for long.
		now := awake()
		p.arrived -= now - p.sub.permit.take(now, permit)
		p.sub.wake()
	}
	if s := p.sub; p.count > 0 && !s.over && !s.leaving && !c.closing {
		s.ledger.arrive(p.left)
		if c.next > len(c.parcels)/2 { // so that each parcel is moved once at most
			n := copy(c.parcels, c.parcels[c.next:])
			clear(c.parcels[n:])
			c.parcels, c.next = c.parcels[:n], 0
		}
		c.parcels = append(c.parcels, p)
	}
	c.mu.Unlock()
	signal(c.ready)
}

// recall notes that some deliveries must not be begun any more.
func (c *Consumer) recall(s *subscription, m *wire.Recall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.permit.recall(m)
}

// refused notes what the node did not do.
func (c *Consumer) refused(s *subscription, m *wire.Refused) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range m.Messages {
		switch netproto.Type(r.Kind) {
		case wire.TypeTouch:
			s.ledger.refusedTouch(c.clock(), r.Handle, r.Status)
			continue
		case wire.TypeRequeue:
			s.ledger.refusedRequeue(c.clock(), r.Number, r.Status)
		}
		if c.refusal == nil {
			c.refusal = because(ErrNotInFlight, &StatusError{r.Status, "message " + ID(r.ID).String()})
		}
	}
}

// synced notes that the node has answered a Sync.
func (c *Consumer) synced(s *subscription, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.ledger.synced(ok)
	c.unsure = c.unsure || !ok
	c.changedLocked()
	s.wake() // the next one may wait
}

func (c *Consumer) changedLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// ended notes that a subscription has ended, by the node's decision or with its connection. It returns true if a node
// that gives permits waits for the answer that nothing is begun any more.
func (c *Consumer) ended(s *subscription, status netproto.Status, why wire.Outcome) (answer bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer = s.permit.ordered && !s.leaving
	if s.over {
		return answer
	}
	c.overLocked(s)
	p := c.posts[s.seat.address]
	if p == nil || p.sub != s {
		return answer
	}
	p.sub = nil
	if view := c.client.view; status == netproto.StatusNotLeader {
		view.hint(why.Address)
		if view.doubt(); c.o.Partition != nil {
			view.redirect(c.topic, *c.o.Partition, s.seat.address, why.Address)
		}
	}
	p.why = consumerRefused(status, why.Text, s.seat.address)
	c.spread.ended(s.seat, time.Now(), meaning(status), p.why)
	c.wake()
	if c.failure() != nil {
		signal(c.ready)
	}
	return answer
}

// overLocked ends a subscription: messages in flight there are delivered again, to this or another consumer. The caller
// holds mu.
func (c *Consumer) overLocked(s *subscription) {
	if s.over {
		return
	}
	s.over = true
	if s.kept != nil {
		c.client.release(s.kept, s)
		s.kept = nil
	}
	c.unsure = c.unsure || s.ledger.unconfirmed()
	c.leaving = slices.DeleteFunc(c.leaving, func(x *subscription) bool { return x == s })
	c.changedLocked()
	s.wake()
}

// failure is why nothing comes any more. The caller holds mu.
func (c *Consumer) failure() error {
	if c.gone != nil {
		return c.gone
	}
	return c.spread.refusal()
}

// heldUp returns the error because of which some leader delivers nothing now, although the consumer tries it again. It
// returns nil if no such error is known.
func (c *Consumer) heldUp() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.spread.seats {
		switch p := c.posts[x.address]; {
		case p == nil || x.partitions == 0:
		case !x.linked:
			if _, _, err := p.node.state(); err != nil {
				return unreached(x.address, err)
			}
		case x.fails > 0: // since it was accepted last
			return p.why
		}
	}
	return nil
}
