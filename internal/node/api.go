package node

import (
	"time"

	"penstock/internal/node/catalog"
	"penstock/internal/node/channel"
	"penstock/internal/node/faults"
	"penstock/internal/node/inbox"
	"penstock/internal/node/message"
	"penstock/internal/node/topic"
	"penstock/replicate/wire"
)

// Types that packages below this one define, and that almost every caller needs. The rest is where it is defined: the
// errors in errs, the settings in meta and fold, sinks, headers and their limits in message.
type (
	ID              = message.ID              // a message: its partition and its number there
	Put             = inbox.Put               // a request to store messages, for Topic.Submit
	Header          = message.Header          // a name and a value; the bytes are borrowed like those of the message
	Outgoing        = message.Outgoing        // a message to publish, with key, headers and delay
	Delivery        = message.Delivery        // a message on its way to a Sink, valid during Sink.Deliver only
	Sink            = message.Sink            // receives the messages of a Consumer
	ConsumerOptions = message.ConsumerOptions // what one subscriber asks for

	Topic          = topic.Topic
	Channel        = topic.Channel
	Consumer       = topic.Consumer
	Messages       = topic.Messages
	Message        = topic.Message
	ConsumeOptions = topic.ConsumeOptions
	Reader         = topic.Reader
	Start          = topic.Start
	Stored         = topic.Stored
	TrimmedError   = topic.TrimmedError
	PeekOptions    = topic.PeekOptions
	Producer       = topic.Producer
	Produced       = topic.Produced
	Sender         = topic.Sender
	Numbered       = topic.Numbered

	SeekTo         = wire.SeekTo // a place in a topic; its Kind says which of its fields counts
	SeekKind       = wire.SeekKind
	PeekedMessage  = wire.PeekedMessage
	PendingMessage = wire.PendingMessage
	Trace          = wire.Trace
	TraceChannel   = wire.TraceChannel
	RemoteLabel    = wire.Label // ConsumerStats.Label, at a leader, of a client that is connected to another node

	TopicStats   = topic.Stats // with ChannelStats: snapshots with the names of NSQ's /stats
	ChannelStats = channel.Stats
	StorageStats = faults.Stats     // the storage and replication of a node
	TokenUse     = catalog.TokenUse // what the topics of one token take
	Fault        = faults.Fault     // one kind of trouble in it
)

// The kinds of Start and of SeekTo.
const (
	StartOldest = topic.StartOldest
	StartNewest = topic.StartNewest
	StartAtID   = topic.StartAtID
	StartAtTime = topic.StartAtTime

	SeekBeginning = wire.SeekBeginning
	SeekEnd       = wire.SeekEnd
	SeekID        = wire.SeekID
	SeekTime      = wire.SeekTime
	SeekCount     = wire.SeekCount
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
