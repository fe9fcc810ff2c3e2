package clog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	dirName   = "clog"
	spareName = "spare"
	suffix    = ".clog"
)

func fileName(number uint64) string { return fmt.Sprintf("%s/%010d%s", dirName, number, suffix) }

// parseName is the inverse of fileName's last element.
func parseName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) < 10 || digits[0] == '+' {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n == 0 || n >= 1<<63 || fileName(n) != dirName+"/"+name {
		return 0, false
	}
	return n, true
}

// oldest is the first file that recovery would need from now on. A file whose checkpoint is being written cannot be the
// first, whatever was released: recovery needs a whole checkpoint. With its last group it can.
func (l *Log) oldest() uint64 {
	released := l.released.Load()
	if l.stage.emitting {
		released = min(released, l.current.number-1)
	}
	return max(l.live[0].number, released)
}

// heldBytes is the size of the files that are not released.
func (l *Log) heldBytes() int64 {
	released := l.released.Load()
	n := int64(0)
	for _, f := range l.live {
		if f.number >= released {
			n += f.sizeBytes
		}
	}
	return n
}

// startFile makes the next prepared file the current one and writes the checkpoint it begins with. It waits for the
// groups in flight before: so any group of a file promises every group of the files before it. That costs one flush per
// file.
func (l *Log) startFile() (bool, error) {
	if len(l.inFlight) > 0 {
		return false, nil
	}
	l.planFile()
	if l.heldBytes()+l.sizes.nextBytes > l.maxLive() {
		l.stalled.enter(stallFull, &l.stats)
		return false, nil
	}
	f, err := l.prep.take()
	if err != nil {
		return false, l.fail("preparing a file", err)
	}
	if f == nil {
		l.stalled.enter(stallSpare, &l.stats)
		return l.markForSpare()
	}
	l.stalled.leave()
	if l.current != nil {
		// Everything in it is durable; Close has nothing to lose.
		if err := l.current.Close(); err != nil {
			return false, l.fail("closing a full file", err)
		}
	}
	f.stored = &storedFile{number: f.number}
	l.current = f
	l.live = append(l.live, liveFile{number: f.number, sizeBytes: f.sizeBytes, stored: f.stored})
	l.showStored()
	l.stats.files.Add(1)
	l.stats.current.Store(f.number) // before any Group shows it, so that Release with a Group's number counts
	if err := l.writeCheckpoint(); err != nil {
		return false, err
	}
	l.fileStarted()
	l.recycle(l.stage.oldest)
	return true, nil
}

// markForSpare gives released files back when no file can be made otherwise, for instance on a full disk. It uses the
// block that room keeps back.
func (l *Log) markForSpare() (bool, error) {
	if l.current == nil || l.oldest() <= l.headerOldest || !l.markRoom() {
		return false, nil
	}
	return true, l.writeMark()
}

// recycle gives away the files below oldest; a durable group says that they are not needed.
func (l *Log) recycle(oldest uint64) {
	n := 0
	for n < len(l.live) && l.live[n].number < oldest {
		n++
	}
	if n == 0 {
		return
	}
	gone := slices.Clone(l.live[:n])
	l.live = l.live[:copy(l.live, l.live[n:])]
	l.showStored() // before anybody may write to them
	for _, f := range gone {
		f.stored = nil
		l.prep.retire(f)
	}
}
