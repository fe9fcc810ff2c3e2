package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sort"
	"sync"
	"time"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/engine/base"
	"penstock/engine/channel"
	"penstock/engine/dir"
	"penstock/engine/diskwatch"
	"penstock/engine/host"
	"penstock/engine/inbox"
	"penstock/engine/ops"
	"penstock/engine/part"
	"penstock/engine/scrub"
	"penstock/internal/lock"
	"penstock/segment/aio"
)

// Engine is one open data directory. Its methods are safe for concurrent use.
//
// mu guards topics, deletedTopics, closed and creating, and catalog the files of topics. docs/concurrency.md has the
// order of locks. What a crash leaves is in the commit log and the segments; recover reads it.
type Engine struct {
	store *part.Store // what its partitions share

	opts   Options
	limits inbox.Limits
	log    *slog.Logger
	clock  *base.Clock
	disk   aio.Disk
	node   *dir.NodeFile
	info   Info

	catalog lock.Mutex[lock.EngineCatalog] // held while a topic.json is written or repaired

	channels *channel.Node
	pulse    aio.Pulse // counts writes to the data directory that began and ended; the disk watch reads it
	disks    diskwatch.Watch
	scrub    *scrub.Scrub // made by Open, after recovery
	cluster  *clusterNode // nil on a single node, which has no use for it: see members
	members  membership
	host     host.Host

	// news is raised when a topic comes or goes, when rows of the cluster are applied, when a partition begins or ends to
	// be served here, and at every step of a partition whose leadership is being handed over.
	news base.Notice

	mu            lock.RWMutex[lock.Engine]
	topics        map[string]*Topic
	quarantined   map[uuid.UUID]*Topic // by recovery: kept and not served; nothing changes it once the engine runs
	deletedTopics ops.DeletedNames     // topics
	closed        bool
	creating      map[string]*creation

	counters Counters

	stop chan struct{} // closed when background goroutines must end
	wg   sync.WaitGroup
}

// Open opens or creates a data directory, replays its commit log and starts serving it.
// ctx bounds only the opening.
func Open(ctx context.Context, o Options) (*Engine, error) {
	return openEngine(ctx, o, host.NewMachine(), func(*Engine) {})
}

// openEngine opens an engine on a host. It passes the engine to opening before it opens it, for tests that look into an
// engine whose Open fails or never ends.
func openEngine(ctx context.Context, o Options, h host.Host, opening func(*Engine)) (*Engine, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	disk := o.Disk
	if disk == nil {
		err := CheckDirectory(o.DataPath) // before the lock and the probes, which leave traces
		if err != nil {
			return nil, err
		}
		disk, err = aio.OpenDisk(o.DataPath, aio.DiskOptions{Mode: aio.Mode(o.IO), Logger: o.Logger, LockWait: o.LockWait})
		if err != nil {
			return nil, err
		}
	}
	e := &Engine{
		opts: o, log: o.Logger, host: h, clock: newEngineClock(&o, h), disk: disk, topics: map[string]*Topic{},
		quarantined: map[uuid.UUID]*Topic{}, creating: map[string]*creation{}, stop: make(chan struct{}),
	}
	e.limits = inbox.NewLimits(o.MaxMessageBytes, o.MaxBatchBytes, o.MaxHeaderBytes, o.MaxDefer)
	e.store = part.New(part.Options{
		Host: h, Log: e.log, Clock: e.clock, Disk: disk, Counters: &e.counters, Pulse: &e.pulse, Stop: e.stop,
		CommitFileBytes: o.CommitFileBytes, CommitLiveBytes: o.CommitLiveBytes, GroupsInFlight: o.GroupsInFlight,
		MinSegmentBytes: o.MinSegmentBytes, MaxSegmentBytes: o.MaxSegmentBytes, RetentionInterval: o.RetentionInterval,
		MaxInboxBytes: o.MaxInboxBytes, MaxNodeInboxBytes: o.MaxNodeInboxBytes, MaxStateBytes: o.MaxStateBytes,
		PublishTimeout: o.PublishTimeout, AdmitTimeout: o.AdmitTimeout,
		UnknownKind: o.unknownKind, MarkAfter: o.markAfter,
	})
	opening(e)
	if err := e.open(ctx); err != nil {
		e.release()
		return nil, err
	}
	return e, nil
}

func (e *Engine) open(ctx context.Context) error {
	start := e.host.Instant()
	o := &e.opts
	var err error
	e.node, err = dir.OpenNodeFile(e.disk, e.log, o.NodeID, o.MaxLevel, o.Cluster != nil, e.host.NewUUID)
	if err != nil {
		return err
	}
	if e.store.SetFeature(dir.FirstLevel); e.opts.Cluster == nil {
		e.store.SetFeature(e.node.Level())
	}
	if err = e.store.Begin(e.opts.BufferBytes); err != nil {
		return err
	}
	e.members = alone{e}
	if e.opts.Cluster != nil {
		e.cluster = newClusterNode(e)
		e.members = e.cluster
		e.store.Join(e.cluster.Node)
	}
	e.channels = e.newChannelNode()
	if err := e.recover(); err != nil {
		return err
	}
	e.store.Flusher().WakeIfFull()
	e.scrub = e.newScrub()
	if err := e.members.join(ctx); err != nil {
		return errors.Join(err, e.members.close())
	}
	e.store.Accept()
	e.describe(e.host.Since(start))
	e.logLevel()
	// A commit log that is known to be damaged does not start. The engine runs without it and only serves reads.
	if err := e.host.RunLog(e.store.CommitLog(), e.runLog); err != nil && e.store.Failure() == nil {
		return err
	}
	e.store.Run(e.background)
	e.background(e.channels.Run)
	e.disks.Start(diskwatch.Config{
		Host: e.host, Log: e.log, Disk: e.disk, Pulse: &e.pulse, Stop: e.stop, DiskPatience: e.opts.DiskPatience,
		DiskFailedAfter: e.opts.DiskFailedAfter, DiskProbeAfter: e.opts.DiskProbeAfter, Judged: e.members.diskJudged,
	})
	if e.opts.ScrubInterval > 0 {
		e.background(e.scrub.ReadSegments)
		e.background(e.scrub.ReadFiles)
	}
	if e.opts.ScrubInterval > 0 || e.members.others() {
		e.background(e.scrub.RetryReads)
	}
	e.background(e.watch)
	e.members.start()
	return nil
}

// runLog is the commit log's goroutine.
func (e *Engine) runLog() error {
	if f := e.opts.beforeRun; f != nil {
		f()
	}
	return e.store.CommitLog().Run()
}

func (e *Engine) background(f func()) { e.host.SpawnIn(&e.wg, f) }

func (e *Engine) describe(took time.Duration) {
	d := e.disk.Info()
	e.info.IOEngine, e.info.IOReason = d.Engine, d.Reason
	e.info.Direct, e.info.Registered, e.info.BlockBytes = d.Direct, d.Registered, d.BlockBytes
	e.info.FileSystem, e.info.Device, e.info.DeviceCache, e.info.Kernel = d.FileSystem, d.Device, d.DeviceCache, d.Kernel
	e.info.NodeID, e.info.StoreID, e.info.FormatVersion = e.node.NodeID(), e.node.StoreID().String(),
		dir.FormatOf(e.DirectoryLevel())
	e.info.Recovered = took
}

// Info says what the storage turned out to be.
func (e *Engine) Info() Info {
	i := e.info
	d := e.disk.Info() // the ring knows only after its start whether memory could be registered
	i.IOEngine, i.IOReason, i.Registered = d.Engine, d.Reason, d.Registered
	i.Level, i.FormatVersion = e.Level(), dir.FormatOf(e.DirectoryLevel())
	return i
}

// Counters are totals since Open, safe to read at any time.
type Counters = part.Counters

// Counters are totals since Open.
func (e *Engine) Counters() *Counters { return &e.counters }

// CommitStats are the commit log's own figures.
func (e *Engine) CommitStats() clog.Stats { return e.store.CommitLog().Stats() }

// Health returns nil, or what is broken: the disk failed or is full, or stored data is corrupt.
func (e *Engine) Health() error {
	if err := e.store.Failure(); err != nil {
		return err
	}
	if err := e.disks.Failure(); err != nil {
		return err
	}
	if e.store.Flusher().NoSpace() {
		return ErrNoSpace
	}
	bad := e.store.Flusher().RottenFile()
	for _, pt := range e.store.Partitions() {
		if err := errors.Join(pt.Log().Health(), pt.WhyUnread()); err != nil {
			bad = errors.Join(bad, fmt.Errorf("topic %s, partition %d: %w", pt.Topic().Name, pt.Number(), err))
		}
	}
	return bad
}

// Topics returns all topics, sorted by name.
func (e *Engine) Topics() []*Topic {
	e.mu.RLock()
	out := make([]*Topic, 0, len(e.topics))
	for _, t := range e.topics {
		out = append(out, t)
	}
	e.mu.RUnlock()
	sort.Slice(out, func(i, j int) bool { return out[i].Name() < out[j].Name() })
	return out
}

func (e *Engine) forEachTopic(f func(*Topic)) {
	for _, t := range e.Topics() {
		f(t)
	}
}

// LookupTopic returns a topic that exists.
func (e *Engine) LookupTopic(name string) (*Topic, bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	t, ok := e.topics[name]
	return t, ok
}

const (
	watchInterval = diskwatch.Interval
	stallAfter    = 2 * time.Second
)

// watch checks every watchInterval, on a goroutine of its own. It refuses puts that waited too long, because a stalled
// committer looks at no inbox. If nothing could be stored for stallAfter it logs that once, with what the commit log
// waits for. It also compares the clocks.
func (e *Engine) watch() {
	var groups uint64
	var clockTold time.Time
	moved, told := e.now(), false
	for e.host.Pause(watchInterval, e.stop) {
		e.watchClock(&clockTold)
		now := e.now()
		if e.host.InlineLog() {
			e.disks.Step()
		}
		waiting := false
		for _, pt := range e.store.Partitions() {
			waiting = pt.ExpirePuts(now.UnixNano()) || waiting
		}
		stats := e.store.CommitLog().Stats()
		if !waiting || stats.Groups != groups {
			if told {
				e.log.Warn("messages are stored again", "after", now.Sub(moved).Round(time.Millisecond))
			}
			groups, moved, told = stats.Groups, now, false
		} else if !told && now.Sub(moved) > stallAfter {
			told = true
			e.logStall(&stats)
		}
	}
}

// logStall logs what the commit log may be waiting for.
func (e *Engine) logStall(s *clog.Stats) {
	unsynced, of := s.Current, "nobody"
	for _, pt := range e.store.Partitions() {
		if seq, ok := pt.Log().OldestUnsyncedFileSeq(); ok && (seq < unsynced || of == "nobody") {
			unsynced, of = seq, fmt.Sprintf("%s/%d", pt.Topic().Name, pt.Number())
		}
	}
	m := e.store.Memory()
	e.log.Warn("nothing could be stored for a while: publishers wait, nothing is lost. The device is slow, full, or the "+
		"commit log has no room",
		"free_buffers", m.Free, "buffers", m.Buffers,
		"headroom_bytes", e.store.CommitLog().Headroom(), "full", s.Full,
		"oldest_file", s.Oldest, "current_file", s.Current, "oldest_unsynced_file", unsynced, "oldest_unsynced_of", of,
		"flusher_waits", e.store.Flusher().Backlog(), "stalls_buffer", s.StallsBuffer, "stalls_spare", s.StallsSpare,
		"stalls_full", s.StallsFull)
}

// Close stops taking requests, stores what was accepted, writes confirmations, and closes the data directory. Consumers
// are told ErrClosed. When it returns nil, no goroutine of the engine is left. If the disk hangs it returns
// ErrDiskHung, and leaves goroutines, memory and files as they are.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return ErrClosed
	}
	e.closed = true
	e.mu.Unlock()
	e.members.leaveBeforeClose()
	e.forEachTopic(func(t *Topic) { t.closeChannels(ErrClosed) })
	e.channels.Flush()
	for _, pt := range e.store.Partitions() {
		pt.CloseToNew(ErrClosed)
	}
	err := e.stopLog()
	hung := errors.Is(err, ErrDiskHung)
	for _, pt := range e.store.Partitions() {
		pt.CloseAndRefuse(ErrClosed, false)
	}
	close(e.stop)
	e.disks.End()
	clusterErr := e.members.close()
	defer e.disks.Released()
	hung = !e.host.Wait(&e.wg, e.disks.Hangs) || !e.disks.AwaitProbe() || hung
	if hung {
		// The kernel may still read the buffers and write to the files. They stay as they are until the process ends.
		return errors.Join(ErrDiskHung, err, clusterErr)
	}
	if e.store.Failure() == nil {
		e.store.Flusher().Finish()
	}
	return errors.Join(err, clusterErr, e.release())
}

// stopLog ends the commit log once what was accepted is stored. It returns ErrDiskHung if the log did not end.
func (e *Engine) stopLog() error {
	drained := func() bool {
		return e.store.Drained() || e.store.Failure() != nil
	}
	err, ended := e.host.StopLog(e.store.CommitLog(), drained, e.disks.Hangs)
	switch why := e.store.Failure(); {
	case !ended:
		return ErrDiskHung
	case err == nil && why != nil:
		return why
	}
	return err
}

// release frees what Open took, in an order that keeps mapped and registered memory valid while it is used.
func (e *Engine) release() error {
	err := e.store.Release()
	return errors.Join(err, e.disk.Close())
}
