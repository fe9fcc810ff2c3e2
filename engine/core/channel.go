package core

import (
	"errors"

	"penstock/segment"
)

// ChannelConfig bounds one channel. Zero values mean the defaults named below.
type ChannelConfig struct {
	Name            string // what TakeControls writes into the log
	MaxInFlight     int    // messages in flight over all clients; 0 = what the clients ask for
	MaxRanges       int    // confirmed ranges of a partition at which its reading stops; 0 = DefaultMaxRanges
	MaxDeferred     int    // messages waiting for their time at which a delayed requeue is refused; 0 = DefaultMaxDeferred
	MaxConsumers    int    // 0 = unlimited
	MaxReadyCount   int    // largest RDY count; 0 = unlimited (the protocol's limit holds)
	MaxMsgTimeoutMs int64  // 0 = DefaultMaxMsgTimeoutMs
	MaxReqTimeoutMs int64  // 0 = DefaultMaxReqTimeoutMs
	MaxKeyWaiting   int    // messages behind busy keys at which reading stops; 0 = DefaultMaxKeyWaiting
	// dead letters of a partition not yet moved, at which dead-lettering waits; 0 = DefaultMaxOutbox
	MaxOutbox  int
	SampleSeed uint64 // decides with the message's id who samples what
	Ephemeral  bool   // nothing of it goes into the log
}

// Defaults of ChannelConfig.
const (
	DefaultMaxRanges       = 1 << 18
	DefaultMaxDeferred     = 1 << 20
	DefaultMsgTimeoutMs    = 60_000
	DefaultMaxMsgTimeoutMs = 900_000
	DefaultMaxReqTimeoutMs = 3_600_000
	DefaultMaxKeyWaiting   = 1 << 16
	DefaultMaxOutbox       = 1 << 14

	// MaxTakenRanges and MaxTakenDeferrals bound what one TakeControls returns: its
	// entries encode to at most 8192*(14+20) bytes and a few hundred, whatever happened.
	MaxTakenRanges    = 8192
	MaxTakenDeferrals = 8192
	MaxTakenDead      = 8192

	// NoIndex in Result.Index: the place in the batch is not known; find the message by its id.
	NoIndex uint32 = 1<<32 - 1
)

// Errors of Step, tested with errors.Is. None of them changes anything.
var (
	ErrNotInFlight = errors.New(
		"engine: the message is not in flight: it was confirmed, timed out, requeued or dropped before; nothing was changed")
	ErrNotOwner         = errors.New("engine: the message is in flight to another client; nothing was changed")
	ErrTooManyConsumers = errors.New(
		"engine: the channel has as many consumers as it may; no message is affected, try another channel or raise the limit")
	ErrTooManyDeferred = errors.New("engine: the channel has as many delayed messages as it may; the message stays in " +
		"flight, requeue it without delay or later")
	ErrReadyOutOfRange = errors.New("engine: the ready count is negative or above the limit; the old count holds")
)

// ClientID names one subscription of a consumer; the engine never reuses one in a channel.
type ClientID uint64

// EventKind says what happened. The fields that a kind uses stand behind it.
type EventKind uint8

const (
	_ EventKind = iota
	// Part, Cursor, Start, End, Deferred, HoldMs: the state at creation or recovery; once per partition, before all else
	// of it. Flag: not all of Cursor is committed
	EvAddPartition
	EvVisible           // Part, End: messages below End may be delivered: committed, and not held by a paused topic
	EvDeferredPublished // Part, Deferred: delayed messages; comes before the EvVisible that covers them
	// Part, Start: retention removed what is below Start; what was not yet read of it counts as confirmed (B67)
	EvTrimmed
	EvDropped   // Part, Msg, End: the log says that [Msg, End) is dropped for every channel (TopicEmptied)
	EvSubscribe // Client, MsgTimeoutMs, SampleRate, HoldMs
	// Client: its messages in flight are redelivered first, at once, or when their holds end. Flag: nothing of them is on
	// its way
	EvUnsubscribe
	EvReady     // Client, Count: it takes up to Count messages in flight (deliveries do not use it up)
	EvStop      // Client: no more deliveries, EvReady is ignored from now on (CLS)
	EvBlocked   // Client, Flag: its socket is full, or empty again
	EvOffer     // Part, Msg, At, Index: the message at the reading cursor. Result: Deliver, Skip, Hold
	EvRedeliver // asks for the next message to deliver again. Result: Deliver, Skip, Hold
	EvDrop      // ID: the message's bytes are gone; it counts as confirmed
	EvFinish    // Client, ID
	EvRequeue   // Client, ID, DelayMs
	EvTouch     // Client, ID
	EvTick      // what timed out or came due moves to the redelivery queue
	EvPause     // Flag
	EvSkip      // Flag: from now on everything that would be delivered is discarded
	EvEmpty     // everything visible is dropped, in flight and delayed included
	EvReset     // Part, Msg, Start, Deferred: deliver from Msg on, clamped to [Start, visible end]

	// Settings (nil: as they are), SharePartsHere, PartsAll: in force at once; older settings than the channel has change
	// nothing
	EvConfigure
	// Part, Take: the log has, committed, what TakeControls took up to the Take'th; 0: nothing that it took
	EvConfirmsCommitted
	EvDeadMoved // Part, Ranges: these dead letters are in the dead-letter topic
	EvCarried   // Part, Deferred: these messages lie at At from now on; DueMs as in CarriedMessage
	// ID: as EvDrop, unless a client has it, or nothing waits. Result: Skip if it counts as confirmed now
	EvGone
	// ID, Tag: of a delivery with Result.Unsure. Result: Deliver, or Hold: it was taken back, as if it had not been made
	EvTag
	// ID, DelayMs: of a delivery whose message cannot be read now: it is taken back, as if it had not been made, and comes
	// again after the delay
	EvUnread
	EvHold    // Client, HoldMs: of its deliveries from now on
	EvReturn  // Client, ID, Seen: the client's node did not hand over this delivery, and will not
	EvUnfence // Part: nothing that a leader before delivered is on its way any more
	// Part: another leads it now. Whatever is of it is forgotten here, what the log was not told included; it may be added
	// again
	EvRemovePartition
)

// Event is the input of Channel.Step. What it points to is only read during Step.
type Event struct {
	Kind         EventKind
	Flag         bool
	Part         uint32
	Index        uint32 // of the message in its batch
	SampleRate   int    // percent of messages the client wants; 0 = all
	Count        int
	Client       ClientID
	ID           ID
	Msg          segment.MsgID
	Start, End   segment.MsgID
	At           segment.Offset
	MsgTimeoutMs int64 // 0 = DefaultMsgTimeoutMs; clamped to MaxMsgTimeoutMs
	DelayMs      int64 // clamped to [0, MaxReqTimeoutMs]
	Cursor       *Cursor
	Deferred     []DeferredMessage

	// EvOffer: the channel's filter does not want it, or it is another channel's: it counts as confirmed
	Unwanted       bool
	Key            uint64 // EvOffer: HashKey of its key in an OrderKey channel; 0: none
	Tag            uint64 // EvOffer, EvSubscribe: HashKey of the tag; 0: none
	Only           uint32 // EvSubscribe: the one partition whose messages it wants, plus one; 0: all
	Take           uint64
	Settings       *ChannelSettings
	SharePartsHere uint32 // partitions that this node leads; 0: its share of what the settings limit is all of it
	PartsAll       uint32 // partitions of the topic
	// EvSubscribe, EvHold: how long a delivery may be on its way to the client; 0: not at all. EvAddPartition: the same
	// for the leader before
	HoldMs int64
	// EvFinish, EvRequeue, EvTouch: the last Result.Serial that the client's node had then. EvReturn: the delivery's
	Seen   uint64
	Ranges []IDRange
}

// Decision answers EvOffer and EvRedeliver.
type Decision uint8

const (
	_       Decision = iota
	Deliver          // to Result.Client
	Skip             // not for anybody: go on with the next
	Hold             // not now: Result.Why
)

// HoldReason says what must happen before asking again makes sense.
type HoldReason uint8

const (
	_            HoldReason = iota
	HoldNoCredit            // no client has credit (EvReady, EvFinish, EvBlocked, a timeout), or MaxInFlight is reached
	HoldPaused              // EvPause
	// MaxRanges: only confirmations of this partition's oldest messages help; redelivery goes on (B46)
	HoldRanges
	HoldEnd   // the message is not visible yet: EvVisible
	HoldMoved // the cursor is before this message: read from ReadFrom
	HoldEmpty // nothing waits for redelivery
	HoldTurn  // a new message's turn: offer, then ask again, even if nothing was taken
	HoldOrder // an earlier message must be confirmed, and that committed: EvConfirmsCommitted
	HoldRate  // RatePerSecond: NextDue says when
)

// Result is the output of Channel.Step; every Step overwrites all of it.
type Result struct {
	Decision Decision
	Why      HoldReason // for Hold
	HasAt    bool       // Deliver after EvRedeliver: At is known; else find the message by ID
	Unsure   bool       // Deliver after EvRedeliver: nobody has said yet what the message's tag is: EvTag comes next
	Attempts uint16     // this delivery included, 1..MaxAttempts
	Index    uint32     // or NoIndex
	Serial   uint64     // Deliver: rises with each delivery to the client; 0: the delivery is not held
	Client   ClientID
	ID       ID
	At       segment.Offset
	Err      error
}

// Channel is the machine of one channel on the leader, over all partitions of its topic. It has one owner at a time.
// Steps allocate nothing once the pools have grown to the number of messages in flight and delayed, which bound its
// memory.
//
// Every visible message is in exactly one state:
//
//	unread      next <= id < end, no entry, not in the confirmed ranges
//	in flight   an entry in its client's list; its timer is the message timeout
//	waiting     an entry whose timer is the due time (or, due, waits to be visible)
//	redelivery  an entry in the queue; no timer
//	parked      an entry behind another of its lane, in an ordered channel; no timer
//	recalled    an entry whose last delivery may still be on its way to a client of another node; its timer ends that
//	doomed      an entry that is to be a dead letter, while the outbox is full; no timer
//	confirmed   id < confirmed, or in the confirmed ranges above
//
// Entries are the exception, not the rule: an unread message costs nothing.
type Channel struct {
	cfg   ChannelConfig
	nowNs int64 // never goes back, even if the caller's clock does

	parts   []*channelPart // by partition number; nil: not added
	entries entryTable
	pool    entryPool
	queue   entryList // redelivery, first to go first
	wheel   Wheel[*entry]
	fired   func(*Timer[*entry]) // c.fire, bound once

	clients map[ClientID]*channelClient // lookups only
	order   []*channelClient            // by subscription
	ring    *channelClient              // clients with credit, next to serve; nil: none

	paused   bool
	skipped  bool
	special  bool // something of the settings, or a tag, must be looked at for each message
	turn     turn
	inFlight int
	waiting  int

	settings    ChannelSettings
	share       partShare
	maxInFlight int // of the configuration and the settings, this node's share; 0: no limit
	rate        rate
	lanes       map[uint64]*lane // by key; lookups only
	lanePool    *lane
	freed       *lane // lanes that may go on at the end of the Step
	parked      int   // entries behind their lane
	recalled    int   // entries in that state
	choosy      int   // clients with a tag, or that want one partition only

	messageCount, requeueCount, timeoutCount uint64
	filteredCount, deadCount                 uint64
	recallCount, returnCount                 uint64
}

// turn says who goes first when what failed twice and what is new both wait.
type turn uint8

const (
	turnNew     turn = iota // the next redelivery of that kind is held once
	turnYielded             // it was, and nothing new was delivered since: it is not held again
	turnOld                 // a new message was delivered: redelivery goes first
)

// NewChannel returns a channel without partitions and clients.
func NewChannel(cfg ChannelConfig) *Channel {
	setDefault(&cfg.MaxRanges, DefaultMaxRanges)
	setDefault(&cfg.MaxDeferred, DefaultMaxDeferred)
	setDefault(&cfg.MaxMsgTimeoutMs, DefaultMaxMsgTimeoutMs)
	setDefault(&cfg.MaxReqTimeoutMs, DefaultMaxReqTimeoutMs)
	setDefault(&cfg.MaxKeyWaiting, DefaultMaxKeyWaiting)
	setDefault(&cfg.MaxOutbox, DefaultMaxOutbox)
	c := &Channel{cfg: cfg, clients: make(map[ClientID]*channelClient), maxInFlight: cfg.MaxInFlight}
	c.fired = c.fire
	return c
}

func setDefault[T int | int64](limit *T, value T) {
	if *limit <= 0 {
		*limit = value
	}
}

// Step is the one door: it takes what happened at nowNs (unix ns) and fills res.
// Events about a client that is not subscribed (any more) are harmless.
func (c *Channel) Step(nowNs int64, ev *Event, res *Result) {
	*res = Result{}
	c.nowNs = max(c.nowNs, nowNs)
	switch ev.Kind {
	case EvOffer:
		c.offer(ev, res)
	case EvRedeliver:
		c.redeliver(res)
	case EvFinish:
		res.Err = c.finish(ev)
	case EvRequeue:
		res.Err = c.requeue(ev)
	case EvTouch:
		res.Err = c.touch(ev)
	case EvTick:
		c.wheel.Advance(c.nowNs/nsPerMs, c.fired)
		c.rate.tick(c.nowNs)
	case EvDrop:
		c.drop(ev.ID)
	case EvGone:
		c.gone(ev.ID, res)
	case EvTag:
		c.learnTag(ev, res)
	case EvUnread:
		c.unread(ev)
	case EvSubscribe:
		res.Err = c.subscribe(ev)
	case EvUnsubscribe:
		c.unsubscribe(ev)
	case EvReady:
		res.Err = c.ready(ev)
	case EvStop, EvBlocked:
		c.hinder(ev)
	case EvPause:
		c.paused = ev.Flag
	case EvSkip:
		c.setSkip(ev.Flag)
	case EvEmpty:
		c.empty()
	case EvHold:
		c.hold(ev)
	case EvReturn:
		res.Err = c.giveBack(ev)
	case EvConfigure:
		res.Err = c.configure(ev)
	default:
		c.stepPartition(ev)
	}
	if c.freed != nil {
		c.advanceLanes()
	}
}

// stepPartition takes the events about one partition's log.
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
		c.settle(p)
	case EvTrimmed:
		p.start = max(p.start, ev.Start)
		c.discardTo(p, ev.Start)
	case EvDropped:
		c.dropped(p, IDRange{ev.Msg, ev.End})
	case EvReset:
		c.reset(p, ev)
	case EvConfirmsCommitted:
		c.confirmsCommitted(p, ev.Take)
	case EvDeadMoved:
		c.deadMoved(p, ev.Ranges)
	case EvCarried:
		c.carried(p, ev.Deferred)
	case EvUnfence:
		c.liftFence(p)
	case EvRemovePartition:
		c.removePartition(p)
	default:
		panic("BUG: channel event of no kind")
	}
}

const nsPerMs = 1_000_000

// soonMs is now in ms, rounded up, so that what is scheduled from it is never early.
func (c *Channel) soonMs() int64 { return (c.nowNs + nsPerMs - 1) / nsPerMs }

// schedule sets the entry's timer. An idle wheel is brought to the present first:
// otherwise the timer would start its way from the last thing that happened.
func (c *Channel) schedule(e *entry, dueMs int64) {
	if c.wheel.Len() == 0 {
		c.wheel.Advance(c.nowNs/nsPerMs, c.fired)
	}
	c.wheel.Schedule(&e.timer, dueMs)
}

// NextDue returns when the next EvTick is worth it, unix ms.
func (c *Channel) NextDue() (int64, bool) {
	due, ok := c.wheel.NextDue()
	if c.rate.waiting && (!ok || c.rate.dueMs() < due) {
		return c.rate.dueMs(), true
	}
	return due, ok
}

// Hungry says whether some client would take a message now: it is worth asking with
// EvRedeliver and reading from the partitions.
func (c *Channel) Hungry() bool { return !c.paused && c.hasCredit() && !c.rate.waiting }

// ReadFrom returns the next message to offer of a partition. It may lie beyond the
// visible end; then there is nothing to read.
func (c *Channel) ReadFrom(part uint32) segment.MsgID { return c.part(part).next }

// OldestUnconfirmed returns the lowest message of a partition that is not confirmed;
// at the visible end or beyond it, all are.
func (c *Channel) OldestUnconfirmed(part uint32) segment.MsgID { return c.part(part).confirmed }

// part returns a partition that was added.
func (c *Channel) part(n uint32) *channelPart {
	if int64(n) >= int64(len(c.parts)) || c.parts[n] == nil {
		panic("BUG: channel event for a partition that was not added")
	}
	return c.parts[n]
}
