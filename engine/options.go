package engine

import (
	"fmt"
	"log/slog"
	"time"

	"penstock/engine/core"
	"penstock/engine/dir"
	"penstock/engine/inbox"
	"penstock/segment/aio"
)

// Options configure an Engine. The zero value of each field selects its default, which the field's comment names.
type Options struct {
	DataPath string          // data directory; created if missing. Required unless Disk is set.
	IO       string          // auto, uring or pwrite
	Disk     aio.Disk        // replaces DataPath, and is closed with the engine; for simulations and tests
	Logger   *slog.Logger    // nil: slog.Default()
	NodeID   string          // "": use the stored one, or make one. It is an error if another one is stored.
	LockWait time.Duration   // how long Open waits for another process to release the directory; 0: not at all
	Cluster  *ClusterOptions // nil: a single node

	// MaxLevel is the highest feature level that this node claims to know; 0: NewestLevel. Tests of mixed clusters set a
	// lower one.
	MaxLevel int

	// Memory and files.
	BufferBytes int64 // off-heap buffers that hold commit groups and serve reads of the newest messages (64 MiB)
	// CommitFileBytes is the size of a commit log file (32 MiB). Files grow when the deferred messages and confirmed
	// ranges of all channels take more than a quarter of one.
	CommitFileBytes int64
	// CommitLiveBytes bounds what recovery replays (256 MiB). Three files are always allowed, even if they have grown.
	CommitLiveBytes   int64
	GroupsInFlight    int           // commit groups that are being written at once (2)
	MinSegmentBytes   int64         // first segment of a partition (1 MiB)
	MaxSegmentBytes   int64         // largest segment (128 MiB)
	RetentionBytes    int64         // per partition; 0: no limit. It also drops messages that are not confirmed.
	RetentionCount    int           // messages per partition; 0: no limit. It also drops messages that are not confirmed.
	RetentionAge      time.Duration // 0: no limit. It also drops messages that are not confirmed.
	RetentionInterval time.Duration // how often retention runs (5 s)

	// Limits.
	MaxMessageBytes   int   // 1 MiB
	MaxBatchBytes     int   // of one Put: bodies and record headers (6 MiB)
	MaxHeaderBytes    int   // of one message: names and values of headers (32 KiB)
	MaxInboxBytes     int64 // puts that wait in one partition's inbox (32 MiB)
	MaxNodeInboxBytes int64 // puts that wait in all inboxes (128 MiB)
	MaxTopics         int   // 20000
	MaxChannels       int   // per topic (1000)
	MaxConsumers      int   // per channel; 0: no limit, as in nsqd
	MaxRanges         int   // confirmed ranges per channel and partition (1<<18)
	MaxDeferred       int   // deferred messages per channel and partition (1<<20)
	// MaxStateBytes bounds the deferred messages and confirmed ranges of all partitions (128 MiB), counted as a
	// checkpoint of the commit log stores them: about 12 bytes each. See ErrStateFull.
	MaxStateBytes  int64
	MaxDefer       time.Duration // 30 days; at most 49 days (maxDefer)
	MsgTimeout     time.Duration // 60 s
	MaxMsgTimeout  time.Duration // 15 m
	MaxReqTimeout  time.Duration // 1 h
	PublishTimeout time.Duration // longest wait of a put in the inbox (5 s)
	ScrubInterval  time.Duration // how often all segments are read and verified; 0: never
	// DiskPatience is how long no write may complete while some wait, before the disk counts as hung and this node hands
	// its leaderships over (5 s); less than 0: never.
	DiskPatience    time.Duration
	DiskFailedAfter time.Duration // a disk that hangs for so long counts as failed (30 s)
	// DiskProbeAfter is how long the disk may be idle before the engine probes it with a write (10 s); less than 0: no
	// probes.
	DiskProbeAfter time.Duration
	// AdmitTimeout is the longest wait for room in the inbox (800 ms: clients give up a socket write after 1 s); less
	// than 0: a put that finds no room is refused at once.
	AdmitTimeout       time.Duration
	ConfirmInterval    time.Duration // the longest that a confirmation waits to be written together with others (5 ms)
	DefaultPartitions  int           // 1
	DisableAutoCreate  bool
	ReadAheadBytes     int // most bytes of a segment that one view pins (256 KiB)
	MaxDeliveriesAtOne int // messages that a channel delivers before it lets other callers take its lock (4096)

	// Latencies makes the recorder of a channel's time from publish to Finish, on the nodes that lead its partitions;
	// ChannelStats shows it. nil: nothing is measured.
	Latencies func() LatencyRecorder

	// unknownKind is a kind of control entry that this process treats as unknown, as if a newer version had written it.
	// Tests set it.
	unknownKind core.ControlKind
	markAfter   time.Duration    // 0: the constant markAfter. Tests set another
	beforeRun   func()           // tests: delays the start of the commit log's goroutine, as a scheduler may
	wall        func() time.Time // nil: wallNow. Tests set it
}

const (
	// MaxPartitions is bounded by the 16 bits that an ID has for the partition.
	MaxPartitions = dir.MaxPartitions
	// markAfter is how long the commit log is idle before it marks its last group as durable. From then on, damage to
	// that group is reported as damage, and not taken for a torn write.
	markAfter = 20 * time.Millisecond
	// maxDefer is bounded by the 32 bits, in milliseconds, that a record has for the delay.
	maxDefer = 49 * 24 * time.Hour
)

func (o *Options) setDefaults() error {
	def := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	defInt := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	defDur := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	defDur(&o.markAfter, markAfter)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.IO == "" {
		o.IO = string(aio.ModeAuto)
	}
	defInt(&o.MaxLevel, NewestLevel)
	def(&o.BufferBytes, 64<<20)
	def(&o.CommitFileBytes, 32<<20)
	def(&o.CommitLiveBytes, 256<<20)
	defInt(&o.GroupsInFlight, 2)
	def(&o.MinSegmentBytes, 1<<20)
	def(&o.MaxSegmentBytes, 128<<20)
	defDur(&o.RetentionInterval, 5*time.Second)
	defInt(&o.MaxMessageBytes, 1<<20)
	defInt(&o.MaxBatchBytes, 6<<20)
	defInt(&o.MaxHeaderBytes, min(32<<10, o.MaxBatchBytes))
	def(&o.MaxInboxBytes, 32<<20)
	def(&o.MaxNodeInboxBytes, 128<<20)
	defInt(&o.MaxTopics, 20000)
	defInt(&o.MaxChannels, 1000)
	defInt(&o.MaxRanges, 1<<18)
	defInt(&o.MaxDeferred, 1<<20)
	def(&o.MaxStateBytes, 128<<20)
	defDur(&o.MaxDefer, 30*24*time.Hour)
	defDur(&o.MsgTimeout, 60*time.Second)
	defDur(&o.MaxMsgTimeout, 15*time.Minute)
	defDur(&o.MaxReqTimeout, time.Hour)
	defDur(&o.PublishTimeout, 5*time.Second)
	defDur(&o.DiskPatience, 5*time.Second)
	defDur(&o.DiskFailedAfter, 30*time.Second)
	defDur(&o.DiskProbeAfter, core.DiskProbeIdleNs)
	defDur(&o.AdmitTimeout, 800*time.Millisecond)
	defDur(&o.ConfirmInterval, 5*time.Millisecond)
	defInt(&o.DefaultPartitions, 1)
	defInt(&o.ReadAheadBytes, 256<<10)
	defInt(&o.MaxDeliveriesAtOne, 4096)
	return o.check()
}

func (o *Options) check() error {
	switch {
	case o.DataPath == "" && o.Disk == nil:
		return fmt.Errorf("%w: Options.DataPath is empty: name the data directory", ErrOptions)
	case o.MaxLevel < dir.FirstLevel || o.MaxLevel > NewestLevel:
		return fmt.Errorf("%w: MaxLevel is %d; this version knows %d to %d",
			ErrOptions, o.MaxLevel, dir.FirstLevel, NewestLevel)
	case o.BufferBytes < 4*inbox.GroupBytes:
		return fmt.Errorf("%w: BufferBytes is %d; it must be at least %d", ErrOptions, o.BufferBytes, 4*inbox.GroupBytes)
	case o.MaxBatchBytes > 15<<20:
		return fmt.Errorf("%w: MaxBatchBytes is %d; a batch can be at most 15 MiB", ErrOptions, o.MaxBatchBytes)
	case o.MaxMessageBytes > o.MaxBatchBytes:
		return fmt.Errorf("%w: MaxMessageBytes (%d) is larger than MaxBatchBytes (%d)",
			ErrOptions, o.MaxMessageBytes, o.MaxBatchBytes)
	case o.MaxHeaderBytes < 1 || o.MaxHeaderBytes > o.MaxBatchBytes:
		return fmt.Errorf("%w: MaxHeaderBytes is %d; it must be 1 to MaxBatchBytes (%d)",
			ErrOptions, o.MaxHeaderBytes, o.MaxBatchBytes)
	case o.MaxDefer > maxDefer:
		return fmt.Errorf("%w: MaxDefer is %v; a message can wait for at most %v", ErrOptions, o.MaxDefer, maxDefer)
	case o.DefaultPartitions < 1 || o.DefaultPartitions > MaxPartitions:
		return fmt.Errorf("%w: DefaultPartitions is %d; a topic has 1 to %d", ErrOptions, o.DefaultPartitions, MaxPartitions)
	case o.CommitLiveBytes < 2*o.CommitFileBytes:
		return fmt.Errorf("%w: CommitLiveBytes (%d) must hold at least two files of CommitFileBytes (%d)",
			ErrOptions, o.CommitLiveBytes, o.CommitFileBytes)
	case int64(o.MaxBatchBytes) > o.CommitFileBytes/2:
		return fmt.Errorf("%w: CommitFileBytes (%d) must be at least twice MaxBatchBytes (%d)",
			ErrOptions, o.CommitFileBytes, o.MaxBatchBytes)
	}
	return nil
}
