package engine

import (
	"errors"
	"syscall"
	"time"

	"penstock/segment"
)

// refusedLogEvery is the least interval between two warnings of logRefused, for all partitions together.
const refusedLogEvery = 10 * time.Second

// failed handles the error of a flush or sync of pt's segments. The flusher calls it without a lock. reopens is the
// value of pt.reopens before that flush.
//
// An error before anything was written (no space, too many open files) loses nothing, and a later flush tries again.
// After a failed write or sync, or if a file is damaged, the segments take nothing more until the log is cut or
// replaced. On a single node the inbox is closed until reopenInbox opens it; in a cluster this copy is given up
// (replica_unwritten.go).
func (f *flusher) failed(pt *partition, reopens uint64, err error) {
	e := f.e
	poisoned := errors.Is(err, segment.ErrPoisoned)
	switch {
	case pt.rep.discarded.Load(): // the copy was given up: it cannot be written, and need not be
	case errors.Is(err, segment.ErrClosed):
	// The head of a segment could not be read: RetryReads tries again.
	case !poisoned && !pt.rep.solo() && needsRefetch(err) && segment.DeviceFailed(err):
	case !poisoned && isFull(err):
		f.starved = true
		f.full(err)
	case !poisoned && !needsRefetch(err):
		f.logRefused(pt, err)
	default:
		if pt.flushErr.Swap(&err) != nil {
			return
		}
		if !pt.rep.solo() && poisoned {
			e.log.Error("a segment could not be written: the leadership goes to another replica in sync, and the copy is "+
				"fetched anew when the in-sync replicas can do without it. What was answered OK "+
				"is safe in the commit log, which keeps it and gets full if that lasts; restart the node then",
				"topic", pt.t.name, "partition", pt.number, "error", err)
		} else {
			e.log.Error("a segment could not be written: the partition takes no more messages. What was answered OK is safe "+
				"in the commit log, which keeps it and gets full if that lasts; "+
				"restart the node, and delete the topic if that does not help",
				"topic", pt.t.name, "partition", pt.number, "error", err)
			pt.CloseAndRefuse(ErrDisk, true) // the topic can still be deleted
		}
		if pt.reopens.Load() != reopens {
			pt.reopenInbox() // the error concerns the log before it was cut or replaced
		}
	}
}

// logRefused warns that a segment could not be written yet.
func (f *flusher) logRefused(pt *partition, err error) {
	if f.e.host.Since(f.refused) < refusedLogEvery {
		return
	}
	f.refused = f.e.host.Instant()
	f.e.log.Warn("a segment could not be written yet; it is tried again. Nothing is lost: the commit log keeps it. If "+
		"this lasts, the commit log gets full and publishing waits: "+
		"look at the limit of open files, and at the disk",
		"topic", pt.t.name, "partition", pt.number, "error", err)
}

// full stops publishing, and wakes the commit log to refuse the waiting puts.
func (f *flusher) full(why error) {
	if f.e.noSpace.CompareAndSwap(false, true) {
		f.e.log.Error("the disk is full: publishing is refused, consuming goes on. Free space and publishing resumes by "+
			"itself", "error", why)
		f.e.clog.Wake()
	}
}

// roomAgain resumes publishing.
func (f *flusher) roomAgain() {
	if f.e.noSpace.CompareAndSwap(true, false) {
		f.e.log.Info("the disk has room again: publishing resumes")
		f.e.clog.Wake()
	}
}

// isFull says whether a write failed because the disk is full, or its owner's quota is used up.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
