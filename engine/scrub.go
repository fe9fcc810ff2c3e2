package engine

import (
	"errors"
	"sync/atomic"
	"time"

	"penstock/segment"
)

const (
	// maxScrubRate bounds what a scrub reads, in bytes per second: commits of the same disk wait for it.
	maxScrubRate = 16 << 20
	// scrubFirstAfter is how long after its start a node begins its first round, if that is less than the interval: a
	// node that is restarted each week is scrubbed, too.
	scrubFirstAfter = 10 * time.Minute
	// scrubPause is how long a scrub waits when a piece could not be read for another reason than damage.
	scrubPause = time.Second
)

// scrubState is how far the scrub is. Any goroutine may read it.
type scrubState struct {
	rounds     atomic.Uint64 // completed
	bytes      atomic.Uint64 // read and verified since Open
	damaged    atomic.Uint64 // ranges that were found not to read back
	mended     atomic.Uint64 // batches, header blocks, indexes and small files that were written again from what this node knew
	rotten     atomic.Uint64 // files of the commit log that did not read back
	readAgain  atomic.Uint64 // ranges that the device could not read, and could later
	partitions atomic.Int64  // of the present round that were read
	running    atomic.Bool
}

func (s *scrubState) describe(out *StorageStats) {
	out.ScrubRounds, out.ScrubBytes, out.ScrubDamaged = s.rounds.Load(), s.bytes.Load(), s.damaged.Load()
	out.ScrubMended, out.ScrubLogDamaged = s.mended.Load(), s.rotten.Load()
	out.ReadsRecovered = s.readAgain.Load()
	out.ScrubPartitions, out.ScrubRunning = s.partitions.Load(), s.running.Load()
}

// scrub reads everything in this node's segments from the device once in Options.ScrubInterval, so that what rots
// unread is found while another replica still has it. What memory still has is written again. In a cluster what else
// it finds is repaired from a replica that reads back (replica.isolated); on a single node Health names it. The
// commit log has a round of its own: scrubLog.
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

// scrubPartition says false when the engine closes.
func (e *Engine) scrubPartition(pt *partition, c *segment.Checker) bool {
	if !e.scrubFiles(pt, c) {
		return false
	}
	at, _, _ := pt.log.Start()
	var unplaced scrubFinding
	for {
		at = behindDamage(pt.log, at) // what is known already
		run, err := pt.log.Check(c, at, segment.CheckBytes, 0)
		wait := time.Duration(run.Bytes) * time.Second / maxScrubRate
		var bad *segment.CorruptError
		switch {
		case err == nil && run.InMemory:
			return true // the rest, too
		case err == nil && run.Mended:
			e.logMended("a stored message did not read back from its segment; nothing is lost: memory still had it, and it "+
				"was written again", "topic", pt.t.name, "partition", pt.number, "from", at, "to", run.Next)
			fallthrough
		case err == nil:
			if was := unplaced.repaired(at); was != nil {
				e.logDamage(pt, at, run.Next, was)
			}
			e.scrubbed.bytes.Add(uint64(run.Bytes))
			at = run.Next
		case errors.As(err, &bad):
			next := behindDamage(pt.log, at)
			switch {
			case next > at:
				e.logDamage(pt, at, next, err)
				at = next
			case !unplaced.again(at, bad):
				return true // the file as a whole cannot be read, which the node said when it opened it; or the log was cut
			}
		case errors.Is(err, segment.ErrBelowStart):
			start, _, _ := pt.log.Start() // retention was faster
			if start <= at {
				return true
			}
			at = start
		default: // the end; or it cannot be read just now, and the next round looks again
			wait = 0
			if !errors.Is(err, segment.ErrAtEnd) && !errors.Is(err, segment.ErrClosed) {
				e.log.Warn("the scrub could not read a partition to its end; the next round tries again",
					"topic", pt.t.name, "partition", pt.number, "error", err)
				wait = scrubPause
			}
			return e.host.Pause(wait, e.stop)
		}
		if !e.host.Pause(wait, e.stop) {
			return false
		}
	}
}

// scrubFinding is damage that a scrub found and that no isolated range of the log has any more: a repair from a replica
// was faster than the scrub, or the file as a whole cannot be read. Reading the place once more tells which.
type scrubFinding struct {
	at  segment.Offset
	err *segment.CorruptError // nil: none
}

// again notes the damage err at at, and says whether to read there once more: not a second time at the same place.
func (f *scrubFinding) again(at segment.Offset, err *segment.CorruptError) bool {
	if f.err != nil && f.at == at {
		return false
	}
	f.at, f.err = at, err
	return true
}

// repaired returns the damage that was found at at, where the log reads back now, and forgets it. nil: there was none.
func (f *scrubFinding) repaired(at segment.Offset) error {
	was := f.err
	f.err = nil
	if was == nil || f.at != at {
		return nil
	}
	return was
}

// behindDamage is where the isolated range ends that at lies in, or at.
func behindDamage(log *segment.Log, at segment.Offset) segment.Offset {
	for _, r := range log.Isolated() {
		if r.From <= at && at < r.To {
			return r.To
		}
	}
	return at
}

// logDamage says once what was found: what a range has is isolated from then on, and is not found again.
func (e *Engine) logDamage(pt *partition, from, to segment.Offset, err error) {
	what := "it is not served; look at the device"
	if pt.rep != nil {
		what = "it is repaired from a replica that reads back"
	}
	if e.scrubbed.damaged.Add(1) <= maxDamageLines {
		e.log.Error("the scrub found stored messages that do not read back: "+what,
			"topic", pt.t.name, "partition", pt.number, "from", from, "to", to, "error", err)
	}
}

// maxDamageLines bounds the log lines about damage of one process; the counter goes on.
const maxDamageLines = 1000
