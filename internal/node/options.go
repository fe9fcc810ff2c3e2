package node

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"penstock/batch"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/flush"
	"penstock/internal/node/fold"
	"penstock/internal/node/health"
	"penstock/internal/node/inbox"
	"penstock/internal/node/machine"
	"penstock/internal/node/message"
	"penstock/internal/node/topic"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/segment"
	"penstock/segment/aio"
)

// Options configure an Engine. The zero value of a field selects its default. The field's comment ends with the default
// in parentheses, or says what the zero value means. Open copies the struct.
type Options struct {
	// DataPath is the data directory; it is created if it is missing. Required unless Disk is set. Open makes a relative
	// path absolute, so the program may change its working directory afterwards.
	DataPath string
	IO       string   // how files are written: auto, uring or pwrite (auto)
	Disk     aio.Disk // replaces DataPath; Close closes it. For simulations and tests
	// Logger may be slow, and may use the engine: its lines go through a queue with a goroutine of its own. nil:
	// slog.Default()
	Logger  *slog.Logger
	NodeID  string          // "": the stored one, or a new one. Open fails if the directory stores another one.
	Cluster *ClusterOptions // nil: a single node
	// LockWait is how long Open waits for another process to release the directory. A process that has just ended holds
	// it for some time, until its last writes have landed: a program that is started again at once meets that. Negative:
	// Open does not wait. (2 s)
	LockWait time.Duration

	// MaxLevel is the highest feature level that this node claims to know; 0: NewestLevel. Tests of mixed clusters set
	// a lower one.
	MaxLevel int

	// Memory and files.

	// BufferBytes is the size of the off-heap buffers, which hold commit groups and serve reads of the newest messages.
	// At least 4 MiB. (64 MiB)
	BufferBytes int64
	// CommitFileBytes is the size of a commit log file, at least twice MaxBatchBytes. Files grow when the deferred
	// messages and confirmed ranges of all channels take more than a quarter of one. (32 MiB)
	CommitFileBytes int64
	// CommitLiveBytes bounds the bytes of the commit log that recovery replays. At least twice CommitFileBytes. Three
	// files are always allowed, even if they have grown. (256 MiB)
	CommitLiveBytes int64
	GroupsInFlight  int   // commit groups that are being written at once (2)
	MinSegmentBytes int64 // size of a partition's first segment file (1 MiB)
	MaxSegmentBytes int64 // size of its largest segment files (128 MiB)
	// MaxOpenSegments is how many partitions may have segment files open. A file is open from its first write until it
	// is synced; beyond this number, the files that were opened first are synced earlier. (2048)
	MaxOpenSegments int
	// MaxMappedSegments is how many segments may stay mapped into memory while nobody reads them. (16,384; Linux allows
	// a process 65,530 mappings)
	MaxMappedSegments int

	// Retention removes whole segments, even if messages in them are not confirmed. The first three fields apply to
	// topics whose own setting is 0 (TopicSettings).

	RetentionBytes    int64         // stored bytes per partition; 0: no limit
	RetentionCount    int           // stored messages per partition; 0: no limit
	RetentionAge      time.Duration // age of stored messages; 0: no limit
	RetentionInterval time.Duration // how often retention runs (5 s)

	// Limits.

	MaxMessageBytes int // body of one message; at most MaxBatchBytes (1 MiB)
	MaxBatchBytes   int // bodies and record headers of one Put; at most 15 MiB (6 MiB)
	MaxHeaderBytes  int // names and values of one message's headers (32 KiB, or MaxBatchBytes if that is less)
	// MaxInflationRatio is by how much a compressed batch may grow when it is decompressed, beyond its first 64 KiB (256).
	MaxInflationRatio int
	// MaxInflatedBytes bounds what compressed batches above 64 KiB grow to while they are verified; a client may have a
	// quarter. A batch waits for AdmitTimeout at most. (64 MiB)
	MaxInflatedBytes  int64
	MaxInboxBytes     int64 // puts that wait in one partition's inbox (32 MiB)
	MaxNodeInboxBytes int64 // puts that wait in all inboxes; as much again may be on its way to other nodes (128 MiB)
	MaxTopics         int   // topics that this node has (20000)
	MaxPartitions     int   // partitions of all topics that this node lists, beyond which it makes no more (25000)
	MaxChannels       int   // channels per topic (1000)
	MaxConsumers      int   // consumers per channel; 0: no limit, as in nsqd
	MaxRanges         int   // confirmed ranges per channel and partition (1<<18)
	MaxDeferred       int   // deferred messages per channel and partition (1<<20)
	// MaxStateBytes bounds the memory of the deferred messages and confirmed ranges of all partitions that this node
	// has, as if it led them: about 300 bytes for each deferred message and channel. See ErrStateFull. (512 MiB)
	MaxStateBytes int64
	// TokenShare is how many percent of MaxTopics, MaxPartitions, MaxStateBytes and the state in a checkpoint the topics
	// may take that were made for one token (TopicOptions.MadeBy), and of the disk, when nine tenths of what messages may
	// use are used; 100: there are no shares. (50)
	TokenShare int
	// DefaultQuotaBytes is the quota of the topics that Engine.Topic makes, as publishing and subscribing do: the bytes
	// of a partition that not all channels have confirmed (TopicSettings.QuotaBytes). 0: none.
	DefaultQuotaBytes int64
	// MaxHeapBytes is what the process may use besides BufferBytes. Open returns a MemoryError if what was stored needs
	// more. 0: not known.
	MaxHeapBytes  int64
	MaxDefer      time.Duration // longest delay of a published message; at most 49 days (30 days)
	MsgTimeout    time.Duration // in flight without FIN or TOUCH, then delivered again; a consumer may choose (60 s)
	MaxMsgTimeout time.Duration // longest time in flight, whatever a consumer chooses or touches (15 m)
	MaxReqTimeout time.Duration // longest delay of a requeue; longer ones are cut to it (1 h)
	// PublishTimeout is the longest wait of a put that has no deadline of its own before it is stored. In a cluster it
	// also bounds the wait for a commit (then ErrUnknown) and every operation that asks other nodes. A put that was sent
	// to the leader on another node waits for its answer a second longer (forward.AnswerMargin). (5 s)
	PublishTimeout time.Duration
	ScrubInterval  time.Duration // how often all segments are read and verified; 0: never
	// DiskPatience is how long no write may complete while some wait, before the disk counts as hung and this node
	// hands its leaderships over. Negative: this node hands none over, and the disk counts as hung only when it counts
	// as failed. (5 s)
	DiskPatience    time.Duration
	DiskFailedAfter time.Duration // how long no write may complete before the disk counts as failed (30 s)
	// DiskProbeAfter is how long the disk may be idle before the engine probes it with a write. Negative: no probes.
	// (10 s)
	DiskProbeAfter time.Duration
	// SlowCommit is how long a group of the commit log may take to become durable before it counts as slow. Slow groups
	// are logged. (500 ms)
	SlowCommit time.Duration
	// AdmitTimeout is the longest wait of a put for room in an inbox. Negative: a put that finds no room is refused at
	// once. (800 ms, because clients give up a socket write after 1 s)
	AdmitTimeout       time.Duration
	ConfirmInterval    time.Duration // longest that a confirmation waits to be written together with others (5 ms)
	DefaultPartitions  int           // partitions of a new topic (1)
	DisableAutoCreate  bool          // Engine.Topic and Topic.Channel return ErrAutoCreateOff instead of creating
	ReadAheadBytes     int           // most bytes of a segment that one view pins (256 KiB)
	MaxDeliveriesAtOne int           // messages that a channel delivers before other callers can take its lock (4096)

	// Latencies returns a new recorder for a channel. It is called once for each channel that this node makes, when the
	// recorder is needed first, with the channel's lock held: it must not block, or that channel's consumers wait. The
	// recorder gets the time from publish to Finish of each message whose partition this node leads; ChannelStats has it.
	// nil: nothing is measured.
	Latencies func() message.LatencyRecorder

	// Startup is told what Open is doing and how far it has come. nil: nobody asks.
	Startup *health.Startup

	// Certificates returns the files of certificates that the program uses, for the health of the node. It must not
	// block, and any goroutine may call it. nil: none.
	Certificates func() []health.Certificate

	// unknownKind is a kind of control entry that this process treats as unknown, as if a newer version had written it.
	// Tests set it.
	unknownKind fold.ControlKind
	markAfter   time.Duration // 0: the constant markAfter. Tests set another
	// 0: the constant ephemeralGrace. Tests set another
	ephemeralGrace time.Duration
	beforeRun      func()           // nil: nothing. Tests delay the commit log's goroutine with it, as a scheduler may
	wall           func() time.Time // nil: wallNow. Tests set it
	// groundByHand makes only tests look at the engine's ground.
	groundByHand bool
}

const (
	// MaxPartitions is the most partitions of a topic, 65536: an ID has 16 bits for the partition.
	MaxPartitions = datadir.MaxPartitions
	// MaxReplicas is the most replicas of a partition.
	MaxReplicas = replicate.MaxReplicaCount
	// markAfter is how long the commit log is idle before it marks its last group as durable. Once the mark is durable,
	// recovery reports damage to that group as damage, and does not take it for a torn write.
	markAfter = 20 * time.Millisecond
	// maxDefer is the longest possible Options.MaxDefer: a record stores the delay as 32 bits of milliseconds.
	maxDefer = 49 * 24 * time.Hour
)

// Check returns an ErrOptions if the options contradict each other: what Open would say of them. It touches nothing.
func (o Options) Check() error { return o.setDefaults() }

// def makes v the value of what is not set.
func def[T comparable](p *T, v T) { *p = cmp.Or(*p, v) }

// setDefaults replaces zero values by the defaults, and returns an ErrOptions if the options contradict each other.
func (o *Options) setDefaults() error {
	def(&o.markAfter, markAfter)
	def(&o.ephemeralGrace, topic.EphemeralGrace)
	def(&o.Logger, slog.Default())
	def(&o.IO, string(aio.ModeAuto))
	def(&o.MaxLevel, NewestLevel)
	def(&o.BufferBytes, 64<<20)
	def(&o.CommitFileBytes, 32<<20)
	def(&o.CommitLiveBytes, 256<<20)
	def(&o.GroupsInFlight, 2)
	def(&o.MinSegmentBytes, segment.DefaultSizes.MinSegmentBytes)
	def(&o.MaxSegmentBytes, segment.DefaultSizes.MaxSegmentBytes)
	def(&o.MaxOpenSegments, flush.DefaultMaxOpenSegments)
	def(&o.MaxMappedSegments, segment.DefaultMaxMappings)
	def(&o.LockWait, aio.ExitTime)
	def(&o.RetentionInterval, 5*time.Second)
	def(&o.MaxMessageBytes, 1<<20)
	def(&o.MaxBatchBytes, 6<<20)
	def(&o.MaxHeaderBytes, min(32<<10, o.MaxBatchBytes))
	def(&o.MaxInflationRatio, batch.MaxInflationRatio)
	def(&o.MaxInflatedBytes, inbox.DefaultMaxInflatedBytes)
	def(&o.MaxInboxBytes, 32<<20)
	def(&o.MaxNodeInboxBytes, 128<<20)
	def(&o.MaxTopics, 20000)
	def(&o.MaxPartitions, 25000)
	def(&o.MaxChannels, 1000)
	def(&o.MaxRanges, 1<<18)
	def(&o.MaxDeferred, 1<<20)
	def(&o.MaxStateBytes, 512<<20)
	def(&o.TokenShare, 50)
	def(&o.MaxDefer, 30*24*time.Hour)
	def(&o.MsgTimeout, 60*time.Second)
	def(&o.MaxMsgTimeout, 15*time.Minute)
	def(&o.MaxReqTimeout, time.Hour)
	def(&o.PublishTimeout, 5*time.Second)
	def(&o.DiskPatience, 5*time.Second)
	def(&o.DiskFailedAfter, 30*time.Second)
	def(&o.DiskProbeAfter, machine.DiskProbeIdleNs)
	def(&o.SlowCommit, 500*time.Millisecond)
	def(&o.AdmitTimeout, 800*time.Millisecond)
	def(&o.ConfirmInterval, 5*time.Millisecond)
	def(&o.DefaultPartitions, 1)
	def(&o.ReadAheadBytes, 256<<10)
	def(&o.MaxDeliveriesAtOne, 4096)
	return o.check()
}

// workBytes is more than an engine maps outside the Go heap besides BufferBytes until it serves: buffers for staging,
// for checks and for new files, and stacks of threads.
const workBytes = 32 << 20

// checkMemory returns an error if the system would refuse the memory that Open maps. Open would find that out in places
// where nothing can be returned.
func (o *Options) checkMemory() error {
	if err := aio.CheckMemory(o.BufferBytes + workBytes); err != nil {
		return fmt.Errorf("engine: %w: nothing was opened. Lower BufferBytes (buffer-bytes), which is %d MiB, or raise the "+
			"limit of this process (ulimit -v) or of the system (vm.overcommit_memory)", err, o.BufferBytes>>20)
	}
	return nil
}

func (o *Options) check() error {
	switch {
	case o.DataPath == "" && o.Disk == nil:
		return fmt.Errorf("%w: Options.DataPath is empty: name the data directory", errs.ErrOptions)
	case !netproto.ValidNodeID(o.NodeID):
		return fmt.Errorf("%w: Options.NodeID is %q; it can be at most %d printable ASCII characters without blanks",
			errs.ErrOptions, o.NodeID, netproto.MaxNodeIDBytes)
	case o.MaxLevel < datadir.FirstLevel || o.MaxLevel > NewestLevel:
		return fmt.Errorf("%w: MaxLevel is %d; this version knows %d to %d",
			errs.ErrOptions, o.MaxLevel, datadir.FirstLevel, NewestLevel)
	case o.BufferBytes < 4*inbox.GroupBytes:
		return fmt.Errorf("%w: BufferBytes is %d; it must be at least %d", errs.ErrOptions, o.BufferBytes, 4*inbox.GroupBytes)
	case o.MaxBatchBytes > 15<<20:
		return fmt.Errorf("%w: MaxBatchBytes is %d; a batch can be at most 15 MiB", errs.ErrOptions, o.MaxBatchBytes)
	case o.MaxMessageBytes > o.MaxBatchBytes:
		return fmt.Errorf("%w: MaxMessageBytes (%d) is larger than MaxBatchBytes (%d)",
			errs.ErrOptions, o.MaxMessageBytes, o.MaxBatchBytes)
	case o.MaxInflationRatio < 1 || o.MaxInflatedBytes < 1:
		return fmt.Errorf("%w: MaxInflationRatio (%d) or MaxInflatedBytes (%d) is negative; leave it 0 for the default",
			errs.ErrOptions, o.MaxInflationRatio, o.MaxInflatedBytes)
	case o.MaxHeaderBytes < 1 || o.MaxHeaderBytes > o.MaxBatchBytes:
		return fmt.Errorf("%w: MaxHeaderBytes is %d; it must be 1 to MaxBatchBytes (%d)",
			errs.ErrOptions, o.MaxHeaderBytes, o.MaxBatchBytes)
	case o.MsgTimeout < message.MinMsgTimeout:
		return fmt.Errorf("%w: MsgTimeout is %v; it is at least %v", errs.ErrOptions, o.MsgTimeout, message.MinMsgTimeout)
	case o.MaxMsgTimeout < message.MinMsgTimeout || o.MaxMsgTimeout > message.MaxMaxMsgTimeout:
		return fmt.Errorf("%w: MaxMsgTimeout is %v; it is %v to %v", errs.ErrOptions, o.MaxMsgTimeout, message.MinMsgTimeout,
			message.MaxMaxMsgTimeout)
	case o.TokenShare < 1 || o.TokenShare > 100:
		return fmt.Errorf("%w: TokenShare is %d; it is 1 to 100 percent", errs.ErrOptions, o.TokenShare)
	case o.DefaultQuotaBytes < 0:
		return fmt.Errorf("%w: DefaultQuotaBytes is %d; it is 0 or more", errs.ErrOptions, o.DefaultQuotaBytes)
	case o.MaxDefer > maxDefer:
		return fmt.Errorf("%w: MaxDefer is %v; a message can wait for at most %v", errs.ErrOptions, o.MaxDefer, maxDefer)
	case o.DefaultPartitions < 1 || o.DefaultPartitions > MaxPartitions:
		return fmt.Errorf("%w: DefaultPartitions is %d; a topic has 1 to %d",
			errs.ErrOptions, o.DefaultPartitions, MaxPartitions)
	case o.CommitLiveBytes < 2*o.CommitFileBytes:
		return fmt.Errorf("%w: CommitLiveBytes (%d) must hold at least two files of CommitFileBytes (%d)",
			errs.ErrOptions, o.CommitLiveBytes, o.CommitFileBytes)
	case int64(o.MaxBatchBytes) > o.CommitFileBytes/2:
		return fmt.Errorf("%w: CommitFileBytes (%d) must be at least twice MaxBatchBytes (%d)",
			errs.ErrOptions, o.CommitFileBytes, o.MaxBatchBytes)
	}
	return nil
}
