package clog

import (
	"bytes"
	"fmt"

	"penstock/internal/failpoint"
	"penstock/segment/aio"
)

// stageBytes is the size of the groups of a checkpoint, unless files are small.
const stageBytes = 256 << 10

// stage builds the groups that the log writes for itself: checkpoints and marks. It has memory of its own, so these
// groups do not depend on a free buffer of the arena. Log.mu guards it.
type stage struct {
	Group
	mem        []byte
	free       func()
	chunkCount uint32       // chunks emitted so far; only while a checkpoint is written
	emit       func([]byte) // Log.emitChunk, bound once
	emitting   bool         // a checkpoint is being written, and its last group is not sealed yet
	asking     bool         // the source is in Checkpoint, so fail must not call the source
	unwritten  []byte       // the sealed group, which found no room; nil: it is durable. See noroom.go
	rest       [][]byte     // chunks that come behind unwritten
}

// writeCheckpoint asks the source for its state and writes that state as the first groups of the current file. Each
// group is durable before the next one is built, and nothing else is in flight. If the log fails meanwhile, it returns
// the log's error. Without room, beginFile goes on with it.
func (l *Log) writeCheckpoint() error {
	failpoint.Pass("clog/before-checkpoint")
	defer failpoint.Pass("clog/after-checkpoint")
	l.stage.chunkCount = 0
	l.openStage()
	l.stage.emitting, l.stage.asking = true, true
	l.source.Checkpoint(l.stage.emit)
	l.stage.asking = false
	if l.err != nil {
		l.source.Failed(l.err)
		return l.err
	}
	return l.endCheckpoint()
}

// endCheckpoint writes what is left of a checkpoint, for which the source was asked.
func (l *Log) endCheckpoint() error {
	if l.stage.unwritten != nil {
		return nil
	}
	rest := l.stage.rest
	l.stage.rest = nil
	if len(rest) > 0 { // the group before them is written by now
		l.openStage()
	}
	for _, chunk := range rest {
		l.emitChunk(chunk)
	}
	if l.err != nil || l.stage.unwritten != nil {
		return l.err
	}
	l.stage.emitting = false
	if l.stage.chunkCount == 0 {
		// A checkpoint without chunks is one empty record, so that "nothing to say" differs from "cut by a crash".
		l.stage.add(&Placement{Type: Checkpoint}, 0, 0)
	}
	l.stage.data[l.stage.last+recFlags] |= flagLast
	return l.writeStage()
}

// emitChunk adds one chunk; l.stage.emit is this method, bound once.
func (l *Log) emitChunk(chunk []byte) {
	if l.err != nil || len(chunk) == 0 {
		return
	}
	if len(chunk) > l.MaxChunkBytes() {
		panic(fmt.Sprintf("BUG: clog: a checkpoint chunk of %d bytes", len(chunk)))
	}
	g := &l.stage.Group
	if l.stage.unwritten == nil && g.end+RecordHeaderBytes+len(chunk) > g.limit {
		if l.writeStage() != nil {
			return
		}
		if l.stage.unwritten == nil {
			l.openStage()
		}
	}
	if l.stage.unwritten != nil {
		if l.stage.asking {
			chunk = bytes.Clone(chunk)
		}
		l.stage.rest = append(l.stage.rest, chunk)
		return
	}
	copy(g.add(&Placement{Type: Checkpoint, Partition: l.stage.chunkCount}, 0, len(chunk)), chunk)
	l.stage.chunkCount++
}

// openStage begins a group of the log's own: a checkpoint or a mark.
func (l *Log) openStage() {
	l.stage.open(nil, l.stage.mem, len(l.stage.mem), l.current.number, l.seq+1)
}

// writeStage makes the staged group durable before it returns, or leaves it in unwritten if there is no room. Nothing
// may be in flight: the group would overtake the groups that are.
func (l *Log) writeStage() error {
	if len(l.inFlight) > 0 {
		panic("BUG: clog: a group of the log's own passes groups in flight")
	}
	if l.stage.records > 0 {
		l.growCurrent(l.current.pos + aio.RoundUp(int64(l.stage.end), l.block))
	}
	data, at := l.sealNext(&l.stage.Group)
	l.opts.Pulse.Begin()
	err := l.current.WriteSyncAt(data, at)
	l.opts.Pulse.End()
	switch judgeWrite(err) {
	case writtenNoRoom:
		l.stage.unwritten = data
		l.awaitRoom(err)
		return nil
	case writtenFailed:
		return l.fail("writing a checkpoint or mark", err)
	}
	return l.stageStored(len(data))
}

// stageStored notes that the staged group, of n bytes with its padding, is durable.
func (l *Log) stageStored(n int) error {
	l.stage.unwritten = nil
	if err := l.stands(); err != nil {
		return err
	}
	l.setDurable(l.stage.seq)
	l.current.stored.end.Store(l.stage.fileEnd)
	l.idleMark.markWritten() // nothing else is in flight, so this header promises all groups before it
	if l.stage.records > 0 {
		l.stats.checkpointBytes.Add(uint64(n))
	} else {
		l.stats.marks.Add(1)
	}
	return nil
}

// writeMark writes a group without records. Its header promises all groups before it, and says which files are not
// needed any more.
func (l *Log) writeMark() error {
	l.openStage()
	if err := l.writeStage(); err != nil || l.stage.unwritten != nil {
		return err
	}
	l.recycle(l.stage.oldest)
	return nil
}
