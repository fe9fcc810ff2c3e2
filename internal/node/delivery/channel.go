package delivery

import (
	"errors"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// ChannelConfig names a channel and sets its limits. Zero values mean the defaults named below.
type ChannelConfig struct {
	Name            string // as TakeControls writes it into the log
	MaxInFlight     int    // messages in flight to all clients together; 0 = the sum of the clients' RDY counts
	MaxRanges       int    // confirmed ranges of a partition at which reading it stops; 0 = DefaultMaxRanges
	MaxDeferred     int    // waiting messages at which a requeue with a delay is refused; 0 = DefaultMaxDeferred
	MaxConsumers    int    // 0 = unlimited
	MaxReadyCount   int    // largest RDY count; 0 = unlimited (the protocol's limit holds)
	MaxMsgTimeoutMs int64  // 0 = DefaultMaxMsgTimeoutMs
	MaxReqTimeoutMs int64  // 0 = DefaultMaxReqTimeoutMs
	TurnSize        int    // messages of a source in one turn; 0 = DefaultTurnSize
	MaxKeyWaiting   int    // messages parked behind busy keys at which reading stops; 0 = DefaultMaxKeyWaiting
	// dead letters in a partition's outbox at which further ones must wait; 0 = DefaultMaxOutbox
	MaxOutbox  int
	SampleSeed uint64 // decides, together with a message's id, which samples contain the message
	Ephemeral  bool   // the channel writes nothing into the log
}

// Defaults of ChannelConfig.
const (
	DefaultMaxRanges       = 1 << 18
	DefaultMaxDeferred     = 1 << 20
	DefaultMsgTimeoutMs    = 60_000
	DefaultMaxMsgTimeoutMs = 900_000
	DefaultMaxReqTimeoutMs = 3_600_000
	DefaultTurnSize        = 256
	DefaultMaxKeyWaiting   = 1 << 16
	DefaultMaxOutbox       = 1 << 14

	// MaxTakenRanges, MaxTakenDeferrals and MaxTakenDead bound the entries that one TakeControls returns. Without dead
	// letters and settings they encode to at most 8192*(14+20) bytes and a few hundred.
	MaxTakenRanges    = 8192
	MaxTakenDeferrals = 8192
	MaxTakenDead      = 8192

	// NoIndex in Result.Index says that the message's index in its batch is not known; find the message by its id.
	NoIndex uint32 = 1<<32 - 1
)

// Errors of Step, tested with errors.Is. A Step that returns one of them has changed nothing, except for
// EvFinishThrough.
var (
	ErrNotInFlight = errors.New(
		"engine: the message is not in flight: it was confirmed, timed out, requeued or dropped before; nothing was changed")
	ErrNotOwner         = errors.New("engine: the message is in flight to another client; nothing was changed")
	ErrTooManyConsumers = errors.New(
		"engine: the channel has as many consumers as it may; no message is affected, try another channel or raise the limit")
	ErrTooManyDeferred = errors.New("engine: the channel has as many delayed messages as it may; the message stays in " +
		"flight, requeue it without delay or later")
	ErrTooManyGaps = errors.New("engine: the channel has nearly as many messages that wait between confirmed ones as it " +
		"may; the message stays in flight, requeue it without delay or later")
	ErrReadyOutOfRange = errors.New("engine: the ready count is negative or above the limit; the old count holds")
)

// ClientID identifies one subscription of a consumer. The engine never reuses one within a channel.
type ClientID uint64

// EventKind says what happened. The comment of each kind begins with the fields of Event that the kind uses.
type EventKind uint8

const (
	_ EventKind = iota
	// Part, Cursor, Start, End, Deferred, HoldMs: the state of a partition at its creation or recovery. It comes once
	// per partition, before all other events about it. Flag: some control entries in Cursor are not committed yet
	EvAddPartition
	EvVisible           // Part, End: messages below End may be delivered: committed, and not held by a paused topic
	EvDeferredPublished // Part, Deferred: deferred messages; it precedes the EvVisible that covers them
	// Part, Start, At: retention removed what lies below Start, which is at the offset At; what no client had finished
	// counts as confirmed (B67). With At 0 only what was not read yet does: see trimmed
	EvTrimmed
	EvDropped   // Part, Msg, End: the log dropped the messages [Msg, End) for every channel (TopicEmptied)
	EvSubscribe // Client, MsgTimeoutMs, SampleRate, Tag, Only, HoldMs
	// Client: its messages in flight are redelivered before others, at once, or when the holds of their deliveries end.
	// Flag: none of its deliveries is on its way any more, so there is no hold to wait for. HoldMs: for so long the client
	// may still begin to handle what it got, so nobody else gets it before, if the channel is ordered
	EvUnsubscribe
	EvReady   // Client, Count: at most Count messages may be in flight to it (deliveries do not use the number up)
	EvStop    // Client: it gets no more deliveries, and EvReady is ignored from now on (CLS)
	EvBlocked // Client, Flag: its socket is full (Flag), or has room again
	// Flag: go on with the source whose turn it is, if its turn is not over. Which message should be read and offered
	// next? Result: Read, Hold
	EvNext
	// Part, Msg, At, Index, Own, Unwanted, Key, Tag: a message that was read: the one at the reading cursor or, with
	// Flag, one that EvNext has named as Queued. Result: Deliver, Skip, Hold
	EvOffer
	// Part: the messages at the reading cursor cannot be read now. EvNext does not name them again until something else
	// has happened
	EvStall
	// Part, Msg, Count, At, Index, Tag: the caller has given messages to a client, as NextRun allowed. Index is of the
	// first; those of the others follow. Result: Deliver, Client, Count
	EvOfferRun
	EvDrop   // ID: the message counts as confirmed, whatever its state: its bytes are gone, or nobody wants it
	EvFinish // Client, ID, Seen, Number
	// Client, Seen: the client has finished its delivery with this Result.Number and all before it. Those that are in
	// flight are confirmed, no later one is, not even one of the same message. Result: Count, and ErrNotInFlight if that
	// delivery itself is not in flight any more
	EvFinishThrough
	EvRequeue // Client, ID, DelayMs, Seen, Number
	EvTouch   // Client, ID, Seen, Number
	EvTick    // time has passed: messages that timed out or came due are queued
	EvPause   // Flag: nothing is delivered while it is set
	EvSkip    // Flag: while it is set, messages are confirmed in place of being delivered
	EvEmpty   // all visible messages count as confirmed, those in flight and deferred included
	EvReset   // Part, Msg, Start, Deferred: deliver from Msg on, clamped to [Start, visible end]

	// Settings (nil: unchanged), PartsAll: they take effect at once. Settings that are not newer than the channel's
	// change nothing
	EvConfigure
	// Limits: MaxRanges, MaxDeferred, MaxConsumers, MaxMsgTimeoutMs and MaxReqTimeoutMs are these from now on. What
	// exceeds them stays: clients, their timeouts, deadlines, and what waits
	EvLimit
	// Part, Take: the entries of all takes (see TakeControls) up to number Take are committed. 0: of no take
	EvConfirmsCommitted
	EvDeadMoved // Part, Ranges: the dead-letter topic has stored these dead letters
	EvCarried   // Part, Deferred: these messages can now be read at their At; DueMs is as in CarriedMessage
	// ID: the bytes of a deferred message are gone. Like EvDrop, but it changes nothing if the message is in flight, is
	// to become a dead letter, or has no entry. Result: Skip if the message counts as confirmed now
	EvGone
	// ID, DelayMs: the queued message cannot be read now. It is queued again after the delay
	EvUnread
	EvHold    // Client, HoldMs: applies to its deliveries from now on
	EvReturn  // Client, ID, Seen: the client's node did not hand this delivery over, and never will
	EvUnfence // Part: no delivery of an earlier leader is on its way any more
	// Part: another node leads the partition now. The machine forgets its whole state of it, entries that were not
	// written included. The partition may be added again
	EvRemovePartition
)

// Event is the input of Channel.Step. Step does not keep its pointers and slices, except for the contents of Settings.
type Event struct {
	Kind         EventKind
	Flag         bool
	Part         uint32
	Index        uint32 // of the message in its batch
	SampleRate   int    // percent of messages that the client wants; 0 = all
	Count        int
	Client       ClientID
	ID           batch.ID
	Msg          segment.MsgID
	Start, End   segment.MsgID
	At           segment.Offset
	MsgTimeoutMs int64 // 0 = DefaultMsgTimeoutMs; clamped to MaxMsgTimeoutMs
	DelayMs      int64 // clamped to [0, MaxReqTimeoutMs]
	Cursor       *fold.Cursor
	Deferred     []fold.DeferredMessage

	// EvOffer: the channel's filter rejects the message, or the message is for another channel only: it counts as
	// confirmed
	Unwanted bool
	Own      bool   // EvOffer: the message is for this channel only: no filter and no sample leaves it out
	Bytes    int    // EvOffer: of the message's body
	Key      uint64 // EvOffer: HashKey of the message's key in an OrderKey channel; 0: it has none
	Tag      uint64 // EvOffer, EvOfferRun: HashKey of a message's tag; EvSubscribe: of the client's; 0: none
	Only     uint32 // EvSubscribe: the one partition whose messages the client wants, plus one; 0: all
	Take     uint64
	Settings *fold.ChannelSettings
	Limits   *ChannelConfig
	PartsAll uint32 // partitions of the topic; 0: unknown, this node may use all of what the settings limit
	// EvSubscribe, EvHold: how long a delivery may be on its way to the client; 0: deliveries are not held. EvUnsubscribe:
	// how long they are held from now on
	// EvAddPartition: how long a delivery of the previous leader may still be on its way
	HoldMs int64
	// EvFinish, EvRequeue, EvTouch: the highest Result.Serial that the client's node had received when it sent this.
	// EvReturn: the Serial of the returned delivery. EvFinishThrough: the Number of a delivery
	Seen   uint64
	Number uint64 // EvFinish, EvRequeue, EvTouch: Result.Number of the only delivery that is meant; 0: any
	Ranges []fold.IDRange
}

// Decision is the answer to EvNext and EvOffer.
type Decision uint8

const (
	_       Decision = iota
	Deliver          // give the message to Result.Client
	Skip             // nobody gets the message now: continue with the next one
	Hold             // deliver nothing now; Result.Why says why
	Read             // read the message that Result names, and offer it
)

// HoldReason says why nothing is delivered. The comments name the events after which it makes sense to ask again.
type HoldReason uint8

const (
	_            HoldReason = iota
	HoldNoCredit            // no client has credit (EvReady, EvFinish, EvBlocked, a timeout), or MaxInFlight is reached
	HoldPaused              // the channel is paused (EvPause)
	// MaxRanges is reached: only confirmations of this partition's oldest messages help. Redelivery goes on (B46)
	HoldRanges
	HoldEnd   // the message is not visible yet (EvVisible)
	HoldMoved // the reading cursor is before this message: read from ReadFrom; or it is not queued any more
	HoldEmpty // no message may be delivered now
	HoldOrder // an earlier message must be confirmed first, and its confirmation committed (EvConfirmsCommitted)
	HoldRate  // RatePerSecond is reached; NextDue says until when
)

// Result is the output of Channel.Step. Every Step overwrites all fields.
type Result struct {
	Decision Decision
	Why      HoldReason // set with Hold
	Queued   bool       // Read: ID is the message; otherwise it is at the reading cursor of Part, and so are the next ones
	HasAt    bool       // Read, if Queued, and Deliver: At is known; otherwise find the message by ID
	Part     uint32     // Read
	Attempts uint16     // deliveries of the message, this one included: 1..MaxAttempts
	Index    uint32     // or NoIndex
	Serial   uint64     // Deliver: increases with each delivery to the client; 0: the delivery is not held
	Number   uint64     // Deliver: how many deliveries were made to the client, this one included
	// EvFinishThrough: how many messages it confirmed; EvOfferRun: how many it delivered; Read: how many messages may be
	// offered until the turn ends
	Count  int
	Client ClientID
	ID     batch.ID
	At     segment.Offset
	Err    error
}

// Channel is the state machine of one channel on the leader, over all partitions of its topic. One goroutine at a time
// uses it; package channel guards it with Channel.mu. A Step allocates nothing once the pools have grown to the number
// of entries, which bounds the machine's memory. A crash loses the machine; the next one starts from the folds of the
// partitions' logs (EvAddPartition).
//
// Every visible message is in exactly one state:
//
//	unread      next <= id < end, has no entry, is not in the confirmed ranges
//	in flight   has an entry in its client's list; its timer is the message timeout
//	waiting     has an entry whose timer is the due time (or that is due and waits to become visible)
//	queued      has an entry in the queue of a source; no timer
//	parked      has an entry behind another one of its lane, in an ordered channel; no timer
//	recalled    has an entry in no list; its last delivery may still be on its way to a client of another node; its
//	            timer is the end of that delivery's hold
//	doomed      has an entry that becomes a dead letter as soon as the outbox has room; no timer
//	confirmed   id < confirmed, or in the confirmed ranges above
//
// An unread message, the common case, has no entry and so uses no memory.
type Channel struct {
	cfg   ChannelConfig
	nowNs int64 // never decreases, even if the caller's clock does

	parts   []*partition // by partition number; nil: this node does not have the partition
	entries entries
	clients clients
	turns   turns
	lanes   lanes

	paused  bool
	skipped bool
	// skippedSinceNs, skippedBefore: see ChannelStats.
	skippedSinceNs int64
	skippedBefore  bool

	special bool // settings, tags, or remembered delays make each message need more checks; see isSpecial
	waiting int  // entries that wait for their time, held and doomed ones included

	settings fold.ChannelSettings
	partsAll uint32 // partitions of the topic, wherever they are led
	pace     pace
	recalled int // entries in that state

	messageCount, requeueCount, timeoutCount uint64
	filteredCount, deadCount, droppedCount   uint64
	skippedCount                             uint64
	recallCount, returnCount                 uint64
}

// NewChannel returns a channel that has no partitions and no clients.
func NewChannel(cfg ChannelConfig) *Channel {
	cfg.setLimits()
	setDefault(&cfg.TurnSize, DefaultTurnSize)
	setDefault(&cfg.MaxKeyWaiting, DefaultMaxKeyWaiting)
	setDefault(&cfg.MaxOutbox, DefaultMaxOutbox)
	c := &Channel{
		cfg: cfg, clients: clients{limit: cfg.MaxInFlight}, turns: turns{size: cfg.TurnSize, changes: 1, at: -1},
	}
	c.turns.mayGo = c.mayGo
	c.entries.fired = c.fire
	return c
}

// setLimits sets the defaults of what EvLimit changes.
func (cfg *ChannelConfig) setLimits() {
	setDefault(&cfg.MaxRanges, DefaultMaxRanges)
	setDefault(&cfg.MaxDeferred, DefaultMaxDeferred)
	setDefault(&cfg.MaxMsgTimeoutMs, DefaultMaxMsgTimeoutMs)
	setDefault(&cfg.MaxReqTimeoutMs, DefaultMaxReqTimeoutMs)
}

func setDefault[T int | int64](limit *T, value T) {
	if *limit <= 0 {
		*limit = value
	}
}

// Step is the only way to change the channel. It processes an event that happened at nowNs (unix ns) and fills res.
// Events about a client that is not subscribed, or not any more, change nothing.
func (c *Channel) Step(nowNs int64, ev *Event, res *Result) {
	*res = Result{}
	c.nowNs = max(c.nowNs, nowNs)
	if ev.Kind != EvNext && ev.Kind != EvOffer && ev.Kind != EvStall {
		c.turns.changes++
	}
	switch ev.Kind {
	case EvOffer:
		c.offer(ev, res)
	case EvOfferRun:
		c.offerRun(ev, res)
	case EvNext:
		c.nextTurn(ev, res)
	case EvFinish:
		res.Err = c.finish(ev)
	case EvFinishThrough:
		res.Count, res.Err = c.finishThrough(ev)
	case EvRequeue:
		res.Err = c.requeue(ev)
	case EvTouch:
		res.Err = c.touch(ev)
	case EvTick:
		c.entries.wheel.Advance(c.nowNs/nsPerMs, c.entries.fired)
		c.pace.tick(c.nowNs)
	case EvDrop:
		c.drop(ev.ID)
	case EvGone:
		c.gone(ev.ID, res)
	case EvUnread:
		c.unread(ev)
	case EvSubscribe:
		res.Err = c.subscribe(ev)
	case EvUnsubscribe:
		c.unsubscribe(ev)
	case EvReady:
		res.Err = c.clients.ready(ev, c.cfg.MaxReadyCount)
	case EvStop, EvBlocked:
		c.clients.hinder(ev)
	case EvPause:
		c.paused = ev.Flag
	case EvSkip:
		c.setSkip(ev.Flag)
	case EvEmpty:
		c.empty()
	case EvHold:
		c.clients.hold(ev)
	case EvReturn:
		res.Err = c.giveBack(ev)
	case EvConfigure:
		res.Err = c.configure(ev)
	case EvLimit:
		c.relimit(ev.Limits)
	default:
		c.stepPartition(ev)
	}
	if c.lanes.freed != nil {
		c.advanceLanes()
	}
}

// stepPartition processes the events that are about one partition.
func (c *Channel) stepPartition(ev *Event) {
	if ev.Kind == EvAddPartition {
		c.addPartition(ev)
		return
	}
	p := c.part(ev.Part)
	switch ev.Kind {
	case EvVisible:
		c.visible(p, ev.End)
	case EvDeferredPublished:
		c.addDeferred(p, ev.Deferred)
		p.settle()
	case EvTrimmed:
		c.trimmed(p, ev)
	case EvDropped:
		c.dropped(p, fold.IDRange{From: ev.Msg, To: ev.End})
	case EvReset:
		c.reset(p, ev)
	case EvConfirmsCommitted:
		c.lanes.committed(p, ev.Take)
	case EvDeadMoved:
		p.outbox.remove(ev.Ranges, p.log.committed, c.cfg.Ephemeral)
		c.retryDoomed(p, false)
	case EvCarried:
		c.carried(p, ev.Deferred)
	case EvUnfence:
		p.liftFence()
	case EvStall:
		c.turns.stall(&p.unread)
	case EvRemovePartition:
		c.removePartition(p)
	default:
		panic("BUG: channel event of no kind")
	}
}

const nsPerMs = 1_000_000

// soonMs is the current time in ms, rounded up, so that nothing scheduled relative to it happens early.
func (c *Channel) soonMs() int64 { return (c.nowNs + nsPerMs - 1) / nsPerMs }

// schedule sets the entry's timer. If no timer is set, the wheel may lag far behind the current time. It is advanced
// first, because a timer that is placed relative to an old time has to pass through more levels.
func (c *Channel) schedule(e *entry, dueMs int64) {
	if c.entries.wheel.Len() == 0 {
		c.entries.wheel.Advance(c.nowNs/nsPerMs, c.entries.fired)
	}
	c.entries.wheel.Schedule(&e.timer, dueMs)
}

// NextDue returns when the caller should send the next EvTick, in unix ms.
func (c *Channel) NextDue() (int64, bool) {
	due, ok := c.entries.wheel.NextDue()
	if c.pace.waiting && (!ok || c.pace.dueMs() < due) {
		return c.pace.dueMs(), true
	}
	return due, ok
}

// Hungry says whether some client would take a message now, so that it makes sense to send EvNext.
func (c *Channel) Hungry() bool { return !c.paused && c.clients.hasCredit() && !c.pace.waiting }

// ReadFrom returns the id of the next message to offer in a partition. If it is at or beyond the visible end, there is
// nothing to read.
func (c *Channel) ReadFrom(part uint32) segment.MsgID { return c.part(part).next }

// OldestUnconfirmed returns the lowest id of a partition that is not confirmed. If it is at or beyond the visible end,
// all visible messages are confirmed.
func (c *Channel) OldestUnconfirmed(part uint32) segment.MsgID { return c.part(part).confirmed }

// part returns the state of a partition. It panics if the partition was not added.
func (c *Channel) part(n uint32) *partition {
	if int64(n) >= int64(len(c.parts)) || c.parts[n] == nil {
		panic("BUG: channel event for a partition that was not added")
	}
	return c.parts[n]
}
