package flush

import (
	"fmt"
	"time"

	"penstock/engine/base"
	"penstock/segment"
)

const (
	spaceEvery      = time.Millisecond // least interval at which flushing checks the free space
	reserveEvery    = time.Second
	reserveSoon     = 10 * time.Millisecond
	nearFullBatches = 16 // number of batches between two checks that the committer requests while nearFull is set
)

// NoSpace says whether the disk is full. The committer then refuses puts, but still takes the puts of the engine
// itself.
func (f *Flusher) NoSpace() bool { return f.noSpace.Load() }

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
	for p := range f.n.Parts {
		p.owner.RefuseMessages(base.ErrNoSpace)
	}
}

// checkSpace stops publishing while there is still space for messages that were answered OK, and for confirmations,
// which let retention free space. Without this reserve, an operator would have to empty a full disk by hand. checkSpace
// resumes publishing when there is space again.
func (f *Flusher) checkSpace() {
	f.checked = f.n.Host.Instant()
	free, err := f.n.Disk.FreeBytes()
	if err != nil {
		return
	}
	full := f.noSpace.Load()
	// computeReserve examines every partition. So it runs rarely while there is plenty of space, and never once per
	// small write.
	since := f.n.Host.Since(f.reserved)
	if since > reserveEvery || since > reserveSoon && (full || free < 2*f.reserveBytes) {
		f.computeReserve(free)
	}
	f.nearFull.Store(free < 4*f.reserveBytes)
	switch {
	case free < f.reserveBytes && !full:
		f.full(fmt.Errorf("%d bytes are free, %d are kept for what is stored already and for confirmations",
			free, f.reserveBytes))
	case free >= f.reserveBytes && full && !f.starved:
		f.roomAgain()
	}
}

// computeReserve computes how much of the disk to keep free. Everything that the commit log may hold has to fit into
// segments. Otherwise the commit log could neither release files nor take the confirmations that let retention free
// space. On a small disk the reserve is at most half of what the directory may use, and an operator may have to make
// room.
func (f *Flusher) computeReserve(free int64) {
	waiting := false
	need, have := f.clog.MaxLiveBytes()+2*f.clog.FileBytes(), free+f.clog.Stats().LiveBytes
	for p := range f.n.Parts {
		log := p.owner.Log()
		have += log.Bytes()
		if log.Unflushed() > 0 {
			waiting = true
			need += f.nextSegmentBytes(log)
		}
	}
	f.reserveBytes = min(need, have/2)
	f.starved = f.starved && waiting // if no bytes wait any more, their topic was deleted: the next write tells
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
	if f.noSpace.CompareAndSwap(false, true) {
		f.n.Log.Error("the disk is full: publishing is refused, consuming goes on. Free space and publishing resumes by "+
			"itself", "error", why)
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
