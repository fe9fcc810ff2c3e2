package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"penstock/engine/core"
	"penstock/engine/host"
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

	mu                sync.Mutex
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

	configuring sync.Mutex // one change of the settings at a time

	postMu sync.Mutex
	posts  []post // from the committer, for whoever holds mu next

	hungry  atomic.Bool // some consumer waits for messages: worth waking for a commit
	posted  atomic.Bool
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

	foundEnd segment.Position // the end of the log when the channel was found in it; 0: it was made here. See stands
}

// post is news for the machine that the committer may not wait to deliver.
type post struct {
	index       int
	assign      bool
	cursor      *core.Cursor
	deferred    []core.DeferredMessage
	end         segment.MsgID
	epoch       segment.Epoch          // see cursor.epoch
	uncommitted bool                   // not all that the log says of the channel is committed
	foundEnd    segment.Position       // see cursor.behind
	carried     []core.DeferredMessage // lie elsewhere now
	lost        []segment.MsgID        // waited, and retention removed their bytes with all that was below
	lostBelow   segment.MsgID          // this
	unfence     segment.Epoch          // the fence of this epoch has passed
	dropped     core.IDRange           // emptied at the topic while a pause held it back
}

// watch is a partition's link to a channel that reads it.
type watch struct {
	ch    *Channel
	index int
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
		for i, pt := range c.t.partitions() {
			if pt.rep != nil && !pt.rep.serves.Load() {
				continue
			}
			pt.watch(c, i)
			end := segment.MsgID(pt.visible.Load())
			start := min(end, segment.MsgID(pt.unclaimed.Load()), segment.MsgID(pt.pausedFrom.Load()))
			p := post{index: i, assign: true, end: end, cursor: &core.Cursor{Name: c.name, Start: start, Confirmed: start}}
			if pt.rep != nil {
				p.epoch = pt.rep.serving()
			}
			c.post(p)
		}
		c.applyPosts()
		return nil
	}
	err := c.t.writeControls(ctx, func(*partition) []core.Control {
		return []core.Control{{Kind: core.ChannelCreated, Channel: c.name}}
	}, func(pt *partition) {
		i := slices.Index(c.t.partitions(), pt)
		pt.watch(c, i)
		c.post(pt.snapshot(c.name, i))
	})
	c.applyPosts()
	return err
}

// snapshot is what the partition's log says about a channel now; it runs on the committer, or
// before it started.
func (pt *partition) snapshot(name string, index int) post {
	end := segment.MsgID(pt.visible.Load())
	p := post{index: index, assign: true, end: end}
	if r := pt.rep; r != nil && r.leader != nil {
		p.epoch, p.uncommitted = r.leader.Epoch(), pt.machine.State().Next > r.committed()
	}
	for _, d := range pt.fold.Deferred {
		if d.ID < end {
			p.deferred = append(p.deferred, d)
		}
	}
	if cur := pt.fold.Channel(name); cur != nil {
		own := *cur // the fold goes on changing
		own.Ranges, own.Requeued, own.Dead = cur.Ranges.Clone(), slices.Clone(cur.Requeued), slices.Clone(cur.Dead)
		p.cursor = &own
	} else {
		start := pt.fold.StartFor(end)
		p.cursor = &core.Cursor{Name: name, Start: start, Confirmed: start}
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
		for i, pt := range t.partitions() {
			if pt.whyUnread() != nil {
				continue
			}
			pt.watch(c, i)
			c.post(pt.snapshot(cur.Name, i))
		}
		t.channels[cur.Name] = c
		c.applyPosts()
	})
	t.paused.Store(first.fold.TopicPaused)
	t.findIncomplete()
}

func (pt *partition) watch(c *Channel, index int) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	ws := []*watch{{c, index}}
	if old := pt.watchers.Load(); old != nil {
		if slices.ContainsFunc(*old, func(w *watch) bool { return w.ch == c }) {
			return
		}
		ws = append(ws, *old...)
	}
	pt.watchers.Store(&ws)
}

func (pt *partition) unwatch(c *Channel) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	old := pt.watchers.Load()
	if old == nil {
		return
	}
	ws := slices.DeleteFunc(slices.Clone(*old), func(w *watch) bool { return w.ch == c })
	pt.watchers.Store(&ws)
}

// wake tells the partition's channels that more is committed; committer only.
func (pt *partition) wake() {
	ws := pt.watchers.Load()
	if ws == nil {
		return
	}
	for _, w := range *ws {
		if w.ch.hungry.Load() {
			w.ch.wake()
		}
	}
}

// postDeferred tells the channels of committed deferred messages, before they are visible; committer only.
func (pt *partition) postDeferred(ds []core.DeferredMessage) {
	ws := pt.watchers.Load()
	if ws == nil || len(*ws) == 0 {
		return
	}
	ds = slices.Clone(ds)
	for _, w := range *ws {
		w.ch.post(post{index: w.index, deferred: ds})
		w.ch.wake()
	}
}

func (c *Channel) post(p post) {
	c.postMu.Lock()
	c.posts = append(c.posts, p)
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
		c.grow(p.index + 1)
		part := c.cursors[p.index].part
		if p.assign && c.cursors[p.index].assigned {
			continue
		}
		if p.assign {
			_, _, start := part.log.Start()
			end := min(p.end, part.visibleEnd())
			c.ev = core.Event{
				Kind: core.EvAddPartition, Part: part.number, Cursor: p.cursor, Start: start, End: end, Deferred: p.deferred, Flag: p.uncommitted,
				HoldMs: part.fenceMs(p.epoch),
			}
			c.step()
			if c.m.Fenced(part.number) {
				c.e.cluster.remotes.fence(part, p.epoch)
			}
			c.cursors[p.index].end, c.cursors[p.index].foundEnd, c.cursors[p.index].assigned = end, p.foundEnd, true
			c.cursors[p.index].epoch = p.epoch
			added = true
			continue
		}
		if !c.cursors[p.index].assigned {
			continue // what it adds later knows of this already
		}
		if p.unfence != 0 {
			if p.unfence == c.cursors[p.index].epoch {
				c.ev = core.Event{Kind: core.EvUnfence, Part: part.number}
				c.step()
			}
			continue
		}
		if p.carried != nil {
			c.ev = core.Event{Kind: core.EvCarried, Part: part.number, Deferred: p.carried}
			c.step()
			c.cursors[p.index].found = false
			continue
		}
		if p.lost != nil {
			c.dropLost(p)
			continue
		}
		if p.dropped.From < p.dropped.To {
			c.ev = core.Event{Kind: core.EvDropped, Part: part.number, Msg: p.dropped.From, End: p.dropped.To}
			c.step()
			c.cursors[p.index].found = false
			continue
		}
		c.ev = core.Event{Kind: core.EvDeferredPublished, Part: part.number, Deferred: p.deferred}
		c.step()
	}
	if added {
		c.share()
		c.startDeadLetterMover()
	}
}

// postDropped tells the channels what a paused topic held back and dropped, before the end of it becomes
// visible; committer only.
func (pt *partition) postDropped(r core.IDRange) {
	if ws := pt.watchers.Load(); ws != nil {
		for _, w := range *ws {
			w.ch.post(post{index: w.index, dropped: r})
			w.ch.wake()
		}
	}
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
