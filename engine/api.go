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
	// ErrDiskHung says that a write did not come back for long.
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

// Header is one name and value of a message's headers. Names are compared as they are, byte by byte.
type Header = segment.KV

// Put is one request to store messages, for callers that do not want a goroutine per
// request (protocol servers). The zero value plus Messages and Done is ready; a Put may be used
// again after Done was called, and then costs no allocation.
type Put struct {
	// Messages are stored all or nothing, in order, with consecutive ids. The bytes and the slice are
	// borrowed until Done is called.
	Messages [][]byte

	First ID    // result: the id of the first message; the others follow by one
	Err   error // result; nil: all messages are on stable storage

	// Done is called exactly once, from a goroutine of the engine or, with Alone, from within Submit; it must not block. First and
	// Err are set.
	Done func(*Put)

	putState

	// Defer delays the delivery of all of them. 0: none.
	Defer time.Duration
	// Deadline is when waiting for room ends with ErrDeadline; zero: Options.PublishTimeout from Submit on.
	Deadline time.Time
	// Headers are the messages' headers: nil, or one list (which may be empty) per message. Borrowed like Messages. A name has 1 to
	// MaxHeaderNameBytes and does not begin with ReservedHeaders; see MaxHeaderCount and Options.MaxHeaderBytes, and ErrHeaders.
	Headers [][]Header
	// Alone says that the submitter has nothing to do until the answer: an idle engine may then store the put on the
	// submitter's goroutine, within Submit.
	Alone bool
}

// Delivery is one message on its way to a consumer. Body and Headers are borrowed: they die when the
// call that got the Delivery returns.
type Delivery struct {
	ID        ID
	Timestamp int64  // when the message was published, ns since 1970
	Attempts  uint16 // deliveries so far, this one included; saturates at 32767
	Body      []byte
	Headers   []Header // in the order in which they were published; nil: none
	// Until is not zero for a message of an ordered channel that another node leads. A Sink that does not hand it to its client before is a HeldSink.
	Until Deadline

	serial uint64        // of core.Result
	epoch  segment.Epoch // of the leader, with a serial
}

// Sink receives a Consumer's messages. Methods are called by one goroutine at a time.
type Sink interface {
	// Deliver takes one message; it must copy Body, must not block and must not call the Consumer.
	// It returns false when the sink is full after this message: no more come until Consumer.Unblock.
	Deliver(d *Delivery) bool
	// Flush ends a run of Deliver calls: nothing more is ready now. It must not block and must not
	// call the Consumer; it runs without the channel's lock.
	Flush()
	// Closed says that the channel or topic was deleted, or the engine closed. Called once at most.
	Closed(err error)
}

// ConsumerOptions are one subscriber's choices; the zero value is NSQ's default.
type ConsumerOptions struct {
	MsgTimeout time.Duration // redelivery after this without FIN or TOUCH; 0: Options.MsgTimeout
	SampleRate int           // percent of messages to deliver, 1..99; 0: all
	Label      any           // shown in statistics: the protocol server's client description
	Partition  *uint32       // only messages of this partition, which this node must lead; nil: all. Others' wait for who wants them
	Tag        string        // only messages whose header TagHeader is this; "": those without, and those of whose tag no consumer is there
	// MaxInFlightBytes is what a Sink that counts unfinished bytes bounds them to; 0: it does not. On this node the Sink's word alone stops
	// deliveries. Leaders at other nodes share the bound: each may have one message more on its way than its part of it has room for.
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
	Depth        int64 // messages that wait at the topic: no channel yet, or the topic is paused
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
	Latencies     LatencyRecorder // what Options.Latencies made; nil: nothing is measured
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
