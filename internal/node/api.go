package node

import (
	"time"

	"penstock/internal/node/channel"
	"penstock/internal/node/inbox"
	"penstock/internal/node/message"
	"penstock/internal/node/names"
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

// TopicStats, ChannelStats and ConsumerStats are snapshots with the names of NSQ's /stats. They cover this node: the
// partitions that it has a copy of, and the channels' consumers that it serves.
type TopicStats struct {
	Name         string
	MadeBy       string // see Topic.MadeBy
	Depth        int64  // messages that no channel can get yet, because the topic has no channel or is paused
	BackendDepth int64  // the same as Depth
	// Published counts the messages that were ever published to the partitions that this node leads, as far as they are
	// committed. It is in their logs: neither a restart nor retention changes it.
	Published    uint64
	MessageCount uint64 // messages that this node stored as the leader, committed since Open
	MessageBytes uint64 // approximate bytes of their bodies
	Paused       bool
	OverQuota    bool // in the last minute, a put was refused because of the quota of a partition that is led here
	// DelaysRefused counts the partitions that this node leads and that refuse delayed messages now; see ErrStateFull.
	DelaysRefused int
	// ReadOnly counts the partitions that this node leads and that store nothing new until a restart, because a part of
	// their logs is missing, damaged or of a newer version.
	ReadOnly    int
	Partitions  int   // all partitions of the topic, on any node
	StoredBytes int64 // bytes of the logs of this node's copies
	// Served are the partitions whose channels deliver from this node, in order; never nil. Channels has the part of each
	// channel that is in these partitions. A new leader serves as soon as the start of its epoch is committed.
	Served   []int
	Led      int   // partitions that this node leads
	LedBytes int64 // bytes of the logs of these
	// Producers counts the producers, named or not, that these partitions know; one that publishes to several partitions
	// counts in each. MaxProducers is the number in the one that knows the most: at 4096 a partition forgets anonymous
	// ones, and refuses further named ones.
	Producers    int
	MaxProducers int
	Channels     []ChannelStats // by name; nil if this node serves no partition of the topic
}

// ChannelStats: see TopicStats.
type ChannelStats = channel.Stats

// ValidTopicName says whether name can name a topic, by the rule of nsqd: at most 64 bytes, one or more of the
// characters a-z A-Z 0-9 . _ -, optionally followed by #ephemeral. Names never become paths, so "." and ".." are
// allowed.
func ValidTopicName(name string) bool { return names.ValidTopic(name) }

// ValidChannelName is the same rule for channels.
func ValidChannelName(name string) bool { return names.ValidChannel(name) }
