package engine

import (
	"errors"
	"sync/atomic"
	"time"

	"penstock/segment"
)

const (
	// maxScrubRate bounds what a scrub reads, in bytes per second, because commits wait for the same disk.
	maxScrubRate = 16 << 20
	// scrubFirstAfter is the time from the start to the first round, if that is less than the interval. So a node that is
	// restarted each week is scrubbed, too.
	scrubFirstAfter = 10 * time.Minute
	// scrubPause is how long a scrub waits after it could not read a piece for another reason than damage.
	scrubPause = time.Second
)

// scrubState counts what the scrub has done. The goroutines of scrub, scrubLog and retryReads write it; any goroutine
// may read it.
type scrubState struct {
	rounds     atomic.Uint64 // completed
	bytes      atomic.Uint64 // read and verified since Open
	damaged    atomic.Uint64 // ranges that could not be read
	mended     atomic.Uint64 // batches, header blocks, indexes and small files that were rewritten from memory
	rotten     atomic.Uint64 // damaged commit log files
	readAgain  atomic.Uint64 // ranges that the device could not read, and later could
	partitions atomic.Int64  // read in the present round
	running    atomic.Bool   // a round is running
}

func (s *scrubState) describe(out *StorageStats) {
	out.ScrubRounds, out.ScrubBytes, out.ScrubDamaged = s.rounds.Load(), s.bytes.Load(), s.damaged.Load()
	out.ScrubMended, out.ScrubLogDamaged = s.mended.Load(), s.rotten.Load()
	out.ReadsRecovered = s.readAgain.Load()
	out.ScrubPartitions, out.ScrubRunning = s.partitions.Load(), s.running.Load()
}

// scrub reads all segments of this node from the device once in Options.ScrubInterval. So damage in data that nobody
// reads is found while another replica still has the data. What is still in memory is written again. Other damage is
// repaired from another replica in a cluster (replica.isolated); on a single node Health names it. scrubLog does the
// same for the commit log. It runs on a goroutine of its own until the engine closes.
func (e *Engine) scrub() {
	for wait := min(scrubFirstAfter, e.opts.ScrubInterval); e.host.Pause(wait, e.stop); {
		began := e.host.Instant()
		e.scrubRound()
		wait = max(scrubPause, e.opts.ScrubInterval-e.host.Since(began))
	}
}

// scrubRound reads every partition's segments once.
func (e *Engine) scrubRound() {
	s := &e.scrubbed
	s.running.Store(true)
	defer s.running.Store(false)
	s.partitions.Store(0)
	c := segment.NewChecker()
	defer c.Close()
	for _, pt := range e.partitionList() {
		if pt.log == nil || pt.t.quarantined {
			continue
		}
		if !e.scrubPartition(pt, c) {
			return
		}
		s.partitions.Add(1)
	}
	s.rounds.Add(1)
}

// scrubPartition reads the segments of one partition. It returns false when the engine closes.
func (e *Engine) scrubPartition(pt *partition, c *segment.Checker) bool {
	if !e.scrubFiles(pt, c) {
		return false
	}
	at, _, _ := pt.Log().Start()
	var unplaced scrubFinding
	for {
		at = behindDamage(pt.Log(), at) // what is known already
		run, err := pt.Log().Check(c, at, segment.CheckBytes, 0)
		wait := time.Duration(run.Bytes) * time.Second / maxScrubRate
		var bad *segment.CorruptError
		switch {
		case err == nil && run.InMemory:
			return true // everything behind it is in memory, too
		case err == nil && run.Mended:
			e.logMended("a stored message did not read back from its segment; nothing is lost: memory still had it, and it "+
				"was written again", "topic", pt.t.name, "partition", pt.Number(), "from", at, "to", run.Next)
			fallthrough
		case err == nil:
			if was := unplaced.repaired(at); was != nil {
				e.logDamage(pt, at, run.Next, was)
			}
			e.scrubbed.bytes.Add(uint64(run.Bytes))
			at = run.Next
		case errors.As(err, &bad):
			next := behindDamage(pt.Log(), at)
			switch {
			case next > at:
				e.logDamage(pt, at, next, err)
				at = next
			case !unplaced.again(at, bad):
				return true // the whole file cannot be read, which Open has reported; or the log was cut
			}
		case errors.Is(err, segment.ErrBelowStart):
			start, _, _ := pt.Log().Start() // retention has removed it
			if start <= at {
				return true
			}
			at = start
		default: // the end of the log, or an error that may be gone in the next round
			wait = 0
			if !errors.Is(err, segment.ErrAtEnd) && !errors.Is(err, segment.ErrClosed) {
				e.log.Warn("the scrub could not read a partition to its end; the next round tries again",
					"topic", pt.t.name, "partition", pt.Number(), "error", err)
				wait = scrubPause
			}
			return e.host.Pause(wait, e.stop)
		}
		if !e.host.Pause(wait, e.stop) {
			return false
		}
	}
}

// scrubFinding is damage that the scrub met and that is in no isolated range of the log. Either a repair from another
// replica has removed the range already, or the whole file cannot be read. A second read of the same place tells which.
type scrubFinding struct {
	at  segment.Offset
	err *segment.CorruptError // nil: none
}

// again notes the damage err at offset at, and says whether to read that place once more. It returns false the second
// time.
func (f *scrubFinding) again(at segment.Offset, err *segment.CorruptError) bool {
	if f.err != nil && f.at == at {
		return false
	}
	f.at, f.err = at, err
	return true
}

// repaired returns the damage that again noted at this offset, where the log can be read now, and forgets it. nil:
// there was none.
func (f *scrubFinding) repaired(at segment.Offset) error {
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
func (e *Engine) logDamage(pt *partition, from, to segment.Offset, err error) {
	what := "it is not served; look at the device"
	if !pt.rep.solo() {
		what = "it is repaired from a replica that reads back"
	}
	if e.scrubbed.damaged.Add(1) <= maxDamageLines {
		e.log.Error("the scrub found stored messages that do not read back: "+what,
			"topic", pt.t.name, "partition", pt.Number(), "from", from, "to", to, "error", err)
	}
}

// maxDamageLines bounds the number of log lines about damage in one process. The counters go on.
const maxDamageLines = 1000
