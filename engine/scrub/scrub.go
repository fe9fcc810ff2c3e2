package scrub

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"penstock/clog"
	"penstock/engine/dir"
	"penstock/engine/host"
	"penstock/segment"
	"penstock/segment/aio"
)

const (
	// maxRate bounds what a scrub reads, in bytes per second, because commits wait for the same disk.
	maxRate = 16 << 20
	// firstAfter is the time from the start to the first round, if that is less than the interval. So a node that is
	// restarted each week is scrubbed, too.
	firstAfter = 10 * time.Minute
	// errorPause is how long a scrub waits after it could not read a piece for another reason than damage.
	errorPause = time.Second
	// maxDamageLines bounds the number of log lines about damage in one process. The counters go on.
	maxDamageLines = 1000
)

// Node is what a Scrub needs of its node. The engine fills it in when it opens. The functions are called without a
// lock.
type Node struct {
	Host     host.Host
	Log      *slog.Logger
	Disk     aio.Disk
	Stop     <-chan struct{} // closed when the engine closes
	Interval time.Duration   // Options.ScrubInterval; 0: only RetryReads may be called

	// Copies returns the node's copies of partitions, except those that are only kept.
	Copies func() []Copy

	CommitLog *clog.Log
	// Failed says whether the commit log failed: then nothing can replace its files.
	Failed func() bool
	// MarkRotten is told of a damaged file of the commit log. The flusher makes the log do without it.
	MarkRotten func(file uint64)

	// WithNodeFile calls check with what node.json is to say, with the lock held under which it is written.
	WithNodeFile func(check func(*dir.Node))
	Topics       func() []TopicFile
	Shortened    *dir.Shortened // nil on a single node
}

// Copy is this node's copy of a partition. Its log is open. The engine implements it.
type Copy interface {
	Topic() string // the topic's name
	Number() uint32
	Log() *segment.Log
	// Solo says that there is no other replica, from which damage could be repaired.
	Solo() bool
	// ResumeReaders lets channels go on that stopped where the log could not be read.
	ResumeReaders()
	// WaitsForDevice says that the copy takes no part until the device reads its log.
	WaitsForDevice() bool
	// DeviceReads is called when the device may have read what it could not read before.
	DeviceReads()
}

// TopicFile calls check with what a topic.json is to say, with the lock held under which it is written, unless the
// topic was deleted.
type TopicFile func(check func(*dir.Topic))

// Scrub reads what a node has, from the device. See the package's comment. Any goroutine may call Stats.
type Scrub struct {
	n Node

	rounds     atomic.Uint64
	bytes      atomic.Uint64
	damaged    atomic.Uint64
	mended     atomic.Uint64
	rotten     atomic.Uint64
	readAgain  atomic.Uint64
	partitions atomic.Int64
	running    atomic.Bool
}

// Stats are counts since New, and the present state.
type Stats struct {
	Rounds     uint64 // of ReadSegments, completed
	Bytes      uint64 // read and verified
	Damaged    uint64 // ranges that could not be read
	Mended     uint64 // batches, header blocks, indexes and small files that were rewritten from memory
	LogDamaged uint64 // damaged commit log files
	ReadAgain  uint64 // ranges that the device could not read, and later could
	Partitions int64  // read in the present round of ReadSegments
	Running    bool   // a round of ReadSegments is running
}

// New returns the Scrub of a node whose recovery is done. It reads nothing yet.
func New(n Node) *Scrub { return &Scrub{n: n} }

// Stats returns what the scrub has done.
func (s *Scrub) Stats() Stats {
	return Stats{
		Rounds: s.rounds.Load(), Bytes: s.bytes.Load(), Damaged: s.damaged.Load(), Mended: s.mended.Load(),
		LogDamaged: s.rotten.Load(), ReadAgain: s.readAgain.Load(), Partitions: s.partitions.Load(),
		Running: s.running.Load(),
	}
}

// pause waits for d. It returns false if the engine closes.
func (s *Scrub) pause(d time.Duration) bool { return s.n.Host.Pause(d, s.n.Stop) }

// pauseFor waits as long as n bytes may take. It returns false if the engine closes.
func (s *Scrub) pauseFor(n int64) bool { return s.pause(spanOf(n)) }

// spanOf is how long n bytes may take.
func spanOf(n int64) time.Duration { return time.Duration(n) * time.Second / maxRate }

// ReadSegments reads all segments of this node from the device once in Node.Interval, until the engine closes. So
// damage in data that nobody reads is found while another replica still has the data. What is still in memory is
// written again. Other damage is repaired from another replica in a cluster; on a single node Health names it.
func (s *Scrub) ReadSegments() {
	for wait := min(firstAfter, s.n.Interval); s.pause(wait); {
		began := s.n.Host.Instant()
		s.readRound()
		wait = max(errorPause, s.n.Interval-s.n.Host.Since(began))
	}
}

// readRound reads every partition's segments once.
func (s *Scrub) readRound() {
	s.running.Store(true)
	defer s.running.Store(false)
	s.partitions.Store(0)
	c := segment.NewChecker()
	defer c.Close()
	for _, cp := range s.n.Copies() {
		if !s.readCopy(cp, c) {
			return
		}
		s.partitions.Add(1)
	}
	s.rounds.Add(1)
}

// readCopy reads the segments of one partition. It returns false when the engine closes.
func (s *Scrub) readCopy(cp Copy, c *segment.Checker) bool {
	if !s.readHeaders(cp, c) {
		return false
	}
	log := cp.Log()
	at, _, _ := log.Start()
	var unplaced finding
	for {
		at = behindDamage(log, at) // what is known already
		run, err := log.Check(c, at, segment.CheckBytes, 0)
		wait := spanOf(run.Bytes)
		var bad *segment.CorruptError
		switch {
		case err == nil && run.InMemory:
			return true // everything behind it is in memory, too
		case err == nil && run.Mended:
			s.logMended("a stored message did not read back from its segment; nothing is lost: memory still had it, and it "+
				"was written again", "topic", cp.Topic(), "partition", cp.Number(), "from", at, "to", run.Next)
			fallthrough
		case err == nil:
			if was := unplaced.repaired(at); was != nil {
				s.logDamage(cp, at, run.Next, was)
			}
			s.bytes.Add(uint64(run.Bytes))
			at = run.Next
		case errors.As(err, &bad):
			next := behindDamage(log, at)
			switch {
			case next > at:
				s.logDamage(cp, at, next, err)
				at = next
			case !unplaced.again(at, bad):
				return true // the whole file cannot be read, which Open has reported; or the log was cut
			}
		case errors.Is(err, segment.ErrBelowStart):
			start, _, _ := log.Start() // retention has removed it
			if start <= at {
				return true
			}
			at = start
		default: // the end of the log, or an error that may be gone in the next round
			wait = 0
			if !errors.Is(err, segment.ErrAtEnd) && !errors.Is(err, segment.ErrClosed) {
				s.n.Log.Warn("the scrub could not read a partition to its end; the next round tries again",
					"topic", cp.Topic(), "partition", cp.Number(), "error", err)
				wait = errorPause
			}
			return s.pause(wait)
		}
		if !s.pause(wait) {
			return false
		}
	}
}

// readHeaders reads the header blocks and indexes of a partition's segments. It returns false when the engine closes.
func (s *Scrub) readHeaders(cp Copy, c *segment.Checker) bool {
	goesOn := true
	faults := cp.Log().CheckFiles(c, func(bytes int64) bool {
		s.bytes.Add(uint64(bytes))
		goesOn = s.pauseFor(bytes)
		return goesOn
	})
	for _, f := range faults {
		if f.Mended {
			s.logMended("the header or the index of a segment was damaged; nothing is lost: it was written anew",
				"file", f.Path, "error", f.Err)
		} else if s.damaged.Add(1) <= maxDamageLines {
			s.n.Log.Error("the header or the index of a segment is damaged and could not be written anew: look at the device",
				"file", f.Path, "error", f.Err)
		}
	}
	return goesOn
}

// finding is damage that the scrub met and that is in no isolated range of the log. Either a repair from another
// replica has removed the range already, or the whole file cannot be read. A second read of the same place tells which.
type finding struct {
	at  segment.Offset
	err *segment.CorruptError // nil: none
}

// again notes the damage err at offset at, and says whether to read that place once more. It returns false the second
// time.
func (f *finding) again(at segment.Offset, err *segment.CorruptError) bool {
	if f.err != nil && f.at == at {
		return false
	}
	f.at, f.err = at, err
	return true
}

// repaired returns the damage that again noted at this offset, where the log can be read now, and forgets it. nil:
// there was none.
func (f *finding) repaired(at segment.Offset) error {
	was := f.err
	f.err = nil
	if was == nil || f.at != at {
		return nil
	}
	return was
}

// behindDamage is the end of the isolated range that contains at, or at itself.
func behindDamage(log *segment.Log, at segment.Offset) segment.Offset {
	for _, r := range log.Isolated() {
		if r.From <= at && at < r.To {
			return r.To
		}
	}
	return at
}

// logDamage counts and logs damage. It is called once per range: the range is isolated from then on, and the scrub
// skips it.
func (s *Scrub) logDamage(cp Copy, from, to segment.Offset, err error) {
	what := "it is not served; look at the device"
	if !cp.Solo() {
		what = "it is repaired from a replica that reads back"
	}
	if s.damaged.Add(1) <= maxDamageLines {
		s.n.Log.Error("the scrub found stored messages that do not read back: "+what,
			"topic", cp.Topic(), "partition", cp.Number(), "from", from, "to", to, "error", err)
	}
}

// logMended counts and logs that something damaged was rewritten.
func (s *Scrub) logMended(what string, args ...any) {
	if s.mended.Add(1) <= maxDamageLines {
		s.n.Log.Warn(what, args...)
	}
}
