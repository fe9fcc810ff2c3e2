package clog

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

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
	// ErrFailed says that a write or flush failed. Records that were not durable before are lost or not, nobody can tell
	// until the log is opened again; nothing is retried.
	ErrFailed = errors.New(
		"clog: the commit log failed and takes no more records; what was not acknowledged may be lost; restart to recover")
	// ErrForeign says that a file was written by another store. Nothing was changed.
	ErrForeign = errors.New(
		"clog: a file belongs to another store; nothing was changed; move the file away or restore the right data directory")
	// ErrNewer says that a file was written by a newer version. Nothing was changed.
	ErrNewer = errors.New(
		"clog: a file was written by a newer version of this program; nothing was changed; start that version")
)

// Source supplies records and learns their fate. All methods are called by the goroutine that runs the log, and
// none of them may call the log back except Wake, Release and the accessors.
type Source interface {
	// Gather adds waiting records to g; none is fine. It stops when g.Reserve returns nil and keeps the rest.
	Gather(g *Group)
	// Durable says that g is on stable storage. Groups come strictly in order.
	Durable(g *Group)
	// Checkpoint describes the state after every record added so far in chunks of at most Log.MaxChunkBytes bytes; none is
	// fine, and empty ones are left out. emit copies the chunk. Called when a new file begins, with nothing in flight;
	// Log.Current is that file.
	Checkpoint(emit func(chunk []byte))
	// CheckpointBytes is how many bytes Checkpoint would emit now, or somewhat more: files are made as large as it takes. It is asked
	// twice per file. Less than there will be is not wrong but slow.
	CheckpointBytes() int64
	// Failed says, once, that nothing in flight or later will ever be durable. err wraps ErrFailed.
	Failed(err error)
}

// Options are the choices of Open. The zero value of each is its default.
type Options struct {
	FileBytes int64 // size of a file, as long as checkpoints do not need larger ones; DefaultFileBytes
	// files beyond this are not started: what recovery may have to read; DefaultMaxLiveBytes. Files that checkpoints made larger may be three
	MaxLiveBytes int64
	GroupBytes   int       // most bytes of a group of more than one record; the arena's BufBytes
	InFlight     int       // groups in flight; DefaultInFlight
	Store        uuid.UUID // whose log it is; files of others are refused
	Logger       *slog.Logger
	Pulse        *aio.Pulse // counts writes; nil: nobody watches the disk
	// MarkAfter is how long the log rests before it writes a mark, which promises its last group: from then on recovery tells damage to that group from a torn
	// write. 0: none but those of a clean stop and of files that are given back.
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

// Log is a node's commit log. Run, or Start and Step, and Close belong to one goroutine; all other methods may be called from any.
type Log struct {
	// turnLock is held by whoever works on the log: the goroutine of Run, except while it sleeps with nothing in flight, or a
	// caller of StepOnSpot or GatherOnSpot.
	turnLock sync.Mutex
	asleep   bool // the goroutine of Run sleeps
	onSpot   bool // a caller of StepOnSpot works
	// unwritten is the group of a caller of GatherOnSpot: in flight, but not with the disk yet.
	unwritten *Group

	disk   aio.Disk
	arena  *aio.Arena
	opts   Options
	source Source

	block      int64
	maxPayload int
	groupRoom  int64 // what the largest ordinary group takes

	// What files are made; see provide.
	fileBytes int64 // their size from now on
	nextBytes int64 // that of the one which comes next
	began     int64 // what the checkpoint of the current file takes, as its source foretold
	planned   bool  // the source was asked about the file that comes next, and nothing changed since
	foreseen  bool  // it was asked in the middle of the current file

	queue    aio.Queue
	waker    atomic.Pointer[aio.Queue]
	stopping atomic.Bool
	started  bool
	err      error // what poisoned the log
	broken   error // what Open found; Start fails with it

	slots       []Group
	idle        []*Group // slots without a group
	inFlight    []*Group // in order of Seq; len(idle)+len(inFlight) == len(slots) between turns
	completions []aio.Completion

	// The chain. durable <= seq; promised < seq is what the last header says of durable.
	seq      uint64
	crc      uint32
	durable  uint64
	promised uint64

	// The open buffer: groups are packed into it one after the other. The log holds one reference.
	buf       *aio.Buf
	bufPos    int
	lastBytes int // of the last group, padded: tells how much the next one may want

	// starving is set while the log waits for a buffer; whoever releases one then wakes it.
	starving atomic.Bool
	refused  bool  // the first record of the group found no buffer
	wantRoom int64 // file room that the refused first record of a group needs

	// Files. live is in order of number and ends with current, once there is one; released <= current's number.
	live     []liveFile
	current  *openFile
	carried  uint64 // what the last header says of the oldest file
	released atomic.Uint64
	prep     *preparer

	// stage builds the groups that the log writes for itself: checkpoints and marks.
	stage     Group
	stageMem  []byte
	stageFree func()
	chunk     uint32 // number of the next chunk; only while a checkpoint is written
	emit      func([]byte)
	emitting  bool // the source is in Checkpoint

	// What a Checker may read: the files of live, in a list that is replaced and never changed.
	stored  atomic.Pointer[[]*storedFile]
	renewed atomic.Uint64 // the last file that is to be followed by another one soon; see Renew

	rest    rest
	stalled stall
	stats   counters
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

// MaxPayloadBytes is the largest payload that fits beside others into an ordinary file: MaxPayloadBytes, or less with small files. Reserve accepts larger
// ones, up to the constant of the same name: they get a file that is large enough.
func (l *Log) MaxPayloadBytes() int { return l.maxPayload }

// MaxChunkBytes is the largest chunk of a checkpoint: MaxCheckpointChunkBytes, or less with files below 1 MiB.
func (l *Log) MaxChunkBytes() int {
	return min(MaxCheckpointChunkBytes, len(l.stageMem)-GroupHeaderBytes-RecordHeaderBytes)
}

// SetSource sets who supplies records. Call it before Run or Start.
func (l *Log) SetSource(s Source) { l.source = s }

// Run makes the queue on the calling goroutine and works until Stop, then returns nil, or until a write or flush fails, then
// returns the error, which wraps ErrFailed. Records that the source still holds when Run returns were not written.
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
	l.rest.start(l)
	return nil
}

// Wake makes the log look for records, released files and free buffers. It is cheap when the log is awake, never blocks, and is
// harmless before Start and after Close.
func (l *Log) Wake() {
	if q := l.waker.Load(); q != nil {
		(*q).Wake()
	}
}

// Stop makes Run flush what the source still has and return. It does not wait for file space: what finds none stays with
// the source.
func (l *Log) Stop() {
	l.stopping.Store(true)
	l.Wake()
}

// Release says that every record in files below fileSeq is durable elsewhere, truncated or tombstoned. Those files are recycled
// once a later group, which says that they are not needed, is durable. Any goroutine may call it. The current file
// is never released: more than Current counts as Current.
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

// drain flushes what the source still has, then writes a mark, so that after a clean stop every group is promised by a later one.
func (l *Log) drain() error {
	for {
		preparing := l.stalled.now == stallSpare && l.prep.hopeful()
		progress, err := l.Step(len(l.inFlight) > 0 || preparing)
		if err != nil {
			return err
		}
		if !progress && len(l.inFlight) == 0 && !(l.stalled.now == stallSpare && l.prep.hopeful()) {
			break
		}
	}
	l.turnLock.Lock()
	defer l.turnLock.Unlock()
	if l.current != nil && l.promised < l.durable && l.markRoom() {
		return l.writeMark()
	}
	return nil
}

func (l *Log) closeQueue() error {
	if l.queue == nil {
		return nil
	}
	l.rest.stop()
	q := l.queue
	l.queue = nil
	l.waker.Store(nil)
	return q.Close()
}

// Close frees everything. After Run call it from anywhere; after Start from the goroutine that steps, with nothing in flight that
// matters: groups whose completions were not seen count as unknown. Files are kept as they are.
func (l *Log) Close() error {
	l.turnLock.Lock()
	defer l.turnLock.Unlock()
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
	if l.stageFree != nil {
		l.stageFree()
		l.stageFree = nil
	}
	if l.err == nil {
		l.err = aio.ErrClosed
	}
	return err
}

// fail poisons the log: see ErrFailed. The source hears of it once, but never inside one of its own methods: when
// emit fails, writeCheckpoint tells it afterwards.
func (l *Log) fail(what string, err error) error {
	if l.err == nil {
		l.err = fmt.Errorf("%w (%s: %w)", ErrFailed, what, err)
		l.opts.Logger.Error("the commit log failed", "what", what, "err", err)
		l.stats.failed.Store(true)
		if !l.emitting {
			l.source.Failed(l.err)
		}
	}
	return l.err
}
