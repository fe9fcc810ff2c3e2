package segment

import (
	"errors"
	"fmt"
)

// Offset is a place in one partition's log in bytes: the sum of the sizes of all batches before it. It never goes back
// when old segments are removed.
type Offset int64

// Errors of reading, tested with errors.Is.
var (
	// ErrBelowStart says that retention removed the place.
	ErrBelowStart = errors.New("segment: below the start of the log: retention removed it")
	// ErrAtEnd says that the place is the end of the log: nothing is there yet.
	ErrAtEnd = errors.New("segment: at the end of the log")
	// ErrPastEnd says that the place lies beyond the end of the log.
	ErrPastEnd = errors.New("segment: past the end of the log")
	// ErrNotBoundary says that no batch begins at the place.
	ErrNotBoundary = errors.New("segment: no batch begins there")
	// ErrNotInMemory says that a batch is only in a segment, and that the caller did not want to wait for a device.
	ErrNotInMemory = errors.New("segment: the batch is not in memory")
	// ErrClosed says that the log was closed.
	ErrClosed = errors.New("segment: log closed")
	// ErrPoisoned says that an earlier write or sync of a segment file failed. What the files hold above Synced is
	// unknown, so they are not written until the log is opened anew or is Reset. Nothing is lost, because the commit
	// log has it.
	ErrPoisoned = errors.New("segment: a segment file could not be written; the partition must be reopened")
)

// CorruptError says that stored bytes are not what was written. The range is isolated: nothing of it is ever delivered,
// and what lies before it stays readable.
type CorruptError struct {
	Path   string // file, relative to the data directory
	Offset int64  // in the file, bytes
	Detail string // what did not match
	Err    error  // the cause, such as ErrInvalid or aio.ErrMedia; may be nil

	Missing bool // there is no such file, and Offset means nothing
}

func (e *CorruptError) Error() string {
	if e.Missing {
		return fmt.Sprintf("%s is missing (%s): messages that it held are not served; if it was moved away, put it back and "+
			"restart the node; a replica or a backup may have them", e.Path, e.Detail)
	}
	return fmt.Sprintf("%s is corrupt at byte %d (%s): messages from there on are not served; a replica or a "+
		"backup may have them", e.Path, e.Offset, e.Detail)
}

func (e *CorruptError) Unwrap() error { return e.Err }
