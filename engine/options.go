package engine

import (
	"fmt"
	"log/slog"
	"time"

	"penstock/engine/core"
	"penstock/segment/aio"
)

// Options configure an Engine. The zero value of every field is its default.
type Options struct {
	DataPath string       // data directory; created if missing. Required unless Disk is set.
	IO       string       // auto, uring or pwrite
	Disk     aio.Disk     // used instead of DataPath, and closed with the engine: simulation, tests
	Logger   *slog.Logger // nil: slog.Default()
	NodeID   string       // "": keep the one in the data directory, or make one. Another one than stored is an error.
	LockWait time.Duration
	Cluster  *ClusterOptions // nil: a single node

	// MaxLevel is the highest feature level that this node claims to know; 0: NewestLevel. Lower ones are for tests of mixed clusters.
	MaxLevel int

	// Memory and files.
	BufferBytes       int64 // off-heap buffers that carry groups and serve tail reads (64 MiB)
	CommitFileBytes   int64 // one commit log file (32 MiB); files grow when what channels have deferred and confirmed takes more than a quarter of one
	CommitLiveBytes   int64 // most bytes that recovery replays (256 MiB), or three files that have grown
	GroupsInFlight    int   // commit groups on the disk at once (2)
	MinSegmentBytes   int64 // first segment of a partition (1 MiB)
	MaxSegmentBytes   int64 // largest segment (128 MiB)
	RetentionBytes    int64 // per partition; 0: no limit. Drops unconfirmed messages too.
	RetentionCount    int   // messages, per partition; 0: no limit. Likewise.
	RetentionAge      time.Duration
	RetentionInterval time.Duration // how often retention runs (5 s)

	// Limits.
	MaxMessageBytes   int           // 1 MiB
	MaxBatchBytes     int           // bodies and record headers of one Put (6 MiB)
	MaxHeaderBytes    int           // names and values of one message's headers (32 KiB)
	MaxInboxBytes     int64         // waiting per partition (32 MiB)
	MaxNodeInboxBytes int64         // waiting per node (128 MiB)
	MaxTopics         int           // 20000
	MaxChannels       int           // per topic (1000)
	MaxConsumers      int           // per channel; 0: no limit, as in nsqd
	MaxRanges         int           // confirmed ranges per channel and partition (1<<18)
	MaxDeferred       int           // deferred messages per channel and partition (1<<20)
	MaxStateBytes     int64         // deferred messages and confirmed ranges of all partitions, as a checkpoint of the commit log has them, about 12 bytes each (128 MiB); see ErrStateFull
	MaxDefer          time.Duration // 30 days; at most maxDefer, 49 days
	MsgTimeout        time.Duration // 60 s
	MaxMsgTimeout     time.Duration // 15 m
	MaxReqTimeout     time.Duration // 1 h
	PublishTimeout    time.Duration // longest wait in the inbox (5 s)
	ScrubInterval     time.Duration // how often all segments are read and verified; 0: never
	DiskPatience      time.Duration // writes wait and none comes back: the disk hangs, and leaderships are handed over (5 s); less than 0: never
	DiskFailedAfter   time.Duration // and after this it counts as failed (30 s)
	// DiskProbeAfter is how long nothing is written before the engine asks an idle disk whether it answers (10 s); less
	// than 0: it never asks.
	DiskProbeAfter time.Duration
	// AdmitTimeout is the longest wait for room in the inbox (800 ms: clients give up a socket write after 1 s); less
	// than 0: a put that finds none is refused at once.
	AdmitTimeout       time.Duration
	ConfirmInterval    time.Duration // confirmations are written together at most this late (5 ms)
	DefaultPartitions  int           // 1
	DisableAutoCreate  bool
	ReadAheadBytes     int // most bytes one view of a segment pins (256 KiB)
	MaxDeliveriesAtOne int // messages delivered in one turn of a channel before other callers get their turn (4096)

	// Latencies makes what measures a channel's messages from publish to Finish, where they are led; ChannelStats has it. nil: nothing does.
	Latencies func() LatencyRecorder

	// unknownKind is a control entry's kind that this process does not know, as if a newer version had written it (tests only).
	unknownKind core.ControlKind
	markAfter   time.Duration    // 0: markAfter. Tests set another
	beforeRun   func()           // tests: stands for a scheduler that lets the commit log's goroutine begin late
	wall        func() time.Time // nil: wallNow. Tests set it
}

const (
	// MaxPartitions is what the 16 bits of an id leave room for.
	MaxPartitions = 1 << 16
	groupBytes    = 1 << 20 // one buffer of the arena
	// markAfter is how long the commit log rests before it promises its last group: damage to that group is known as such from then on.
	markAfter = 20 * time.Millisecond
	// maxDefer is what a record can say.
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
	case o.MaxLevel < firstLevel || o.MaxLevel > NewestLevel:
		return fmt.Errorf("%w: MaxLevel is %d; this version knows %d to %d", ErrOptions, o.MaxLevel, firstLevel, NewestLevel)
	case o.BufferBytes < 4*groupBytes:
		return fmt.Errorf("%w: BufferBytes is %d; it must be at least %d", ErrOptions, o.BufferBytes, 4*groupBytes)
	case o.MaxBatchBytes > 15<<20:
		return fmt.Errorf("%w: MaxBatchBytes is %d; a batch can be at most 15 MiB", ErrOptions, o.MaxBatchBytes)
	case o.MaxMessageBytes > o.MaxBatchBytes:
		return fmt.Errorf("%w: MaxMessageBytes (%d) is larger than MaxBatchBytes (%d)", ErrOptions, o.MaxMessageBytes, o.MaxBatchBytes)
	case o.MaxHeaderBytes < 1 || o.MaxHeaderBytes > o.MaxBatchBytes:
		return fmt.Errorf("%w: MaxHeaderBytes is %d; it must be 1 to MaxBatchBytes (%d)", ErrOptions, o.MaxHeaderBytes, o.MaxBatchBytes)
	case o.MaxDefer > maxDefer:
		return fmt.Errorf("%w: MaxDefer is %v; a message can wait for at most %v", ErrOptions, o.MaxDefer, maxDefer)
	case o.DefaultPartitions < 1 || o.DefaultPartitions > MaxPartitions:
		return fmt.Errorf("%w: DefaultPartitions is %d; a topic has 1 to %d", ErrOptions, o.DefaultPartitions, MaxPartitions)
	case o.CommitLiveBytes < 2*o.CommitFileBytes:
		return fmt.Errorf("%w: CommitLiveBytes (%d) must hold at least two files of CommitFileBytes (%d)", ErrOptions, o.CommitLiveBytes, o.CommitFileBytes)
	case int64(o.MaxBatchBytes) > o.CommitFileBytes/2:
		return fmt.Errorf("%w: CommitFileBytes (%d) must be at least twice MaxBatchBytes (%d)", ErrOptions, o.CommitFileBytes, o.MaxBatchBytes)
	}
	return nil
}
