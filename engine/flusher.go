package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/internal/lock"
	"penstock/segment"
)

// flusher moves committed bytes from the commit log's memory into segments, in the
// background: oldest first, in large direct writes. It thereby gives buffers back to the committer and lets
// commit log files be recycled. It also removes what retention lets go.
//
// Its pace follows two levels: buffers (below a quarter free, it writes until a half is free again) and
// the commit log's fill (with less than a half of CommitLiveBytes left it writes and syncs whatever the oldest
// file still holds). Below both it does nothing: a queue that keeps up touches only the commit log.
type flusher struct {
	e      *Engine
	writer *segment.Writer
	kick   chan struct{}

	mu      lock.Mutex[lock.Flusher]
	queue   []*partition // with unflushed bytes, by the age of the oldest
	flushed []evictable  // flushed bytes that are still in memory, by age
	pins    int          // while > 0 no commit log file is released
	limits  map[*partition]segment.Offset
	files   []checkpointFile

	released uint64        // last commit log file that was let go, exclusive
	rotten   atomic.Uint64 // newest commit log file that does not read back and has to go; 0: none

	dead []deadTopic // deleted, their files not moved away yet; guarded by mu

	starved      bool      // the last write found no space; only the next write tells that there is some
	reserveBytes int64     // as computeReserve found it,
	reserved     time.Time // and when
	nearFull     atomic.Bool
	refused      time.Time    // when failed last told of an error that is tried again
	notes        int          // calls of note; committer only
	checked      time.Time    // when checkSpace last looked
	making       []*partition // makeFiles' list, empty between its calls
	due          []*partition // reclaim's list, empty between its calls
	quotasAsked  atomic.Bool
}

// deadTopic is a deleted topic whose files are still in their place.
type deadTopic struct {
	id      uuid.UUID
	release func() // ends the hold on the commit log files, one of which has the tombstone
}

// evictable says that a partition's tail below upTo can leave memory.
type evictable struct {
	part *partition
	upTo segment.Offset
}

// checkpointEnd is where a partition's log ended when a commit log file began. Segments that end below
// it may go once no older file is left: recovery then never looks for them.
type checkpointEnd struct {
	part *partition
	end  segment.Offset
}

type checkpointFile struct {
	seq  uint64
	ends []checkpointEnd
}

func newFlusher(e *Engine) *flusher {
	return &flusher{e: e, kick: make(chan struct{}, 1), writer: segment.NewWriter(), limits: map[*partition]segment.Offset{}}
}

// markDirty says that pt has unflushed bytes; it runs on the committer for every batch.
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

// checkpointed runs on the committer when a commit log file begins.
func (f *flusher) checkpointed(ends []checkpointEnd) {
	f.mu.Lock()
	f.files = append(f.files, checkpointFile{f.e.clog.Current(), ends})
	f.mu.Unlock()
	f.wakeUp()
}

// cut runs on the committer when the record of a cut is written: behind it recovery takes what lies below end from segments, whatever the
// checkpoints before it say.
func (f *flusher) cut(pt *partition, end segment.Offset) {
	pt.ages.cut(end)
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

// pinFiles keeps every commit log file until the returned function is called.
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
	spaceEvery       = time.Millisecond // flushing looks at the disk's room so often at most
	reserveEvery     = time.Second
	reserveSoon      = 10 * time.Millisecond
	nearFullBatches  = 16      // near the end of the room the committer asks for a check so often
	maxFlushBytes    = 8 << 20 // of one partition before the next gets its turn
	maxTrashDuration = 50 * time.Millisecond
)

func (f *flusher) run() {
	h := f.e.host
	tick, retain := h.Mono()+flusherTick, h.Mono()+f.e.opts.RetentionInterval
	for !f.stopping() {
		kicked, _ := h.EitherUntil(min(tick, retain), f.kick, f.e.stop)
		h.AwaitDisk(f.e.stop) // what follows writes to files itself, and holds locks when it does
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

// work flushes and evicts until both levels are good.
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
			return // both levels are good, or what is missing is pinned by readers, or the disk is full
		}
	}
}

// logIsHalfFull says whether commit log files should go. Released ones take a while to be ready again; to release more does not
// make that faster, and would sync every partition again.
func (f *flusher) logIsHalfFull() bool {
	e := f.e
	file := e.clog.FileBytes()
	room, half := e.clog.Headroom(), e.clog.MaxLiveBytes()/2
	live := int64(e.clog.Current()-e.clog.Oldest()+1) * file
	return room < half && (live >= half || room < file)
}

// makeRoom runs at every tick while the disk is full: it writes what waits, which alone tells that there is room
// again, lets go of every commit log file but the newest, and then of the segments that nobody needs any more.
func (f *flusher) makeRoom() {
	f.releaseFiles(f.e.clog.Current())
	f.retain()
	f.trashDead()
	f.emptyTrash()
	// The committer asks no machine while it waits for a commit log file that the disk has no room for.
	for _, pt := range f.e.partitionList() {
		pt.refuseMessages(ErrNoSpace)
	}
}

// checkSpace stops publishing while there is still room for what was answered OK, and for confirmations: they are what lets
// retention free space. Without the reserve a full disk would have to be emptied by hand.
func (f *flusher) checkSpace() {
	f.checked = f.e.host.Instant()
	free, err := f.e.disk.FreeBytes()
	if err != nil {
		return
	}
	full := f.e.noSpace.Load()
	// Looking at every partition takes time: rarely while there is plenty, and never for each of many small writes.
	since := f.e.host.Since(f.reserved)
	if since > reserveEvery || since > reserveSoon && (full || free < 2*f.reserveBytes) {
		f.computeReserve(free)
	}
	f.nearFull.Store(free < 4*f.reserveBytes)
	switch {
	case free < f.reserveBytes && !full:
		f.full(fmt.Errorf("%d bytes are free, %d are kept for what is stored already and for confirmations", free, f.reserveBytes))
	case free >= f.reserveBytes && full && !f.starved:
		f.roomAgain()
	}
}

// computeReserve: all that the commit log may hold has to fit into segments, or the log could neither be released nor take
// the confirmations that let retention free space. A small disk keeps half of what the directory has, and may then need help from outside.
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
	f.starved = f.starved && waiting // else its topic was deleted, and the next write tells
	f.reserved = f.e.host.Instant()
}

// nextSegmentBytes is the size of the file that pt will want next.
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

// flushOldest writes some of the partition whose unflushed bytes are oldest.
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
		// The flag goes down before the flush, so that a batch committed meanwhile queues the partition again.
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

// maxFilesAtOnce bounds the segment files that are made together.
const maxFilesAtOnce = 32

// makeFiles makes the segment file that pt needs, if any, together with those of the partitions behind it in the queue: each waits for the
// file system's journal, and together they wait once. What fails is met again, and handled, by the flush.
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

// enqueue puts pt into the queue unless it is there.
func (f *flusher) enqueue(pt *partition) {
	if pt.dirty.CompareAndSwap(false, true) {
		f.mu.Lock()
		f.queue = append(f.queue, pt)
		f.mu.Unlock()
	}
}

// flush writes up to maxBytes of pt to segments.
func (f *flusher) flush(pt *partition, maxBytes int64) (int64, error) {
	if f.e.host.Since(f.checked) > spaceEvery {
		f.checkSpace() // here space goes, much of it between two ticks
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

// olderHalf is the last file of the older half of the commit log. One file at a time would cost a sync of every busy partition per file.
func (f *flusher) olderHalf() uint64 {
	oldest := max(f.e.clog.Oldest(), f.released)
	return oldest + (f.e.clog.Current()-oldest)/2
}

// dropRotten has a commit log file go that the scrub could not read back: this process still has what is in it. The file is followed by another one, if it is
// the current one; what it holds is written to segments, and it is released. It runs at every tick until the file is gone.
func (f *flusher) dropRotten() {
	e, file := f.e, f.rotten.Load()
	switch {
	case file == 0 || e.poisoned.Load() != nil:
	case e.clog.OldestKept() > file:
		if f.rotten.CompareAndSwap(file, 0) {
			e.log.Info("the damaged file of the commit log is not needed any more: what it held is in segments, and a restart does not read it", "file", file)
		}
	case e.clog.Current() <= file:
		e.clog.Renew(file)
	default:
		f.releaseFiles(file)
	}
}

// releaseFiles makes the commit log's files up to target unnecessary, never the newest one: what they hold is written and synced, each
// partition once, and then they are released. All is written before the first sync, because that one then commits the file system's journal for all
// of them.
func (f *flusher) releaseFiles(target uint64) bool {
	e := f.e
	oldest, current := e.clog.Oldest(), e.clog.Current() // before held: what is held later lies in current or behind it
	f.mu.Lock()
	held := f.pins > 0
	f.mu.Unlock()
	if f.released > oldest { // the log has not taken the last release in yet
		held = held || !e.clog.Stats().Full // and if it cannot, because that was not enough, it needs another
		oldest = f.released
	}
	if held {
		return false
	}
	target = min(target, current) // released up to and including it
	f.due = f.due[:0]
	release := current
	for _, pt := range e.partitionList() {
		if seq, ok := pt.log.OldestUnsyncedFileSeq(); !ok || pt.rep != nil && pt.rep.discarded.Load() && pt.rep.isUnneeded() {
			continue // see spare
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

// flushUpTo writes what pt has of the commit log's files up to target. What is newer may wait for more to join it.
func (f *flusher) flushUpTo(pt *partition, target uint64) {
	for {
		if seq, ok := pt.log.OldestUnflushedFileSeq(); !ok || seq > target {
			return
		}
		f.makeFiles(pt)
		if n, err := f.flush(pt, maxFlushBytes); n == 0 || err != nil {
			return
		}
		f.evict() // the committer must not wait for buffers while this goes on
	}
}

// sync makes durable what was written of pt.
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

// backlog is how many partitions wait for their turn.
func (f *flusher) backlog() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue)
}

// finish runs after the committer stopped: a clean stop leaves little to replay.
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

// learnLimits drops the checkpoints of files that are gone and remembers where the oldest one that is left
// found each partition: segments below that are never needed for recovery.
func (f *flusher) learnLimits() {
	oldest := f.e.clog.OldestKept()
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.files) > 0 && f.files[0].seq <= oldest {
		if f.files[0].seq == oldest {
			for _, c := range f.files[0].ends {
				if !c.part.t.deleted.Load() {
					f.limits[c.part] = c.end
				}
			}
		}
		f.files = f.files[1:]
	}
}

// retain removes segments that every channel confirmed, and what the topic's limits on bytes and age let go.
func (f *flusher) retain() {
	f.learnLimits()
	for _, pt := range f.e.partitionList() {
		if pt.t.quarantined || pt.whyUnread() != nil {
			continue
		}
		f.mu.Lock()
		limit := f.limits[pt]
		f.mu.Unlock()
		f.findLost(pt)
		f.observe(pt)
		// Asking the log what may go reads segments, so first whether any of them could.
		if first, ok := pt.log.TrimmableTo(); !ok || limit < first {
			continue
		}
		to := f.retainTo(pt)
		if to > 0 {
			f.trim(pt, to)
		}
		if first, ok := pt.log.TrimmableTo(); ok && to < first && first <= limit {
			f.carry(pt, limit)
		}
	}
}

// retainTo is the offset below which nothing has to be kept.
func (f *flusher) retainTo(pt *partition) segment.Offset {
	end, _, endID := pt.log.End()
	var to segment.Offset
	keep := pt.bound.advance(pt.committedEnd())
	if at, _, err := pt.log.Seek(keep.id); err == nil {
		to = at
	} else if errors.Is(err, segment.ErrAtEnd) {
		to = end
	}
	to = min(to, keep.at)
	if pt.rep != nil && pt.rep.leaderStart.Load() > 0 {
		if at, err := pt.log.SeekPosition(segment.Position(pt.rep.leaderStart.Load())); err == nil {
			to = max(to, at)
		}
	}
	l := pt.t.limits.Load()
	if l.retentionBytes > 0 {
		to = max(to, end-segment.Offset(l.retentionBytes))
	}
	if keep := segment.MsgID(l.retentionCount); keep > 0 && endID > keep {
		if at, _, err := pt.log.Seek(endID - keep); err == nil {
			to = max(to, at)
		}
	}
	if age := l.retentionAge; age > 0 {
		to = max(to, f.agedTo(pt, age))
	}
	return to
}
