package node

import (
	"time"

	"penstock/clog"
)

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
		"count", count, "slow_commit", w.e.opts.SlowCommit, "slowest_since_start", stats.Slowest.Round(time.Millisecond))
}
