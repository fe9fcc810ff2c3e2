package clog

import "penstock/segment/aio"

// A file begins with a checkpoint, and only the source decides how large the checkpoint is. So file sizes follow the
// checkpoints: a file has Options.FileBytes, doubled as often as necessary. The size of a file is not stored in the
// format; recovery asks the file system.
//
//	checkpoint          smallest possible file                  files made from now on
//	n bytes             n + the largest ordinary group + mark   n is at most a quarter, and twice n would fit, too
//
// The log asks the source when a file is half full, so that the next file is ready in time, and again before the next
// file begins. If the ready file is too small by then, it is removed unused and the log waits for a larger one. If a
// checkpoint is larger than the source estimated, its file grows beyond its prepared end while it is written, which is
// slower but correct. So no checkpoint is too large for the log, and every file has room for records behind its
// checkpoint.

const (
	// checkpointShare sizes files: a checkpoint takes at most 1/checkpointShare of its file.
	checkpointShare = 4
	// liveFiles is how many files larger than Options.FileBytes may be live even if they exceed Options.MaxLiveBytes.
	liveFiles = 3
	// maxFileBytes bounds the size of files.
	maxFileBytes = 1 << 40
)

// fileSizing holds the log's decisions about the sizes of its files. Log.mu guards it.
type fileSizing struct {
	fileBytes  int64 // of files made from now on
	nextBytes  int64 // of the next file: >= fileBytes
	checkpoint int64 // estimated size of the checkpoint of the file that was planned last
	planned    bool  // the source was asked about the next file, which has not begun yet
	foreseen   bool  // the source was asked when the current file was half full
}

// framedBytes is roughly what a checkpoint of n bytes takes in its file, if its chunks are as large as they may be.
func (l *Log) framedBytes(n int64) int64 {
	return aio.RoundUp(n+n/8+GroupHeaderBytes+RecordHeaderBytes, l.block)
}

// sizeFor is the size of a file that must hold at least n bytes.
func (l *Log) sizeFor(n int64) int64 {
	size := l.opts.FileBytes
	for size < n && size <= maxFileBytes/2 {
		size *= 2
	}
	return size
}

// largestRoom is the most file space that the next group may need, including a record that waits for a larger file.
func (l *Log) largestRoom() int64 { return max(l.groupRoom, l.wantRoom) }

// setFileSizes sizes the next files for a checkpoint that takes framed bytes in its file. It shrinks them only when a
// quarter of the size is enough, so that sizes do not oscillate.
func (l *Log) setFileSizes(framed int64) {
	least := framed + l.largestRoom() + l.block
	want := l.sizeFor(max(checkpointShare*framed, 2*framed+l.groupRoom+l.block))
	if want > l.sizes.fileBytes || want <= l.sizes.fileBytes/4 {
		l.sizes.fileBytes = want
	}
	l.sizes.nextBytes = max(l.sizes.fileBytes, l.sizeFor(least))
	l.prep.resize(least, l.sizes.nextBytes)
}

// planFile asks the source before a file begins. The answer holds until the file has begun: apart from new partitions,
// nothing that goes into the checkpoint can change meanwhile.
func (l *Log) planFile() {
	if !l.sizes.planned {
		l.sizes.planned, l.sizes.checkpoint = true, l.framedBytes(l.source.CheckpointBytes())
		l.setFileSizes(l.sizes.checkpoint)
	}
}

// planNext asks the source when half of the current file is used. It assumes that the second half adds as much to the
// checkpoint as the first.
func (l *Log) planNext() {
	if l.sizes.foreseen || l.current.pos < l.current.sizeBytes/2 {
		return
	}
	l.sizes.foreseen = true
	n := l.framedBytes(l.source.CheckpointBytes())
	l.setFileSizes(n + max(0, n-l.sizes.checkpoint))
}

// fileStarted runs when the checkpoint of a new file is written. However much the checkpoint took, fileStarted makes
// sure that the file has room for records.
func (l *Log) fileStarted() {
	l.sizes.planned, l.sizes.foreseen = false, false
	l.growCurrent(l.current.pos + l.largestRoom() + l.block)
	l.sizes.nextBytes = l.sizes.fileBytes
	l.prep.resize(0, l.sizes.nextBytes)
}

// growCurrent raises the size of the current file to at least n: writes beyond its prepared end extend the file.
func (l *Log) growCurrent(n int64) {
	if n <= l.current.sizeBytes {
		return
	}
	l.opts.Logger.Warn("a checkpoint of the commit log is larger than was foretold: its file grows while it is written, "+
		"which is slower", "file", l.current.number, "prepared_bytes", l.current.sizeBytes, "bytes", n)
	l.current.sizeBytes = n
	l.live[len(l.live)-1].sizeBytes = n
}

// maxLive is Options.MaxLiveBytes, or more if the log needs it to continue with files of the size that checkpoints
// need.
func (l *Log) maxLive() int64 {
	size := l.sizes.nextBytes
	if l.current != nil {
		size = max(size, l.current.sizeBytes)
	}
	if size <= l.opts.FileBytes {
		return l.opts.MaxLiveBytes
	}
	return max(l.opts.MaxLiveBytes, liveFiles*size)
}

// FileBytes is the size of the files made now: Options.FileBytes, or more if checkpoints need it.
func (l *Log) FileBytes() int64 { return l.stats.fileBytes.Load() }

// MaxLiveBytes is the total size of files at which the log waits for Release: Options.MaxLiveBytes, or more if
// checkpoints need larger files.
func (l *Log) MaxLiveBytes() int64 { return l.stats.maxLiveBytes.Load() }
