package engine

import (
	"time"

	"penstock/engine/base"
	"penstock/engine/channel"
	"penstock/engine/inbox"
)

// Types of the rooms below, under their public names.
type (
	ID              = base.ID
	Put             = inbox.Put
	Header          = base.Header
	Outgoing        = base.Outgoing
	Delivery        = base.Delivery
	Deadline        = base.Deadline
	DeadlineClock   = base.DeadlineClock
	Sink            = base.Sink
	HeldSink        = base.HeldSink
	HeldDelivery    = base.HeldDelivery
	FailureSink     = base.FailureSink
	FailedCall      = base.FailedCall
	ConsumerOptions = base.ConsumerOptions
	ConsumerStats   = base.ConsumerStats
	LatencyRecorder = base.LatencyRecorder
)

// The calls that a FailureSink is told of.
const (
	FailedFinish  = base.FailedFinish
	FailedRequeue = base.FailedRequeue
	FailedTouch   = base.FailedTouch
)

// Limits and reserved names of headers.
const (
	MaxHeaderCount     = base.MaxHeaderCount
	MaxHeaderNameBytes = base.MaxHeaderNameBytes
	ReservedHeaders    = base.ReservedHeaders
	KeyHeader          = base.KeyHeader
)

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
type ChannelStats = channel.Stats

// ValidTopicName says whether name can name a topic, by the rule of nsqd. Names never become paths, so "." and ".." are
// allowed.
func ValidTopicName(name string) bool { return base.ValidTopicName(name) }

// ValidChannelName is the same rule for channels.
func ValidChannelName(name string) bool { return base.ValidChannelName(name) }
