package clog

import "time"

// New files are written with zeros while commits go to the same device, and a device has a limit: cloud disks often
// have one of 60 to 250 MB/s. So the zeros of a file keep step with the log: they are written as fast as the log uses
// its current file, with a quarter more, and never faster. A device that is fast enough for both delays a commit by one
// piece at most.
//
//	the log                                 pieces of zeros
//	has no file to go on with               large ones, one after the other
//	has no other file than its current one  until 5/4 of the used part of that file is written of the next one
//	has a ready file, too                   5/4 of what the log has written since the new file was begun
//	writes little                           one each trickleEvery, so that a reserve exists before it is needed
//
// Without this, a file was written in 0.2 s at 200 MB/s, and commits on a device of 60 MB/s waited up to 0.1 s behind
// it, for each file until the log had grown to its size.
const (
	// pieceBytes is the size of one write of zeros while commits go on. A commit may stand behind one of them.
	pieceBytes = 64 << 10
	// urgentPieceBytes is the same while the log waits for the file: large enough for the device's full rate.
	urgentPieceBytes = 256 << 10
	// paceEvery is how often the preparer looks whether the next piece is due.
	paceEvery = time.Millisecond
	// trickleEvery is the longest time between two pieces: an idle log has its next file of DefaultFileBytes in 5 s.
	trickleEvery = 10 * time.Millisecond
	// usedWhole is the whole current file, in the unit of preparer.used.
	usedWhole = 1 << 10
)

// pieceDue returns the size of the piece that is to be written now into a new file of size bytes, of which done are
// written. It returns 0 if no piece is due. The log has used/usedWhole of its current file, and is usedWhole if it has
// none. It has written since bytes since the new file was begun. ready says that a file is in reserve, idle how long
// ago the last piece was written.
func pieceDue(size, done, used, since int64, ready bool, idle time.Duration) int64 {
	left, want := size-done, since
	if !ready {
		if used >= usedWhole {
			return min(urgentPieceBytes, left)
		}
		want = max(want, size/usedWhole*used)
	}
	if done < want/4*5 || idle >= trickleEvery {
		return min(pieceBytes, left)
	}
	return 0
}
