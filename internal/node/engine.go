package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/internal/lock"
	"penstock/internal/loglimit"
	"penstock/internal/node/channel"
	"penstock/internal/node/clock"
	"penstock/internal/node/datadir"
	"penstock/internal/node/diskwatch"
	"penstock/internal/node/errs"
	"penstock/internal/node/fanout"
	"penstock/internal/node/inbox"
	"penstock/internal/node/partition"
	"penstock/internal/node/platform"
	"penstock/internal/node/scrub"
	"penstock/internal/node/topic"
	"penstock/segment/aio"
)

// Engine is one open data directory: a single node, or a node of a cluster. Open returns it, and Close ends it. Its
// methods are safe for concurrent use. After a crash, Open restores everything that was answered OK.
type Engine struct {
	// mu guards topics, noted, deletedTopics, closed and creating; catalog guards the files of topics.
	// docs/contribute/concurrency.md has the order of locks. After a crash, recover rebuilds everything here from the
	// commit log, the segments and each topic.json.

	store *partition.Store // what the partitions of this data directory share

	opts Options // as Open got them; those that may change are in changed
	// changed are the options of now: Change replaces them, and holds changing, which guards started after Open.
	changed  atomic.Pointer[Options]
	changing sync.Mutex
	started  struct{ scrub, retries bool } // goroutines of the scrub, see startScrub
	limits   inbox.Limits
	log      *slog.Logger
	clock    *clock.Clock
	disk     aio.Disk
	node     *datadir.NodeFile
	info     Info

	catalog lock.Mutex[lock.EngineCatalog] // held while a topic.json is written or repaired

	channels *channel.Shared
	shared   *topic.Shared // what the topics share; made before recovery
	pulse    aio.Pulse     // counts writes to the data directory that began and ended; the disk watch reads it
	disks    diskwatch.Watch
	ground   groundWatch
	scrub    *scrub.Scrub // made by Open, after recovery
	// forgotten says that recovery found that the commit log lacks something; constant after Open.
	forgotten bool
	// logEnd is the last group of the commit log that recovery found, and logDamaged says that it could not be read to
	// its end; constant after Open.
	logEnd     uint64
	logDamaged bool
	// authSilence says for how long no auth server has answered; nil: there is none. See WatchAuth.
	authSilence atomic.Pointer[func() (time.Duration, string)]

	transience string       // why the data directory does not last; "": it does. Constant after Open
	cluster    *clusterNode // nil on a single node; code for both cases calls members instead
	members    membership
	host       platform.Host

	// news is raised when a topic is listed or unlisted or gets a partition, when rows of the cluster are applied, when
	// this node begins or ceases to serve a partition, and at every step of a partition whose leadership is being handed
	// over.
	news platform.Notice

	mu            lock.RWMutex[lock.Engine]
	topics        map[string]*Topic
	noted         map[uuid.UUID]*datadir.Topic // see backupRun.noteTopics; nil: no backup is before its moment
	quarantined   map[uuid.UUID]*Topic         // kept and not served; only recovery writes it, so readers need no lock
	deletedTopics fanout.DeletedNames          // names of topics that were deleted a moment ago
	closed        bool
	creating      map[string]*creation
	growing       map[*Topic]int // how many partitions topics are about to have

	counters Counters
	leaving  atomic.Bool // Leave was called: the node is shutting down
	backup   backupSlot
	answerer atomic.Pointer[Answerer] // see OnQuestion; nil: questions are refused

	logs *loglimit.Queue // what Options.Logger gets; nil in a simulation
	stop chan struct{}   // closed when background goroutines must end
	wg   sync.WaitGroup
}

// Open opens or creates a data directory, replays its commit log and starts serving it. The caller must Close the
// engine. Open returns ErrOptions if the options contradict each other, meta.ErrNewerLevel if a newer version wrote the
// directory, ErrForgotten if the commit log of a single node lacks what was written to it, and an error if another
// process still holds the directory after Options.LockWait. Whatever the error, Open has
// released the directory.
//
// In a cluster, ctx bounds the wait for the metadata store, together with ClusterOptions.JoinTimeout. Recovery does not
// look at ctx, and the engine does not use it once Open has returned.
func Open(ctx context.Context, o Options) (*Engine, error) {
	logs := loglimit.NewQueue()
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Logger = logs.Logger(o.Logger)
	e, err := openEngine(ctx, o, platform.NewMachine(), func(e *Engine) { e.logs = logs })
	if err != nil {
		logs.End()
	}
	return e, err
}

// openEngine opens an engine on a host. It calls opening with the engine before it touches the data directory's
// content, so that tests can look into an engine whose Open fails or never returns.
func openEngine(ctx context.Context, o Options, h platform.Host, opening func(*Engine)) (*Engine, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := o.checkMemory(); err != nil {
		return nil, err
	}
	o.Startup.Enter("opens the data directory")
	disk, err := o.openDisk()
	if err != nil {
		return nil, err
	}
	e := &Engine{
		opts: o, log: o.Logger, host: h, clock: newEngineClock(&o, h), disk: disk, topics: map[string]*Topic{},
		quarantined: map[uuid.UUID]*Topic{}, creating: map[string]*creation{}, stop: make(chan struct{}),
		ground: groundWatch{folders: map[string]aio.FileID{}},
	}
	e.changed.Store(&e.opts)
	e.limits = inbox.NewLimits(o.sizes())
	e.store = partition.New(partition.Options{
		Host: h, Log: e.log, Clock: e.clock, Disk: disk, Counters: &e.counters, Pulse: &e.pulse, Stop: e.stop,
		CommitFileBytes: o.CommitFileBytes, CommitLiveBytes: o.CommitLiveBytes, GroupsInFlight: o.GroupsInFlight,
		MinSegmentBytes: o.MinSegmentBytes, MaxSegmentBytes: o.MaxSegmentBytes, Limits: o.ofStore(),
		UnknownKind: o.unknownKind, MarkAfter: o.markAfter, Startup: o.Startup,
	})
	opening(e)
	if err := e.open(ctx); err != nil {
		e.release()
		return nil, err
	}
	return e, nil
}

// openDisk returns Disk, or opens DataPath, which it makes absolute: a program may change its working directory later,
// and a backup finds the files by their paths.
func (o *Options) openDisk() (aio.Disk, error) {
	if o.Disk != nil {
		return o.Disk, nil
	}
	whole, err := filepath.Abs(o.DataPath)
	if err != nil {
		return nil, fmt.Errorf("engine: the data directory %s cannot be found, because this process's working directory "+
			"is gone: %w; nothing was changed, name its absolute path", o.DataPath, err)
	}
	o.DataPath = whole
	if err := CheckDirectory(whole); err != nil { // before the lock and the probes, which leave traces
		return nil, err
	}
	return aio.OpenDisk(whole, aio.DiskOptions{Mode: aio.Mode(o.IO), Logger: o.Logger, LockWait: o.LockWait})
}

// open does the work of Open, on the caller's goroutine. The order matters: recovery and join run before any goroutine
// of the engine, and the commit log starts before the other goroutines. After an error the caller releases the engine.
func (e *Engine) open(ctx context.Context) error {
	start := e.host.Instant()
	o := &e.opts
	if err := datadir.CheckDevices(e.disk); err != nil {
		return err
	}
	var err error
	e.node, err = datadir.OpenNodeFile(e.disk, e.log, o.NodeID, o.MaxLevel, o.Cluster != nil, e.host.NewUUID)
	if err != nil {
		return err
	}
	// What is deleted later must not need an inode that there is none of. Without this folder it is removed in place.
	if err := e.disk.MkdirAll(datadir.Trash); err != nil && !aio.NoRoom(err) {
		return err
	}
	e.removeHeld()
	if e.store.SetFeature(datadir.FirstLevel); e.opts.Cluster == nil {
		e.store.SetFeature(e.node.Level())
	}
	if err = e.store.Begin(e.opts.BufferBytes); err != nil {
		return err
	}
	e.members = alone{e}
	if e.opts.Cluster != nil {
		e.cluster = newClusterNode(e)
		e.members = e.cluster
		e.store.Join(e.cluster.Env)
	}
	e.channels = e.newChannelNode()
	e.shared = e.newTopicShared()
	if err := e.recover(); err != nil {
		return err
	}
	e.store.Flusher().WakeIfFull()
	e.scrub = e.newScrub()
	o.Startup.Enter("joins the cluster")
	if err := e.members.join(ctx); err != nil {
		return errors.Join(err, e.members.close())
	}
	e.store.Accept()
	e.describe(e.host.Since(start))
	e.warnOfDisk()
	e.logLevel()
	// A commit log that recovery found damaged does not start. The engine then runs without it and only serves reads.
	if err := e.host.RunLog(e.store.CommitLog(), e.runLog); err != nil && e.store.Failure() == nil {
		return err
	}
	e.store.Run(e.background)
	e.background(e.channels.Run)
	look := e.lookAtGround
	if e.opts.groundByHand {
		look = nil
	}
	e.disks.Start(diskwatch.Config{
		Host: e.host, Log: e.log, Disk: e.disk, Pulse: &e.pulse, Stop: e.stop, DiskPatience: e.opts.DiskPatience,
		DiskFailedAfter: e.opts.DiskFailedAfter, DiskProbeAfter: e.opts.DiskProbeAfter, Judged: e.members.diskJudged,
		Ground: look,
	})
	e.startScrub(e.opts.ScrubInterval)
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

// HoldAnswers sets who is told when the commit log answers the puts of a group; nil: nobody. Between h.Hold and
// h.Release, which follows as soon as the next group is on its way to the disk, a server may put off what it does about
// the answers. The holder before may still be called once.
func (e *Engine) HoldAnswers(h clog.Holder) { e.store.CommitLog().SetHolder(h) }

func (e *Engine) background(f func()) { e.host.SpawnIn(&e.wg, f) }

// describe fills in info once, at the end of recovery. Info reads what may change later from where it is.
func (e *Engine) describe(took time.Duration) {
	d := e.disk.Info()
	e.info.IOEngine, e.info.IOReason = d.Engine, d.Reason
	e.info.Direct, e.info.Registered, e.info.BlockBytes = d.Direct, d.Registered, d.BlockBytes
	e.info.FileSystem, e.info.Device, e.info.DeviceCache, e.info.Kernel = d.FileSystem, d.Device, d.DeviceCache, d.Kernel
	e.info.NodeID, e.info.StoreID, e.info.FormatVersion = e.node.NodeID(), e.node.StoreID().String(),
		datadir.FormatOf(e.DirectoryLevel())
	e.info.Recovered = took
}

// warnOfDisk warns once, at the start, of a data directory that does not last, which health has as a note, and of one
// where preallocated space is not kept.
func (e *Engine) warnOfDisk() {
	d := e.disk.Info()
	if e.transience = d.Transience(); e.transience != "" {
		e.log.Warn("the data directory is "+e.transience+". To keep messages, put it on a disk or a volume",
			"data_path", e.opts.DataPath)
	}
	if d.CopyOnWrite {
		e.log.Warn("the file system copies each write to new blocks, and cannot be told to write these files in place: what "+
			"the node preallocates does not keep its space, and on a full disk even confirmations wait. Put the data "+
			"directory on ext4 or xfs", "data_path", e.opts.DataPath, "file_system", d.FileSystem)
	}
}

// Info describes the storage. The result is a copy, except for CorruptionsAtRecover.
func (e *Engine) Info() Info {
	i := e.info
	d := e.disk.Info() // the ring knows only after its start whether memory could be registered
	i.IOEngine, i.IOReason, i.Registered = d.Engine, d.Reason, d.Registered
	i.Level, i.FormatVersion = e.Level(), datadir.FormatOf(e.DirectoryLevel())
	return i
}

// Counters are totals since Open. They are atomic and may be read at any time.
type Counters = partition.Counters

// Counters returns the engine's own counters, not a copy: they go on counting, and the caller must not change them.
func (e *Engine) Counters() *Counters { return &e.counters }

// CommitStats returns a snapshot of the commit log's counters.
func (e *Engine) CommitStats() clog.Stats { return e.store.CommitLog().Stats() }

// Topics returns all topics, sorted by name. The slice belongs to the caller.
func (e *Engine) Topics() []*Topic {
	e.mu.RLock()
	out := slices.AppendSeq(make([]*Topic, 0, len(e.topics)), maps.Values(e.topics))
	e.mu.RUnlock()
	sort.Slice(out, func(i, j int) bool { return out[i].Name() < out[j].Name() })
	return out
}

func (e *Engine) forEachTopic(f func(*Topic)) {
	for _, t := range e.Topics() {
		f(t)
	}
}

// LookupTopic returns the topic of that name if it exists on this node. It creates nothing.
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

// watch runs every watchInterval on a goroutine of its own. It refuses puts that have waited too long, because a
// stalled committer does not look at the inboxes. If puts wait and nothing has been stored for stallAfter, watch logs
// once what the commit log may be waiting for. It also compares the engine's clock with the wall clock.
func (e *Engine) watch() {
	var groups uint64
	var clockTold time.Time
	var slow slowCommits
	var scheduled scheduling
	moved, told, blamed := e.Now(), false, false
	for slept := e.host.Instant(); e.host.Pause(watchInterval, e.stop); slept = e.host.Instant() {
		e.watchScheduling(&scheduled, slept)
		e.watchClock(&clockTold)
		now := e.Now()
		if e.host.InlineLog() {
			e.disks.Step()
		}
		waiting := false
		for _, pt := range e.store.Partitions() {
			waiting = pt.ExpirePuts(now.UnixNano()) || waiting
		}
		stats := e.store.CommitLog().Stats()
		e.watchSlowCommits(&slow, &scheduled, &stats)
		if !waiting || stats.Groups != groups {
			if told {
				e.log.Warn("messages are stored again", "after", now.Sub(moved).Round(time.Millisecond))
			}
			groups, moved, told, blamed = stats.Groups, now, false, false
		} else if blocked := e.store.Telling() > stallAfter; now.Sub(moved) > stallAfter && (!told || blocked && !blamed) {
			told, blamed = true, blocked // again, when it shows that the program blocks it
			e.logStall(&scheduled, &stats)
		}
	}
}

// stallCause says why puts may wait although nothing is stored. That the program blocks the commit log is certain,
// whatever else is slow.
func (e *Engine) stallCause(scheduled *scheduling) string {
	if e.store.Telling() > stallAfter {
		return "The program that embeds the engine blocks it: a Put.Done, or a function that PublishAsync calls, has not " +
			"returned, and nothing is stored until it does"
	}
	return scheduled.where(e.host.Instant(), e.members.look().StallCause())
}

// logStall logs what the commit log may be waiting for.
func (e *Engine) logStall(scheduled *scheduling, s *clog.Stats) {
	unsynced, of := s.Current, "nobody"
	for _, pt := range e.store.Partitions() {
		if seq, ok := pt.Log().OldestUnsyncedFileSeq(); ok && (seq < unsynced || of == "nobody") {
			unsynced, of = seq, fmt.Sprintf("%s/%d", pt.Topic().Name, pt.Number())
		}
	}
	m := e.store.Memory()
	e.log.Warn("nothing could be stored for a while: publishers wait, nothing is lost. "+e.stallCause(scheduled),
		"free_buffers", m.Free, "buffers", m.Buffers,
		"headroom_bytes", e.store.CommitLog().Headroom(), "full", s.Full,
		"oldest_file", s.Oldest, "current_file", s.Current, "oldest_unsynced_file", unsynced, "oldest_unsynced_of", of,
		"flusher_waits", e.store.Flusher().Backlog(), "stalls_buffer", s.StallsBuffer, "stalls_spare", s.StallsSpare,
		"stalls_full", s.StallsFull)
}

// Close stops taking requests, stores the puts that were accepted, writes the confirmations, and closes the data
// directory. In a cluster it first hands over the leaderships, for at most ClusterOptions.LeaveTimeout. Each consumer's
// Sink.Closed is called with ErrClosed. When Close returns nil, no goroutine of the engine is left. If the disk hangs,
// Close returns ErrDiskHung, and leaves goroutines, memory and files as they are: end the process. A second call
// returns ErrClosed at once, even while the first one is still running.
func (e *Engine) Close() error {
	if e.logs != nil {
		defer e.logs.End()
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return errs.ErrClosed
	}
	e.closed = true
	e.mu.Unlock()
	for _, pt := range e.store.Partitions() {
		pt.Tell()
	}
	e.members.leaveBeforeClose()
	e.forEachTopic(func(t *Topic) { t.Local().Close(errs.ErrClosed) })
	e.channels.Flush()
	for _, pt := range e.store.Partitions() {
		pt.CloseToNew(errs.ErrClosed)
	}
	err := e.stopLog()
	hung := errors.Is(err, errs.ErrDiskHung)
	for _, pt := range e.store.Partitions() {
		pt.CloseAndRefuse(errs.ErrClosed, false)
	}
	close(e.stop)
	e.disks.End()
	clusterErr := e.members.close()
	defer e.disks.Released()
	hung = !e.host.Wait(&e.wg, e.disks.Hangs) || !e.disks.AwaitProbe() || hung
	if hung {
		// The kernel may still read the buffers and write to the files. They stay as they are until the process ends.
		return errors.Join(errs.ErrDiskHung, err, clusterErr)
	}
	if e.store.Failure() == nil {
		e.store.Flusher().Finish()
	}
	return errors.Join(err, clusterErr, e.release())
}

// stopLog stops the commit log once all accepted puts are stored. It returns ErrDiskHung if the commit log did not
// stop because the disk hangs.
func (e *Engine) stopLog() error {
	drained := func() bool {
		return e.store.Drained() || e.store.Failure() != nil
	}
	err, ended := e.host.StopLog(e.store.CommitLog(), drained, e.disks.Hangs)
	switch why := e.store.Failure(); {
	case !ended:
		return errs.ErrDiskHung
	case err == nil && why != nil:
		return why
	}
	return err
}

// release frees what Open acquired, in an order that keeps mapped and registered memory valid while it is in use.
func (e *Engine) release() error {
	err := e.store.Release()
	return errors.Join(err, e.disk.Close())
}
