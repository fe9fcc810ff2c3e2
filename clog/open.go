package clog

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"penstock/segment/aio"
)

// Open replays the log on disk into r and makes the log ready for new records, which go to a new file. Open sets the
// arena's OnRelease; nobody else may set it until Close. Recovery reads into large buffers, and Open raises the arena's
// limit for them when r retains more than the limit allows.
//
// Corruption at or below what a header promised durable is an error that wraps *segment.CorruptError. Then r has
// received what lies before the corruption, and nothing on disk was changed. Open also returns a Log with that error,
// which takes no records: its Run tells the source that it failed. With any other error (ErrForeign, ErrNewer,
// *Forgotten, r's own, the disk's) there is no Log. The report is never nil.
func Open(disk aio.Disk, arena *aio.Arena, opts Options, r Replayer) (*Log, *Report, error) {
	report := new(Report)
	began := time.Now()
	l, err := open(disk, arena, opts, r, report)
	report.Duration = time.Since(began)
	return l, report, err
}

func open(disk aio.Disk, arena *aio.Arena, opts Options, r Replayer, report *Report) (*Log, error) {
	block := int64(disk.Info().BlockBytes)
	if err := opts.complete(arena, block); err != nil {
		return nil, err
	}
	rec, err := replay(disk, arena, opts.Store, r, report)
	if err != nil && !rec.damaged {
		return nil, err
	}
	l := newLog(disk, arena, opts, block)
	if err != nil {
		l.broken = err
		l.stats.oldest.Store(report.OldestFile)
		l.stats.current.Store(report.NewestFile)
		return l, err
	}
	judged := rec.judgeMark(opts.MarkRequired)
	if report.Forgotten != nil && !opts.MayForget {
		l.stage.free()
		return nil, report.Forgotten
	}
	next, err := l.adopt(rec)
	if err == nil {
		err = l.marker.open(rec, report)
	}
	if err != nil {
		l.stage.free()
		return nil, errors.Join(err, l.marker.close())
	}
	l.noted.Store(report.Noted)
	l.prep = newPreparer(l, next)
	l.stats.current.Store(next)
	l.stats.oldest.Store(next)
	l.publish()
	if err := l.prep.start(); err != nil {
		l.stage.free()
		return nil, errors.Join(err, l.marker.close())
	}
	l.tell(judged == judgedUnmarked, report)
	l.stats.tornBytes.Store(report.TornBytes)
	arena.OnRelease(func() {
		if l.starving.Load() {
			l.Wake()
		}
	})
	opts.Logger.Info("commit log opened", "files", report.Files, "groups", report.Groups, "records", report.Records,
		"bytes", report.Bytes, "torn_bytes", report.TornBytes)
	return l, nil
}

// replay reads log.mark, and hands the log on disk to r. The recovery that it returns is never nil.
func replay(disk aio.Disk, arena *aio.Arena, store uuid.UUID, r Replayer, report *Report) (rec *recovery, err error) {
	block := int64(disk.Info().BlockBytes)
	rec = &recovery{
		disk: disk, store: store, block: block, replayer: r, report: report,
		win: window{arena: arena, block: block}, used: make(map[uint64]int64),
	}
	if rec.mark, rec.markState, rec.stride, err = readLogMark(disk, store); err != nil {
		return rec, err
	}
	return rec, errors.Join(rec.run(), rec.closeFiles())
}

// tell logs and counts what recovery found. Open calls it once, before the log runs.
func (l *Log) tell(unmarked bool, report *Report) {
	if unmarked {
		l.opts.Logger.Info("the commit log is from a version that made no "+MarkName+": it is taken for whole this once, "+
			"and from now on the loss of a file is noticed", "last_group", report.LastSeq)
	}
	if report.Forgotten != nil {
		l.stats.forgotten.Store(true)
	}
	if report.Unneeded != nil {
		l.opts.Logger.Warn("a file of the commit log is damaged and was not needed any more: the process before was about "+
			"to give it back. It was removed; nothing is missing", "error", report.Unneeded)
	}
	if report.Tear != nil {
		report.Tear.logTo(l.opts.Logger)
		if !report.Tear.Mark {
			l.stats.torn.Store(1)
		}
	}
}

func newLog(disk aio.Disk, arena *aio.Arena, opts Options, block int64) *Log {
	l := &Log{
		disk: disk, arena: arena, opts: opts, block: block,
		slots:    make([]Group, opts.InFlight),
		idle:     make([]*Group, 0, opts.InFlight),
		inFlight: make([]*Group, 0, opts.InFlight),
	}
	for i := range l.slots {
		l.slots[i].log, l.slots[i].slot = l, i
		l.idle = append(l.idle, &l.slots[i])
	}
	// A file must hold its checkpoint, then at least one group of the largest ordinary size, then a mark.
	group := min(aio.RoundUp(maxGroupBytes, block), (opts.FileBytes-block)*3/4&^(block-1))
	l.groupRoom, l.sizes.fileBytes, l.sizes.nextBytes = group, opts.FileBytes, opts.FileBytes
	l.maxPayload = min(MaxPayloadBytes, int(group)-GroupHeaderBytes-RecordHeaderBytes)
	l.stage.mem, l.stage.free = aio.AlignedBytes(int(max(block,
		min(aio.RoundUp(stageBytes, block), (opts.FileBytes-block-group)/2&^(block-1)))))
	l.stage.log = l
	l.stats.fileBytes.Store(opts.FileBytes)
	l.stats.maxLiveBytes.Store(opts.MaxLiveBytes)
	l.stage.emit = l.emitChunk
	l.completions = make([]aio.Completion, 0, opts.InFlight)
	return l
}

// adopt takes over what recovery found, removes the files that hold no group of the chain, and returns the number of
// the next file. Such files are the one that was ready but unused and, after a crash at the very beginning, one whose
// first group was torn.
func (l *Log) adopt(r *recovery) (next uint64, err error) {
	l.seq, l.crc, l.headerDurable, l.headerOldest = r.last.Seq, r.last.CRC, r.last.Durable, r.last.Oldest
	l.setDurable(r.last.Seq)
	if err := l.disk.MkdirAll(dirName); err != nil {
		return 0, fmt.Errorf("clog: making the log's folder: %w", err)
	}
	removed := false
	for _, f := range r.files {
		next = f.number
		if used := r.used[f.number]; used > 0 {
			l.live = append(l.live, liveFile{
				number: f.number, sizeBytes: f.sizeBytes, usedBytes: used, stored: newStored(f.number, f.id, used),
			})
			continue
		}
		if err := l.disk.Remove(fileName(f.number)); err != nil {
			return 0, fmt.Errorf("clog: removing a file without groups: %w", err)
		}
		removed = true
	}
	if removed {
		if err := l.disk.SyncDir(dirName); err != nil {
			return 0, fmt.Errorf("clog: flushing the log's folder: %w", err)
		}
	}
	l.showStored()
	return max(next, r.mark.Used) + 1, nil
}
