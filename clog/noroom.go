package clog

import (
	"sync/atomic"
	"time"

	"penstock/segment/aio"
)

// A write can find no room although the file has its space: a file system that copies on write needs new blocks for it
// (segment/aio/cow.go). That is no failure. What was durable before is untouched, and a group behind the one without
// room, which was on its way at the same time, was not reported:
//
//	in the file    [ whole ][ no room: any part of it ][ whole, or not ][ nothing ]
//	reported         yes      no                         no
//
// A sealed group is part of the log: its number, place and checksum are set, and so is what the next header says of it.
// So the log submits nothing more, waits for what is on its way, and then writes all groups that it has not reported
// again: the same bytes, at the same places, one at a time and in order, until each of them is durable. No group is
// ever behind one that is not durable when it is reported. A crash meanwhile leaves what any crash leaves that tears
// the last groups, and recovery cuts them: a header promises only groups that were reported before it was sealed.
//
// The groups of a checkpoint are written one at a time. If one finds no room, the rest of the checkpoint waits in
// memory: the source is asked for its state once per file. If log.mark finds no room, the file begins once the same
// slot could be written: the other slot is the only one that is known to be whole.

// roomRetry is the pause between two tries.
const roomRetry = 500 * time.Millisecond

// outcome is what became of a write.
type outcome uint8

const (
	writtenWhole  outcome = iota
	writtenNoRoom         // some of it is on the disk, or nothing; the same bytes go to the same place again
	writtenFailed         // nothing that the device says from now on can be trusted
)

func judgeWrite(err error) outcome {
	switch {
	case err == nil:
		return writtenWhole
	case aio.NoRoom(err):
		return writtenNoRoom
	}
	return writtenFailed
}

// roomStep is what a log that waits for room does next.
type roomStep uint8

const (
	roomCollect roomStep = iota // wait for the writes that are on their way
	roomSleep                   // until the next try is due
	roomAgain                   // write again what was not reported
)

// stepForRoom decides it. A write on its way may reach the disk after a later one to the same place; so nothing is
// written again before all completions were seen.
func stepForRoom(underway, due bool) roomStep {
	switch {
	case underway:
		return roomCollect
	case due:
		return roomAgain
	}
	return roomSleep
}

// roomWait is the log's wait for room. Log.mu guards it, except due, which the timer's goroutine sets. A crash loses
// nothing: what waits was not reported.
type roomWait struct {
	on    bool // groups, or the begin of a file, wait; nothing else is written
	told  bool // the log said that there is no room, and has not gone on since
	due   atomic.Bool
	timer *time.Timer // nil: no try was put off yet, or the owner keeps the time (Options.Inline)
}

// awaitRoom begins the wait, or puts off the next try.
func (l *Log) awaitRoom(err error) {
	l.roomWait.on = true
	l.stats.noRoom.Store(true)
	l.stalled.enter(stallRoom, &l.stats)
	if !l.roomWait.told {
		l.roomWait.told = true
		l.opts.Logger.Error("the commit log waits: the file system has no room for a write into space that the log's file "+
			"has, as it copies on write. Nothing that was answered OK is lost, and what waits is not answered yet; free "+
			"space, and the log goes on by itself", "error", err)
	}
	switch {
	case l.opts.Inline:
		l.roomWait.due.Store(true)
	case l.roomWait.timer == nil:
		l.roomWait.timer = time.AfterFunc(roomRetry, func() {
			l.roomWait.due.Store(true)
			l.Wake()
		})
	default:
		l.roomWait.timer.Reset(roomRetry)
	}
}

// stepNoRoom is a Step of a log that waits for room.
func (l *Log) stepNoRoom(block bool) (progress bool, err error) {
	switch stepForRoom(l.queue.InFlight() > 0, l.roomWait.due.Load()) {
	case roomAgain:
		l.roomWait.due.Store(false)
		progress, err = l.writeAgain()
	default:
		progress, err = l.collect(block)
	}
	if err == nil {
		l.publish()
	}
	return progress, err
}

// writeAgain writes the groups again that were sealed and not reported, and then the beginning of the next file. The
// write queue is empty when it is called.
func (l *Log) writeAgain() (progress bool, err error) {
	for _, g := range l.inFlight {
		g.done = false // also those that succeeded
	}
	for len(l.inFlight) > 0 {
		g := l.inFlight[0]
		if more, err := l.writeForRoom(g.data, g.fileEnd-int64(len(g.data))); !more {
			return progress, err
		}
		g.done, progress = true, true
		if err := l.reportDurable(); err != nil {
			return true, err
		}
	}
	staged := l.stage.unwritten != nil
	if staged {
		data := l.stage.unwritten
		if more, err := l.writeForRoom(data, l.stage.fileEnd-int64(len(data))); !more {
			return progress, err
		}
		if err := l.stageStored(len(data)); err != nil {
			return true, err
		}
	}
	l.roomWait.on = false
	switch {
	case l.begins:
		if err := l.beginFile(); err != nil || l.roomWait.on {
			return progress, err
		}
	case staged:
		l.recycle(l.stage.oldest)
	}
	if err := l.markNoted(); err != nil || l.roomWait.on {
		return progress, err
	}
	l.roomWait.told = false
	l.stats.noRoom.Store(false)
	l.stalled.leave()
	l.opts.Logger.Info("the commit log goes on: the file system has room again")
	return true, nil
}

// writeForRoom tries a write again. It returns true if the bytes are durable.
func (l *Log) writeForRoom(data []byte, at int64) (bool, error) {
	l.opts.Pulse.Begin()
	err := l.current.WriteSyncAt(data, at)
	l.opts.Pulse.End()
	switch judgeWrite(err) {
	case writtenNoRoom:
		l.awaitRoom(err)
		return false, nil
	case writtenFailed:
		return false, l.fail("writing a group again", err)
	}
	return true, nil
}

// endWithoutRoom ends a log that is to stop while it waits for room. Records that are in groups were neither reported
// nor left with the source, so the source learns that the log failed.
func (l *Log) endWithoutRoom() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.inFlight {
		if g.records > 0 {
			return l.fail("writing the last groups before the end", errNoRoom)
		}
	}
	return nil
}

// NoRoom says that the log waits because a write into space that it has found no room. It goes on by itself. Any
// goroutine may call it.
func (l *Log) NoRoom() bool { return l.stats.noRoom.Load() }
