package channel

import (
	"errors"
	"maps"
	"slices"
	"sync/atomic"

	"penstock/internal/lock"
	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/internal/node/names"
	"penstock/internal/node/platform"
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
	node      *Shared
	topic     Topic
	name      string
	ephemeral bool

	// mu guards the fields from here to configuring. It may be held while cold data is read, so its holder may hang on
	// the disk: the committer and the goroutines of connections between nodes do not take it, they post events instead.
	mu lock.Mutex[lock.Channel]
	channelMachine
	channelReader
	channelSetup
	deadLetters
	troubles
	timer   platform.Timer
	armed   int64 // engine time in unix ms for which the timer is set; 0: not set
	started bool
	timed   *timedMessages // nil: no latencies are measured

	configuring lock.Mutex[lock.ChannelConfiguring] // held during one change of the settings, outside mu
	postbox

	hungry atomic.Bool // a consumer waits for messages: a commit must wake the channel
	queued atomic.Bool // the channel is in Node.list
	woken  chan struct{}
	done   chan struct{}
}

// channelMachine is the channel's state machine, and the consumers to which it delivers. Channel.mu guards it.
type channelMachine struct {
	m         *delivery.Channel
	ev        delivery.Event
	offer     delivery.Event // EvOffer of the batch that offerBatch reads
	res       delivery.Result
	giving    message.Run // the messages that deliverRuns gives to a sink
	closed    error       // why the channel is closed; nil: it is open
	consumers map[delivery.ClientID]*Consumer
	runSinks  int     // consumers whose sinks take runs
	limits    *Limits // those that the machine has, see step
	nextID    delivery.ClientID
	touched   []*Consumer // consumers whose sinks pump must flush
	syncs     syncs
}

// channelReader has the channel's read positions in the partitions' logs, and the bytes of the logs that it pins.
// Channel.mu guards it.
type channelReader struct {
	cursors       []cursor
	partsAssigned uint32 // how many partitions the machine has on this node
	partsAll      uint32 // how many partitions the topic had when the machine was told of them
	iter          segment.BatchIter
	records       segment.RecordIter
	inflated      inflated                // the batch that was decompressed last
	deferred      [1]fold.DeferredMessage // scratch of deferAgain
	fetched       fetched                 // the batch that fetch read last; released when takeTurns ends
}

// channelSetup is derived from the machine's settings; learnSettings sets it. Channel.mu guards it.
type channelSetup struct {
	settings     fold.ChannelSettings
	matcher      *fold.Matcher // of the settings' filter; nil: no filter
	keyHeader    string        // OrderKey: the header that holds the key
	needsHeaders bool          // the filter or the key needs the headers of every message
}

// deadLetters is the state of the goroutine that moves dead letters (dead_letter.go). Channel.mu guards it.
type deadLetters struct {
	deadLetterMover bool               // the goroutine runs
	outbox          []fold.DeadMessage // scratch of deadMover.next and outboxCount
	deadMoved       uint64             // dead letters moved to their topic since this channel was made
	aside           delivery.Aside     // dead letters that could not be moved
	sweeper         bool               // the goroutine of startSweeper runs
	redrive         delivery.Claim     // who sends dead letters back to the channel; at the leader of partition 0
}

// postbox queues events for the machine from callers that must not wait for Channel.mu. A crash loses the events, but
// not the facts: the next channel starts from the log, which includes them.
type postbox struct {
	postMu lock.Mutex[lock.ChannelPosts]
	posts  []delivery.Post // guarded by postMu; per partition in the order of its log; applyPostsLocked takes them
	posted atomic.Bool     // posts may have entries
}

// cursor is the channel's read position in one partition. Channel.mu guards it.
type cursor struct {
	part     Partition
	number   uint32         // the number of part, and the index of the cursor in cursors
	stored   *atomic.Uint64 // the end of committed messages, see Partition.Ends
	unpaused *atomic.Uint64 // the end of messages that no paused topic holds back, see Partition.Ends
	at       segment.Offset // of the batch that holds the next message
	found    bool           // at is valid: the offset of the batch with the machine's ReadFrom
	bad      error          // why reading stopped here, because the bytes cannot be read; nil: it goes on
	unread   error          // logged: the first read error of a redelivery since one succeeded; nil: none
	ahead    ahead          // the bytes from which it reads
	stopped  stopped        // where in the batch at at the last turn stopped
	end      segment.MsgID  // the end of visible messages that the machine knows
	newEnd   segment.MsgID  // the end of visible messages that syncVisible just read
	assigned bool           // the machine has the partition
	full     bool           // logged: it delivers nothing new, because too many messages wait between confirmed ones
	epoch    segment.Epoch  // the leader epoch in which this node serves it; 0 on a single node
	reign    *reign         // of that epoch
	swept    segment.MsgID  // Sweep has looked at everything below it
	put      *controlPut    // writes the machine's control entries to the log; at most one is in flight

	// The end of the log at the time when the channel was found in it. 0: this process created the channel. See
	// CommittedIn.
	foundEnd segment.Position
}

// New returns a channel without partitions. The engine gives it each of them with an EvAddPartition. The channel
// delivers on its own only after Start.
func New(n *Shared, t Topic, name string) *Channel {
	c := &Channel{
		node: n, topic: t, name: name, ephemeral: names.Ephemeral(name),
		woken: make(chan struct{}, 1), done: make(chan struct{}),
		timer: n.Host.NewTimer(),
		timed: newTimedMessages(n.Latencies),
	}
	c.syncs.host = n.Host
	c.limits = n.limits()
	cfg := c.limits.ofMachine()
	cfg.Name, cfg.SampleSeed, cfg.Ephemeral = name, sampleSeed(t.ID(), name), c.ephemeral
	c.m = delivery.NewChannel(cfg)
	c.consumers = map[delivery.ClientID]*Consumer{}
	c.grow(t.Count())
	return c
}

func (c *Channel) Name() string { return c.name }

// Post queues a copy of *p, and keeps the slices in it. Any goroutine may call it, and may hold any lock that comes
// before postMu. The caller then wakes the channel, or applies the posts itself.
func (b *postbox) Post(p *delivery.Post) {
	b.postMu.Lock()
	b.posts = append(b.posts, *p)
	b.postMu.Unlock()
	b.posted.Store(true)
}

// Committed is called when a commit has made messages of a partition visible. It wakes the channel only if a consumer
// waits for messages. It does not wait.
func (c *Channel) Committed() {
	if c.hungry.Load() {
		c.Wake()
	}
}

// Resume is called when bytes of the partition can be read again: reading goes on at the place where it stopped. It
// takes mu, so it may wait.
func (c *Channel) Resume(partition uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := int(partition); n < len(c.cursors) {
		c.cursors[n].found, c.cursors[n].bad = false, nil
		c.ev = delivery.Event{Kind: delivery.EvTick} // the machine names the partition's messages again: see EvStall
		c.step()
	}
}

// Wake makes the channel's goroutine apply the posts and deliver. It does not wait.
func (c *Channel) Wake() {
	platform.Wake(c.woken)
}

// Start starts the channel's goroutine. Until then the channel delivers only when a caller pumps it.
func (c *Channel) Start() {
	c.startOnce()
	if c.node.Closing() {
		// This node got a partition while it was closing. Close may not have seen this channel, and it waits for
		// the goroutines of all channels.
		c.Shut(errs.ErrClosed)
	}
}

// startOnce starts the goroutine, unless it was started before or the channel is closed. It takes mu.
func (c *Channel) startOnce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started || c.closed != nil {
		return
	}
	c.started = true
	c.startSweeper()
	c.startDeadLetterMover() // the outbox may have dead letters from before the restart, or of an earlier leader
	c.node.Host.Loop(c.node.Tasks, platform.Loop{Woken: c.woken, Done: c.done, Timer: c.timer, Run: c.run})
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

// Shut closes the channel for good. Its consumers are told err, and nothing is delivered or confirmed any more. With
// ErrClosed, confirmations so far are still written. With ErrMoved, control entries in the inboxes are revoked, because
// the next leader does not know of them.
func (c *Channel) Shut(err error) {
	c.mu.Lock()
	if c.closed != nil {
		c.mu.Unlock()
		return
	}
	if errors.Is(err, errs.ErrClosed) {
		c.flushControls()
	}
	if errors.Is(err, errs.ErrMoved) {
		for i := range c.cursors {
			c.cursors[i].put.revoked.Store(true)
		}
	}
	c.closed = err
	c.note(func(t *Troubles) { *t = Troubles{} })
	c.hungry.Store(false)
	c.syncs.fail(nil, err)
	var sinks []message.Sink
	for _, id := range c.clientIDs() {
		sinks = append(sinks, c.consumers[id].sink)
		c.node.leavers.add(c.consumers[id], c.node.Clock.NowNs())
	}
	clear(c.consumers)
	c.timer.Stop()
	close(c.done)
	c.dropAhead()
	c.mu.Unlock()
	for i := range c.topic.Count() {
		c.topic.Unwatch(c, i)
	}
	for _, s := range sinks {
		s.Closed(err)
	}
}

// clientIDs returns the consumers' ids in the order of their subscriptions, because a map's order differs from run to
// run. mu is held.
func (k *channelMachine) clientIDs() []delivery.ClientID {
	return slices.Sorted(maps.Keys(k.consumers))
}

// step runs c.ev through the machine. The result is valid until the next step. mu is held.
func (c *Channel) step() *delivery.Result {
	if l := c.node.limits(); l != c.limits {
		c.limits = l
		cfg := l.ofMachine()
		c.m.Step(c.node.now().UnixNano(), &delivery.Event{Kind: delivery.EvLimit, Limits: &cfg}, &c.res)
	}
	c.m.Step(c.node.now().UnixNano(), &c.ev, &c.res)
	return &c.res
}

// ApplyPosts is applyPostsLocked without mu held.
func (c *Channel) ApplyPosts() {
	c.mu.Lock()
	c.applyPostsLocked()
	c.mu.Unlock()
}

// newCursor returns a cursor for a partition that the machine does not have.
func (c *Channel) newCursor(pt Partition) cursor {
	cur := cursor{part: pt, number: pt.Number(), put: newControlPut(c, pt, int(pt.Number()))}
	cur.stored, cur.unpaused = pt.Ends()
	return cur
}

// visibleEnd returns the end, exclusive, of the messages that may be delivered now.
func (cur *cursor) visibleEnd() segment.MsgID {
	return segment.MsgID(min(cur.stored.Load(), cur.unpaused.Load()))
}

// grow makes cursors for the first n partitions of the topic, as far as there are none. mu is held.
func (c *Channel) grow(n int) {
	for i := len(c.cursors); i < n; i++ {
		c.cursors = append(c.cursors, c.newCursor(c.topic.Partition(i)))
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
		adds := p.Kind == delivery.EvAddPartition
		switch {
		// An event is stale if the machine does not have its partition: the EvAddPartition that comes later includes
		// the event. A second EvAddPartition is ignored.
		case adds == cur.assigned:
		case adds:
			c.addPartition(cur, p)
			added = true
		case p.Kind == delivery.EvUnfence && p.Epoch != cur.epoch: // it ends the fence of another epoch
		case p.Kind == delivery.EvTrimmed:
			c.trimmed(cur, p.Start, p.At)
			c.forgetGone(cur, p.Gone)
		default:
			c.ev = p.Event
			c.step()
			if p.Kind == delivery.EvCarried || p.Kind == delivery.EvDropped {
				cur.found = false
			}
		}
	}
	if added {
		c.share()
		c.startDeadLetterMover()
	}
}

// addPartition gives the machine a partition. It reads the log's start and visible end again: both may have moved since
// the post. mu is held.
func (c *Channel) addPartition(cur *cursor, p *delivery.Post) {
	pt := cur.part
	_, _, p.Start = pt.Log().Start()
	p.End = min(p.End, cur.visibleEnd())
	p.HoldMs = c.topic.FenceMs(int(cur.number), p.Epoch)
	c.ev = p.Event
	c.step()
	if c.m.Fenced(cur.number) {
		c.topic.Fence(int(cur.number), p.Epoch)
	}
	cur.end, cur.foundEnd, cur.assigned, cur.epoch = p.End, p.FoundEnd, true, p.Epoch
	cur.reign = &reign{c.node.Lease, pt, p.Epoch}
}

// Err says why the channel is closed; nil: it is open.
func (c *Channel) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// has says whether the topic has the partition of an id. Clients may send any id.
func (c *Channel) has(id message.ID) bool { return int(id.Partition()) < c.topic.Count() }

// mayDeliver says whether the channel may deliver now: the node holds its lease, and serves all partitions of the
// machine in the epochs that the machine has. mu is held.
func (c *Channel) mayDeliver() bool { return c.node.Leased() && !(c.node.Cluster && c.hasStaleEpoch()) }

// ReleaseView releases the bytes of the logs that the channel pins. A simulation calls it when the process has ended.
func (c *Channel) ReleaseView() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropAhead()
}

// dropAhead releases the bytes of the logs that the channel keeps or pins. mu is held.
func (c *Channel) dropAhead() {
	for i := range c.cursors {
		c.cursors[i].ahead.drop(c.node)
	}
	c.inflated.drop(c.node)
}
