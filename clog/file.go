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

// parseName is the inverse of fileName for a name without its folder.
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
// first, whatever was released: recovery needs a complete checkpoint. Once the last group of the checkpoint is written,
// the file can be the first.
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

// maxLiveAtStart times MaxLiveBytes bounds the files when a process begins its first one. A copy whose segments are
// gone takes nothing and keeps the files of the log; it has to begin anew, and that needs a record. Without room for
// the record a full log would stay full after every restart.
const maxLiveAtStart = 2

// startFile makes the next prepared file the current one and writes the checkpoint with which it begins. First it waits
// for the groups in flight, so that every group of a file promises every group of the files before it. That wait costs
// one flush per file.
func (l *Log) startFile() (bool, error) {
	if len(l.inFlight) > 0 {
		return false, nil
	}
	l.planFile()
	limit := l.maxLive()
	if l.current == nil {
		limit *= maxLiveAtStart
	}
	if l.heldBytes()+l.sizes.nextBytes > limit {
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
		// Everything in the file is durable, so Close has nothing to lose.
		if err := l.current.Close(); err != nil {
			return false, l.fail("closing a full file", err)
		}
	}
	f.stored = newStored(f.number, f.id, 0)
	l.current = f
	l.live = append(l.live, liveFile{number: f.number, sizeBytes: f.sizeBytes, stored: f.stored})
	l.showStored()
	l.stats.files.Add(1)
	l.stats.current.Store(f.number) // before any Group carries the number, so that Release with it takes effect
	l.begins = true
	if err := l.writeCheckpoint(); err != nil {
		return false, err
	}
	return true, l.beginFile()
}

// beginFile goes on with the begin of the current file, as far as there is room: the rest of its checkpoint, then its
// log.mark.
func (l *Log) beginFile() error {
	if l.stage.emitting {
		if err := l.endCheckpoint(); err != nil {
			return err
		}
	}
	if l.stage.unwritten != nil {
		return nil
	}
	if err := l.noteFile(); err != nil || l.roomWait.on {
		return err
	}
	l.begins = false
	l.fileStarted()
	l.recycle(l.stage.oldest)
	return nil
}

// markForSpare writes a mark so that released files can be given back. startFile calls it when no file can be made
// otherwise, for instance on a full disk. The mark uses the block that room reserves.
func (l *Log) markForSpare() (bool, error) {
	if l.current == nil || l.oldest() <= l.headerOldest || !l.markRoom() {
		return false, nil
	}
	return true, l.writeMark()
}

// recycle retires the files below oldest, which a durable group says are not needed.
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
	l.showStored() // before anybody may overwrite them
	for _, f := range gone {
		f.stored = nil
		l.prep.retire(f)
	}
}
