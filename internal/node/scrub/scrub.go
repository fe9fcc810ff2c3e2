package scrub

import (
	"errors"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"penstock/clog"
	"penstock/internal/node/datadir"
	"penstock/internal/node/platform"
	"penstock/segment"
	"penstock/segment/aio"
)

const (
	// maxRate bounds how many bytes per second a scrub reads, because commits wait for the same disk.
	maxRate = 16 << 20
	// firstAfter is the time from the start to the first round, unless the interval is shorter. It is short so that a
	// node that is restarted every week is scrubbed too.
	firstAfter = 10 * time.Minute
	// lookEvery is how often a pause between two rounds looks whether the interval has changed.
	lookEvery = time.Minute
	// errorPause is how long a scrub waits after it failed to read a piece for a reason other than damage.
	errorPause = time.Second
	// maxDamageLines bounds the number of log lines about damage in one process. The counters have no bound.
	maxDamageLines = 1000
)

// Env is what a Scrub needs of its node. The engine fills it in when it opens. The functions are called without a
// lock.
type Env struct {
	Host     platform.Host
	Log      *slog.Logger
	Disk     aio.Disk
	Stop     <-chan struct{} // closed when the engine closes
	Interval time.Duration   // Options.ScrubInterval; see Scrub.Every

	// Copies returns the node's open copies of partitions, except those of quarantined topics.
	Copies func() []Copy

	CommitLog *clog.Log
	// Failed says whether the commit log has failed: then nothing can replace its files.
	Failed func() bool
	// MarkRotten reports a damaged file of the commit log. The flusher then makes the log do without that file.
	MarkRotten func(file uint64)

	// WithNodeFile calls check with the intended content of node.json, holding the lock under which the file is
	// written.
	WithNodeFile func(check func(*datadir.Node))
	Topics       func() []TopicFile
	Shortened    *datadir.Shortened // nil on a single node
}

// Copy is this node's copy of a partition, whose log is open. The engine implements it.
type Copy interface {
	Topic() string // the topic's name
	Number() uint32
	Log() *segment.Log
	// Solo says that there is no other replica from which damage could be repaired.
	Solo() bool
	// ResumeReaders lets channels go on that had stopped at a place where the log could not be read.
	ResumeReaders()
	// WaitsForDevice says that the copy is inactive until the device can read its log.
	WaitsForDevice() bool
	// DeviceReads is called when the device may be able to read what it could not read before.
	DeviceReads()
}

// TopicFile calls check with the intended content of a topic.json, holding the lock under which the file is written,
// unless the topic was deleted.
type TopicFile func(check func(*datadir.Topic))

// Scrub reads the data of a node from the device; see the package comment. Any goroutine may call Stats.
type Scrub struct {
	n     Env
	every atomic.Int64 // ns; see Every

	rounds     atomic.Uint64
	bytes      atomic.Uint64
	damaged    atomic.Uint64
	mended     atomic.Uint64
	rotten     atomic.Uint64
	readAgain  atomic.Uint64
	partitions atomic.Int64
	running    atomic.Bool
}

// Stats are counts since New, and the current state.
type Stats struct {
	Rounds     uint64 // completed rounds of ReadSegments
	Bytes      uint64 // read and verified
	Damaged    uint64 // ranges that could not be read
	Mended     uint64 // batches, header blocks, indexes and small files that were rewritten from memory
	LogDamaged uint64 // damaged commit log files
	ReadAgain  uint64 // ranges that the device could not read at first but read later
	Partitions int64  // partitions read in the current round of ReadSegments
	Running    bool   // a round of ReadSegments is running
}

// New returns the Scrub of a node whose recovery has ended. It reads nothing yet.
func New(n Env) *Scrub {
	s := &Scrub{n: n}
	s.Every(n.Interval)
	return s
}

// Every changes Env.Interval, within lookEvery; with 0, ReadSegments and ReadFiles read nothing. Any goroutine may call
// it.
func (s *Scrub) Every(interval time.Duration) { s.every.Store(int64(interval)) }

// await waits until the interval, as it is then, or most has passed since began, and for least at any rate. It returns
// false if the engine closes meanwhile.
func (s *Scrub) await(began time.Time, least, most time.Duration) bool {
	for first := true; ; first = false {
		every := time.Duration(s.every.Load())
		left := min(every, most) - s.n.Host.Since(began)
		switch {
		case every == 0:
			left = lookEvery
		case first:
			left = max(left, least)
		case left <= 0:
			return true
		}
		if !s.pause(min(left, lookEvery)) {
			return false
		}
	}
}

// Stats returns what the scrub has done.
func (s *Scrub) Stats() Stats {
	return Stats{
		Rounds: s.rounds.Load(), Bytes: s.bytes.Load(), Damaged: s.damaged.Load(), Mended: s.mended.Load(),
		LogDamaged: s.rotten.Load(), ReadAgain: s.readAgain.Load(), Partitions: s.partitions.Load(),
		Running: s.running.Load(),
	}
}

func (s *Scrub) pause(d time.Duration) bool { return s.n.Host.Pause(d, s.n.Stop) }

// pauseFor waits as long as reading n bytes may take. It returns false if the engine closes meanwhile.
func (s *Scrub) pauseFor(n int64) bool { return s.pause(spanOf(n)) }

// spanOf returns how long reading n bytes may take at maxRate.
func spanOf(n int64) time.Duration { return time.Duration(n) * time.Second / maxRate }

// ReadSegments reads all segments of this node from the device once per interval, until the engine closes. So
// damage in data that nobody reads is found while another replica still has the data. Batches that are still in memory
// are written again. In a cluster, other damage is repaired from another replica; on a single node, Health reports it.
func (s *Scrub) ReadSegments() {
	began := s.n.Host.Instant()
	for more := s.await(began, 0, firstAfter); more; more = s.await(began, errorPause, math.MaxInt64) {
		began = s.n.Host.Instant()
		s.readRound()
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
			return true // everything behind it is in memory too
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
				return true // the whole file is unreadable, which Open has reported, or the log was cut
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

// finding is damage that the scrub met outside the isolated ranges of the log. Either a repair from another replica has
// already removed the range, or the whole file cannot be read. A second read of the same place tells which.
type finding struct {
	at  segment.Offset
	err *segment.CorruptError // nil: none
}

// again notes the damage err at offset at, and says whether that place should be read once more. For damage noted at
// the same offset before, it returns false.
func (f *finding) again(at segment.Offset, err *segment.CorruptError) bool {
	if f.err != nil && f.at == at {
		return false
	}
	f.at, f.err = at, err
	return true
}

// repaired returns the damage that again noted at this offset, and forgets it. It returns nil if none was noted there.
// It is called when the log can be read at this offset.
func (f *finding) repaired(at segment.Offset) error {
	was := f.err
	f.err = nil
	if was == nil || f.at != at {
		return nil
	}
	return was
}

// behindDamage returns the end of the isolated range that contains at, or at itself if none does.
func behindDamage(log *segment.Log, at segment.Offset) segment.Offset {
	for _, r := range log.Isolated() {
		if r.From <= at && at < r.To {
			return r.To
		}
	}
	return at
}

// logDamage counts and logs damage. It is called once per range, because the range is isolated from then on and the
// scrub skips it.
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

// logMended counts and logs that damaged data was rewritten.
func (s *Scrub) logMended(what string, args ...any) {
	if s.mended.Add(1) <= maxDamageLines {
		s.n.Log.Warn(what, args...)
	}
}
