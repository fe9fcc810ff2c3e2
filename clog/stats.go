package clog

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// FlushBuckets is the number of buckets of Stats.Flush. Bucket i counts flushes of less than 1<<i microseconds that
// no lower bucket counts; the last takes the rest.
const FlushBuckets = 24

// Stats are counts since Open, and the state at the time of the call. Only groups from the source count as groups.
type Stats struct {
	Groups       uint64
	DirectGroups uint64 // written without the queue
	Records      uint64
	Bytes        uint64 // of groups, with headers and padding
	Marks        uint64 // groups without records
	Files        uint64 // files started
	// CheckpointBytes counts the bytes of the checkpoints at the beginnings of files.
	CheckpointBytes uint64

	Slow       uint64        // groups that took Log.SlowAfter or longer to become durable
	Slowest    time.Duration // the longest that one of these took
	FlushNanos uint64        // sum over all groups, from submission to durable
	Flush      [FlushBuckets]uint64

	StallsBuffer uint64 // times that no buffer was free
	StallsSpare  uint64 // times that no file was prepared
	StallsFull   uint64 // times that MaxLiveBytes was reached
	StallsRoom   uint64 // times that a write into space that the log has found no room

	Recycled uint64 // files used again
	Prepared uint64 // files made from nothing
	Removed  uint64 // files given back to the file system
	// ZeroedBytes counts the zeros that were written to new files.
	ZeroedBytes uint64

	Torn      uint64 // groups that Open cut off the end and that may have been acknowledged: 0 or 1, see Tear
	TornBytes int64  // bytes that Open cut off the end

	LiveBytes int64  // written bytes that recovery would read
	Oldest    uint64 // first file that recovery would need
	Current   uint64
	Full      bool
	Failed    bool
	Forgotten bool // Open found that the log lacks what its mark says
}

// FlushMicros is the upper bound of the bucket of Flush that holds the quantile q, in µs; 0 if nothing was flushed.
func (s *Stats) FlushMicros(q float64) int64 {
	total := uint64(0)
	for _, n := range s.Flush {
		total += n
	}
	seen := uint64(0)
	for i, n := range s.Flush {
		if seen += n; total > 0 && float64(seen) >= q*float64(total) {
			return 1 << i
		}
	}
	return 0
}

// counters are the atomics behind Stats. The holder of Log.mu and the preparer's goroutine write them; any goroutine
// reads.
type counters struct {
	groups, direct, records, bytes, marks, files, checkpointBytes atomic.Uint64
	flushNanos                                                    atomic.Uint64
	slow                                                          atomic.Uint64
	slowest                                                       atomic.Int64 // ns; the holder of Log.mu writes it
	flush                                                         [FlushBuckets]atomic.Uint64
	stalls                                                        [stallKinds]atomic.Uint64
	recycled, prepared, removed, zeroed                           atomic.Uint64
	oldest, current, torn, durable                                atomic.Uint64
	tornBytes                                                     atomic.Int64
	liveBytes, headroom, fileBytes, maxLiveBytes                  atomic.Int64
	full, failed, forgotten, noRoom                               atomic.Bool
}

func (c *counters) submitted(g *Group, paddedBytes int) {
	c.groups.Add(1)
	c.records.Add(uint64(g.records))
	c.bytes.Add(uint64(paddedBytes))
}

// flushed counts a group that took d to become durable. If slowAfter is not 0 and d is at least slowAfter, the group
// counts as slow, too.
func (c *counters) flushed(d, slowAfter time.Duration) {
	if slowAfter > 0 && d >= slowAfter {
		c.slow.Add(1)
		c.slowest.Store(max(c.slowest.Load(), int64(d)))
	}
	c.flushNanos.Add(uint64(d))
	c.flush[min(bits.Len64(uint64(d.Microseconds())), FlushBuckets-1)].Add(1)
}

// stallKind is the reason why the log waits.
type stallKind uint8

const (
	stallNone stallKind = iota
	stallBuffer
	stallSpare
	stallFull
	stallRoom
	stallKinds
)

// stall is the current wait. It counts each wait once, however often the log looks during it. Log.mu guards it.
type stall struct{ now stallKind }

func (s *stall) enter(k stallKind, c *counters) {
	if s.now != k {
		s.now = k
		c.stalls[k].Add(1)
	}
}

func (s *stall) leave() { s.now = stallNone }

// publish makes the state of the files visible to other goroutines. The caller holds Log.mu, or is Open.
func (l *Log) publish() {
	c := &l.stats
	used := int64(0)
	for i := range l.live {
		used += l.live[i].usedBytes
	}
	c.liveBytes.Store(used)
	limit := l.maxLive()
	c.fileBytes.Store(l.sizes.nextBytes)
	c.maxLiveBytes.Store(limit)
	files := max(0, (limit-l.heldBytes())/l.sizes.nextBytes)
	room := files * (l.sizes.nextBytes - l.block)
	if l.current != nil {
		room += max(0, l.room())
	}
	c.headroom.Store(room)
	if len(l.live) > 0 {
		c.oldest.Store(l.live[0].number)
	}
	c.full.Store(l.stalled.now == stallFull)
}

// Oldest is the number of the first file that recovery would need.
func (l *Log) Oldest() uint64 { return l.stats.oldest.Load() }

// OldestKept is the number of the first file that recovery would find: Oldest, or a released file before it that is
// still in the folder. Recovery begins with the files it finds, so whatever their checkpoints refer to must be kept,
// too.
func (l *Log) OldestKept() uint64 {
	oldest := l.Oldest()
	if l.prep == nil {
		return oldest
	}
	l.prep.mu.Lock()
	defer l.prep.mu.Unlock()
	if len(l.prep.retired) > 0 {
		oldest = min(oldest, l.prep.retired[0].number)
	}
	return oldest
}

// Current is the number of the file that groups go to, or will go to when the log starts.
func (l *Log) Current() uint64 { return l.stats.current.Load() }

// Durable is the number of the newest group that is on stable storage with all groups before it, also of earlier
// processes. Every later Open finds at least that group (Report.LastSeq), unless the log has forgotten it.
func (l *Log) Durable() uint64 { return l.stats.durable.Load() }

// Headroom is how many bytes of groups and checkpoints still fit before the log is Full, if nothing is released. It is
// for a source that keeps a reserve for control records.
func (l *Log) Headroom() int64 { return l.stats.headroom.Load() }

// Stats returns a copy of the counts. Each count is exact, but they are not read at one moment.
func (l *Log) Stats() Stats {
	c := &l.stats
	s := Stats{
		Groups: c.groups.Load(), DirectGroups: c.direct.Load(), Records: c.records.Load(), Bytes: c.bytes.Load(),
		Marks: c.marks.Load(), Files: c.files.Load(), CheckpointBytes: c.checkpointBytes.Load(),
		FlushNanos: c.flushNanos.Load(), Slow: c.slow.Load(), Slowest: time.Duration(c.slowest.Load()),
		StallsBuffer: c.stalls[stallBuffer].Load(), StallsSpare: c.stalls[stallSpare].Load(),
		StallsFull: c.stalls[stallFull].Load(), StallsRoom: c.stalls[stallRoom].Load(),
		Recycled: c.recycled.Load(), Prepared: c.prepared.Load(), Removed: c.removed.Load(),
		ZeroedBytes: c.zeroed.Load(),
		Torn:        c.torn.Load(), TornBytes: c.tornBytes.Load(),
		LiveBytes: c.liveBytes.Load(), Oldest: c.oldest.Load(), Current: c.current.Load(),
		Full: c.full.Load(), Failed: c.failed.Load(), Forgotten: c.forgotten.Load(),
	}
	for i := range s.Flush {
		s.Flush[i] = c.flush[i].Load()
	}
	return s
}
