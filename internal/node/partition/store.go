package partition

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/internal/node/aside"
	"penstock/internal/node/budget"
	"penstock/internal/node/clock"
	"penstock/internal/node/datadir"
	"penstock/internal/node/dueclock"
	"penstock/internal/node/errs"
	"penstock/internal/node/flush"
	"penstock/internal/node/fold"
	"penstock/internal/node/health"
	"penstock/internal/node/inbox"
	"penstock/internal/node/platform"
	"penstock/internal/node/replay"
	"penstock/segment"
	"penstock/segment/aio"
)

// Store holds what the partitions of one data directory share: the machine below them, the commit log with its
// committer, the flusher of segments, and the limits and sums of the node. Engine makes the Store and recovery fills
// it. The partitions, the replicas, the committer and the flusher use it; none of them knows the Engine.
//
// The fields of the first two groups are set before any goroutine runs, and do not change afterwards. A crash loses the
// fields of the third group: recovery rebuilds them from the commit log.
type Store struct {
	host     platform.Host
	log      *slog.Logger
	clock    *clock.Clock
	disk     aio.Disk
	opts     Options
	counters *Counters
	pulse    *aio.Pulse
	stop     <-chan struct{} // closed when background goroutines must end

	arena      *aio.Arena
	clog       *clog.Log
	replicas   *Env // nil on a single node
	committer  committer
	flusher    *flush.Flusher
	mappings   *segment.Mappings
	oldIndexes bool          // segment.Options.OldIndexes; Recovery sets it
	noted      bool          // segment.Options.Noted; Recovery sets it
	aside      *aside.Keeper // what cuts took from copies
	asyncFree  inbox.AsyncPuts

	budget.Budget
	folder   replay.Folder
	level    atomic.Int32 // the feature level in force, see Engine.Level
	inboxes  inbox.Shared
	list     atomic.Pointer[[]*Partition]
	poisoned atomic.Pointer[error]
	delays   dueclock.Corrector
}

// Options are what a store needs from the engine: the machine below it, and the fields of the engine's Options that
// have the same names.
type Options struct {
	Host     platform.Host
	Log      *slog.Logger
	Clock    *clock.Clock
	Disk     aio.Disk
	Counters *Counters
	Pulse    *aio.Pulse
	Stop     <-chan struct{} // closed when background goroutines must end

	CommitFileBytes int64 // size of each file of the commit log
	CommitLiveBytes int64 // size of all commit log files that are in use
	GroupsInFlight  int   // how many groups may be on their way to the disk at a time
	MinSegmentBytes int64
	MaxSegmentBytes int64
	Limits

	UnknownKind fold.ControlKind // tests only: a kind of control entry that this process treats as unknown
	MarkAfter   time.Duration    // how long the commit log is idle before it marks its last group
	Startup     *health.Startup  // is told how much of the commit log has been read; may be nil
}

// Limits are those Options that may change while the node runs: see Store.Change.
type Limits struct {
	State             budget.Limits
	Inboxes           inbox.Bounds  // of what waits to be stored
	MaxOpenSegments   int           // most partitions that have written segment files open
	MaxMappedSegments int           // most segments that stay mapped, of all partitions
	RetentionInterval time.Duration // between two searches for segments that retention may remove
	MaxReqTimeout     time.Duration // longest delay of a requeue
	SlowCommit        time.Duration // a group of the commit log that takes this long counts as slow
}

// Counters are totals since Open. Any goroutine may read them at any time.
type Counters struct {
	Messages, MessageBytes atomic.Uint64 // committed
	Overloaded             atomic.Uint64 // puts refused because too many bytes waited
	SegmentBytes           atomic.Uint64 // written to segments
	SegmentSyncs           atomic.Uint64
	TrimmedBytes           atomic.Uint64 // removed by retention
	ISRChanges             atomic.Uint64 // ISR changes that leaders on this node asked the metadata store for
	LeaderChanges          atomic.Uint64 // times that this node began to lead a partition of the cluster
	ISRHeldBack            atomic.Uint64 // ISR changes that leaders did not ask for, because there had been too many
	AbsentReplicas         atomic.Uint64 // answers of other nodes that have no copy of a partition led here
	DelaysCorrected        atomic.Uint64 // delayed messages whose due time was corrected, see package dueclock
	FromTheFuture          atomic.Uint64 // batches of a writer whose clock was ahead, see package dueclock
	Stranded               atomic.Uint64 // times that a leader here gave up because too few members of its ISR answered
	FramesWithoutCopy      atomic.Uint64 // frames from leaders about partitions of which this node has no copy
	UnscheduledNanos       atomic.Uint64 // time for which this process was not scheduled although it had something to do
	MissingCopies          atomic.Uint64 // times a leader went on for absentPatience to ask for a copy that is not here
}

// Change changes the limits, after recovery. Any goroutine may call it.
func (s *Store) Change(l Limits) {
	s.limit(l)
	s.flusher.Change(l.RetentionInterval, l.MaxOpenSegments)
	s.clog.SlowAfter(l.SlowCommit)
}

func (s *Store) limit(l Limits) {
	s.Limit(l.State)
	s.inboxes.Limit(l.Inboxes)
	s.mappings.Limit(l.MaxMappedSegments)
	s.delays.Allow(l.MaxReqTimeout)
}

// PublishTimeout is how long a put may wait until it is stored.
func (s *Store) PublishTimeout() time.Duration { return s.inboxes.Bounds().PublishTimeout }

// New returns a store that has no arena and no commit log yet: Begin makes the arena, Recovery.Replay the commit log.
func New(o Options) *Store {
	s := &Store{
		host: o.Host, log: o.Log, clock: o.Clock, disk: o.Disk, opts: o, counters: o.Counters, pulse: o.Pulse, stop: o.Stop,
		folder: replay.Folder{Unknown: o.UnknownKind}, mappings: segment.NewMappings(0),
	}
	s.delays.Log, s.delays.Clock = o.Log, o.Clock
	s.delays.FromTheFuture, s.delays.Corrected = &o.Counters.FromTheFuture, &o.Counters.DelaysCorrected
	s.limit(o.Limits)
	s.aside = aside.New(o.Disk, o.Log, s.now, aside.DefaultLimits)
	s.inboxes.Tell(&o.Counters.Overloaded, func() { s.clog.Wake() })
	return s
}

// MappedSegments returns how many segments are mapped. Any goroutine may call it.
func (s *Store) MappedSegments() int { return s.mappings.Count() }

// Begin makes the buffers, the committer and the flusher. It is called before recovery.
func (s *Store) Begin(bufferBytes int64) (err error) {
	if s.arena, err = aio.NewArena(inbox.GroupBytes, int(bufferBytes/inbox.GroupBytes)); err != nil {
		return err
	}
	s.committer.store, s.committer.slots = s, make([]groupWork, s.opts.GroupsInFlight)
	s.committer.Init(func() bool { return s.inboxes.Waiting() >= inbox.SecondGroupBytes })
	s.flusher = flush.New(flush.Env{
		Host: s.host, Clock: s.clock, Log: s.log, Disk: s.disk, Arena: s.arena, Pulse: s.pulse, Stop: s.stop,
		RetentionInterval: s.opts.RetentionInterval,
		MinSegmentBytes:   s.opts.MinSegmentBytes, MaxSegmentBytes: s.opts.MaxSegmentBytes,
		MaxOpenSegments: s.opts.MaxOpenSegments,
		Parts:           s.flushed, Failed: func() bool { return s.poisoned.Load() != nil },
		MayNote:      func() bool { return s.Feature() >= datadir.MarkLevel },
		SegmentBytes: &s.counters.SegmentBytes, SegmentSyncs: &s.counters.SegmentSyncs,
		TrimmedBytes: &s.counters.TrimmedBytes,
		SweepAside:   s.SweepAside, AsideMakesRoom: s.aside.MakeRoom, Divide: s.divideDisk,
	})
	return nil
}

// Join makes the store that of a cluster node. It is called after Begin and before recovery.
func (s *Store) Join(node *Env) { s.replicas, s.asyncFree.Shared = node, true }

// Accept lets the commit log take puts from the inboxes. It is called before the commit log runs.
func (s *Store) Accept() {
	s.committer.Use(s.clog, s.replicas != nil)
	s.clog.SetSource(&s.committer)
}

// Run starts the flusher, which works on the disk beside the commit log. It runs until Stop is closed.
func (s *Store) Run(spawn func(func())) { spawn(s.flusher.Run) }

// Flusher returns the flusher of segments.
func (s *Store) Flusher() *flush.Flusher { return s.flusher }

// Arena returns the arena with the buffers of the commit log. Only tests read it, which use the buffers up.
func (s *Store) Arena() *aio.Arena { return s.arena }

// CommitLog returns the commit log, or nil before recovery.
func (s *Store) CommitLog() *clog.Log { return s.clog }

// Telling is for how long the committer has been telling of a group that is durable. Puts are answered meanwhile, so
// that a Put.Done that blocks shows here.
func (s *Store) Telling() time.Duration {
	if since := s.committer.telling.Load(); since != 0 {
		return s.host.Mono() - time.Duration(since-1)
	}
	return 0
}

// Drained says whether all puts have been taken from the inboxes and no group is on its way to the disk.
func (s *Store) Drained() bool { return s.committer.Drained() }

// Release closes the logs and frees the buffers, in an order that keeps mapped and registered memory valid as long as
// it is used. By then no goroutine of the store runs.
func (s *Store) Release() (err error) {
	for _, pt := range s.Partitions() {
		err = errors.Join(err, pt.log.Close())
	}
	if s.clog != nil {
		err = errors.Join(err, s.clog.Close())
	}
	if s.flusher != nil {
		s.flusher.Close() // its buffer is mapped memory
	}
	if s.arena != nil {
		s.arena.Close()
	}
	return err
}

// FreeBuffers closes the arena once more. It returns an error if something still uses a buffer.
func (s *Store) FreeBuffers() error {
	if s.arena == nil {
		return nil
	}
	return s.arena.Close()
}

// Partitions returns the partitions of all topics, in the order in which the node got them. The slice is never
// changed.
func (s *Store) Partitions() []*Partition {
	if list := s.list.Load(); list != nil {
		return *list
	}
	return nil
}

// flushed yields the flusher's state of each partition, in the order of Partitions.
func (s *Store) flushed(yield func(*flush.Part) bool) {
	for _, pt := range s.Partitions() {
		if !yield(&pt.flush) {
			return
		}
	}
}

// divideDisk is flush.Env.Divide.
func (s *Store) divideDisk(free, reserve int64) (soon bool) {
	return s.DivideDisk(free, reserve, func(yield func(*budget.Share, int64) bool) {
		for _, pt := range s.Partitions() {
			if !yield(pt.topic.Share.Load(), pt.log.Bytes()) {
				return
			}
		}
	}, s.log)
}

// Add adds partitions to the list. A caller whose partitions must not be missed by Engine.Close adds them through
// catalog.Catalog.
func (s *Store) Add(add []*Partition) {
	s.replaceList(func(old []*Partition) []*Partition { return slices.Concat(old, add) })
}

// RemoveTopic removes the partitions of a topic from the list.
func (s *Store) RemoveTopic(topic uuid.UUID) {
	s.replaceList(func(old []*Partition) []*Partition {
		return slices.DeleteFunc(slices.Clone(old), func(pt *Partition) bool { return pt.topic.ID == topic })
	})
}

// replaceList replaces the list by the one that change returns. change must not modify the old list, and may be called
// several times.
func (s *Store) replaceList(change func(old []*Partition) []*Partition) {
	for {
		old := s.list.Load()
		var parts []*Partition
		if old != nil {
			parts = *old
		}
		parts = change(parts)
		if s.list.CompareAndSwap(old, &parts) {
			return
		}
	}
}

// Failure returns why nothing is stored until a restart, or nil if the store works.
func (s *Store) Failure() error {
	if err := s.poisoned.Load(); err != nil {
		return *err
	}
	return nil
}

// poison stops all storing until a restart, because the commit log failed or was found corrupt. Consumers can still
// read what is stored. Only the first call has an effect.
func (s *Store) poison(err error) {
	why := errs.ErrDisk
	if errors.As(err, new(*segment.CorruptError)) {
		why = errs.ErrReadOnly
	}
	full := fmt.Errorf("%w (%w)", why, err)
	lost := clog.Lost(err) != nil
	switch {
	case lost:
		full = &lostError{err}
	case why == errs.ErrReadOnly:
		full = &damagedError{err}
	}
	if s.poisoned.CompareAndSwap(nil, &full) && why == errs.ErrDisk && !lost { // the commit log has logged that
		s.log.Error("the commit log failed; nothing more is stored until this node is restarted. Messages answered OK "+
			"before are safe",
			"error", err)
	}
}

// lostError is the ErrDisk of a node whose files were taken away. It says what the commit log says, which promises
// nothing about what was answered before.
type lostError struct{ error }

func (e *lostError) Unwrap() []error { return []error{errs.ErrDisk, e.error} }

// damagedError is the ErrReadOnly of a node whose commit log is damaged: it concerns all partitions.
type damagedError struct{ error }

func (e *damagedError) Error() string {
	return "engine: the commit log is damaged: nothing more is stored on this node, and what could be read is " +
		"delivered; a restart does not help, restore a backup, or let the node begin empty in a cluster (" +
		e.error.Error() + ")"
}

func (e *damagedError) Unwrap() []error { return []error{errs.ErrReadOnly, e.error} }

// Refusal returns the error with which puts are refused once the store is poisoned.
func (s *Store) Refusal() error {
	err := s.Failure()
	if errors.Is(err, errs.ErrReadOnly) {
		return errs.ErrReadOnly
	}
	return diskRefusal(err)
}

// RefuseIfFailed closes the inboxes of partitions that were just added, if the commit log has failed. When it fails,
// the failure is stored first, and then all inboxes in the list are closed. So either that closes these inboxes, or
// this check sees the failure.
func (s *Store) RefuseIfFailed(parts []*Partition) {
	if s.Failure() == nil {
		return
	}
	for _, pt := range parts {
		pt.CloseAndRefuse(s.Refusal(), false)
	}
}

// diskRefusal returns the ErrDisk with which puts are answered because of err.
func diskRefusal(err error) error {
	if clog.Lost(err) != nil {
		return errs.ErrGround
	}
	return errs.ErrDisk
}

func (s *Store) sizes() segment.Sizes {
	return segment.Sizes{MinSegmentBytes: s.opts.MinSegmentBytes, MaxSegmentBytes: s.opts.MaxSegmentBytes}
}

// now returns the time of the engine's clock. See Engine.now.
func (s *Store) now() time.Time { return time.Unix(0, s.clock.NowNs()) }

// Feature returns the feature level in force. New kinds of control entries are written only at or above their level.
func (s *Store) Feature() int { return int(s.level.Load()) }

// SetFeature raises the feature level in force. Recovery, the join and the cluster's worker call it.
func (s *Store) SetFeature(level int) { s.level.Store(int32(level)) }

// Memory describes the memory that a store uses, in bytes and in buffers.
type Memory struct {
	State         int64 // bytes that the state of the channels costs, see package budget
	Waiting       int64 // bytes of the puts in all inboxes
	Free, Buffers int   // buffers of the commit log: free ones, and all
}

// Memory returns the memory that the store uses now.
func (s *Store) Memory() Memory {
	return Memory{s.StateMemory(), max(0, s.inboxes.Waiting()), s.arena.Free(), s.arena.Count()}
}

// AsyncPuts has the puts for PublishAsync.
func (s *Store) AsyncPuts() *inbox.AsyncPuts { return &s.asyncFree }
