package flush

import (
	"errors"
	"fmt"
	"time"

	"penstock/internal/node/errs"
	"penstock/segment"
)

const (
	spaceEvery      = time.Millisecond // least interval at which flushing checks the free space
	reserveEvery    = time.Second
	reserveSoon     = 10 * time.Millisecond
	divideSoon      = 100 * time.Millisecond
	nearFullBatches = 16 // number of batches between two checks that the committer requests while nearFull is set
)

// NoSpace says whether the disk is full. The committer then refuses puts, but still takes the puts of the engine
// itself.
func (f *Flusher) NoSpace() bool { return f.noSpace.Load() }

// Full returns what puts are answered while the disk is full: errs.ErrNoSpace, or errs.ErrNoInodes; nil: it has room.
func (f *Flusher) Full() error {
	switch {
	case !f.noSpace.Load():
		return nil
	case f.noInodes.Load():
		return errs.ErrNoInodes
	}
	return errs.ErrNoSpace
}

const (
	// ownInodes is how many files the node needs besides those of partitions: files of the commit log, and the new one
	// beside each small file that is replaced.
	ownInodes = 16
	// partInodes is how many a partition needs for the next segment: a folder, if it has none yet, and a file.
	partInodes = 2
	// topicInodes is how many a topic needs besides its partitions: a folder and the two copies of topic.json.
	topicInodes = 3
)

// inodesKept returns how many inodes have to stay free so that what waits in the commit log can become segments: that
// of waiting partitions. On a small file system, where this directory may have have inodes or a little more, it is at
// most half of them, and at least one.
func inodesKept(waiting, have int64) int64 { return max(min(ownInodes+partInodes*waiting, have/2), 1) }

// RoomForTopic says whether a topic of so many partitions leaves enough of the free inodes to the partitions that there
// are already.
func RoomForTopic(free int64, partitions, existing int) bool {
	return free >= ownInodes+topicInodes+partInodes*int64(partitions+existing)
}

// NearlyFull says whether so little space is left that publishing may soon be refused: less than four reserves.
func (f *Flusher) NearlyFull() bool { return f.nearFull.Load() || f.noSpace.Load() }

// makeRoom runs at every tick while the disk is full. It releases every commit log file but the newest, which flushes
// the waiting batches: only a write can tell that there is space again. Then it removes the segments that nobody needs.
func (f *Flusher) makeRoom() {
	f.releaseFiles(f.clog.Current())
	f.retain()
	f.trashDead()
	if f.n.AsideMakesRoom != nil {
		f.n.AsideMakesRoom()
	}
	f.emptyTrash()
	// While there is no space even for a commit log file, the commit log waits and the committer gathers no puts, so it
	// cannot refuse any. Puts are refused here instead.
	why := f.Full()
	if why == nil {
		return // what was just released made room: the puts are stored
	}
	for p := range f.n.Parts {
		p.owner.RefuseMessages(why)
	}
}

// checkSpace stops publishing while there is still space for messages that were answered OK, and for confirmations,
// which let retention free space. Without this reserve, an operator would have to empty a full disk by hand. checkSpace
// resumes publishing when there is space again.
func (f *Flusher) checkSpace() {
	f.checked = f.n.Host.Instant()
	free, err := f.n.Disk.FreeBytes()
	inodes, err2 := f.n.Disk.FreeInodes()
	if err != nil || err2 != nil {
		return
	}
	full, waits := f.noSpace.Load(), f.clog.NoRoom()
	// computeReserve examines every partition. So it runs rarely while there is plenty of space, and never once per
	// small write.
	since := f.n.Host.Since(f.reserved)
	short := full || free < 2*f.reserveBytes || inodes < 2*f.inodes
	if since > reserveEvery || since > divideSoon && f.dividing || since > reserveSoon && short {
		f.computeReserve(free, inodes)
	}
	f.nearFull.Store(free < 4*f.reserveBytes)
	switch {
	case free < f.reserveBytes && !full:
		f.full(fmt.Errorf("%d bytes are free, %d are kept for what is stored already and for confirmations",
			free, f.reserveBytes))
	case inodes < f.inodes && !full:
		f.full(fmt.Errorf("%d inodes are free, %d are kept for what is stored already and for confirmations",
			inodes, f.inodes))
	case waits && !full:
		f.full(errors.New("the commit log waits for room, whatever the file system says is free"))
	case free >= f.reserveBytes && inodes >= f.inodes && full && !f.starved && !waits:
		f.roomAgain()
	}
}

// computeReserve computes how much of the disk to keep free. Everything that the commit log may hold has to fit into
// segments. Otherwise the commit log could neither release files nor take the confirmations that let retention free
// space. On a small disk the reserve is at most half of what the directory may use, and an operator may have to make
// room.
func (f *Flusher) computeReserve(free, inodes int64) {
	waiting, files := int64(0), int64(0)
	need, have := f.clog.MaxLiveBytes()+2*f.clog.FileBytes(), free+f.clog.Stats().LiveBytes
	for p := range f.n.Parts {
		log := p.owner.Log()
		have += log.Bytes()
		files++
		if log.Unflushed() > 0 {
			waiting++
			need += f.nextSegmentBytes(log)
		}
	}
	f.reserveBytes = min(need, have/2)
	if f.n.Divide != nil {
		f.dividing = f.n.Divide(free, f.reserveBytes)
	}
	f.inodes = inodesKept(waiting, inodes+files)
	f.starved = f.starved && waiting > 0 // if no bytes wait any more, their topic was deleted: the next write tells
	f.reserved = f.n.Host.Instant()
}

// nextSegmentBytes returns how much space the next segment file of a log takes when it is made.
func (f *Flusher) nextSegmentBytes(log *segment.Log) int64 {
	segments := log.Segments()
	switch n := len(segments); {
	case n > 0:
		return min(2*segments[n-1].FileBytes, f.n.MaxSegmentBytes)
	case log.Unflushed() < segment.FirstReservedBytes:
		return segment.FirstReservedBytes
	}
	return f.n.MinSegmentBytes
}

// full stops publishing, and wakes the commit log so that it refuses the waiting puts.
func (f *Flusher) full(why error) {
	inodes, err := f.n.Disk.FreeInodes()
	f.noInodes.Store(err == nil && inodes < max(f.inodes, 1))
	if f.noSpace.CompareAndSwap(false, true) {
		says := "the disk is full: publishing is refused, consuming goes on. Free space and publishing resumes by itself"
		if f.noInodes.Load() {
			says = "the file system of the data directory has no inodes left, which every file needs, whatever its size: " +
				"publishing is refused, consuming goes on. Remove files there that nobody needs, and publishing resumes by itself"
		}
		f.n.Log.Error(says, "error", why)
		f.clog.Wake()
	}
}

// roomAgain resumes publishing.
func (f *Flusher) roomAgain() {
	if f.noSpace.CompareAndSwap(true, false) {
		f.n.Log.Info("the disk has room again: publishing resumes")
		f.clog.Wake()
	}
}
