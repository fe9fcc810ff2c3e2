package clog

// A file begins with a checkpoint, and the source alone decides how large that is. So the size of files follows the checkpoints: Options.FileBytes,
// or that doubled as often as it takes. Each file is as large as it is; no byte on disk says so, and recovery asks the file system.
//
//	checkpoint          least                                   what is made from now on
//	n bytes             n + the largest ordinary group + mark   n is a quarter of it at most, and twice n would fit, too
//
// The source is asked when a file is half full, so that the next one is ready in time, and again before it begins. If the file that is
// ready is too small by then, it is given back unused and the log waits for a larger one. If a checkpoint is larger than its source had
// foretold, the file grows behind its end while it is written: slower, and never wrong. So no checkpoint is too large for the log, and
// each file has room for records behind it.

const (
	// checkpointShare: a checkpoint takes at most one part in so many of a file that is made for it.
	checkpointShare = 4
	// liveFiles is how many files of a size beyond Options.FileBytes may be live, if Options.MaxLiveBytes does not allow more.
	liveFiles = 3
	// maxFileBytes bounds the size of files.
	maxFileBytes = 1 << 40
)

// framedBytes is about what a checkpoint of n bytes takes in its file, when its chunks are as large as they may be.
func (l *Log) framedBytes(n int64) int64 {
	return roundUp(n+n/8+GroupHeaderBytes+RecordHeaderBytes, l.block)
}

// sizeFor is the size of a file that has at least n bytes.
func (l *Log) sizeFor(n int64) int64 {
	size := l.opts.FileBytes
	for size < n && size <= maxFileBytes/2 {
		size *= 2
	}
	return size
}

// largestRoom is what the next group may need, whatever waits.
func (l *Log) largestRoom() int64 { return max(l.groupRoom, l.wantRoom) }

// provide has files made in which a checkpoint takes framed bytes. It goes back to smaller ones late, or sizes would go up and down.
func (l *Log) provide(framed int64) {
	least := framed + l.largestRoom() + l.block
	want := l.sizeFor(max(checkpointShare*framed, 2*framed+l.groupRoom+l.block))
	if want > l.fileBytes || want <= l.fileBytes/4 {
		l.fileBytes = want
	}
	l.nextBytes = max(l.fileBytes, l.sizeFor(least))
	l.prep.resize(least, l.nextBytes)
}

// plan asks the source before a file begins. Until it has begun nothing that the checkpoint says can change, except that partitions may come.
func (l *Log) plan() {
	if !l.planned {
		l.planned, l.began = true, l.framedBytes(l.source.CheckpointBytes())
		l.provide(l.began)
	}
}

// foresee asks the source when half of the file is used, and takes it that the other half will add as much to the checkpoint.
func (l *Log) foresee() {
	if l.foreseen || l.current.pos < l.current.sizeBytes/2 {
		return
	}
	l.foreseen = true
	n := l.framedBytes(l.source.CheckpointBytes())
	l.provide(n + max(0, n-l.began))
}

// fileBegan follows the checkpoint of a new file: whatever that took, there is room for records.
func (l *Log) fileBegan() {
	l.planned, l.foreseen = false, false
	l.stretch(l.current.pos + l.largestRoom() + l.block)
	l.nextBytes = l.fileBytes
	l.prep.resize(0, l.nextBytes)
}

// stretch lets the current file have at least n bytes: what is written behind its prepared end makes it longer.
func (l *Log) stretch(n int64) {
	if n <= l.current.sizeBytes {
		return
	}
	l.opts.Logger.Warn("a checkpoint of the commit log is larger than was foretold: its file grows while it is written, "+
		"which is slower", "file", l.current.number, "prepared_bytes", l.current.sizeBytes, "bytes", n)
	l.current.sizeBytes = n
	l.live[len(l.live)-1].sizeBytes = n
}

// maxLive is Options.MaxLiveBytes, or as much as the log needs to go on with files of the size that checkpoints need.
func (l *Log) maxLive() int64 {
	size := l.nextBytes
	if l.current != nil {
		size = max(size, l.current.sizeBytes)
	}
	if size <= l.opts.FileBytes {
		return l.opts.MaxLiveBytes
	}
	return max(l.opts.MaxLiveBytes, liveFiles*size)
}

// FileBytes is the size of the files that are made now: Options.FileBytes, or more if checkpoints need it.
func (l *Log) FileBytes() int64 { return l.stats.fileBytes.Load() }

// MaxLiveBytes is the size of all files at which the log waits for Release: Options.MaxLiveBytes, or more if checkpoints need larger files.
func (l *Log) MaxLiveBytes() int64 { return l.stats.maxLiveBytes.Load() }
