package node

import (
	"fmt"
	"time"

	"penstock/clog"
	"penstock/internal/node/diskwatch"
)

const (
	watchInterval = diskwatch.Interval
	stallAfter    = 2 * time.Second
)

// watch looks after the node from a goroutine of its own (run), the only one that uses it. A crash loses nothing that
// counts.
type watch struct {
	e         *Engine
	scheduled scheduling
	slow      slowCommits
	clockTold time.Time // when a step of the wall clock was logged last

	groups uint64    // that had been stored when something was stored last, or nothing waited,
	moved  time.Time // at this time
	told   bool      // since then it was logged that nothing is stored
	blamed bool      // and that the program is the cause
}

// run looks every watchInterval. It refuses puts that have waited too long, because a stalled committer does not look
// at the inboxes. If puts wait and nothing has been stored for stallAfter, it logs once what the commit log may be
// waiting for. It also compares the engine's clock with the wall clock.
func (w *watch) run() {
	e := w.e
	w.moved = e.Now()
	for slept := e.host.Instant(); e.host.Pause(watchInterval, e.stop); slept = e.host.Instant() {
		w.lookAtScheduling(slept)
		w.lookAtClock()
		now := e.Now()
		if e.host.InlineLog() {
			e.disks.Step()
		}
		waiting := false
		for _, pt := range e.store.Partitions() {
			waiting = pt.ExpirePuts(now.UnixNano()) || waiting
		}
		stats := e.store.CommitLog().Stats()
		w.lookAtCommits(&stats)
		blocked := e.store.Telling() > stallAfter
		switch {
		case !waiting || stats.Groups != w.groups:
			if w.told {
				e.log.Warn("messages are stored again", "after", now.Sub(w.moved).Round(time.Millisecond))
			}
			w.groups, w.moved, w.told, w.blamed = stats.Groups, now, false, false
		case now.Sub(w.moved) > stallAfter && (!w.told || blocked && !w.blamed):
			w.told, w.blamed = true, blocked // again, when it shows that the program blocks it
			w.logStall(&stats)
		}
	}
}

// stallCause says why puts may wait although nothing is stored. That the program blocks the commit log is certain,
// whatever else is slow.
func (w *watch) stallCause() string {
	if w.e.store.Telling() > stallAfter {
		return "The program that embeds the engine blocks it: a Put.Done, or a function that PublishAsync calls, has not " +
			"returned, and nothing is stored until it does"
	}
	return w.scheduled.where(w.e.host.Instant(), w.e.members.look().StallCause())
}

// logStall logs what the commit log may be waiting for.
func (w *watch) logStall(s *clog.Stats) {
	e := w.e
	unsynced, of := s.Current, "nobody"
	for _, pt := range e.store.Partitions() {
		if seq, ok := pt.Log().OldestUnsyncedFileSeq(); ok && (seq < unsynced || of == "nobody") {
			unsynced, of = seq, fmt.Sprintf("%s/%d", pt.Topic().Name, pt.Number())
		}
	}
	m := e.store.Memory()
	e.log.Warn("nothing could be stored for a while: publishers wait, nothing is lost. "+w.stallCause(),
		"free_buffers", m.Free, "buffers", m.Buffers,
		"headroom_bytes", e.store.CommitLog().Headroom(), "full", s.Full,
		"oldest_file", s.Oldest, "current_file", s.Current, "oldest_unsynced_file", unsynced, "oldest_unsynced_of", of,
		"flusher_waits", e.store.Flusher().Backlog(), "stalls_buffer", s.StallsBuffer, "stalls_spare", s.StallsSpare,
		"stalls_full", s.StallsFull)
}

// slowCommitsEvery is the least time between two log lines about slow commits.
const slowCommitsEvery = 10 * time.Second

// slowCommits is what the last log line about slow commits said. Only watch uses it.
type slowCommits struct {
	logged uint64 // slow commits that were logged
	at     time.Time
}

// due says whether a line is due at now, and about how many commits. The caller writes it.
func (s *slowCommits) due(total uint64, now time.Time) (count uint64, due bool) {
	if total == s.logged || !s.at.IsZero() && now.Sub(s.at) < slowCommitsEvery {
		return 0, false
	}
	count, s.logged, s.at = total-s.logged, total, now
	return count, true
}

// lookAtCommits logs commits that took Options.SlowCommit or longer, at most one line in slowCommitsEvery.
func (w *watch) lookAtCommits(stats *clog.Stats) {
	now := w.e.host.Instant()
	count, due := w.slow.due(stats.Slow, now)
	if !due {
		return
	}
	w.e.log.Warn("writes of the commit log took long: publishers waited, nothing is lost. "+
		w.scheduled.where(now, "Look at the device"),
		"count", count, "slow_commit", w.e.current().SlowCommit, "slowest_since_start", stats.Slowest.Round(time.Millisecond))
}
