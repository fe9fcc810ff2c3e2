package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// A note says where retention has let a log begin: the file NNNNNNNNNN.start says that segment NNNNNNNNNN is the first,
// and that retention has removed all before it, or is about to. Without it, a log of which somebody removed the first
// segment and its index would look as if retention had done that. A log from which nothing was removed has no note, and
// neither needs one that begins with a file which says that it is the first of its log.
//
// Only the name of a note counts. It is made of the index of the segment that goes, or of the note before: retention
// has to work on a disk without room, and a new name takes no room there.
//
// A version that knows no notes leaves them as they are and removes segments nevertheless. So Open believes the notes
// only where the caller knows that no such version ran since all of them were right (Options.Noted), and NoteStart
// makes one right.

const noteSuffix = ".start"

func noteName(number uint32) string {
	return strings.TrimSuffix(segmentName(number), ".seg") + noteSuffix
}

// ParseNoteName returns the number of the first segment of a log that has a note of this name, and whether it is one.
func ParseNoteName(name string) (number uint32, ok bool) {
	digits, ok := strings.CutSuffix(name, noteSuffix)
	if !ok {
		return 0, false
	}
	return parseSegmentName(digits + ".seg")
}

// LacksBelow says whether segments are missing in front of segment first, the lowest of a log, whose header is right
// and does not say that it is the first of its log. indexed says that an index of a lower number is there. notes are
// the numbers of the notes, ascending, and noted says that they are believed. The tools that check a directory ask,
// too.
func LacksBelow(first uint32, indexed bool, notes []uint32, noted bool) bool {
	begins := uint32(0)
	if n := len(notes); n > 0 {
		begins = notes[n-1]
	}
	return indexed || noted && begins < first
}

// NoteStart makes the note of the log right: it trusts that retention has removed what is missing in front of the log's
// first segment. Whoever finds out that a version without notes ran on the directory calls it for each log. After an
// error the note is as it was before, or right.
func (l *Log) NoteStart() error {
	l.io.Lock()
	defer l.io.Unlock()
	l.mu.Lock()
	none := l.closed || len(l.segs) == 0 || l.segs[0].broken != nil || l.segs[0].starts || l.segs[0].number == 0
	var number uint32
	if !none {
		number = l.segs[0].number
	}
	l.mu.Unlock()
	if none {
		return nil
	}
	changed, err := l.noteStart(number)
	if err == nil && changed {
		err = l.syncDir()
	}
	return err
}

// noteStart notes that the log begins with segment number, and says whether it changed the directory, which the caller
// syncs before it removes anything. A crash before leaves the note before, or this one. The caller holds l.io.
func (l *Log) noteStart(number uint32) (changed bool, err error) {
	have, err := listFiles(l.disk, l.dir)
	if err != nil {
		return false, err
	}
	to := path.Join(l.dir, noteName(number))
	from := indexPath(path.Join(l.dir, segmentName(number-1)))
	if n := len(have.notes); n > 0 {
		if have.notes[n-1] == number {
			return false, nil
		}
		from = path.Join(l.dir, noteName(have.notes[n-1]))
	}
	err = l.disk.Rename(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		err = l.disk.WriteFile(to, nil)
	}
	if err != nil {
		return false, fmt.Errorf("segment: noting in %s that the log begins with segment %d: %w", l.dir, number, err)
	}
	return true, nil
}
