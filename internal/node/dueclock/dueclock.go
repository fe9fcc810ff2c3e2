package dueclock

import (
	"log/slog"
	"sync/atomic"
	"time"

	"penstock/internal/loglimit"
	"penstock/internal/node/clock"
	"penstock/internal/node/fold"
	"penstock/replicate"
	"penstock/segment"
)

// Delays are stored as due times by the clock of the leader. If that clock was wrong, the due times are wrong for the
// next leader, and for the same node after a restart with the right time: messages delayed by minutes could wait for
// hours. A batch records the time of its writer's clock. If that time is in the future, the writer's clock is ahead of
// this node's clock by at least the difference; the time that the batch travelled comes on top. A new leader subtracts
// the difference from the due times that this writer stored in its epoch, and from no others, before its first batch
// carries the fold to all replicas. A single node does so when it recovers.
//
// Only a clock that is ahead can be detected by batches: one from the past may just be old. Messages delayed by a clock
// that was behind are delivered early, and are not lost. The nodes of a cluster also compare their clocks, so that a
// wrong one leads for some seconds at most: see internal/node/cluster_clocks.go.

// minClockAhead is how far a writer's clock must be ahead before due times are corrected. Clocks of nodes always differ
// by some ms, and NTP tolerates 128 ms.
const minClockAhead = time.Second

// dueLogEvery is the least time between two log lines about corrected delays.
const dueLogEvery = time.Minute

// Corrector knows the clock of this node.
type Corrector struct {
	Log   *slog.Logger
	Clock *clock.Clock

	longest atomic.Int64 // ns; see Allow

	FromTheFuture *atomic.Uint64 // counts batches of a writer whose clock was ahead
	Corrected     *atomic.Uint64 // counts delayed messages whose due time was corrected

	dueLog   loglimit.Limiter // limits the log lines of Correct
	aheadLog loglimit.Limiter // limits the log line of Saw
}

// Allow says that a requeue may have a delay of d now. A shorter one than before changes nothing: what was stored with
// the longer one is right, too. One goroutine at a time may call it.
func (c *Corrector) Allow(d time.Duration) { c.longest.Store(max(c.longest.Load(), int64(d))) }

// Saw notes the times of a batch that the leader sent, and tells when the leader's clock is ahead of this one: which of
// the two is wrong has to be looked at. What such a leader stores may be found in the wrong place by time, its delays
// are corrected by the next leader only as far as that one knows of it, and a second clock that is ahead makes
// retention by age remove what is not old. topic and partition are named in the log line.
func (c *Corrector) Saw(w *fold.WriterClock, h *segment.Header, nowNs int64, topic string, partition uint32) {
	w.Saw(h, nowNs)
	ahead := time.Duration(w.AheadNs)
	if ahead < minClockAhead {
		return
	}
	c.FromTheFuture.Add(1)
	if others, may := c.aheadLog.Allow(int64(c.Clock.Mono()), dueLogEvery); may {
		c.Log.Warn("the leader of a partition stores messages with a clock that is ahead of this one: compare the clocks, "+
			"and restart the node whose clock was wrong at its start. Until then delays may last too long, and retention by "+
			"age may remove too early if the clock of another node is ahead, too",
			"topic", topic, "partition", partition, "epoch", h.Epoch, "ahead", ahead.Round(time.Millisecond),
			"others", others)
	}
}

// Correct subtracts from the due times of the last epoch the time by which its writer's clock was ahead. epochs and end
// are those of the log, and topic and partition are named in the log lines. It is called when this process is about to
// become the partition's writer, before its first batch: by recovery on a single node, otherwise by the committer with
// Replica.mu held. A crash before that batch is on stable storage leaves the stored fold as it was.
func (c *Corrector) Correct(
	w *fold.WriterClock, now *fold.Cursors, epochs []replicate.EpochStart, end segment.Offset, topic string,
	partition uint32,
) {
	defer now.BeginEpoch()
	ahead := time.Duration(w.AheadNs)
	w.AheadNs = 0 // it is this process from here on
	if ahead < minClockAhead {
		return
	}
	if now.MaxBytes(end) > segment.MaxBatchBytes/2 {
		// A fold that is too large for a batch would not reach the other replicas.
		if others, may := c.dueLog.Allow(int64(c.Clock.Mono()), dueLogEvery); may {
			c.Log.Warn("a node whose clock was ahead of this one's stored messages of a partition that has too many delayed "+
				"messages to correct them: those that it stored come too late by the time that it was ahead",
				"topic", topic, "partition", partition, "ahead", ahead.Round(time.Millisecond), "others", others)
		}
		return
	}
	began := segment.Offset(0) // unknown: everything is of this epoch
	if n := len(epochs); n > 0 {
		began = epochs[n-1].Offset
	}
	latest := c.Clock.NowNs() + c.longest.Load()
	count := now.ShiftDue(-ahead.Milliseconds(), began, latest/int64(time.Millisecond))
	if count == 0 {
		return
	}
	c.Corrected.Add(uint64(count))
	if others, may := c.dueLog.Allow(int64(c.Clock.Mono()), dueLogEvery); may {
		c.Log.Warn("delayed messages of a partition were stored by a node whose clock was ahead of this one's: they come "+
			"when their delay is over, not when that clock would have said so",
			"topic", topic, "partition", partition, "ahead", ahead.Round(time.Millisecond), "messages", count,
			"others", others)
	}
}
