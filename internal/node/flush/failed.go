package flush

import (
	"errors"
	"io/fs"
	"time"

	"penstock/internal/node/errs"
	"penstock/segment"
	"penstock/segment/aio"
)

// refusedLogEvery is the least interval between two warnings of logRefused, for all partitions together.
const refusedLogEvery = 10 * time.Second

// failed handles the error of a flush or sync of p's segments. The flusher calls it without a lock. reopens is the
// value of p.reopens before that flush or sync.
//
// A file or folder that is missing was taken away: the flusher ends the commit log, as the watch of the ground would.
// An error before anything was written (no space, too many open files) loses nothing, and a later flush tries again.
// After a failed write or sync, or if a file is damaged, the segments take nothing more until the log is cut, replaced
// or repaired. On a single node the inbox is closed until ReopenInbox opens it. In a cluster a damaged range is
// repaired from another replica; in all other cases the replica gives this copy up (partition/replica_unwritten.go).
func (f *Flusher) failed(p *Part, reopens uint64, err error) {
	poisoned, damaged := errors.Is(err, segment.ErrPoisoned), errors.As(err, new(*segment.CorruptError))
	switch {
	case p.owner.GivenUp():
	case errors.Is(err, segment.ErrClosed):
	case errors.Is(err, fs.ErrNotExist):
		f.clog.Lose(aio.MissingGround("writing a segment", err))
	// The head of a segment could not be read: RetryReads tries again.
	case !poisoned && !p.owner.Solo() && damaged && segment.DeviceFailed(err):
	case !poisoned && aio.NoRoom(err):
		f.starved = true
		f.full(err)
	case !poisoned && !damaged:
		f.logRefused(p, err)
	default:
		if p.flushErr.Swap(&err) != nil {
			return
		}
		if !p.owner.Solo() && p.Unwritten() {
			f.n.Log.Error("a segment could not be written: the leadership goes to another replica in sync, and the copy is "+
				"fetched anew when the in-sync replicas can do without it. What was answered OK "+
				"is safe in the commit log, which keeps it and gets full if that lasts; restart the node then",
				"topic", p.topic, "partition", p.number, "error", err)
		} else {
			f.n.Log.Error("a segment could not be written: the partition takes no more messages. What was answered OK is safe "+
				"in the commit log, which keeps it and gets full if that lasts; "+
				"restart the node, and delete the topic if that does not help",
				"topic", p.topic, "partition", p.number, "error", err)
			p.owner.CloseAndRefuse(errs.ErrDisk, true) // the topic can still be deleted
		}
		if p.reopens.Load() != reopens {
			p.ReopenInbox() // the error concerns the log before it was cut or replaced
		}
	}
}

// logRefused warns that a segment could not be written yet. It logs at most once per refusedLogEvery.
func (f *Flusher) logRefused(p *Part, err error) {
	if f.n.Host.Since(f.refused) < refusedLogEvery {
		return
	}
	f.refused = f.n.Host.Instant()
	f.n.Log.Warn("a segment could not be written yet; it is tried again. Nothing is lost: the commit log keeps it. If "+
		"this lasts, the commit log gets full and publishing waits: "+
		"look at the limit of open files, and at the disk",
		"topic", p.topic, "partition", p.number, "error", err)
}
