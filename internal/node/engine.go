package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/internal/loglimit"
	"penstock/internal/node/catalog"
	"penstock/internal/node/channel"
	"penstock/internal/node/clock"
	"penstock/internal/node/datadir"
	"penstock/internal/node/diskwatch"
	"penstock/internal/node/errs"
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
	// What changes is atomic, or has a lock of its own. docs/contribute/concurrency.md has the order of locks. After a
	// crash, recover rebuilds everything here from the commit log, the segments and each topic.json.

	store   *partition.Store // what the partitions of this data directory share
	catalog *catalog.Catalog // the topics, and whether the engine is closed

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

	quarantined map[uuid.UUID]*Topic // kept and not served; only recovery writes it, so readers need no lock

	counters Counters
	leaving  atomic.Bool // Leave was called: the node is shutting down
	backups  Backups
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
		opts: o, log: o.Logger, host: h, clock: newEngineClock(&o, h), disk: disk,
		quarantined: map[uuid.UUID]*Topic{}, stop: make(chan struct{}),
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
	e.catalog = e.newCatalog()
	e.ground.e, e.backups.e = e, e
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
	e.backups.removeHeld()
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
	look := e.ground.look
	if e.opts.groundByHand {
		look = nil
	}
	e.disks.Start(diskwatch.Config{
		Host: e.host, Log: e.log, Disk: e.disk, Pulse: &e.pulse, Stop: e.stop, DiskPatience: e.opts.DiskPatience,
		DiskFailedAfter: e.opts.DiskFailedAfter, DiskProbeAfter: e.opts.DiskProbeAfter, Judged: e.members.diskJudged,
		Ground: look,
	})
	e.startScrub(e.opts.ScrubInterval)
	e.background((&watch{e: e}).run)
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
// h.Release, which follows as soon as all of them are answered, a server may put off what it does about the answers.
// The holder before may still be called once.
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

// Close stops taking requests, stores the puts that were accepted, writes the confirmations, and closes the data
// directory. In a cluster it first hands over the leaderships, for at most ClusterOptions.LeaveTimeout. Each consumer's
// Sink.Closed is called with ErrClosed. When Close returns nil, no goroutine of the engine is left. If the disk hangs,
// Close returns ErrDiskHung, and leaves goroutines, memory and files as they are: end the process. A second call
// returns ErrClosed at once, even while the first one is still running.
func (e *Engine) Close() error {
	if e.logs != nil {
		defer e.logs.End()
	}
	if !e.catalog.Close() {
		return errs.ErrClosed
	}
	for _, pt := range e.store.Partitions() {
		pt.Tell()
	}
	e.members.leaveBeforeClose()
	for _, t := range e.catalog.Topics() {
		t.Local().Close(errs.ErrClosed)
	}
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
