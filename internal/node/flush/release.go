package flush

import "fmt"

// logIsHalfFull says whether commit log files should be released. A released file takes a while until it can be reused.
// Releasing more files in the meantime would not make that faster, and would sync every partition once more.
func (f *Flusher) logIsHalfFull() bool {
	file := f.clog.FileBytes()
	room, half := f.clog.Headroom(), f.clog.MaxLiveBytes()/2
	live := int64(f.clog.Current()-f.clog.Oldest()+1) * file
	return room < half && (live >= half || room < file)
}

// olderHalf returns the number of the newest file in the older half of the commit log. Releasing files one by one would
// cost one sync of every busy partition per file.
func (f *Flusher) olderHalf() uint64 {
	oldest := max(f.clog.Oldest(), f.released)
	return oldest + (f.clog.Current()-oldest)/2
}

// releaseFiles releases the commit log files up to target, but never the newest one. First it writes the contents of
// these files to segments and syncs the segments, each partition once. All writes come before the first sync, so that
// the first sync commits the file system's journal for all of them. It says whether it released any file.
func (f *Flusher) releaseFiles(target uint64) bool {
	oldest, current := f.clog.Oldest(), f.clog.Current()
	f.mu.Lock()
	held := f.pins > 0
	f.mu.Unlock()
	if f.released > oldest { // the commit log has not processed the last release yet
		held = held || !f.clog.Stats().Full // a full log cannot, if that release was too small: it needs another
		oldest = f.released
	}
	if held {
		return false
	}
	target = min(target, current) // files up to and including target are released
	f.due = f.due[:0]
	for p := range f.n.Parts {
		seq, ok := p.owner.Log().OldestUnsyncedFileSeq()
		if !ok || seq > target || p.owner.NeedsNoFlush() {
			continue // releaseLimit asks what it holds
		}
		f.flushUpTo(p, target)
		f.due = append(f.due, p)
	}
	for i, p := range f.due {
		f.due[i] = nil
		f.sync(p)
	}
	release := f.releaseLimit(current)
	if release <= oldest {
		return false
	}
	return f.giveBack(release)
}

// giveBack releases the commit log files below release, unless somebody has pinned files since releaseFiles looked. It
// says whether it released them.
func (f *Flusher) giveBack(release uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pins > 0 {
		return false
	}
	f.released = release
	f.clog.Release(release)
	return true
}

// releaseLimit returns the number of the first commit log file that is kept: current, or the oldest file with batches
// that the segments of some copy still lack. Only this answer decides about files, for every copy, after all syncs. The
// files of a copy that nobody needs may be released, because the record that begins the copy's new log may be waiting
// for room. But first the next process must be able to know that the copy lacks something (HoldsFiles).
func (f *Flusher) releaseLimit(current uint64) uint64 {
	release := current
	for p := range f.n.Parts {
		if seq, ok := p.owner.Log().OldestUnsyncedFileSeq(); ok && seq < release && p.owner.HoldsFiles() {
			release = seq
		}
	}
	return release
}

// flushUpTo flushes the bytes of p that lie in commit log files up to target. Newer bytes wait, so that later flushes
// are larger.
func (f *Flusher) flushUpTo(p *Part, target uint64) {
	for {
		if seq, ok := p.owner.Log().OldestUnflushedFileSeq(); !ok || seq > target {
			return
		}
		f.makeFiles(p)
		if n, err := f.flush(p, maxFlushBytes); n == 0 || err != nil {
			return
		}
		f.evict() // the committer needs buffers meanwhile
	}
}

// sync makes the flushed bytes of p durable, and closes its files.
func (f *Flusher) sync(p *Part) {
	f.noteClosed(p)
	reopens := p.reopens.Load()
	f.n.Pulse.Begin()
	err := p.owner.Log().Sync()
	f.n.Pulse.End()
	if err != nil {
		f.failed(p, reopens, err)
	}
	f.n.SegmentSyncs.Add(1)
}

// PinFiles prevents the release of any commit log file until the returned function is called. A file that was released
// before may still be given back.
func (f *Flusher) PinFiles() func() {
	f.mu.Lock()
	f.pins++
	f.mu.Unlock()
	return func() {
		f.mu.Lock()
		f.pins--
		f.mu.Unlock()
	}
}

// MarkRotten notes that a commit log file is damaged, and wakes the flusher so that dropRotten replaces the file. The
// scrub calls it.
func (f *Flusher) MarkRotten(file uint64) {
	for {
		old := f.rotten.Load()
		if file <= old || f.rotten.CompareAndSwap(old, file) {
			break
		}
	}
	f.WakeUp()
}

// RottenFile returns the error that Health reports while a damaged commit log file is still in use.
func (f *Flusher) RottenFile() error {
	if file := f.rotten.Load(); file != 0 {
		return fmt.Errorf("engine: file %d of the commit log is damaged; nothing is lost: what it holds is being written "+
			"to segments", file)
	}
	return nil
}

// dropRotten removes a commit log file that the scrub could not read back. Memory still holds the contents of the file.
// If the file is the current one, dropRotten first makes the log begin another file. It then writes the contents to
// segments and releases the file. It runs at every tick until the file is gone.
func (f *Flusher) dropRotten() {
	file := f.rotten.Load()
	switch {
	case file == 0 || f.n.Failed():
	case f.clog.OldestKept() > file:
		if f.rotten.CompareAndSwap(file, 0) {
			f.n.Log.Info("the damaged file of the commit log is not needed any more: what it held is in segments, and a "+
				"restart does not read it", "file", file)
		}
	case f.clog.Current() <= file:
		f.clog.Renew(file)
	default:
		f.releaseFiles(file)
	}
}
