package engine

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"penstock/engine/base"
	"penstock/engine/core"
	"penstock/engine/host"
	"penstock/internal/lock"
	"penstock/replicate/wire"
	"penstock/segment"
)

// Channel is a cursor over a topic: it delivers every message at least once to one of its consumers. Its methods are
// safe for concurrent use.
//
// Deliveries run on the goroutine that caused them: a connection's reader after a run of FINs, or the channel's own
// goroutine (run) when messages were committed or a timer fired. Sinks are flushed after mu was released.
//
// A crash leaves the fold of the control entries in the partitions' logs. Recovery makes the channel from it, and
// delivers again what was not confirmed there.
type Channel struct {
	e         *Engine
	t         *Topic
	name      string
	ephemeral bool

	// mu guards what is embedded up to configuring. It may be held while cold data is read, so its holder may hang on the
	// disk: the committer and the goroutines of connections between nodes do not take it, they post events instead.
	mu lock.Mutex[lock.Channel]
	channelMachine
	channelReader
	channelSetup
	deadLetters
	timer   host.Timer
	armed   int64 // engine time in unix ms for which the timer is set; 0: not set
	started bool
	timed   *base.TimedMessages // nil: no latencies are measured

	configuring lock.Mutex[lock.ChannelConfiguring] // held during one change of the settings, outside mu
	postbox

	hungry atomic.Bool // a consumer waits for messages: a commit must wake the channel
	queued atomic.Bool // the channel is in confirmer.list
	woken  chan struct{}
	done   chan struct{}
}

// channelMachine is the channel's state machine, and whom it delivers to.
type channelMachine struct {
	m         *core.Channel
	ev        core.Event
	offer     core.Event // EvOffer of the batch that offerBatch reads
	res       core.Result
	closed    error // why the channel does nothing any more; nil: it is open
	consumers map[core.ClientID]*localConsumer
	nextID    core.ClientID
	touched   []*localConsumer // consumers whose sinks pump must flush
}

// channelReader is where the channel reads in the partitions' logs, and what it holds of them.
type channelReader struct {
	cursors           []cursor
	partsAssigned     uint32 // how many partitions the machine has here
	view              segment.View
	iter              segment.BatchIter
	records           segment.RecordIter
	scratch           []byte
	deferred          [1]core.DeferredMessage // scratch of deferAgain
	fetched           fetched                 // the batch that fetch read last; released when redeliver ends
	yieldedRedelivery bool                    // redeliver stopped to let a new message go first (core.HoldTurn)
}

// channelSetup is what follows from the machine's settings; learnSettings copies it.
type channelSetup struct {
	settings     core.ChannelSettings
	matcher      *core.Matcher // of the settings' filter; nil: no filter
	keyHeader    string        // OrderKey: the header that holds the key
	needsHeaders bool          // the filter or the key needs the headers of every message
}

// deadLetters is how far the goroutine that moves dead letters is (dead_letter.go).
type deadLetters struct {
	deadLetterMover bool               // it runs
	outbox          []core.DeadMessage // scratch of nextDead and outboxCount
	deadMoved       uint64             // moved to their topic since this node serves the channel
}

// postbox takes events for the machine from callers that must not wait for Channel.mu.
type postbox struct {
	postMu lock.Mutex[lock.ChannelPosts]
	posts  []core.Post // guarded by postMu: per partition in the order of its log; applyPostsLocked takes them
	posted atomic.Bool // posts may have entries
}

// cursor is the channel's read position in one partition. Channel.mu guards it.
type cursor struct {
	part     channelPartition
	number   uint32         // of part; it is also the cursor's index
	at       segment.Offset // of the batch that holds the next message
	found    bool           // at is the batch of the machine's ReadFrom
	bad      error          // why reading stopped at this place: the bytes cannot be read
	unread   error          // the error, logged once, since which no redelivered message could be read
	end      segment.MsgID  // the end of visible messages that the machine knows
	newEnd   segment.MsgID  // the end of visible messages that syncVisible just read
	assigned bool           // the machine has the partition
	epoch    segment.Epoch  // the leader epoch in which this node serves it; 0 on a single node
	put      *controlPut    // writes the machine's control entries to the log; at most one is in flight

	// The end of the log when the channel was found in it. 0: this process created the channel. See isCommittedIn.
	foundEnd segment.Position
}

func newChannel(t *Topic, name string) *Channel {
	o := &t.e.opts
	c := &Channel{
		e: t.e, t: t, name: name, ephemeral: base.Ephemeral(name),
		woken: make(chan struct{}, 1), done: make(chan struct{}),
		timer: t.e.host.NewTimer(),
		timed: base.NewTimedMessages(o.Latencies),
	}
	c.m = core.NewChannel(core.ChannelConfig{
		Name:      name,
		MaxRanges: o.MaxRanges, MaxDeferred: o.MaxDeferred, MaxConsumers: o.MaxConsumers,
		MaxMsgTimeoutMs: o.MaxMsgTimeout.Milliseconds(), MaxReqTimeoutMs: o.MaxReqTimeout.Milliseconds(),
		SampleSeed: t.sampleSeed(name), Ephemeral: base.Ephemeral(name),
	})
	c.consumers = map[core.ClientID]*localConsumer{}
	for _, pt := range t.partitions() {
		c.cursors = append(c.cursors, c.newCursor(pt))
	}
	return c
}

// Name is the channel's name.
func (c *Channel) Name() string { return c.name }

// Topic is the channel's topic.
func (c *Channel) Topic() *Topic { return c.t }

// create writes the channel into the log of every partition. In each it begins to watch at the moment its creation is
// committed, so that it misses no message. An ephemeral channel is in no log and begins at once.
func (c *Channel) create(ctx context.Context) error {
	if c.ephemeral {
		for _, pt := range c.t.partitions() {
			if !pt.rep.serves.Load() {
				continue
			}
			pt.followUnlogged(c, c.name)
		}
		c.applyPosts()
		return nil
	}
	err := c.t.writeControls(ctx, []core.Control{{Kind: core.ChannelCreated, Channel: c.name}}, func(pt *partition) {
		pt.follow(c, c.name)
	})
	c.applyPosts()
	return err
}

// restore makes the channels that are in the log of the first partition whose fold is known (whyUnread). It runs at
// Open, before the committer starts. The channels do not get partitions whose fold is unknown.
func (t *Topic) restore() {
	first := t.partitions()[0]
	for _, pt := range t.partitions() {
		if first.whyUnread() != nil {
			first = pt
		}
	}
	first.fold.Each(func(cur *core.Cursor) {
		c := newChannel(t, cur.Name)
		for _, pt := range t.partitions() {
			if pt.whyUnread() == nil {
				pt.follow(c, c.name)
			}
		}
		t.channels[cur.Name] = c
		c.applyPosts()
	})
	t.paused.Store(first.fold.TopicPaused)
	t.findIncomplete()
}

// Post implements subscriber. The caller then wakes the channel, or applies the posts itself.
func (c *Channel) Post(p *core.Post) {
	c.postMu.Lock()
	c.posts = append(c.posts, *p)
	c.postMu.Unlock()
	c.posted.Store(true)
}

// Committed implements subscriber.
func (c *Channel) Committed() {
	if c.hungry.Load() {
		c.Wake()
	}
}

// Resume implements subscriber: reading goes on at the place where it stopped. It takes mu.
func (c *Channel) Resume(partition uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := int(partition); n < len(c.cursors) {
		c.cursors[n].found, c.cursors[n].bad = false, nil
	}
}

// Wake implements subscriber: the channel's goroutine delivers what there is.
func (c *Channel) Wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// start starts the channel's goroutine. Until then the channel delivers only when a caller pumps it.
func (c *Channel) start() {
	c.startOnce()
	if c.e.isClosed() {
		// This node got a partition while it was closing. Close may not have seen this channel, and it waits for
		// the goroutines of all channels.
		c.shut(ErrClosed)
	}
}

func (c *Channel) startOnce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started || c.closed != nil {
		return
	}
	c.started = true
	c.startDeadLetterMover() // the outbox may have dead letters from before the restart, or of an earlier leader
	c.e.host.Loop(&c.e.wg, host.Loop{Woken: c.woken, Done: c.done, Timer: c.timer, Run: c.run})
}

// run delivers what can be delivered now. The host calls it on the channel's goroutine, when the channel was woken or
// its timer fired.
func (c *Channel) run(timeUp bool) {
	if timeUp {
		c.mu.Lock()
		c.armed = 0
		c.mu.Unlock()
	}
	c.pump()
}

// shut closes the channel for good: consumers are told err, and nothing is delivered or confirmed any more. With
// ErrClosed, what was confirmed is still written; with ErrMoved, controls in the inboxes are revoked, because the next
// leader does not know of them.
func (c *Channel) shut(err error) {
	c.mu.Lock()
	if c.closed != nil {
		c.mu.Unlock()
		return
	}
	if errors.Is(err, ErrClosed) {
		c.flushControls()
	}
	if errors.Is(err, ErrMoved) {
		for i := range c.cursors {
			c.cursors[i].put.revoked.Store(true)
		}
	}
	c.closed = err
	c.hungry.Store(false)
	var sinks []Sink
	for _, id := range c.clientIDs() {
		sinks = append(sinks, c.consumers[id].sink)
	}
	clear(c.consumers)
	c.timer.Stop()
	close(c.done)
	c.view.Release()
	c.mu.Unlock()
	for _, pt := range c.t.partitions() {
		pt.unwatch(c)
	}
	for _, s := range sinks {
		s.Closed(err)
	}
}

func (c *Channel) clientIDs() []core.ClientID {
	ids := make([]core.ClientID, 0, len(c.consumers))
	for id := range c.consumers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// step runs c.ev through the machine. mu is held.
func (c *Channel) step() *core.Result {
	c.m.Step(c.e.now().UnixNano(), &c.ev, &c.res)
	return &c.res
}

// applyPosts is applyPostsLocked without mu held.
func (c *Channel) applyPosts() {
	c.mu.Lock()
	c.applyPostsLocked()
	c.mu.Unlock()
}

// hasPartition says whether the machine has the partition with this index.
func (c *Channel) hasPartition(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyPostsLocked()
	return i < len(c.cursors) && c.cursors[i].assigned
}

// newCursor returns a cursor for a partition that the machine does not have.
func (c *Channel) newCursor(pt channelPartition) cursor {
	return cursor{part: pt, number: pt.Number(), put: newControlPut(c, pt, int(pt.Number()))}
}

// grow makes cursors for partitions that the topic got after the channel was made. mu is held.
func (c *Channel) grow(n int) {
	for i := len(c.cursors); i < n; i++ {
		c.cursors = append(c.cursors, c.newCursor(c.t.partitions()[i]))
	}
}

// applyPostsLocked steps the posted events in order. mu is held.
func (c *Channel) applyPostsLocked() {
	if !c.posted.Swap(false) {
		return
	}
	c.postMu.Lock()
	posts := c.posts
	c.posts = nil
	c.postMu.Unlock()
	added := false
	for i := range posts {
		p := &posts[i]
		c.grow(int(p.Part) + 1)
		cur := &c.cursors[p.Part]
		adds := p.Kind == core.EvAddPartition
		switch {
		// An event is stale if the machine does not have its partition: the EvAddPartition that comes later includes it. A
		// second EvAddPartition is ignored.
		case adds == cur.assigned:
		case adds:
			c.addPartition(cur, p)
			added = true
		case p.Kind == core.EvUnfence && p.Epoch != cur.epoch: // it ends the fence of another epoch
		default:
			c.ev = p.Event
			c.step()
			if p.Kind == core.EvCarried || p.Kind == core.EvDropped || p.Kind == core.EvTrimmed {
				cur.found = false
			}
			c.forgetGone(cur, p.Gone)
		}
	}
	if added {
		c.share()
		c.startDeadLetterMover()
	}
}

// addPartition gives the machine a partition. It reads the log's start and visible end again: both may have moved since
// the post. mu is held.
func (c *Channel) addPartition(cur *cursor, p *core.Post) {
	pt := cur.part
	_, _, p.Start = pt.Log().Start()
	p.End = min(p.End, pt.VisibleEnd())
	p.HoldMs = pt.FenceMs(p.Epoch)
	c.ev = p.Event
	c.step()
	if c.m.Fenced(cur.number) {
		pt.Fence(p.Epoch)
	}
	cur.end, cur.foundEnd, cur.assigned, cur.epoch = p.End, p.FoundEnd, true, p.Epoch
}

// Pause stops deliveries. When it returns nil, that is durable.
func (c *Channel) Pause(ctx context.Context) error {
	return c.ask(ctx, wire.Operation{Kind: wire.OpPauseChannel, Flag: true}, nil, nil)
}

// Unpause resumes deliveries. When it returns nil, that is durable.
func (c *Channel) Unpause(ctx context.Context) error {
	return c.ask(ctx, wire.Operation{Kind: wire.OpPauseChannel, Flag: false}, nil, nil)
}

// Skip, while on, discards everything that would be delivered.
func (c *Channel) Skip(ctx context.Context, on bool) error {
	return c.ask(ctx, wire.Operation{Kind: wire.OpSkipChannel, Flag: on}, nil, nil)
}

// Empty drops all messages of the channel: unread, in flight and deferred.
func (c *Channel) Empty(ctx context.Context) error {
	return c.ask(ctx, wire.Operation{Kind: wire.OpEmptyChannel}, nil, nil)
}

func (c *Channel) pauseLocal(ctx context.Context, on bool) error {
	return c.change(ctx, core.Event{Kind: core.EvPause, Flag: on})
}

func (c *Channel) skipLocal(ctx context.Context, on bool) error {
	return c.change(ctx, core.Event{Kind: core.EvSkip, Flag: on})
}

func (c *Channel) emptyLocal(ctx context.Context) error {
	return c.change(ctx, core.Event{Kind: core.EvEmpty})
}

func (c *Channel) closedErr() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// change steps events, and returns when the control entries that they caused are committed, or ctx ends. ErrUnknown
// joined to the error means that they may still be committed.
func (c *Channel) change(ctx context.Context, evs ...core.Event) error {
	c.mu.Lock()
	if c.closed != nil {
		c.mu.Unlock()
		return c.closed
	}
	c.applyPostsLocked()
	c.syncVisible()
	for i := range evs {
		if !c.concerns(&evs[i]) {
			continue
		}
		c.ev = evs[i]
		if err := c.step().Err; err != nil {
			c.mu.Unlock()
			return err
		}
	}
	c.learnSettings()
	for i := range c.cursors {
		c.cursors[i].found, c.cursors[i].bad = false, nil
	}
	ws, err := c.writeControls(evs)
	c.mu.Unlock()
	for _, w := range ws {
		// Without a quorum the entries wait in the inbox for as long as that takes. They must be written, because the machine
		// has given them away. But the caller need not wait for them.
		if !c.e.host.Either(w.answered, ctx.Done()) {
			err = errors.Join(err, ErrUnknown, ctx.Err())
			c.e.host.Spawn(func() {
				c.e.host.Receive(w.answered)
				c.applyOutcome(w)
			})
			continue
		}
		err = errors.Join(err, w.err)
		c.applyOutcome(w)
	}
	c.pump()
	return err
}
