package flush

import (
	"cmp"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"penstock/clog"
	"penstock/internal/lock"
	"penstock/internal/node/clock"
	"penstock/internal/node/platform"
	"penstock/segment"
	"penstock/segment/aio"
)

// Env is what a Flusher needs of the store of its data directory.
type Env struct {
	Host  platform.Host
	Clock *clock.Clock
	Log   *slog.Logger
	Disk  aio.Disk
	Arena *aio.Arena // the buffers of the commit log
	Pulse *aio.Pulse
	Stop  <-chan struct{} // closed when background goroutines must end

	RetentionInterval time.Duration
	MinSegmentBytes   int64
	MaxSegmentBytes   int64
	// MaxOpenSegments bounds the partitions that have segment files open, because these were written and not synced.
	MaxOpenSegments int

	// Parts yields the partitions of all topics in a deterministic order. A partition that is added during an iteration
	// may appear only in the next one.
	Parts iter.Seq[*Part]
	// SweepAside removes what cuts took from copies and need not be kept any longer, and AsideMakesRoom what is not kept
	// on a full disk: see internal/node/aside. Both may be nil.
	SweepAside, AsideMakesRoom func()
	// Divide is told how many bytes of the disk are free and how many of them are kept (computeReserve), to divide the
	// rest among tokens. It returns whether it wants to hear that again soon. nil: nobody wants to know.
	Divide func(free, reserve int64) (soon bool)
	// MayNote says whether no version can run on the directory from now on that leaves log.mark as it is: see
	// clog.Log.NoteStarts.
	MayNote func() bool
	// Failed says whether the commit log has failed or is damaged, and so stores nothing more.
	Failed func() bool

	SegmentBytes, SegmentSyncs, TrimmedBytes *atomic.Uint64 // see node.Counters
}

// Flusher writes batches from the commit log's buffers into segments, oldest first and in large direct writes. It does
// not check whether the batches are durable or committed: readers never read a segment beyond the end of the log.
// Flushing frees buffers for the committer and lets commit log files be reused. The flusher also removes segments that
// retention no longer keeps.
//
// Two thresholds start the flusher. When less than a quarter of the buffers is free, it flushes until half of them are
// free. When less than half of CommitLiveBytes is left in the commit log, it writes and syncs the batches that the
// older half of the files still holds. Otherwise it writes nothing, and the commit log is the only file that is
// written.
//
// One goroutine (Run) does the work, and owns the fields that have no note. mu guards queue, flushed, pins, files, dead
// and Part.limit; its holder never waits for the disk. The committer calls MarkDirty, Checkpointed and Cut. A crash
// loses nothing: a commit log file is released only when the segments hold everything in it, and recovery replays the
// other files.
type Flusher struct {
	n      Env
	clog   *clog.Log // set by Use, before any goroutine runs
	writer *segment.Writer
	kick   chan struct{}

	mu      lock.Mutex[lock.Flusher]
	queue   []*Part          // partitions with unflushed bytes, the oldest bytes first
	flushed []evictable      // flushed bytes that are still in memory, oldest first
	pins    int              // while > 0 no commit log file is released
	files   []checkpointFile // checkpoints of the commit log files that still exist, oldest first

	released uint64 // all commit log files with smaller numbers were released
	// Newest commit log file that cannot be read back and must be released; 0: none. The scrub sets it.
	rotten atomic.Uint64

	dead []deadTopic // deleted topics whose files were not moved to the trash yet

	noSpace      atomic.Bool  // the disk is full: publishing is refused
	noInodes     atomic.Bool  // it is the inodes that are used up
	inodes       int64        // that have to stay free, from computeReserve
	starved      bool         // the last write found no space; only another write can tell that there is space again
	reserveBytes int64        // bytes of the disk to keep free, from computeReserve
	reserved     time.Time    // when computeReserve last ran
	dividing     bool         // what Node.Divide returned last
	nearFull     atomic.Bool  // less than four reserves are free: the committer asks for more frequent checks
	refused      time.Time    // when logRefused last logged
	notes        int          // number of MarkDirty calls; only the committer uses it
	checked      time.Time    // when checkSpace last ran
	making       []*Part      // scratch of makeFiles
	due          []*Part      // scratch of releaseFiles
	open         []*Part      // partitions with open segment files, those that were opened first come first
	openCount    atomic.Int64 // len(open), for OpenSegments
	trash        []string     // names in the trash that emptyTrash has listed and not removed yet
	trashCount   atomic.Int64 // len(trash), for TrashEntries
	interval     atomic.Int64 // see Change
	mostOpen     atomic.Int64 // likewise
	quotasAsked  atomic.Bool  // learnQuotas must run soon; the committer sets it
}

// evictable says that the bytes of part below upTo are flushed, and need not stay in memory.
type evictable struct {
	part *Part
	upTo segment.Offset
}

// LogEnd is the end of a partition's log at the moment when a commit log file began. Once no older file is left,
// recovery needs no segment that ends at or below End, and retention may remove such segments.
type LogEnd struct {
	Part *Part
	End  segment.Offset
}

// checkpointFile holds the log ends of all partitions at the moment when the commit log file seq began.
type checkpointFile struct {
	seq  uint64
	ends []LogEnd
}

// New returns a flusher that does not run yet. MarkDirty may be called at once, the other methods only after Use.
func New(n Env) *Flusher {
	f := &Flusher{n: n, kick: make(chan struct{}, 1), writer: segment.NewWriter()}
	f.Change(n.RetentionInterval, n.MaxOpenSegments)
	return f
}

// Use gives the flusher the commit log. Recovery calls it.
func (f *Flusher) Use(log *clog.Log) { f.clog = log }

// Close frees the memory for writes. It is called after the flusher has stopped.
func (f *Flusher) Close() { f.writer.Close() }

// MarkDirty queues p, which has unflushed bytes, and wakes the flusher if buffers or disk space are running short. The
// committer calls it for every batch.
func (f *Flusher) MarkDirty(p *Part) {
	if !p.dirty.Load() {
		f.enqueue(p)
	}
	if f.notes++; f.short(f.lowBuffers(), lowLargeBytes) || f.nearFull.Load() && f.notes%nearFullBatches == 0 {
		f.WakeUp()
	}
}

// WakeUp makes the flusher check whether there is work.
func (f *Flusher) WakeUp() { platform.Wake(f.kick) }

// WakeIfFull wakes the flusher at the start if the commit log is half full. Without it the flusher would look only at
// the first tick, and a full commit log cannot begin a new file before that.
func (f *Flusher) WakeIfFull() {
	if f.logIsHalfFull() {
		f.WakeUp()
	}
}

// Checkpointed notes the ends of all partitions when a commit log file begins. The committer calls it.
func (f *Flusher) Checkpointed(ends []LogEnd) {
	f.mu.Lock()
	f.files = append(f.files, checkpointFile{f.clog.Current(), ends})
	f.mu.Unlock()
	f.WakeUp()
}

// Cut lowers the noted ends of p to end. The committer calls it when the record of a cut is written. A recovery that
// reads this record takes everything below end from segments, whatever earlier checkpoints say, so these segments must
// be kept.
func (f *Flusher) Cut(p *Part, end segment.Offset) {
	p.ages.Cut(end)
	f.mu.Lock()
	defer f.mu.Unlock()
	p.limit = min(p.limit, below(end))
	for _, file := range f.files {
		for i := range file.ends {
			if c := &file.ends[i]; c.Part == p {
				c.End = min(c.End, end)
			}
		}
	}
}

const (
	flusherTick   = 100 * time.Millisecond
	maxFlushBytes = 8 << 20 // of one partition, before another one is flushed
)

// Change changes Env.RetentionInterval, within flusherTick, and Env.MaxOpenSegments, whose default 0 selects: if more
// are open, those beyond it are closed when the next one is opened. Any goroutine may call it.
func (f *Flusher) Change(retentionInterval time.Duration, maxOpenSegments int) {
	f.interval.Store(int64(retentionInterval))
	f.mostOpen.Store(int64(cmp.Or(maxOpenSegments, DefaultMaxOpenSegments)))
}

func (f *Flusher) every() time.Duration { return time.Duration(f.interval.Load()) }

// Run is the flusher's goroutine. It ends with Node.Stop.
func (f *Flusher) Run() {
	h := f.n.Host
	tick, retained := h.Mono()+flusherTick, h.Mono()
	h.AwaitDisk(f.n.Stop) // see below
	f.noteStarts()        // before retention runs: somebody might remove files of a new directory
	for !f.stopping() {
		kicked, _ := h.EitherUntil(min(tick, retained+f.every()), f.kick, f.n.Stop)
		h.AwaitDisk(f.n.Stop) // simulated hosts only: the code below waits for the disk with locks held
		if platform.Taken(f.kick) || kicked {
			if f.quotasAsked.Load() {
				f.learnQuotas()
			}
			f.checkSpace()
			f.work()
		}
		if now := h.Mono(); now >= tick {
			tick = now + flusherTick
			f.onTick()
		}
		if now := h.Mono(); now >= retained+f.every() {
			retained = now
			f.onRetain()
		}
	}
}

func (f *Flusher) onTick() {
	f.learnQuotas()
	f.checkSpace()
	if f.noSpace.Load() {
		f.makeRoom()
	}
	f.dropRotten()
	f.work()
}

func (f *Flusher) onRetain() {
	f.retain()
	f.trashDead()
	if f.n.SweepAside != nil {
		f.n.SweepAside()
	}
	f.emptyTrash()
	f.n.Arena.Trim()
}

// work flushes, evicts and releases files until both thresholds are met, or no more progress is possible.
func (f *Flusher) work() {
	wanted, large := f.lowBuffers(), int64(lowLargeBytes)
	for !f.stopping() {
		progress := false
		if f.short(wanted, large) {
			wanted, large = f.wantBuffers(), wantLargeBytes
			progress = f.evict()
		}
		if f.short(wanted, large) {
			progress = f.flushOldest() || progress
		}
		if f.logIsHalfFull() {
			progress = f.releaseFiles(f.olderHalf()) || progress
		}
		if !progress {
			return // both thresholds are met, or readers pin the buffers, or the disk is full
		}
	}
}

func (f *Flusher) stopping() bool { return platform.Taken(f.n.Stop) }

// flushOldest flushes at most maxFlushBytes of the partition whose unflushed bytes are oldest. It says whether it wrote
// anything. It passes over partitions whose files take nothing more, and forgets those whose topics were deleted.
func (f *Flusher) flushOldest() bool {
	for left := f.Backlog(); left > 0; left-- {
		f.mu.Lock()
		if len(f.queue) == 0 {
			f.mu.Unlock()
			return false
		}
		p := f.queue[0]
		f.queue[0] = nil
		f.queue = f.queue[1:]
		f.mu.Unlock()
		f.makeFiles(p)
		// Clear the flag before the flush, so that a batch appended during the flush queues the partition again.
		p.dirty.Store(false)
		n, err := f.flush(p, maxFlushBytes)
		if !errors.Is(err, segment.ErrClosed) && p.owner.Log().Unflushed() > 0 {
			f.enqueue(p)
		}
		if n > 0 || err != nil && !concernsOne(err) {
			return err == nil
		}
	}
	return false
}

// concernsOne says whether err, of a flush, says nothing about other partitions.
func concernsOne(err error) bool {
	return errors.Is(err, segment.ErrClosed) || errors.Is(err, segment.ErrPoisoned) ||
		errors.As(err, new(*segment.CorruptError))
}

// maxFilesAtOnce bounds how many segment files makeFiles creates at once.
const maxFilesAtOnce = 32

// makeFiles creates the segment file that p needs, if any, together with the files that the next partitions in the
// queue need. Creating a file waits for the file system's journal; files created together wait only once. makeFiles
// ignores errors: the flush meets them again and handles them.
func (f *Flusher) makeFiles(p *Part) {
	if !p.owner.Log().NeedsFile() {
		return
	}
	f.making = append(f.making[:0], p)
	f.mu.Lock()
	for _, next := range f.queue[:min(len(f.queue), 4*maxFilesAtOnce)] {
		if len(f.making) < maxFilesAtOnce && next.owner.Log().NeedsFile() {
			f.making = append(f.making, next)
		}
	}
	f.mu.Unlock()
	f.checkSpace()
	f.closeOldest(int(f.mostOpen.Load()) - len(f.making))
	f.n.Pulse.Begin()
	defer f.n.Pulse.End()
	var wg sync.WaitGroup
	for i, p := range f.making {
		f.making[i] = nil
		f.noteOpen(p)
		f.n.Host.Alongside(&wg, func() { _ = p.owner.Log().MakeFile() })
	}
	wg.Wait()
}

// enqueue queues p, unless p is queued already.
func (f *Flusher) enqueue(p *Part) {
	if p.dirty.CompareAndSwap(false, true) {
		f.mu.Lock()
		f.queue = append(f.queue, p)
		f.mu.Unlock()
	}
}

// flush writes up to maxBytes of p to segments, and returns how many bytes it wrote. If it returns an error, it has
// already handled that error.
func (f *Flusher) flush(p *Part, maxBytes int64) (int64, error) {
	if f.n.Host.Since(f.checked) > spaceEvery {
		f.checkSpace() // many flushes may run between two ticks
	}
	f.noteOpen(p)
	reopens := p.reopens.Load()
	f.n.Pulse.Begin()
	n, err := p.owner.Log().Flush(f.writer, maxBytes)
	f.n.Pulse.End()
	if n > 0 {
		f.n.SegmentBytes.Add(uint64(n))
		f.mu.Lock()
		f.flushed = append(f.flushed, evictable{p, p.owner.Log().Flushed()})
		f.mu.Unlock()
	}
	if aio.Refused(err) {
		f.closeOldest(0) // the next try may find descriptors
	}
	if err != nil {
		f.failed(p, reopens, err)
	} else if n > 0 {
		f.starved = false
	}
	return n, err
}

// Backlog returns the number of queued partitions.
func (f *Flusher) Backlog() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue)
}

// Finish flushes all partitions after the committer has stopped and Run has ended, so that the next start has little to
// replay.
func (f *Flusher) Finish() {
	for p := range f.n.Parts {
		for p.owner.Log().Unflushed() > 0 {
			f.makeFiles(p)
			f.noteOpen(p)
			if n, err := p.owner.Log().Flush(f.writer, maxFlushBytes); err != nil || n == 0 {
				return
			}
		}
	}
}

// CloseLog closes the files of a partition whose topic was deleted.
func (f *Flusher) CloseLog(p *Part) error {
	f.mu.Lock()
	p.limit = 0
	f.mu.Unlock()
	return p.owner.Log().Close()
}
