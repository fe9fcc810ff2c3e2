package node

import (
	"time"

	"penstock/internal/node/channel"
	"penstock/internal/node/faults"
	"penstock/internal/node/inbox"
	"penstock/internal/node/message"
	"penstock/internal/node/names"
	"penstock/internal/node/topic"
)

// Types that packages below this one define, under the names by which programs use them.
type (
	ID              = message.ID              // a message: its partition and its number there
	Put             = inbox.Put               // a request to store messages, for Topic.Submit
	Header          = message.Header          // a name and a value; the bytes are borrowed like those of the message
	Outgoing        = message.Outgoing        // a message to publish, with key, headers and delay
	Delivery        = message.Delivery        // a message on its way to a Sink, valid during Sink.Deliver only
	Deadline        = message.Deadline        // Delivery.Until: after it the client must not get the message
	DeadlineClock   = message.DeadlineClock   // the clock by which a Deadline passes
	Sink            = message.Sink            // receives the messages of a Consumer
	RunSink         = message.RunSink         // a Sink that takes messages next to each other at once
	Run             = message.Run             // what a RunSink gets
	HeldSink        = message.HeldSink        // a Sink that may queue messages before its client gets them
	HeldDelivery    = message.HeldDelivery    // a delivery that a HeldSink dropped
	FailureSink     = message.FailureSink     // a Sink that learns which of its calls a leader refused later
	FailedCall      = message.FailedCall      // the call that was refused
	ConsumerOptions = message.ConsumerOptions // what one subscriber asks for
	ConsumerStats   = message.ConsumerStats   // counters of one subscriber
	LatencyRecorder = message.LatencyRecorder // see Options.Latencies
)

// Types of package topic. ChannelStats and TopicStats are snapshots with the names of NSQ's /stats.
type (
	Topic           = topic.Topic
	Channel         = topic.Channel
	Consumer        = topic.Consumer
	Messages        = topic.Messages
	Message         = topic.Message
	ConsumeOptions  = topic.ConsumeOptions
	Reader          = topic.Reader
	Start           = topic.Start
	Stored          = topic.Stored
	TrimmedError    = topic.TrimmedError
	SeekTo          = topic.SeekTo
	SeekKind        = topic.SeekKind
	PeekOptions     = topic.PeekOptions
	PeekedMessage   = topic.PeekedMessage
	PendingMessage  = topic.PendingMessage
	TopicSettings   = topic.TopicSettings
	ChannelSettings = topic.ChannelSettings
	Filter          = topic.Filter
	Rule            = topic.Rule
	Order           = topic.Order
	Match           = topic.Match
	Producer        = topic.Producer
	Produced        = topic.Produced
	Sender          = topic.Sender
	Numbered        = topic.Numbered
	SequenceError   = topic.SequenceError
	FencedError     = topic.FencedError
	KnownProducer   = topic.KnownProducer
	ProducerList    = topic.ProducerList
	Trace           = topic.Trace
	TraceStored     = topic.TraceStored
	TraceEvent      = topic.TraceEvent
	TraceChannel    = topic.TraceChannel
	CopyAnswer      = topic.CopyAnswer
	RemoteLabel     = topic.RemoteLabel
	TopicStats      = topic.Stats
	ChannelStats    = channel.Stats
)

// StorageStats describes the storage and replication of a node. A Fault is one kind of trouble in it.
type (
	StorageStats = faults.Stats
	Fault        = faults.Fault
)

// Constants of package topic.
const (
	StartOldest = topic.StartOldest
	StartNewest = topic.StartNewest
	StartAtID   = topic.StartAtID
	StartAtTime = topic.StartAtTime

	SeekBeginning = topic.SeekBeginning
	SeekEnd       = topic.SeekEnd
	SeekID        = topic.SeekID
	SeekTime      = topic.SeekTime
	SeekCount     = topic.SeekCount

	OrderNone      = topic.OrderNone
	OrderPartition = topic.OrderPartition
	OrderKey       = topic.OrderKey
	OrderDeclared  = topic.OrderDeclared

	MatchExact  = topic.MatchExact
	MatchPrefix = topic.MatchPrefix
	MatchGlob   = topic.MatchGlob
	MatchRegexp = topic.MatchRegexp
	MatchExists = topic.MatchExists

	QuotaReject      = topic.QuotaReject
	QuotaDropOldest  = topic.QuotaDropOldest
	DurabilitySynced = topic.DurabilitySynced

	MaxListCount     = topic.MaxListCount
	DefaultListCount = topic.DefaultListCount
	MaxPeekBytes     = topic.MaxPeekBytes

	MaxProducerNameBytes = topic.MaxProducerNameBytes
	MaxProducerRows      = topic.MaxProducerRows

	RedriveChannel      = topic.RedriveChannel
	OriginTopicHeader   = topic.OriginTopicHeader
	OriginChannelHeader = topic.OriginChannelHeader
	OriginIDHeader      = topic.OriginIDHeader
	AttemptsHeader      = topic.AttemptsHeader
	HopsHeader          = topic.HopsHeader
	ChannelHeader       = topic.ChannelHeader
	TagHeader           = topic.TagHeader
)

// The calls that FailureSink.Failed reports.
const (
	FailedFinish  = message.FailedFinish
	FailedRequeue = message.FailedRequeue
	FailedTouch   = message.FailedTouch
)

// Limits and reserved names of headers.
const (
	MaxHeaderCount     = message.MaxHeaderCount     // headers of one message
	MaxHeaderNameBytes = message.MaxHeaderNameBytes // bytes of one header's name
	ReservedHeaders    = message.ReservedHeaders    // prefix of the names that only the engine may write
	KeyHeader          = message.KeyHeader          // the header that holds a message's key
)

// Info describes the storage of an Engine, for /info, logs and benchmark headers.
type Info struct {
	IOEngine, IOReason   string        // how files are written (uring, giouring, pwrite), and why so
	Direct, Registered   bool          // files are opened with O_DIRECT; buffers are registered with the ring
	BlockBytes           int           // alignment of direct writes
	FileSystem, Device   string        // ext4, tmpfs, ...; the block device, "" if there is none
	DeviceCache, Kernel  string        // write back, write through, "" if unknown; release of the running kernel
	NodeID, StoreID      string        // identity of the node, and of its data directory
	FormatVersion        int           // format of the data directory, see DirectoryLevel
	Level                int           // the feature level in force, see Engine.Level
	Recovered            time.Duration // how long Open took until it could serve
	RecoveredBytes       int64         // bytes replayed from the commit log
	PartitionsReadOnly   int           // partitions that recovery found damaged, and that store nothing more
	CorruptionsAtRecover []string      // what recovery found damaged, one sentence each; shared: do not change it
}

// ValidTopicName says whether name can name a topic, by the rule of nsqd: at most 64 bytes, one or more of the
// characters a-z A-Z 0-9 . _ -, optionally followed by #ephemeral. Names never become paths, so "." and ".." are
// allowed.
func ValidTopicName(name string) bool { return names.ValidTopic(name) }

// ValidChannelName is the same rule for channels.
func ValidChannelName(name string) bool { return names.ValidChannel(name) }
