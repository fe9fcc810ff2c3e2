package clog

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/internal/lock"
	"penstock/segment/aio"
)

// Defaults and limits of Options.
const (
	DefaultFileBytes    = 32 << 20
	DefaultMaxLiveBytes = 256 << 20
	DefaultInFlight     = 2
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
	// ErrForeign says that a file was written by another store. Nothing was changed.
	ErrForeign = errors.New(
		"clog: a file belongs to another store; nothing was changed; move the file away or restore the right data directory")
	// ErrNewer says that a file was written by a newer version. Nothing was changed.
	ErrNewer = errors.New(
		"clog: a file was written by a newer version of this program; nothing was changed; start that version")
)

// Source supplies records and learns what became of them. The goroutine that runs the log calls its methods, or the
// caller of StepOnSpot, GatherOnSpot or WriteOnSpot, one at a time and with the log's lock held. They may call the log
// back only through Wake, Release and the accessors.
type Source interface {
	// Gather adds waiting records to g; none is fine. It stops when g.Reserve returns nil and keeps the rest.
	Gather(g *Group)
	// Durable says that g is on stable storage. Groups come strictly in order.
	Durable(g *Group)
	// Checkpoint describes the state after every record added so far in chunks of at most Log.MaxChunkBytes bytes; none is
	// fine, and empty ones are left out. emit copies the chunk. Called when a new file begins, with nothing in flight;
	// Log.Current is that file.
	Checkpoint(emit func(chunk []byte))
	// CheckpointBytes estimates what Checkpoint would emit now; it should not be too low. The log asks twice per file and
	// sizes files by it. An estimate that is too low costs speed, not correctness.
	CheckpointBytes() int64
	// Failed says, once, that nothing in flight or later will ever be durable. err wraps ErrFailed.
	Failed(err error)
}

// Options are the choices of Open. The zero value of each is its default.
type Options struct {
	FileBytes int64 // size of a file, as long as checkpoints do not need larger ones; DefaultFileBytes
	// MaxLiveBytes bounds the files that recovery may have to read: no file is started beyond it. Default
	// DefaultMaxLiveBytes. When checkpoints need files larger than FileBytes, three of them are always allowed.
	MaxLiveBytes int64
	GroupBytes   int       // most bytes of a group of more than one record; the arena's BufBytes
	InFlight     int       // groups in flight; DefaultInFlight
	Store        uuid.UUID // whose log it is; files of others are refused
	Logger       *slog.Logger
	Pulse        *aio.Pulse // counts writes; nil: nobody watches the disk
	// MarkAfter is how long the log is idle before it writes a mark. The mark's header promises the last group, so
	// recovery can then tell damage to that group from a torn write. 0: marks are written only at a clean stop and to give
	// files back.
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
// One goroutine drives it: Run, or Start, Step and Close for a caller that steps it by hand. StepOnSpot, GatherOnSpot
// and WriteOnSpot let another goroutine do one round of that work, or half of it, while the driving goroutine sleeps;
// mu decides who works. The Source's methods are therefore called by whoever holds mu, one at a time. All other methods
// may be called from any goroutine.
//
// A crash leaves whole groups, at most one torn tail, and promises in the group headers about what was durable; Open
// judges them. After a failed write nothing is written again: err stays set and every call returns it.
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

	// The driving goroutine only.
	queue   aio.Queue
	started bool
	broken  error // damage that Open found; Start fails with it

	// mu is held during a round of work. The driving goroutine gives it up only while it sleeps with nothing in flight,
	// and sets asleep meanwhile. Everything from here to the atomics is guarded by mu.
	mu        lock.Mutex[lock.CommitLog]
	asleep    bool
	onSpot    bool   // in StepOnSpot or WriteOnSpot: write on the calling goroutine
	unwritten *Group // admitted by GatherOnSpot and not given to the disk yet; also the last of inFlight
	err       error  // first failure, or ErrClosed

	// Groups. len(idle)+len(inFlight) == len(slots) between rounds.
	slots       []Group
	idle        []*Group
	inFlight    []*Group // in order of Seq
	completions []aio.Completion

	// The chain of groups: durable <= seq, headerDurable < seq.
	seq           uint64 // last group of the log
	crc           uint32 // its checksum, which the next header repeats
	durable       uint64 // last group that is on stable storage, with all before it
	headerDurable uint64 // what the header of group seq says of durable
	headerOldest  uint64 // what it says of the oldest file that recovery needs

	// The open buffer, into which groups are packed one after the other. The log holds one reference.
	buf       *aio.Buf
	bufPos    int
	lastBytes int   // padded size of the last group, a guess at the next one's
	noBuffer  bool  // the first record of the group found no buffer
	wantRoom  int64 // file bytes that a refused first record needs; 0: none waits

	// Files. live is in order of number and ends with current, once there is one.
	live    []liveFile
	current *openFile
	sizes   fileSizing

	stage    stage // checkpoints and marks under construction
	idleMark idleMark
	stalled  stall

	// Atomics: any goroutine reads them, and the writers are named.
	waker    atomic.Pointer[aio.Queue]     // queue, for Wake; Start and closeQueue
	stopping atomic.Bool                   // Stop
	starving atomic.Bool                   // the log waits for a buffer, so whoever releases one wakes it; see nextBuf
	released atomic.Uint64                 // files below it are not needed; Release; <= number of current
	renewed  atomic.Uint64                 // files up to it are to be followed by a new one soon; Renew
	stored   atomic.Pointer[[]*storedFile] // the files of live, for Checkers; a list is replaced, never changed
	stats    counters
}

// liveFile is a file that recovery would need.
type liveFile struct {
	number    uint64
	sizeBytes int64
	usedBytes int64
	stored    *storedFile // nil: a spare, or one on its way to be one
}

// openFile is the file that groups go to.
type openFile struct {
	aio.File
	number    uint64
	sizeBytes int64
	pos       int64 // where the next group goes
	stored    *storedFile
}

// MaxPayloadBytes is the largest payload that fits beside others into a file of Options.FileBytes; with small files
// less than the constant of the same name. Reserve accepts payloads up to the constant: a larger one gets a file that
// is large enough.
func (l *Log) MaxPayloadBytes() int { return l.maxPayload }

// MaxChunkBytes is the largest chunk of a checkpoint: MaxCheckpointChunkBytes, or less with files below 1 MiB.
func (l *Log) MaxChunkBytes() int {
	return min(MaxCheckpointChunkBytes, len(l.stage.mem)-GroupHeaderBytes-RecordHeaderBytes)
}

// SetSource sets who supplies records. Call it before Run or Start.
func (l *Log) SetSource(s Source) { l.source = s }

// Run makes the write queue and works on the calling goroutine. It returns nil after Stop, or the error, which wraps
// ErrFailed, when a write or flush fails. Records that the source still holds then were not written.
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

// Start makes the queue for the calling goroutine, which alone may then call Step. Run does it by itself.
func (l *Log) Start() error {
	if l.source == nil {
		panic("BUG: clog: Start without a Source")
	}
	if l.started {
		panic("BUG: clog: started twice")
	}
	l.started = true
	if l.broken != nil {
		return l.fail("what is on the disk is damaged", l.broken)
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

// Wake makes the log look for records, released files and free buffers. It is cheap when the log is awake, never
// blocks, and is harmless before Start and after Close.
func (l *Log) Wake() {
	if q := l.waker.Load(); q != nil {
		(*q).Wake()
	}
}

// Stop makes Run flush what the source still has and return. It does not wait for file space: what finds none stays
// with the source.
func (l *Log) Stop() {
	l.stopping.Store(true)
	l.Wake()
}

// Release says that every record in files below fileSeq is durable elsewhere, truncated or tombstoned. Those files are
// recycled once a later group, whose header says that they are not needed, is durable. Any goroutine may call it. The
// current file is never released: a larger number counts as Current.
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

// drain writes what the source still has, then a mark: after a clean stop every group is promised by a later one.
func (l *Log) drain() error {
	for {
		preparing := l.stalled.now == stallSpare && l.prep.fileComing()
		progress, err := l.Step(len(l.inFlight) > 0 || preparing)
		if err != nil {
			return err
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
	q := l.queue
	l.queue = nil
	l.waker.Store(nil)
	return q.Close()
}

// Close frees everything. After Run any goroutine may call it; after Start only the one that steps. A group whose
// completion was not seen has an unknown fate. Files are kept as they are.
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
	if l.stage.free != nil {
		l.stage.free()
		l.stage.free = nil
	}
	if l.err == nil {
		l.err = aio.ErrClosed
	}
	return err
}

// fail sets the log's error for good: see ErrFailed. The source hears of it once, but never inside one of its own
// methods: when a write fails during Checkpoint, writeCheckpoint calls Failed afterwards.
func (l *Log) fail(what string, err error) error {
	if l.err == nil {
		l.err = fmt.Errorf("%w (%s: %w)", ErrFailed, what, err)
		l.opts.Logger.Error("the commit log failed", "what", what, "err", err)
		l.stats.failed.Store(true)
		if !l.stage.emitting {
			l.source.Failed(l.err)
		}
	}
	return l.err
}
