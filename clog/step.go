package clog

import (
	"fmt"
	"time"

	"penstock/internal/failpoint"
	"penstock/segment/aio"
)

// maxTurns bounds the groups that one Step submits, so that a source that never runs dry cannot keep Stop waiting.
const maxTurns = 2 * MaxInFlight

// Step does one round of work: it submits groups while there are records, a slot, a buffer and file space, then
// collects completions, reports groups in order, and submits again. If there was nothing to do and block is set, Step
// sleeps until a completion or Wake. After a failure it always returns that same error.
func (l *Log) Step(block bool) (progress bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return false, l.err
	}
	if l.queue == nil {
		panic("BUG: clog: Step before Start or after Close")
	}
	if err := l.prep.failure(); err != nil {
		return false, l.fail("preparing a file", err)
	}
	if lost := l.ground.lost.Load(); lost != nil {
		return false, l.failLost(lost)
	}
	if !l.roomWait.on {
		if err := l.markNoted(); err != nil {
			return false, err
		}
	}
	if l.roomWait.on {
		return l.stepNoRoom(block)
	}
	progress, err = l.submitAll()
	if err != nil {
		return progress, err
	}
	// Groups that are durable already may have let their waiters send more records: look again before sleeping.
	block = block && (!progress || len(l.inFlight) > 0)
	if block || len(l.inFlight) > 0 {
		collected, err := l.collect(block)
		if err != nil {
			return progress, err
		}
		if collected {
			progress = true
			if _, err := l.submitAll(); err != nil {
				return progress, err
			}
		}
	}
	l.publish()
	return progress, nil
}

// submitAll submits groups until there are no records, slots, buffers or room, and says whether it did anything.
func (l *Log) submitAll() (progress bool, err error) {
	for range maxTurns {
		if len(l.idle) == 0 {
			break
		}
		more, err := l.submitNext()
		if err != nil || !more {
			return progress, err
		}
		progress = true
	}
	return progress, nil
}

// submitNext submits one group, or gets the file or buffer that the group needs. It returns false when only a
// completion or Wake can bring progress.
func (l *Log) submitNext() (bool, error) {
	if l.roomWait.on {
		return false, nil
	}
	if l.current == nil || l.room() < max(l.wantRoom, l.minRoom()) {
		return l.startFile()
	}
	if l.renews() {
		if len(l.inFlight) > 0 {
			return false, nil
		}
		if more, err := l.startFile(); more || err != nil {
			return more, err
		} // the next file must be larger than estimated; until that file is ready the log goes on in the current one
	}
	g := l.idle[len(l.idle)-1]
	if !l.begin(g) {
		l.stalled.enter(stallBuffer, &l.stats)
		return false, nil
	}
	l.noBuffer = false
	l.source.Gather(g)
	if l.err != nil {
		return false, l.err
	}
	switch {
	case g.records > 0:
		l.idle = l.idle[:len(l.idle)-1]
		l.stalled.leave()
		return true, l.submit(g)
	case l.wantRoom > l.room():
		return true, nil // start a file first, then gather again
	case l.noBuffer:
		l.stalled.enter(stallBuffer, &l.stats)
		return false, nil
	case len(l.inFlight) == 0 && l.oldest() > l.headerOldest && l.markRoom():
		return true, l.writeMark()
	case l.idleMarkDue():
		l.idle = l.idle[:len(l.idle)-1]
		return true, l.submit(g)
	}
	return false, nil
}

// room is what records may still use of the current file. The last block is reserved for a mark, so that the log can
// give files back even when it is full.
func (l *Log) room() int64 { return l.current.sizeBytes - l.block - l.current.pos }

func (l *Log) markRoom() bool { return l.current.sizeBytes-l.current.pos >= l.block }

// minRoom is the room below which a file counts as full. Without it, groups would become tiny at the end of every file.
func (l *Log) minRoom() int64 {
	return max(l.block, min(int64(l.opts.GroupBytes)/8, l.opts.FileBytes/64)&^(l.block-1))
}

// begin opens g in the open buffer. It takes a new buffer when the open one is full, or when less than a quarter of it
// is left and the size of the last group suggests that the next one needs more. It returns false when there is no
// buffer.
func (l *Log) begin(g *Group) bool {
	left := 0
	if l.buf != nil {
		left = len(l.buf.Bytes()) - l.bufPos
	}
	if int64(left) < l.block || left < l.arena.BufBytes()/4 && l.lastBytes > left {
		if !l.nextBuf() && int64(left) < l.block {
			return false
		}
	}
	l.openGroup(g)
	return true
}

// openGroup opens g at the position of the next group in the open buffer and the current file.
func (l *Log) openGroup(g *Group) {
	data := l.buf.Bytes()[l.bufPos:]
	limit := min(int64(len(data)), int64(l.opts.GroupBytes), l.room()) &^ (l.block - 1)
	g.open(l.buf, data, int(limit), l.current.number, l.seq+1)
}

// nextBuf replaces the open buffer. If no buffer is free, it keeps the open one and leaves starving set.
//
//	log                                    whoever holds the last buffer
//	---                                    -----------------------------
//	A1 Get: none                           B1 puts the buffer back
//	A2 starving = true                     B2 OnRelease: starving? then Wake
//	A3 Get again: none, so it will sleep
//
// If B1 comes before A3, A3 gets the buffer. Otherwise A2 comes before B2, and B2 wakes the log.
func (l *Log) nextBuf() bool {
	b := l.arena.Get()
	if b == nil {
		l.starving.Store(true)
		if b = l.arena.Get(); b == nil {
			return false
		}
	}
	l.starving.Store(false)
	if l.buf != nil {
		l.buf.Release()
	}
	l.buf, l.bufPos = b, 0
	return true
}

// reopen finds another place for g, whose first record of n bytes does not fit where g was opened.
func (l *Log) reopen(g *Group, n int) bool {
	need := aio.RoundUp(int64(GroupHeaderBytes+RecordHeaderBytes+n), l.block)
	if need > l.room() {
		l.wantRoom = need
		return false
	}
	if need <= int64(l.opts.GroupBytes) {
		if l.noBuffer = !l.nextBuf(); l.noBuffer {
			return false
		}
		l.openGroup(g)
	} else {
		b := l.largeBuf(int(need))
		if l.noBuffer = b == nil; l.noBuffer {
			return false
		}
		g.open(b, b.Bytes(), int(need), l.current.number, l.seq+1)
	}
	return true
}

// largeBuf returns a buffer of its own for a record of n bytes, which fits into no ordinary buffer. When it returns
// nil, the caller waits as after nextBuf.
func (l *Log) largeBuf(n int) *aio.Buf {
	b, err := l.arena.GetLarge(n)
	if err != nil {
		l.starving.Store(true)
		if b, err = l.arena.GetLarge(n); err != nil {
			return nil
		}
	}
	l.starving.Store(false)
	return b
}

// header returns the fields of the next group's header that the log knows.
func (l *Log) header() groupHeader {
	return groupHeader{
		BlockShift: blockShiftOf(int(l.block)), Store: l.opts.Store,
		Durable: l.durable, Oldest: l.oldest(), PrevCRC: l.crc,
	}
}

// sealNext seals g as the next group and advances everything that depends on where the group ends. From here on the
// group is part of the log: it becomes durable or the log fails.
func (l *Log) sealNext(g *Group) (data []byte, at int64) {
	if g.seq != l.seq+1 || g.file != l.current.number {
		panic(fmt.Sprintf("BUG: clog: group %d of file %d follows group %d in file %d",
			g.seq, g.file, l.seq, l.current.number))
	}
	h := l.header()
	data = g.seal(&h)
	at = l.current.pos
	l.seq, l.crc, l.headerDurable, l.headerOldest = h.Seq, h.CRC, h.Durable, h.Oldest
	g.oldest = h.Oldest
	l.current.pos += int64(len(data))
	g.fileEnd = l.current.pos
	if l.current.pos > l.current.sizeBytes {
		panic(fmt.Sprintf("BUG: clog: group %d passes the end of file %d", g.seq, g.file))
	}
	l.live[len(l.live)-1].usedBytes = l.current.pos
	return data, at
}

// submit makes g, to which no more records are added, the log's next group, and writes it.
func (l *Log) submit(g *Group) error {
	data, _ := l.sealNext(g)
	g.data = data
	l.wantRoom = 0
	if g.buf == l.buf {
		g.buf.Retain()
		l.bufPos += len(data)
	}
	if g.records > 0 {
		l.lastBytes = len(data)
		l.stats.submitted(g, len(data))
	} else {
		l.idleMark.markWritten()
		l.stats.marks.Add(1)
	}
	l.planNext()
	l.prep.advance(l.current.pos, l.current.sizeBytes)
	g.submitted = time.Now()
	l.inFlight = append(l.inFlight, g)
	return l.write(g)
}

// write writes the newest group in flight: a small one, with nothing else in flight, on the calling goroutine, and any
// other one through the queue, so that the next one can be gathered meanwhile.
func (l *Log) write(g *Group) error {
	at := g.fileEnd - int64(len(g.data))
	l.opts.Pulse.Begin()
	if err := failpoint.Hit("clog/before-write"); err != nil {
		return l.fail("writing a group", err)
	}
	if len(l.inFlight) == 1 && (l.onSpot || len(g.data) <= l.opts.DirectBytes && !l.mustQueue()) {
		err := l.current.WriteSyncAt(g.data, at)
		l.opts.Pulse.End()
		switch judgeWrite(err) {
		case writtenNoRoom:
			l.awaitRoom(err)
			return nil
		case writtenFailed:
			return l.fail("writing a group", err)
		}
		g.done = true
		l.stats.direct.Add(1)
		if l.onSpot {
			return l.reportDurable()
		}
		return l.report()
	}
	op := aio.Op{File: l.current.File, Data: g.data, Offset: at, Tag: uint64(g.slot)}
	if err := l.queue.Submit(op); err != nil {
		return l.fail("submitting a group", err)
	}
	return nil
}

func (l *Log) mustQueue() bool { return l.opts.MustQueue != nil && l.opts.MustQueue() }

// collect takes completions, in any order, and reports the groups that are durable now, in order. One failed completion
// fails the log: nothing that the device says after a failure can be trusted. One without room makes the log wait, and
// none is reported until it is written again (noroom.go).
func (l *Log) collect(block bool) (bool, error) {
	var err error
	idle := block && l.queue.InFlight() == 0
	if idle { // see StepOnSpot
		l.asleep = true
		l.mu.Unlock()
	}
	l.completions, err = l.queue.Wait(l.completions[:0], block)
	if idle {
		l.mu.Lock()
		l.asleep = false
	}
	if err != nil {
		return false, l.fail("waiting for groups", err)
	}
	for _, c := range l.completions {
		l.opts.Pulse.End()
		switch judgeWrite(c.Err) {
		case writtenWhole:
			l.slots[c.Tag].done = true
		case writtenNoRoom:
			l.awaitRoom(c.Err)
		case writtenFailed:
			return false, l.fail("writing a group", c.Err)
		}
	}
	if len(l.completions) > 0 && !l.roomWait.on {
		if err := l.report(); err != nil {
			return true, err
		}
	}
	return len(l.completions) > 0, nil
}

// reuse takes back the space of a mark in the open buffer if nothing follows the mark. Otherwise a log that is often
// idle would fill its buffers with marks.
func (l *Log) reuse(g *Group) {
	if at := l.bufPos - int(l.block); g.buf == l.buf && at >= 0 && &l.buf.Bytes()[at] == &g.data[0] {
		l.bufPos = at
	}
}

// setDurable notes that group seq and all groups before it are on stable storage.
func (l *Log) setDurable(seq uint64) {
	l.durable = seq
	l.stats.durable.Store(seq)
}

// report is reportDurable on the log's goroutine.
func (l *Log) report() error {
	h := l.holder.Load()
	if h == nil || *h == nil {
		return l.reportDurable()
	}
	(*h).Hold()
	defer (*h).Release()
	return l.reportDurable()
}

// reportDurable reports, in order, the groups that are written and whose predecessors are all written. If the log's
// ground is gone, it reports none and fails the log.
func (l *Log) reportDurable() error {
	if !l.inFlight[0].done {
		return nil
	}
	if err := l.stands(); err != nil {
		return err
	}
	n := 0
	for n < len(l.inFlight) && l.inFlight[n].done {
		g := l.inFlight[n]
		if g.seq != l.durable+1 {
			panic(fmt.Sprintf("BUG: clog: group %d durable after group %d", g.seq, l.durable))
		}
		failpoint.Pass("clog/after-write")
		l.setDurable(g.seq)
		l.current.stored.end.Store(g.fileEnd) // the file of g: a new file waits for the groups in flight
		if now := time.Now(); g.records > 0 {
			l.stats.flushed(now.Sub(g.submitted), time.Duration(l.slowAfter.Load()))
			l.idleMark.groupDurable(now)
			l.source.Durable(g)
			failpoint.Pass("clog/after-durable")
		} else {
			l.reuse(g)
		}
		g.buf.Release()
		g.buf, g.data = nil, nil
		l.idle = append(l.idle, g)
		l.recycle(g.oldest)
		n++
	}
	l.inFlight = l.inFlight[:copy(l.inFlight, l.inFlight[n:])]
	return nil
}
