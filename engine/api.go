package engine

import (
	"errors"
	"time"

	"penstock/engine/core"
	"penstock/segment"
)

// ID names a message: its partition and its number there. It stays the same across
// redelivery, restart and failover. String gives NSQ's 16 hex digits.
type ID = core.ID

// Errors that callers act on, tested with errors.Is. Each text is stable.
var (
	ErrOptions   = errors.New("engine: the options contradict each other")
	ErrClosed    = errors.New("engine: closed")
	ErrTopicName = errors.New("engine: a topic name has 1 to 64 of the characters a-z A-Z 0-9 . _ - and may end in " +
		"#ephemeral; nothing was made or stored")
	ErrChannelName = errors.New("engine: a channel name has 1 to 64 of the characters a-z A-Z 0-9 . _ - and may end in " +
		"#ephemeral; nothing was made")
	ErrNoTopic   = errors.New("engine: there is no such topic; nothing was changed")
	ErrNoChannel = errors.New("engine: there is no such channel; nothing was changed")
	ErrDeleted   = errors.New("engine: the topic or channel was deleted: nothing of it is kept; create it again " +
		"to go on")
	ErrEmptyMessage  = errors.New("engine: a message must have at least one byte; nothing was stored")
	ErrMessageTooBig = errors.New("engine: the message is larger than MaxMessageBytes; nothing was stored")
	ErrBatchTooBig   = errors.New("engine: the batch is larger than MaxBatchBytes; nothing was stored")
	ErrDeferTooLong  = errors.New("engine: the delay is negative or longer than MaxDefer; nothing was stored")
	ErrTooManyTopics = errors.New("engine: there are as many topics as MaxTopics allows: nothing was made; delete one " +
		"or raise the limit")
	ErrTooManyChans = errors.New("engine: the topic has as many channels as MaxChannels allows: nothing was made; " +
		"delete one or raise the limit")
	ErrOverloaded = errors.New("engine: too many bytes are waiting to be stored; nothing of this request was stored, " +
		"try again later")
	ErrDeadline = errors.New("engine: the request waited longer than its deadline; nothing of it was stored")
	ErrNoSpace  = core.ErrNoSpace
	ErrQuota    = errors.New("engine: the topic has as many bytes or messages as its quota lets it keep unconfirmed: " +
		"publishing is refused, consuming goes on; nothing was stored, confirm, raise the quota or try again later")
	ErrDisk = core.ErrPoisoned
	// ErrDiskHung says that a write has not returned for a long time.
	ErrDiskHung = errors.New("engine: the disk does not answer: what waits for it is stored or not, nobody knows; look " +
		"at the device, and end this process if it does not come back")
	ErrReadOnly      = core.ErrReadOnly
	ErrAutoCreateOff = errors.New("engine: there is no such topic or channel, and automatic creation is off: nothing " +
		"was stored; create it first")
	ErrTooManyClients = core.ErrTooManyConsumers
	ErrNoLeader       = errors.New("engine: no node leads the partition just now; nothing was stored, try again")
	ErrNoQuorum       = errors.New("engine: fewer replicas are in sync than min_isr demands; nothing was stored, try " +
		"again when a node is back")
	ErrUnknown = errors.New("engine: the outcome is unknown: the messages may have been stored, or may appear later; " +
		"publish again if a duplicate does no harm")
	ErrMoved       = errors.New("engine: another node leads the partition now; connect to it")
	ErrNotInFlight = core.ErrNotInFlight
	ErrNotOwner    = core.ErrNotOwner
	ErrHeaders     = errors.New("engine: the headers are refused; nothing was stored")
	ErrBatchKeys   = errors.New("engine: the messages of one batch have keys of different partitions, or different " +
		"delays; nothing was stored, publish them apart")
)

// Header is one name and value of a message's headers. Names are compared byte by byte.
type Header = segment.KV

// Put is one request to store messages, for callers that do not want a goroutine per
// request (protocol servers). The zero value plus Messages and Done is ready; a Put may be used
// again after Done was called, and then costs no allocation.
type Put struct {
	// Messages are stored all or none, in order, with consecutive ids. The bytes and the slice are borrowed until Done is
	// called.
	Messages [][]byte

	First ID    // result: the id of the first message; the others are consecutive
	Err   error // result; nil: all messages are on stable storage

	// Done is called exactly once, after First and Err are set: from a goroutine of the engine or, with Alone, from within
	// Submit. It must not block.
	Done func(*Put)

	putState

	// Defer delays the delivery of all messages. 0: no delay.
	Defer time.Duration
	// Deadline is when a put that still waits to be stored fails with ErrDeadline. Zero: Options.PublishTimeout after
	// Submit.
	Deadline time.Time
	// Headers are the messages' headers: nil, or one list (which may be empty) per message. They are borrowed like
	// Messages. A name has 1 to MaxHeaderNameBytes bytes and does not begin with ReservedHeaders. See MaxHeaderCount,
	// Options.MaxHeaderBytes and ErrHeaders.
	Headers [][]Header
	// Alone says that the caller will only wait for the answer. Then an idle engine may store the put on the caller's
	// goroutine, within Submit.
	Alone bool
}

// Delivery is one message on its way to a consumer. Body and Headers are borrowed: they are valid until the call that
// got the Delivery returns.
type Delivery struct {
	ID        ID
	Timestamp int64  // when the message was published, ns since 1970
	Attempts  uint16 // deliveries so far, this one included; saturates at 32767
	Body      []byte
	Headers   []Header // in the order in which they were published; nil: none
	// Until is set for a message of an ordered channel that another node leads: the client must get the message before
	// this time. A Sink that may hand it over later must be a HeldSink.
	Until Deadline

	serial uint64        // core.Result.Serial; 0: none
	epoch  segment.Epoch // the leader's epoch, if serial is set
}

// Sink receives a Consumer's messages. Methods are called by one goroutine at a time.
type Sink interface {
	// Deliver takes one message. It must copy Body and Headers, must not block and must not call the Consumer. It returns
	// false if the sink is full after this message: no more come until Consumer.Unblock.
	Deliver(d *Delivery) bool
	// Flush ends a run of Deliver calls: nothing more is ready now. It must not block and must not call the Consumer. The
	// channel's lock is not held.
	Flush()
	// Closed says that the consumer has ended: the channel or topic was deleted, the engine closed, or the node no longer
	// leads (ErrMoved). It is called at most once.
	Closed(err error)
}

// ConsumerOptions are one subscriber's choices; the zero value is NSQ's default.
type ConsumerOptions struct {
	MsgTimeout time.Duration // redelivery after this without FIN or TOUCH; 0: Options.MsgTimeout
	SampleRate int           // percent of messages to deliver, 1..99; 0: all
	Label      any           // shown in statistics: the protocol server's client description
	// Only messages of this partition, which this node must lead; nil: all partitions. Messages of other partitions wait
	// for other consumers.
	Partition *uint32
	// Only messages whose header TagHeader has this value. "": messages without a tag, and those whose tag no consumer
	// asks for.
	Tag string
	// MaxInFlightBytes is the bound of a Sink that counts unfinished bytes; 0: there is none. For channels on this node
	// only the Sink's answer stops deliveries. Leaders on other nodes share the bound: each may have one message in flight
	// beyond its share.
	MaxInFlightBytes int64
}

// Info is what /info, logs and benchmark headers say about the storage of an Engine.
type Info struct {
	IOEngine, IOReason   string
	Direct, Registered   bool
	BlockBytes           int
	FileSystem, Device   string
	DeviceCache, Kernel  string
	NodeID, StoreID      string
	FormatVersion        int
	Level                int           // the feature level in force, see Engine.Level
	Recovered            time.Duration // how long recovery took at Open
	RecoveredBytes       int64         // bytes replayed from the commit log
	PartitionsReadOnly   int
	CorruptionsAtRecover []string
}

// TopicStats, ChannelStats and ConsumerStats are snapshots with the names of NSQ's /stats.
type TopicStats struct {
	Name         string
	Depth        int64 // messages that wait at the topic, because it has no channel yet or is paused
	BackendDepth int64
	MessageCount uint64
	MessageBytes uint64
	Paused       bool
	Partitions   int
	StoredBytes  int64
	Channels     []ChannelStats // by name
}

// ChannelStats: see TopicStats.
type ChannelStats struct {
	Name          string
	Depth         int64
	BackendDepth  int64
	InFlightCount int
	DeferredCount int
	MessageCount  uint64
	RequeueCount  uint64
	TimeoutCount  uint64
	Paused        bool
	DeadLettered  uint64          // dead letters that this node moved to their topic since it leads
	OutboxCount   int             // dead letters that wait to be moved
	Latencies     LatencyRecorder // made by Options.Latencies; nil: none are measured
	Consumers     []ConsumerStats
}

// ConsumerStats: see TopicStats.
type ConsumerStats struct {
	Label         any
	ReadyCount    int
	InFlightCount int
	MessageCount  uint64
	FinishCount   uint64
	RequeueCount  uint64
	Stopped       bool

	consumer *localConsumer
}
