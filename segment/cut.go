package segment

import (
	"errors"
	"fmt"

	"penstock/segment/aio"
)

// unfinishedCut is what a cut or a reset, which has taken effect in memory, still has to do in the directory. The files
// cannot be opened while the process lacks descriptors or the disk has no room. Then the caller tries again, and until
// it has succeeded nothing is written to segments. A crash loses nothing: replay cuts again.
type unfinishedCut struct {
	st         State
	gone       []*segFile // segments that are still to be moved to the trash, oldest first; each has a reference
	wasFlushed Offset     // before the cut
	reset      bool
	anchors    bool  // the log is empty, and gets a file that says where it begins
	why        error // what it waits for
}

// Waiting says whether err, of Truncate or Reset or of what precedes them, means that it has to be tried again: the
// process lacks file descriptors or memory, or the disk has no room. Nothing is lost.
func Waiting(err error) bool { return aio.Shortage(err) && !errors.Is(err, ErrPoisoned) }

// beginCut makes c what is to be done, together with what an earlier cut has left. The caller holds l.io.
func (l *Log) beginCut(c *unfinishedCut) {
	if before := l.cut; before != nil {
		c.gone = append(c.gone, before.gone...)
		c.wasFlushed = max(c.wasFlushed, before.wasFlushed)
		c.reset = c.reset || before.reset
	}
	l.cut = c
}

// finishCut does what is left of the cut. The caller holds l.io.
func (l *Log) finishCut() error {
	c := l.cut
	err := l.removeAll(c)
	if err == nil {
		err = l.reopenCut(c)
	}
	if Waiting(err) {
		c.why = fmt.Errorf("segment: the files cannot be cut yet: %w", err)
		return c.why
	}
	l.dropCut()
	if err != nil {
		return l.poisonWith(err)
	}
	if c.reset {
		l.mu.Lock()
		l.poisoned = nil
		l.mu.Unlock()
		l.poison = nil
	}
	return nil
}

// removeAll removes the segments that left the list, newest first, so that a crash leaves a prefix. The caller holds
// l.io.
func (l *Log) removeAll(c *unfinishedCut) error {
	for n := len(c.gone); n > 0; n = len(c.gone) {
		f := c.gone[n-1]
		if err := l.moveToTrash(f, false); err != nil {
			return err
		}
		l.forget(f)
		f.release()
		c.gone = c.gone[:n-1]
	}
	return nil
}

// dropCut ends the cut, finished or not. The caller holds l.io.
func (l *Log) dropCut() {
	if l.cut == nil {
		return
	}
	for _, f := range l.cut.gone {
		l.forget(f)
		f.release()
	}
	l.cut = nil
}

// anchor makes an empty file for a log that is cut to, or begins at, a place in the middle of a segment. Without that
// file the next Open could not tell an empty log from a lost one. A second call goes on where the first one failed. The
// caller holds l.io.
func (l *Log) anchor(st State) error {
	if st.End == 0 || st.SegmentCapacity == 0 || st.End == st.SegmentBase {
		return nil
	}
	l.mu.Lock()
	made := len(l.segs) > 0
	l.mu.Unlock()
	if !made {
		w := NewWriter()
		defer w.Close()
		h := segHeader{
			id: l.id, number: st.Segment, starts: true, base: st.SegmentBase, first: st.End,
			firstPos: st.Next, firstID: st.NextID, capacity: st.SegmentCapacity,
		}
		f, err := l.createSegment(w.buf, h)
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.segs = append(l.segs, f)
		l.mu.Unlock()
	}
	return l.sync()
}

// Reset empties the log and starts it anew at st.End, which may be anywhere: a full sync from a leader needs this. All
// files are removed (views keep theirs until released), and with them the failure of a write or sync that poisoned the
// log (ErrPoisoned). As with Truncate, the caller records the reset in the commit log, and calls again after an error
// that Waiting knows.
func (l *Log) Reset(st State) error {
	l.io.Lock()
	defer l.io.Unlock()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	if l.cut != nil && l.cut.reset && l.cut.st == st {
		l.mu.Unlock()
		return l.finishCut()
	}
	c := &unfinishedCut{st: st, gone: l.segs, reset: true, anchors: true}
	l.segs = nil
	l.setEnd(st)
	l.generation++
	l.start = l.end
	l.flushed, l.synced = st.End, st.End
	l.marks, l.damage = marks{}, nil
	l.mu.Unlock()
	l.dropTail(func(*Slice) bool { return true })
	l.partial = nil
	l.beginCut(c)
	return l.finishCut()
}
