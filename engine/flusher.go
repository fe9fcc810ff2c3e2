package engine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/internal/lock"
	"penstock/segment"
)

// flusher writes committed bytes from the commit log's buffers into segments, oldest first and in large direct writes.
// That frees buffers for the committer and lets commit log files be used again. It also removes what retention no
// longer keeps.
//
// Two thresholds start it. When less than a quarter of the buffers is free, it flushes until half of them are. When
// less than half of CommitLiveBytes is left in the commit log, it writes and syncs what the older half of the files
// still holds. Otherwise it does nothing, and the commit log is the only file that is written.
//
// One goroutine (run) does the work and owns the fields without a note. mu guards queue, flushed, pins, limits, files
// and dead; under it nothing waits for the disk. The committer calls markDirty, checkpointed and cut. A crash loses
// nothing: a commit log file is released only when segments have all that it holds, and recovery replays the others.
type flusher struct {
	e      *store
	writer *segment.Writer
	kick   chan struct{}

	mu      lock.Mutex[lock.Flusher]
	queue   []*partition                  // partitions with unflushed bytes, by the age of their oldest
	flushed []evictable                   // flushed bytes that are still in memory, oldest first
	pins    int                           // while > 0 no commit log file is released
	limits  map[*partition]segment.Offset // recovery needs no segment that ends below
	files   []checkpointFile              // checkpoints of the commit log files that still exist, oldest first

	released uint64 // commit log files with numbers below this one were released
	// Newest commit log file that cannot be read back and must be released; 0: none. The scrub sets it.
	rotten atomic.Uint64

	dead []deadTopic // deleted topics whose files were not moved away yet

	starved      bool         // the last write found no space; only another write can tell that there is some
	reserveBytes int64        // bytes of the disk to keep free, from computeReserve
	reserved     time.Time    // when computeReserve last ran
	nearFull     atomic.Bool  // less than four reserves are free: the committer asks for more frequent checks
	refused      time.Time    // when logRefused last logged
	notes        int          // calls of markDirty; the committer's
	checked      time.Time    // when checkSpace last ran
	making       []*partition // scratch of makeFiles
	due          []*partition // scratch of releaseFiles
	quotasAsked  atomic.Bool  // learnQuotas is to run soon; the committer sets it
}

// deadTopic is a deleted topic whose files have not been moved to the trash yet.
type deadTopic struct {
	id      uuid.UUID
	release func() // ends the hold on the commit log files: one of them has the tombstone
}

// evictable says that the bytes of a partition below upTo are flushed and need not stay in memory.
type evictable struct {
	part *partition
	upTo segment.Offset
}

// checkpointEnd is the end of a partition's log when a commit log file began. Once no older file is left, recovery
// needs no segment that ends below it, and retention may remove such segments.
type checkpointEnd struct {
	part *partition
	end  segment.Offset
}

// checkpointFile has the ends of all partitions when the commit log file seq began.
type checkpointFile struct {
	seq  uint64
	ends []checkpointEnd
}

func newFlusher(e *store) *flusher {
	return &flusher{
		e: e, kick: make(chan struct{}, 1),
		writer: segment.NewWriter(), limits: map[*partition]segment.Offset{},
	}
}

// markDirty queues pt, which has unflushed bytes, and wakes the flusher if buffers or disk space run short. The
// committer calls it for every batch.
func (f *flusher) markDirty(pt *partition) {
	if !pt.dirty.Load() {
		f.enqueue(pt)
	}
	if f.notes++; f.short(f.lowBuffers(), lowLargeBytes) || f.nearFull.Load() && f.notes%nearFullBatches == 0 {
		f.wakeUp()
	}
}

func (f *flusher) wakeUp() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// checkpointed notes the ends of all partitions when a commit log file begins. The committer calls it.
func (f *flusher) checkpointed(ends []checkpointEnd) {
	f.mu.Lock()
	f.files = append(f.files, checkpointFile{f.e.clog.Current(), ends})
	f.mu.Unlock()
	f.wakeUp()
}

// cut lowers the noted ends of pt to end. The committer calls it when the record of a cut is written. Recovery that
// reads this record takes what lies below end from segments, whatever earlier checkpoints say, so those segments must
// stay.
func (f *flusher) cut(pt *partition, end segment.Offset) {
	pt.ages.Cut(end)
	f.mu.Lock()
	defer f.mu.Unlock()
	if limit, ok := f.limits[pt]; ok {
		f.limits[pt] = min(limit, end)
	}
	for _, file := range f.files {
		for i := range file.ends {
			if c := &file.ends[i]; c.part == pt {
				c.end = min(c.end, end)
			}
		}
	}
}

// pinFiles prevents the release of any commit log file until the returned function is called.
func (f *flusher) pinFiles() func() {
	f.mu.Lock()
	f.pins++
	f.mu.Unlock()
	return func() {
		f.mu.Lock()
		f.pins--
		f.mu.Unlock()
	}
}

const (
	flusherTick      = 100 * time.Millisecond
	spaceEvery       = time.Millisecond // least interval at which flushing checks the free space
	reserveEvery     = time.Second
	reserveSoon      = 10 * time.Millisecond
	nearFullBatches  = 16      // batches between two checks that the committer asks for while nearFull
	maxFlushBytes    = 8 << 20 // of one partition, before another one is flushed
	maxTrashDuration = 50 * time.Millisecond
)

func (f *flusher) run() {
	h := f.e.host
	tick, retain := h.Mono()+flusherTick, h.Mono()+f.e.opts.RetentionInterval
	for !f.stopping() {
		kicked, _ := h.EitherUntil(min(tick, retain), f.kick, f.e.stop)
		h.AwaitDisk(f.e.stop) // simulated hosts only: what follows writes files and holds locks while it waits for the disk
		if taken(f.kick) || kicked {
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
		if now := h.Mono(); now >= retain {
			retain = now + f.e.opts.RetentionInterval
			f.onRetain()
		}
	}
}

func (f *flusher) onTick() {
	f.learnQuotas()
	f.checkSpace()
	if f.e.noSpace.Load() {
		f.makeRoom()
	}
	f.dropRotten()
	f.work()
}

func (f *flusher) onRetain() {
	f.retain()
	f.trashDead()
	f.emptyTrash()
}

// work flushes, evicts and releases files until neither threshold is passed.
func (f *flusher) work() {
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
			return // neither threshold is passed; or readers pin the buffers, or the disk is full
		}
	}
}

// logIsHalfFull says whether commit log files should be released. A released file takes a while to be ready for use
// again. To release more files meanwhile would not speed that up, and would sync every partition once more.
func (f *flusher) logIsHalfFull() bool {
	e := f.e
	file := e.clog.FileBytes()
	room, half := e.clog.Headroom(), e.clog.MaxLiveBytes()/2
	live := int64(e.clog.Current()-e.clog.Oldest()+1) * file
	return room < half && (live >= half || room < file)
}

// makeRoom runs at every tick while the disk is full. It flushes what waits, because only a write can tell that there
// is space again. It releases every commit log file but the newest, and then removes the segments that nobody needs.
func (f *flusher) makeRoom() {
	f.releaseFiles(f.e.clog.Current())
	f.retain()
	f.trashDead()
	f.emptyTrash()
	// The committer refuses no puts while it waits for a commit log file for which the disk has no space. So they are
	// refused here.
	for _, pt := range f.e.partitionList() {
		pt.RefuseMessages(ErrNoSpace)
	}
}

// checkSpace stops publishing while there is still space for messages that were answered OK and for confirmations:
// those let retention free space. Without the reserve, an operator would have to empty a full disk by hand. It resumes
// publishing when there is space again.
func (f *flusher) checkSpace() {
	f.checked = f.e.host.Instant()
	free, err := f.e.disk.FreeBytes()
	if err != nil {
		return
	}
	full := f.e.noSpace.Load()
	// computeReserve examines every partition. So it runs rarely while there is plenty of space, and not for each of many
	// small writes.
	since := f.e.host.Since(f.reserved)
	if since > reserveEvery || since > reserveSoon && (full || free < 2*f.reserveBytes) {
		f.computeReserve(free)
	}
	f.nearFull.Store(free < 4*f.reserveBytes)
	switch {
	case free < f.reserveBytes && !full:
		f.full(fmt.Errorf("%d bytes are free, %d are kept for what is stored already and for confirmations",
			free, f.reserveBytes))
	case free >= f.reserveBytes && full && !f.starved:
		f.roomAgain()
	}
}

// computeReserve computes how much of the disk to keep free. All that the commit log may hold has to fit into segments:
// otherwise the log could neither release files nor take the confirmations that let retention free space. On a small
// disk the reserve is at most half of what the directory may use, and an operator may have to make room.
func (f *flusher) computeReserve(free int64) {
	waiting := false
	need, have := f.e.clog.MaxLiveBytes()+2*f.e.clog.FileBytes(), free+f.e.clog.Stats().LiveBytes
	for _, pt := range f.e.partitionList() {
		have += pt.log.Bytes()
		if pt.log.Unflushed() > 0 {
			waiting = true
			need += f.nextSegmentBytes(pt)
		}
	}
	f.reserveBytes = min(need, have/2)
	f.starved = f.starved && waiting // if nothing waits any more, its topic was deleted; the next write tells
	f.reserved = f.e.host.Instant()
}

// nextSegmentBytes returns the size of the next segment file of pt.
func (f *flusher) nextSegmentBytes(pt *partition) int64 {
	segments := pt.log.Segments()
	if len(segments) == 0 {
		return f.e.opts.MinSegmentBytes
	}
	return min(2*segments[len(segments)-1].FileBytes, f.e.opts.MaxSegmentBytes)
}

func (f *flusher) stopping() bool {
	select {
	case <-f.e.stop:
		return true
	default:
		return false
	}
}

// flushOldest flushes at most maxFlushBytes of the partition whose unflushed bytes are oldest. It says whether it wrote
// any.
func (f *flusher) flushOldest() bool {
	for {
		f.mu.Lock()
		if len(f.queue) == 0 {
			f.mu.Unlock()
			return false
		}
		pt := f.queue[0]
		f.queue = f.queue[1:]
		f.mu.Unlock()
		f.makeFiles(pt)
		// Clear the flag before the flush, so that a batch that is committed meanwhile queues the partition again.
		pt.dirty.Store(false)
		n, err := f.flush(pt, maxFlushBytes)
		if pt.log.Unflushed() > 0 {
			f.enqueue(pt)
		}
		if n > 0 || err != nil {
			return err == nil
		}
	}
}

// maxFilesAtOnce bounds how many segment files makeFiles makes together.
const maxFilesAtOnce = 32

// makeFiles makes the segment file that pt needs, if any, together with the files that the next partitions in the queue
// need: each waits for the file system's journal, and together they wait once. It ignores errors: the flush meets them
// again and handles them.
func (f *flusher) makeFiles(pt *partition) {
	if !pt.log.NeedsFile() {
		return
	}
	f.making = append(f.making[:0], pt)
	f.mu.Lock()
	for _, next := range f.queue[:min(len(f.queue), 4*maxFilesAtOnce)] {
		if len(f.making) < maxFilesAtOnce && next.log.NeedsFile() {
			f.making = append(f.making, next)
		}
	}
	f.mu.Unlock()
	f.checkSpace()
	f.e.pulse.Begin()
	defer f.e.pulse.End()
	var wg sync.WaitGroup
	for i, pt := range f.making {
		f.making[i] = nil
		f.e.host.Alongside(&wg, func() { _ = pt.log.MakeFile() })
	}
	wg.Wait()
}

// enqueue queues pt, unless it is queued.
func (f *flusher) enqueue(pt *partition) {
	if pt.dirty.CompareAndSwap(false, true) {
		f.mu.Lock()
		f.queue = append(f.queue, pt)
		f.mu.Unlock()
	}
}

// flush writes up to maxBytes of pt to segments, and returns how many it wrote. It has handled the error that it
// returns.
func (f *flusher) flush(pt *partition, maxBytes int64) (int64, error) {
	if f.e.host.Since(f.checked) > spaceEvery {
		f.checkSpace() // many flushes may run between two ticks
	}
	reopens := pt.reopens.Load()
	f.e.pulse.Begin()
	n, err := pt.log.Flush(f.writer, maxBytes)
	f.e.pulse.End()
	if n > 0 {
		f.e.counters.SegmentBytes.Add(uint64(n))
		f.mu.Lock()
		f.flushed = append(f.flushed, evictable{pt, pt.log.Flushed()})
		f.mu.Unlock()
	}
	if err != nil {
		f.failed(pt, reopens, err)
	} else if n > 0 {
		f.starved = false
	}
	return n, err
}

// olderHalf returns the number of the newest file in the older half of the commit log. To release the files one by one
// would cost a sync of every busy partition for each.
func (f *flusher) olderHalf() uint64 {
	oldest := max(f.e.clog.Oldest(), f.released)
	return oldest + (f.e.clog.Current()-oldest)/2
}

// dropRotten removes a commit log file that the scrub could not read back. Memory still has what the file holds. If it
// is the current file, dropRotten makes the log begin another one; then it writes what the file holds to segments and
// releases it. It runs at every tick until the file is gone.
func (f *flusher) dropRotten() {
	e, file := f.e, f.rotten.Load()
	switch {
	case file == 0 || e.poisoned.Load() != nil:
	case e.clog.OldestKept() > file:
		if f.rotten.CompareAndSwap(file, 0) {
			e.log.Info("the damaged file of the commit log is not needed any more: what it held is in segments, and a restart "+
				"does not read it", "file", file)
		}
	case e.clog.Current() <= file:
		e.clog.Renew(file)
	default:
		f.releaseFiles(file)
	}
}

// releaseFiles releases the commit log files up to target, but never the newest one. It first writes and syncs what
// they hold to segments, each partition once. All writes come before the first sync: that sync then commits the file
// system's journal for all of them. It says whether it released any file.
func (f *flusher) releaseFiles(target uint64) bool {
	e := f.e
	// read before pins: a file that is pinned later is current or newer
	oldest, current := e.clog.Oldest(), e.clog.Current()
	f.mu.Lock()
	held := f.pins > 0
	f.mu.Unlock()
	if f.released > oldest { // the commit log has not processed the last release yet
		held = held || !e.clog.Stats().Full // a full log that cannot, because that release was too small, needs another one
		oldest = f.released
	}
	if held {
		return false
	}
	target = min(target, current) // files up to and including target are released
	f.due = f.due[:0]
	release := current
	for _, pt := range e.partitionList() {
		if seq, ok := pt.log.OldestUnsyncedFileSeq(); !ok || pt.rep.discarded.Load() && pt.rep.isUnneeded() {
			continue // a copy that was given up needs no flush
		} else if seq > target {
			release = min(release, seq)
			continue
		}
		f.flushUpTo(pt, target)
		f.due = append(f.due, pt)
	}
	for i, pt := range f.due {
		f.due[i] = nil
		f.sync(pt)
		if seq, ok := pt.log.OldestUnsyncedFileSeq(); ok && (seq > target || !pt.isGoingAway()) {
			release = min(release, seq)
		}
	}
	if release = f.releaseLimit(oldest, release); release <= oldest {
		return false
	}
	f.released = release
	e.clog.Release(release)
	return true
}

// flushUpTo flushes the bytes of pt that lie in commit log files up to target. Newer bytes wait, so that later flushes
// are larger.
func (f *flusher) flushUpTo(pt *partition, target uint64) {
	for {
		if seq, ok := pt.log.OldestUnflushedFileSeq(); !ok || seq > target {
			return
		}
		f.makeFiles(pt)
		if n, err := f.flush(pt, maxFlushBytes); n == 0 || err != nil {
			return
		}
		f.evict() // the committer needs buffers meanwhile
	}
}

// sync makes the flushed bytes of pt durable.
func (f *flusher) sync(pt *partition) {
	reopens := pt.reopens.Load()
	f.e.pulse.Begin()
	err := pt.log.Sync()
	f.e.pulse.End()
	if err != nil {
		f.failed(pt, reopens, err)
	}
	f.e.counters.SegmentSyncs.Add(1)
}

// backlog returns the number of queued partitions.
func (f *flusher) backlog() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue)
}

// finish flushes all partitions after the committer has stopped, so that the next start has little to replay.
func (f *flusher) finish() {
	for _, pt := range f.e.partitionList() {
		for pt.log.Unflushed() > 0 {
			if n, err := pt.log.Flush(f.writer, maxFlushBytes); err != nil || n == 0 {
				return
			}
		}
	}
}

// closeLog closes the files of a partition whose topic was deleted.
func (f *flusher) closeLog(pt *partition) error {
	f.mu.Lock()
	delete(f.limits, pt)
	f.mu.Unlock()
	return pt.log.Close()
}

// taken says whether ch has a value, which it takes, or is closed. It does not block.
func taken(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
