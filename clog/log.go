package clog

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"

	"penstock/internal/lock"
	"penstock/segment"
	"penstock/segment/aio"
)

// Defaults and limits of Options.
const (
	DefaultFileBytes    = 32 << 20
	DefaultMaxLiveBytes = 256 << 20
	DefaultInFlight     = 2
	DefaultDirectBytes  = 512 << 10
	MaxInFlight         = 16

	// MinFileBlocks is the smallest file in blocks: a checkpoint, a group and the closing mark.
	MinFileBlocks = 8
)

// Errors of this package, tested with errors.Is.
var (
	// ErrFailed says that a write or flush failed. Whether the records in flight survive is unknown until the log is
	// opened again. Nothing is retried.
	ErrFailed = errors.New(
		"clog: the commit log failed and takes no more records; what was not acknowledged may be lost; restart to recover")
	errNoRoom = fmt.Errorf("the file system has no room for them: %w", syscall.ENOSPC)
	// ErrForeign says that a file was written by another store. Nothing was changed.
	ErrForeign = errors.New(
		"clog: a file belongs to another store; nothing was changed; move the file away or restore the right data directory")
	// ErrNewer says that a file was written by a newer version. Nothing was changed.
	ErrNewer = errors.New(
		"clog: a file was written by a newer version of this program; nothing was changed; start that version")
)

// damagedError is the error of a log that recovery found damaged. It matches ErrFailed. No write was lost by it, and a
// restart finds the same damage.
type damagedError struct{ found error }

func (e *damagedError) Error() string {
	var corrupt *segment.CorruptError
	if errors.As(e.found, &corrupt) && corrupt.Missing {
		return "clog: the commit log takes no records, because a file of it is missing: put it back and restart the " +
			"node; if it is gone for good, restore a backup of this node, or let a node of a cluster begin with an empty data " +
			"directory (" + e.found.Error() + ")"
	}
	return "clog: the commit log is damaged and takes no records, and a restart does not help: restore a backup of this " +
		"node, or let a node of a cluster begin with an empty data directory (" + e.found.Error() + ")"
}

func (e *damagedError) Unwrap() []error { return []error{ErrFailed, e.found} }

// Source supplies records and learns what became of them. Whoever runs the log calls its methods: the driving
// goroutine, or a caller of StepOnSpot. The calls come one at a time, with the log's lock held. The methods may
// call the log back only through Wake, Release and the accessors.
type Source interface {
	// Gather adds waiting records to g, or none. It stops when g.Reserve returns nil and keeps the remaining records.
	Gather(g *Group)
	// Durable says that g is on stable storage. Groups come strictly in order.
	Durable(g *Group)
	// Checkpoint emits the state after every record added so far, in chunks of at most Log.MaxChunkBytes bytes.
	// Emitting nothing is allowed, and empty chunks are left out. emit copies the chunk. The log calls Checkpoint when
	// it begins a new file, with nothing in flight; Log.Current is that file.
	Checkpoint(emit func(chunk []byte))
	// CheckpointBytes estimates what Checkpoint would emit now. The log asks twice per file and sizes files by the
	// answer. An estimate that is too low costs speed, not correctness.
	CheckpointBytes() int64
	// Failed says, once, that nothing in flight or later will ever be durable. err wraps ErrFailed.
	Failed(err error)
}

// Holder has work that follows from durable groups, such as telling clients, and does it at once for all of them.
//
// The log's goroutine calls Hold before it reports groups to the Source, and Release afterwards, before it gathers the
// next group. Log.mu is held during both, so neither may wait for anything. What a caller of StepOnSpot writes is
// reported without Hold. Work that is held exists in memory only: after a crash the groups are durable, and the
// clients get no answers.
type Holder interface {
	Hold()
	Release()
}

// Options are the choices of Open. The zero value of an option means its default.
type Options struct {
	FileBytes int64 // initial size of a file; checkpoints may require larger ones; default DefaultFileBytes
	// MaxLiveBytes bounds the files that recovery may have to read: the log starts no file beyond it, but for one after
	// Open, which may bring the files to twice that. The default is DefaultMaxLiveBytes, or two files if that is more. If
	// checkpoints need files larger than FileBytes, three such files are always allowed.
	MaxLiveBytes int64
	GroupBytes   int // upper bound of a group with more than one record; default: the arena's BufBytes
	InFlight     int // maximum number of groups in flight; default DefaultInFlight
	// DirectBytes is the largest group that the log's goroutine writes itself, with nothing else in flight; default
	// DefaultDirectBytes, negative: none.
	DirectBytes int
	// MustQueue says that the log's goroutine must not wait for the disk now, so that even a small group goes through the
	// queue: for simulation. nil: it may wait.
	MustQueue func() bool
	Store     uuid.UUID // identity of the store that owns the log; files of other stores are refused
	// MarkRequired says that the directory cannot be without a log.mark: the version that made it wrote one. Without it,
	// a log without a mark is from before marks.
	MarkRequired bool
	// MayForget lets Open go on with a log that lacks what its mark says (Report.Forgotten), because somebody else has
	// what is missing. The caller notes that durably before it starts the log. Without it, Open returns a *Forgotten.
	MayForget bool
	Logger    *slog.Logger
	Pulse     *aio.Pulse // counts writes; nil if nobody watches the disk
	// MarkAfter is how long the log must be idle before it writes a mark. The mark's header promises the last group, so
	// recovery can then tell damage to that group from a torn write. With 0, the log writes marks only at a clean stop
	// and to give files back.
	MarkAfter time.Duration
	Inline    bool // prepare and recycle files inside Step, without goroutines: for tests and simulation
}

func (o *Options) complete(arena *aio.Arena, block int64) error {
	if o.FileBytes == 0 {
		o.FileBytes = DefaultFileBytes
	}
	if o.MaxLiveBytes == 0 {
		o.MaxLiveBytes = max(DefaultMaxLiveBytes, 2*o.FileBytes)
	}
	if o.GroupBytes == 0 {
		o.GroupBytes = arena.BufBytes()
	}
	if o.InFlight == 0 {
		o.InFlight = DefaultInFlight
	}
	if o.DirectBytes == 0 {
		o.DirectBytes = DefaultDirectBytes
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case block < 1<<minBlockShift || block > 1<<maxBlockShift || block&(block-1) != 0:
		return fmt.Errorf("clog: the disk wants writes in units of %d bytes, which the format cannot express", block)
	case o.FileBytes < MinFileBlocks*block || o.FileBytes%block != 0 || o.FileBytes > 1<<40:
		return fmt.Errorf("clog: files of %d bytes are not possible: choose a multiple of %d from %d on",
			o.FileBytes, block, MinFileBlocks*block)
	case o.MaxLiveBytes < 2*o.FileBytes:
		return fmt.Errorf("clog: a limit of %d bytes is less than two files of %d", o.MaxLiveBytes, o.FileBytes)
	case o.InFlight < 1 || o.InFlight > MaxInFlight:
		return fmt.Errorf("clog: %d groups in flight are not possible: choose 1 to %d", o.InFlight, MaxInFlight)
	case int64(o.GroupBytes) < block || o.GroupBytes > arena.BufBytes() || int64(o.GroupBytes)%block != 0:
		return fmt.Errorf("clog: groups of %d bytes are not possible: choose a multiple of %d up to the buffers' %d",
			o.GroupBytes, block, arena.BufBytes())
	}
	return nil
}

// Log is a node's commit log.
//
// One ordinary goroutine drives it: Run, or Start, Step and Close for a caller that steps it by hand. It gathers groups
// and writes the small ones itself; the queue's own thread writes the large ones. Nobody else writes, except a lone
// caller while that goroutine sleeps (StepOnSpot). The Source's methods are called by the holder of mu, one at a time.
// All other methods may be called from any goroutine, except where they say otherwise.
//
// A crash leaves whole groups, at most one torn tail, and in the group headers promises about what was durable; Open
// judges them. After a failed write the log writes nothing again: err stays set and every call returns it.
type Log struct {
	// Set by Open and SetSource, constant afterwards.
	disk       aio.Disk
	arena      *aio.Arena
	opts       Options
	source     Source
	block      int64     // unit of writes
	maxPayload int       // see MaxPayloadBytes
	groupRoom  int64     // file bytes of the largest ordinary group
	prep       *preparer // makes and recycles files; has its own lock

	// Used by the driving goroutine only.
	queue   aio.Queue
	started bool
	broken  error // damage that Open found; Start fails with it

	// mu is held during a round of work. The driving goroutine releases it only while it sleeps with nothing in flight,
	// and sets asleep meanwhile. mu guards everything from here to the atomics.
	mu     lock.Mutex[lock.CommitLog]
	asleep bool
	onSpot bool  // set during StepOnSpot: write on the calling goroutine
	begins bool  // the current file begins: its checkpoint or log.mark is not durable yet
	err    error // first failure, or ErrClosed

	// Groups. len(idle)+len(inFlight) == len(slots) between rounds.
	slots       []Group
	idle        []*Group
	inFlight    []*Group // in order of Seq
	completions []aio.Completion

	// The chain of groups: durable <= seq, headerDurable < seq.
	seq           uint64 // last group of the log
	crc           uint32 // checksum of group seq, which the next header repeats
	durable       uint64 // last group such that it and all groups before it are on stable storage
	headerDurable uint64 // the durable group that the header of group seq promises
	headerOldest  uint64 // the oldest needed file that the header of group seq promises

	// The open buffer, into which groups are packed one after the other. The log holds one reference.
	buf       *aio.Buf
	bufPos    int
	lastBytes int   // padded size of the last group, used as a guess at the next one's
	noBuffer  bool  // no buffer was free for the first record of the group
	wantRoom  int64 // file bytes needed by a first record that Reserve refused; 0: none waits

	// Files. live is in order of number and ends with current, once there is one.
	live    []liveFile
	current *openFile
	sizes   fileSizing

	marker   marker // writes log.mark
	stage    stage  // checkpoints and marks under construction
	idleMark idleMark
	stalled  stall
	roomWait roomWait // see noroom.go

	ground ground

	// Atomics. Any goroutine reads them; each comment ends with the writers.
	waker     atomic.Pointer[aio.Queue]     // the queue, for Wake; Start and closeQueue
	holder    atomic.Pointer[Holder]        // SetHolder
	stopping  atomic.Bool                   // Stop
	starving  atomic.Bool                   // the log waits for a buffer; whoever releases one wakes it; nextBuf
	released  atomic.Uint64                 // files below it are not needed; never beyond current; Release
	noted     atomic.Bool                   // see NoteStarts; Open and NoteStarts
	renewed   atomic.Uint64                 // the log should soon leave this file or any before it; Renew
	stored    atomic.Pointer[[]*storedFile] // the files of live, for Checkers; replaced, never changed; showStored
	slowAfter atomic.Int64                  // see SlowAfter
	stats     counters
}

// liveFile is a file that recovery would need.
type liveFile struct {
	number    uint64
	sizeBytes int64
	usedBytes int64
	stored    *storedFile // nil: a spare, or a retired file that the preparer will recycle or remove
}

// openFile is the file that groups go to.
type openFile struct {
	aio.File
	number    uint64
	sizeBytes int64
	pos       int64 // where the next group goes
	stored    *storedFile
	id        aio.FileID
	linked    bool // it had a name, as far as the file system says, when it was made ready
}

// MaxPayloadBytes is the largest payload that fits into a file of Options.FileBytes along with a checkpoint and a mark.
// With small files it is less than the constant of the same name. Reserve accepts payloads up to the constant: a larger
// payload than this gets a file that is large enough.
func (l *Log) MaxPayloadBytes() int { return l.maxPayload }

// MaxChunkBytes is the largest chunk of a checkpoint: MaxCheckpointChunkBytes, or less with files below 1 MiB.
func (l *Log) MaxChunkBytes() int {
	return min(MaxCheckpointChunkBytes, len(l.stage.mem)-GroupHeaderBytes-RecordHeaderBytes)
}

// SetHolder sets the Holder that is told when groups are reported. A nil h means that nobody is told. The previous
// Holder may still be called once.
func (l *Log) SetHolder(h Holder) { l.holder.Store(&h) }

// SlowAfter sets after how long a group that becomes durable counts as Stats.Slow; 0: none does.
func (l *Log) SlowAfter(d time.Duration) { l.slowAfter.Store(int64(d)) }

// SetSource sets who supplies records. Call it before Run or Start.
func (l *Log) SetSource(s Source) { l.source = s }

// Run makes the write queue and drives the log on the calling goroutine. It returns nil after Stop, and an error that
// wraps ErrFailed when a write or flush fails. In the latter case the records that the source still holds were not
// written.
func (l *Log) Run() error {
	if err := l.Start(); err != nil {
		return err
	}
	defer l.closeQueue()
	for !l.stopping.Load() {
		if _, err := l.Step(true); err != nil {
			return err
		}
	}
	return l.drain()
}

// Start makes the queue for the calling goroutine, the only one that may then call Step. Run calls Start itself.
func (l *Log) Start() error {
	if l.source == nil {
		panic("BUG: clog: Start without a Source")
	}
	if l.started {
		panic("BUG: clog: started twice")
	}
	l.started = true
	if l.broken != nil {
		return l.failWith(&damagedError{l.broken})
	}
	q, err := l.disk.NewQueue(aio.QueueOptions{Depth: l.opts.InFlight, Arena: l.arena})
	if err != nil {
		return l.fail("making the write queue", err)
	}
	l.queue = q
	l.waker.Store(&q)
	l.idleMark.start(l)
	return nil
}

// Wake makes the log look for records, released files and free buffers. It is cheap while the log is awake, never
// blocks, and is harmless before Start and after Close.
func (l *Log) Wake() {
	if q := l.waker.Load(); q != nil {
		(*q).Wake()
	}
}

// Stop makes Run write and flush what the source still has, and return. Stop does not wait for file space: records that
// find no space stay with the source.
func (l *Log) Stop() {
	l.stopping.Store(true)
	l.Wake()
}

// Release says that every record in files below fileSeq is durable elsewhere, truncated or tombstoned. Those files are
// recycled once a later group, whose header says that they are not needed, is durable. The current file is never
// released: a larger number counts as Current. Any goroutine may call Release.
func (l *Log) Release(fileSeq uint64) {
	fileSeq = min(fileSeq, l.Current())
	for {
		old := l.released.Load()
		if fileSeq <= old {
			return
		}
		if l.released.CompareAndSwap(old, fileSeq) {
			l.Wake()
			return
		}
	}
}

// drain writes what the source still has and then a mark, so that after a clean stop a later header promises every
// group with records.
func (l *Log) drain() error {
	l.roomWait.due.Store(true) // the last try
	for {
		preparing := l.stalled.now == stallSpare && l.prep.fileComing()
		progress, err := l.Step(l.queue.InFlight() > 0 || preparing)
		if err != nil {
			return err
		}
		if !progress && l.roomWait.on && l.queue.InFlight() == 0 {
			return l.endWithoutRoom()
		}
		if !progress && len(l.inFlight) == 0 && !(l.stalled.now == stallSpare && l.prep.fileComing()) {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != nil && l.headerDurable < l.durable && l.markRoom() {
		return l.writeMark()
	}
	return nil
}

func (l *Log) closeQueue() error {
	if l.queue == nil {
		return nil
	}
	l.idleMark.stop()
	if l.roomWait.timer != nil {
		l.roomWait.timer.Stop()
	}
	q := l.queue
	l.queue = nil
	l.waker.Store(nil)
	return q.Close()
}

// Close frees everything. After Run any goroutine may call it; after Start only the goroutine that steps the log. If a
// group's completion was not seen, whether that group is durable is unknown. Close leaves the files as they are.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arena.OnRelease(nil)
	err := l.closeQueue() // waits for what is in flight, so that the buffers are not read any more
	for _, g := range l.inFlight {
		g.buf.Release()
	}
	l.inFlight = l.inFlight[:0]
	if l.buf != nil {
		l.buf.Release()
		l.buf = nil
	}
	if l.prep != nil {
		err = errors.Join(err, l.prep.close())
		l.prep = nil
	}
	if l.current != nil {
		err = errors.Join(err, l.current.Close())
		l.current = nil
	}
	err = errors.Join(err, l.marker.close())
	if l.stage.free != nil {
		l.stage.free()
		l.stage.free = nil
	}
	if l.err == nil {
		l.err = aio.ErrClosed
	}
	return err
}

// fail sets the log's error for good: see ErrFailed. It tells the source once, but never inside one of the source's own
// methods: when a write fails during Checkpoint, writeCheckpoint calls Failed afterwards.
//
// A file or folder that is missing was taken away, whatever the log was about to do with it.
func (l *Log) fail(what string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return l.failLost(&lostError{aio.MissingGround(what, err)})
	}
	if l.err == nil {
		l.opts.Logger.Error("the commit log failed", "what", what, "err", err)
	}
	return l.failWith(fmt.Errorf("%w (%s: %w)", ErrFailed, what, err))
}

// failWith is fail with an error that wraps ErrFailed, which the caller logs if nobody has logged it.
func (l *Log) failWith(err error) error {
	if l.err == nil {
		l.err = err
		l.stats.failed.Store(true)
		if !l.stage.asking {
			l.source.Failed(l.err)
		}
	}
	return l.err
}
