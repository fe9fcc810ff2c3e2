package engine

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"penstock/engine/core"
	"penstock/engine/host"
	"penstock/internal/lock"
	"penstock/segment"
)

// Channel is a cursor over a topic: it delivers every message at least once to one of
// its consumers. Its methods are safe for concurrent use.
//
// mu owns the machine and everything it decides about. Deliveries run on whatever goroutine has
// something to set in motion: a connection's reader after a run of FINs, or the channel's own goroutine
// when messages were committed or a timer is due. Sinks are flushed after mu was released.
type Channel struct {
	e         *Engine
	t         *Topic
	name      string
	ephemeral bool

	mu                lock.Mutex[lock.Channel]
	m                 *core.Channel
	ev                core.Event
	offer             core.Event // of the batch that is being offered
	res               core.Result
	cursors           []cursor
	consumers         map[core.ClientID]*localConsumer
	nextID            core.ClientID
	touched           []*localConsumer // got messages in this turn
	view              segment.View
	iter              segment.BatchIter
	records           segment.RecordIter
	scratch           []byte
	deferred          [1]core.DeferredMessage // deferAgain's
	fetched           fetched                 // within redeliver
	yieldedRedelivery bool                    // a message that came often lets a new one go first
	armed             int64                   // unix ms that the timer is set to; 0: not set
	closed            error

	settings        core.ChannelSettings // what the machine has; see learnSettings
	matcher         *core.Matcher        // of its filter; nil: everything
	keyHeader       string               // OrderKey: the header that holds the key
	needsHeaders    bool                 // headers decide about every message
	partsAssigned   uint32               // partitions that the machine has
	deadLetterMover bool                 // the carrier of dead letters runs
	outbox          []core.DeadMessage   // its and outboxCount's list
	deadMoved       uint64               // dead letters that went to their topic
	timed           *timedMessages       // nil: nothing is measured

	configuring lock.Mutex[lock.ChannelConfiguring] // one change of the settings at a time

	postMu lock.Mutex[lock.ChannelPosts]
	posts  []post // in the order of the log of each partition; whoever holds mu next steps them

	hungry  atomic.Bool // some consumer waits for messages: worth waking for a commit
	posted  atomic.Bool // posts may not be empty
	woken   chan struct{}
	timer   host.Timer // guarded by mu
	done    chan struct{}
	started bool
	queued  atomic.Bool // in the confirmer's list
}

// cursor is the reading place in one partition.
type cursor struct {
	part     *partition
	at       segment.Offset // of the batch that holds the next message
	found    bool           // at is right for the machine's ReadFrom
	bad      error          // reading stopped here: the bytes are corrupt
	unread   error          // a message that comes again could not be read, and since then none could: it was said
	end      segment.MsgID  // what the machine was told is visible
	newEnd   segment.MsgID  // what see read
	assigned bool           // the machine knows the partition
	epoch    segment.Epoch  // in which it is served, if there is a cluster
	put      *controlPut    // carries taken controls to the log; at most one at a time

	foundEnd segment.Position // the end of the log when the channel was found in it; 0: it was made here. See isCommittedIn
}

// post is an event about one partition for a channel's machine. Who brings it may not wait for Channel.mu: the committer,
// whoever commits in a cluster, the flusher, a connection. Nothing of it is only here: after a crash the channel begins with
// a snapshot of the log, which has it.
type post struct {
	core.Event                  // its Part is the index of the partition's cursor
	epoch      segment.Epoch    // EvAddPartition, EvUnfence: see cursor.epoch
	foundEnd   segment.Position // EvAddPartition: see cursor.foundEnd
	gone       []segment.MsgID  // EvTrimmed: what waited for its time below Start. An EvGone of each follows
}

func newChannel(t *Topic, name string) *Channel {
	o := &t.e.opts
	c := &Channel{
		e: t.e, t: t, name: name, ephemeral: ephemeral(name),
		m: core.NewChannel(core.ChannelConfig{
			Name:      name,
			MaxRanges: o.MaxRanges, MaxDeferred: o.MaxDeferred, MaxConsumers: o.MaxConsumers,
			MaxMsgTimeoutMs: o.MaxMsgTimeout.Milliseconds(), MaxReqTimeoutMs: o.MaxReqTimeout.Milliseconds(),
			SampleSeed: t.sampleSeed(name), Ephemeral: ephemeral(name),
		}),
		consumers: map[core.ClientID]*localConsumer{},
		woken:     make(chan struct{}, 1), done: make(chan struct{}),
		timer: t.e.host.NewTimer(),
		timed: newTimedMessages(o.Latencies),
	}
	for i, pt := range t.partitions() {
		c.cursors = append(c.cursors, cursor{part: pt, put: newControlPut(c, i)})
	}
	return c
}

// Name is the channel's name.
func (c *Channel) Name() string { return c.name }

// Topic is the channel's topic.
func (c *Channel) Topic() *Topic { return c.t }

// create writes the channel into the log of every partition and starts watching each at the moment
// its creation is committed, so that no message falls between.
func (c *Channel) create(ctx context.Context) error {
	if c.ephemeral {
		for _, pt := range c.t.partitions() {
			if pt.rep != nil && !pt.rep.serves.Load() {
				continue
			}
			pt.watch(c)
			end := segment.MsgID(pt.visible.Load())
			start := min(end, segment.MsgID(pt.unclaimed.Load()), segment.MsgID(pt.pausedFrom.Load()))
			p := pt.begins(c.name, start, end)
			if pt.rep != nil {
				p.epoch = pt.rep.serving()
			}
			c.post(&p)
		}
		c.applyPosts()
		return nil
	}
	err := c.t.writeControls(ctx, []core.Control{{Kind: core.ChannelCreated, Channel: c.name}}, func(pt *partition) {
		c.follow(pt)
	})
	c.applyPosts()
	return err
}

// follow lets the channel have a partition from what its log says now, with all that comes later: nothing is committed
// between the two. It runs on the committer or with replica.mu held, or before the committer started.
func (c *Channel) follow(pt *partition) {
	pt.watch(c)
	p := pt.snapshot(c.name)
	c.post(&p)
}

// begins is the event by which a channel gets the partition: it reads from start, and end is visible.
func (pt *partition) begins(name string, start, end segment.MsgID) post {
	return post{Event: core.Event{
		Kind: core.EvAddPartition, Part: pt.number, End: end,
		Cursor: &core.Cursor{Name: name, Start: start, Confirmed: start},
	}}
}

// snapshot is what the partition's log says about a channel now; see follow for where it runs.
func (pt *partition) snapshot(name string) post {
	end := segment.MsgID(pt.visible.Load())
	p := pt.begins(name, pt.fold.StartFor(end), end)
	if r := pt.rep; r != nil && r.leader != nil {
		p.epoch, p.Flag = r.leader.Epoch(), pt.machine.State().Next > r.committed()
	}
	for _, d := range pt.fold.Deferred {
		if d.ID < end {
			p.Deferred = append(p.Deferred, d)
		}
	}
	if cur := pt.fold.Channel(name); cur != nil {
		own := *cur // the fold goes on changing
		own.Ranges, own.Requeued, own.Dead = cur.Ranges.Clone(), slices.Clone(cur.Requeued), slices.Clone(cur.Dead)
		p.Cursor = &own
	}
	return p
}

// restore makes the channels that the log of the first partition names; it runs before the committer starts. A partition whose fold is not known is not
// served by them.
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
				c.follow(pt)
			}
		}
		t.channels[cur.Name] = c
		c.applyPosts()
	})
	t.paused.Store(first.fold.TopicPaused)
	t.findIncomplete()
}

// watching are the channels that read the partition. The list is replaced, never changed.
func (pt *partition) watching() []*Channel {
	if cs := pt.watchers.Load(); cs != nil {
		return *cs
	}
	return nil
}

// watch lets the channel hear of the partition from now on, if it does not yet.
func (pt *partition) watch(c *Channel) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if old := pt.watching(); !slices.Contains(old, c) {
		cs := append([]*Channel{c}, old...)
		pt.watchers.Store(&cs)
	}
}

func (pt *partition) unwatch(c *Channel) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	cs := slices.DeleteFunc(slices.Clone(pt.watching()), func(other *Channel) bool { return other == c })
	pt.watchers.Store(&cs)
}

// wake tells the partition's channels that more is committed. Who commits calls it, after it raised visible.
func (pt *partition) wake() {
	for _, c := range pt.watching() {
		if c.hungry.Load() {
			c.wake()
		}
	}
}

// post tells the partition's channels of an event. What it points to they share, and none changes it.
func (pt *partition) post(p *post) {
	p.Part = pt.number
	for _, c := range pt.watching() {
		c.post(p)
		c.wake()
	}
}

// postDeferred tells the channels of committed deferred messages, before they are visible: who commits calls it. ds is
// borrowed.
func (pt *partition) postDeferred(ds []core.DeferredMessage) {
	if len(pt.watching()) > 0 {
		pt.post(&post{Event: core.Event{Kind: core.EvDeferredPublished, Deferred: slices.Clone(ds)}})
	}
}

// postDropped tells the channels what a paused topic held back and dropped, before the end of it becomes visible;
// committer only.
func (pt *partition) postDropped(r core.IDRange) {
	pt.post(&post{Event: core.Event{Kind: core.EvDropped, Msg: r.From, End: r.To}})
}

// post queues an event. The caller wakes the channel, or applies the posts itself; it may hold any lock but postMu.
func (c *Channel) post(p *post) {
	c.postMu.Lock()
	c.posts = append(c.posts, *p)
	c.postMu.Unlock()
	c.posted.Store(true)
}

func (c *Channel) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// start lets the channel deliver on its own.
func (c *Channel) start() {
	c.startOnce()
	if c.e.isClosed() {
		c.shut(ErrClosed) // a partition came to this node while it closed: Close may not have seen the channel, and would wait for it
	}
}

func (c *Channel) startOnce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started || c.closed != nil {
		return
	}
	c.started = true
	c.startDeadLetterMover() // what a former life, or leader, left in the outbox
	c.e.host.Loop(&c.e.wg, host.Loop{Woken: c.woken, Done: c.done, Timer: c.timer, Run: c.run})
}

// run delivers what can be delivered now. The host calls it when the channel was woken, and when its timer fired.
func (c *Channel) run(timeUp bool) {
	if timeUp {
		c.mu.Lock()
		c.armed = 0
		c.mu.Unlock()
	}
	c.pump()
}

// shut ends the channel: consumers are told err, nothing is delivered or confirmed any more.
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

// step runs one event through the machine; mu is held and c.ev is set.
func (c *Channel) step() *core.Result {
	c.m.Step(c.e.now().UnixNano(), &c.ev, &c.res)
	return &c.res
}

// applyPosts takes in what the committer posted.
func (c *Channel) applyPosts() {
	c.mu.Lock()
	c.applyPostsLocked()
	c.mu.Unlock()
}

// hasPartition says whether the channel has the partition.
func (c *Channel) hasPartition(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyPostsLocked()
	return i < len(c.cursors) && c.cursors[i].assigned
}

// grow makes cursors for partitions that the topic got after the channel; mu is held.
func (c *Channel) grow(n int) {
	for i := len(c.cursors); i < n; i++ {
		c.cursors = append(c.cursors, cursor{part: c.t.partitions()[i], put: newControlPut(c, i)})
	}
}

// applyPostsLocked steps what was posted, in order; mu is held.
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
		case adds == cur.assigned: // it has the partition; or has not, and what adds it later knows of this already
		case adds:
			c.addPartition(cur, p)
			added = true
		case p.Kind == core.EvUnfence && p.epoch != cur.epoch: // the fence of another leadership
		default:
			c.ev = p.Event
			c.step()
			if p.Kind == core.EvCarried || p.Kind == core.EvDropped || p.Kind == core.EvTrimmed {
				cur.found = false
			}
			c.forgetGone(cur, p.gone)
		}
	}
	if added {
		c.share()
		c.startDeadLetterMover()
	}
}

// addPartition gives the machine a partition. What the log's start and its visible end are is looked up only now: both may
// have moved since the post. mu is held.
func (c *Channel) addPartition(cur *cursor, p *post) {
	pt := cur.part
	_, _, p.Start = pt.log.Start()
	p.End = min(p.End, pt.visibleEnd())
	p.HoldMs = pt.fenceMs(p.epoch)
	c.ev = p.Event
	c.step()
	if c.m.Fenced(pt.number) {
		c.e.cluster.remotes.fence(pt, p.epoch)
	}
	cur.end, cur.foundEnd, cur.assigned, cur.epoch = p.End, p.foundEnd, true, p.epoch
}

// Pause stops deliveries; durable when it returns nil.
func (c *Channel) Pause(ctx context.Context) error {
	return c.onLeaders(ctx, operation{Kind: opPauseChannel, Flag: true})
}

// Unpause resumes deliveries.
func (c *Channel) Unpause(ctx context.Context) error {
	return c.onLeaders(ctx, operation{Kind: opPauseChannel, Flag: false})
}

// Skip, while on, discards everything that would be delivered.
func (c *Channel) Skip(ctx context.Context, on bool) error {
	return c.onLeaders(ctx, operation{Kind: opSkipChannel, Flag: on})
}

// Empty drops everything the channel still has: unread, in flight and deferred.
func (c *Channel) Empty(ctx context.Context) error {
	return c.onLeaders(ctx, operation{Kind: opEmptyChannel})
}

// onLeaders does op to the channel in every partition.
func (c *Channel) onLeaders(ctx context.Context, op operation) error {
	if c.e.cluster != nil {
		return c.ask(ctx, op, nil, nil)
	}
	switch op.Kind {
	case opPauseChannel:
		return c.pauseLocal(ctx, op.Flag)
	case opSkipChannel:
		return c.skipLocal(ctx, op.Flag)
	}
	return c.emptyLocal(ctx)
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

// change runs events that must be in the log before the caller hears that they are done.
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
	ws, err := c.writeControls(ctx, evs)
	c.mu.Unlock()
	for _, w := range ws {
		// Without a quorum it waits in the inbox for as long as that takes: what the machine gave away must be written, but the caller
		// need not wait for it.
		if w.pt.rep != nil && !c.e.host.Either(w.done, ctx.Done()) {
			err = errors.Join(err, ErrUnknown, ctx.Err())
			c.e.host.Spawn(func() {
				c.e.host.Receive(w.done)
				c.applyOutcome(w)
			})
			continue
		}
		if w.pt.rep == nil {
			c.e.host.Receive(w.done)
		}
		err = errors.Join(err, w.Err)
		c.applyOutcome(w)
	}
	c.pump()
	return err
}
