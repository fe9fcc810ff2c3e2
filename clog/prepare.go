package clog

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/internal/failpoint"
	"penstock/internal/lock"
	"penstock/segment/aio"
)

const (
	// minSpares is how many prepared files the spare folder should hold, besides the ready one in the log's folder.
	minSpares = 1
	// prepareRetry is the pause before the next try after the system had no room (or no file descriptor) for a file.
	prepareRetry = 500 * time.Millisecond
)

// preparer keeps the next file of the log ready. A file is ready when its blocks are written (zeros, or a released
// file's old groups) and flushed, and its name in the log's folder is durable. Only then may the log see the file. As a
// result, overwriting the file needs no journal commit of the file system, and no power cut takes away the name of a
// file that holds acknowledged groups.
//
//	released file ──rename──► spare ──rename──► next number in clog/ ──take──► current
//	                            ▲
//	new file: zeros, flush ─────┘
//
// One goroutine (run) does the work; with inline, take does. mu guards what that goroutine shares with the log, which
// calls take, retire and resize. A crash at any step leaves at worst a spare or a file without groups: Open removes
// both.
type preparer struct {
	disk      aio.Disk
	log       *slog.Logger
	stats     *counters
	pulse     *aio.Pulse
	liveBytes int64
	inline    bool
	wake      func()

	mu      lock.Mutex[lock.LogPreparer]
	ready   *openFile  // its name is durable; the log may take it
	retired []liveFile // released files that a durable group says are not needed
	short   bool       // the last try found no room; the preparer will try again
	least   int64      // a ready file smaller than this is of no use
	size    int64      // of new files

	failed atomic.Pointer[error] // final: the disk cannot be trusted
	// used is how much of the current file the log has used, of usedWhole; usedWhole also if the log waits for a file.
	// The holder of Log.mu writes it; see pieceDue.
	used atomic.Int64

	// Used only by the goroutine that does the work.
	spares []liveFile // the files of the spare folder, which has its own numbering
	making newFile    // the file that is being written with zeros
	// Names were changed in the folders and are not durable yet: then is what follows once they are, and coming the file
	// that it will make ready. See settle.
	then      func() error
	coming    aio.File
	nextSpare uint64
	next      uint64 // number of the next file; greater than any number the log's folder ever had

	kick chan struct{}
	quit chan struct{}
	done chan struct{}
}

// newFile is a file of the spare folder that is being written with zeros, piece by piece. No other file may be made
// meanwhile; recycled files may come in between. A crash leaves it in the spare folder, which Open clears.
type newFile struct {
	aio.File  // nil: none is being made
	number    uint64
	sizeBytes int64
	done      int64     // bytes written
	from      uint64    // bytes of groups that the log had written when the file was begun
	last      time.Time // of the last piece
	zeros     []byte
	free      func()
}

func newPreparer(l *Log, next uint64) *preparer {
	p := &preparer{
		disk: l.disk, log: l.opts.Logger, stats: &l.stats, pulse: l.opts.Pulse, size: l.opts.FileBytes,
		liveBytes: l.opts.MaxLiveBytes, inline: l.opts.Inline, wake: l.Wake,
		next: next, nextSpare: 1,
		kick: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	p.used.Store(usedWhole)
	return p
}

// start cleans the spare folder and starts the work.
func (p *preparer) start() error {
	if err := p.removeSpares(); err != nil {
		return err
	}
	if p.inline {
		close(p.done)
		return nil
	}
	go p.run()
	return nil
}

func (p *preparer) removeSpares() error {
	if err := p.disk.MkdirAll(spareName); err != nil {
		return fmt.Errorf("clog: making the spare folder: %w", err)
	}
	infos, err := p.disk.ReadDir(spareName)
	if err != nil {
		return fmt.Errorf("clog: listing the spare folder: %w", err)
	}
	for _, info := range infos {
		if _, ok := parseName(info.Name()); !ok {
			continue
		}
		if err := p.disk.Remove(spareName + "/" + info.Name()); err != nil {
			return fmt.Errorf("clog: the file system does not remove an old spare file, which holds nothing; "+
				"nothing was changed: repair the file system and start again: %w", err)
		}
	}
	return nil
}

// resize sets the smallest useful size of the next file, and the size of files made from now on.
func (p *preparer) resize(least, size int64) {
	p.mu.Lock()
	changed := p.size != size || p.ready != nil && p.ready.sizeBytes < least
	p.least, p.size = least, size
	p.mu.Unlock()
	if changed {
		p.notify()
	}
}

// maxSpares is how many spares are kept. Files are released many at a time; removing them and writing new ones would
// disturb commits.
func (p *preparer) maxSpares(size int64) int { return int(max(minSpares, p.liveBytes/size)) }

// take returns the ready file, or nil if none that is large enough is ready.
func (p *preparer) take() (*openFile, error) {
	if p.inline {
		if err := p.work(); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	f := p.ready
	if f != nil && f.sizeBytes < p.least {
		f = nil // discardReady will remove it
	} else {
		p.ready = nil
	}
	p.mu.Unlock()
	used := int64(0)
	if f == nil {
		used = usedWhole
	}
	p.used.Store(used)
	p.notify()
	return f, nil
}

// advance notes that the log has used pos of size bytes of its current file.
func (p *preparer) advance(pos, size int64) { p.used.Store(min(pos*usedWhole/size, usedWhole-1)) }

// failure returns the error that ended the work for good, or nil.
func (p *preparer) failure() error {
	if err := p.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// fileComing says that a file will become ready without help from outside.
func (p *preparer) fileComing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.inline && p.failure() == nil && !p.short
}

// retire hands over a file that nothing needs any more, to be recycled or removed.
func (p *preparer) retire(f liveFile) {
	p.mu.Lock()
	p.retired = append(p.retired, f)
	p.mu.Unlock()
	p.notify()
}

func (p *preparer) notify() {
	if p.inline {
		return
	}
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// run works until close, or until an error that is final.
func (p *preparer) run() {
	defer close(p.done)
	retry := time.NewTimer(prepareRetry)
	defer retry.Stop()
	for {
		if err := p.work(); err != nil {
			p.wake()
			return
		}
		p.mu.Lock()
		short := p.short
		p.mu.Unlock()
		switch {
		case short:
			retry.Reset(prepareRetry)
		case p.making.File != nil && len(p.spares) < minSpares:
			retry.Reset(paceEvery)
		default:
			retry.Stop()
		}
		select {
		case <-p.quit:
			return
		case <-p.kick:
		case <-retry.C:
		}
	}
}

// work prepares files until there is nothing left to do. Lack of room is not an error: work notes it, and run tries
// again. Any other failure is final, because the disk or the folder can no longer be trusted.
func (p *preparer) work() error {
	for {
		more, err := p.prepareOne()
		if err != nil && errors.Is(err, aio.ErrClosed) {
			return nil // close came in between
		}
		short := err != nil && wantsRoom(err)
		p.mu.Lock()
		p.short = short
		p.mu.Unlock()
		switch {
		case short:
			p.log.Warn("no room for the next file of the commit log; it waits until there is", "err", err)
			return nil
		case err != nil:
			p.log.Error("preparing a file of the commit log failed", "err", err)
			final := err // a copy, because storing &err would put the err of each round on the heap
			p.failed.Store(&final)
			return err
		case !more:
			return nil
		}
	}
}

// wantsRoom says whether err is a shortage that ends when something else is freed.
func wantsRoom(err error) bool {
	return aio.Shortage(err) || errors.Is(err, syscall.ENOMEM)
}

// prepareOne does the most urgent step and says whether more steps may follow.
func (p *preparer) prepareOne() (bool, error) {
	p.pulse.Begin()
	defer p.pulse.End()
	p.mu.Lock()
	ready, size := p.ready != nil, p.size
	tooSmall := ready && p.ready.sizeBytes < p.least
	var f liveFile
	retired := len(p.retired) > 0
	if retired {
		f = p.retired[0]
	}
	p.mu.Unlock()
	switch {
	case p.then != nil:
		return true, p.settle(p.then)
	case tooSmall:
		return true, p.discardReady()
	case p.smallSpare(size) >= 0:
		return true, p.removeSpare(p.smallSpare(size))
	case !ready && len(p.spares) > 0:
		return true, p.makeReady()
	case retired:
		return true, p.recycle(f, size)
	case p.making.File != nil && p.making.sizeBytes < size:
		return true, p.giveUpMaking()
	case len(p.spares) < minSpares && p.making.File == nil:
		return true, p.beginSpare(size)
	case len(p.spares) < minSpares:
		return p.writeSpare(ready)
	}
	return false, nil
}

// smallSpare returns the index of a spare that is smaller than size, the size of new files, or -1.
func (p *preparer) smallSpare(size int64) int {
	return slices.IndexFunc(p.spares, func(f liveFile) bool { return f.sizeBytes < size })
}

func (p *preparer) removeSpare(i int) error {
	if err := p.disk.Remove(spareFile(p.spares[i].number)); err != nil {
		return fmt.Errorf("clog: removing a spare file: %w", err)
	}
	p.spares = slices.Delete(p.spares, i, i+1)
	p.stats.removed.Add(1)
	return nil
}

// discardReady removes the ready file because the next checkpoint does not fit into it. The removal of its name must be
// durable before the next file exists: a file without groups between two files that continue each other would look like
// damage.
func (p *preparer) discardReady() error {
	p.mu.Lock()
	f := p.ready
	if f == nil || f.sizeBytes >= p.least {
		p.mu.Unlock()
		return nil // taken, or large enough after all
	}
	p.ready = nil // nobody may take it any more
	p.mu.Unlock()
	if err := p.disk.Remove(fileName(f.number)); err != nil {
		p.mu.Lock()
		p.ready = f // to be tried again
		p.mu.Unlock()
		return fmt.Errorf("clog: removing a file that is too small: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("clog: closing a file that is too small: %w", err)
	}
	p.stats.removed.Add(1)
	return p.settle(func() error { return nil })
}

// settle makes the names durable that were changed, and then does what has to wait for that. Nothing else happens to
// the folders before: if the system refuses the descriptors for it, the next round of work begins with it.
func (p *preparer) settle(then func() error) error {
	p.then = then
	if err := p.syncFolders(); err != nil {
		return err
	}
	p.then = nil
	return then()
}

func spareFile(number uint64) string { return fmt.Sprintf("%s/%010d%s", spareName, number, suffix) }

// makeReady turns the oldest spare into the next file. It opens the spare before renaming it, so that a shortage of
// descriptors leaves the spare where it is.
func (p *preparer) makeReady() error {
	spare := p.spares[0]
	f, err := p.disk.Open(spareFile(spare.number))
	if err != nil {
		return fmt.Errorf("clog: opening a spare file: %w", err)
	}
	number := p.next
	if err := p.disk.Rename(spareFile(spare.number), fileName(number)); err != nil {
		return errors.Join(fmt.Errorf("clog: moving a spare file into the log: %w", err), f.Close())
	}
	// From here on the number is used up and the spare is gone, even if a later step fails.
	p.next++
	p.spares = p.spares[:copy(p.spares, p.spares[1:])]
	p.coming = f
	return p.settle(func() error { return p.showReady(number, spare.sizeBytes) })
}

// showReady lets the log see the file that is coming, whose name is durable.
func (p *preparer) showReady(number uint64, sizeBytes int64) error {
	f := p.coming
	p.coming = nil
	// Open it again under its new name, which its errors then show. f is open already, so a failure does not matter.
	if named, err := p.disk.Open(fileName(number)); err == nil {
		f, named = named, f
		if err := named.Close(); err != nil {
			return errors.Join(fmt.Errorf("clog: preparing a file: %w", err), f.Close())
		}
	}
	ready := &openFile{File: f, number: number, sizeBytes: sizeBytes}
	var err error
	if ready.id, err = f.ID(); err == nil {
		var links int
		links, err = f.Links()
		ready.linked = links > 0
	}
	if err != nil {
		return errors.Join(fmt.Errorf("clog: preparing a file: %w", err), f.Close())
	}
	p.mu.Lock()
	p.ready = ready
	p.mu.Unlock()
	p.wake()
	return nil
}

func (p *preparer) syncFolders() error {
	for _, dir := range []string{dirName, spareName} {
		if err := p.disk.SyncDir(dir); err != nil {
			return fmt.Errorf("clog: flushing the folder %s: %w", dir, err)
		}
	}
	return nil
}

// recycle turns a released file into a spare, or removes it. The file's blocks are written already, and the groups in
// them never verify under another file number. The folder is flushed before the file is used again: otherwise a power
// cut could leave one file under two names.
func (p *preparer) recycle(f liveFile, size int64) error {
	if err := failpoint.Hit("clog/before-recycle"); err != nil {
		return err
	}
	defer failpoint.Pass("clog/after-recycle")
	if f.sizeBytes != size || len(p.spares) >= p.maxSpares(size) {
		if err := p.disk.Remove(fileName(f.number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("clog: removing a file that is not needed: %w", err)
		}
		p.stats.removed.Add(1)
		// Flush after each file: a folder that lost a younger file but kept an older one would look damaged.
		return p.settle(p.forgetRetired)
	}
	if err := p.disk.Rename(fileName(f.number), spareFile(p.nextSpare)); err != nil {
		return fmt.Errorf("clog: recycling a file: %w", err)
	}
	p.spares = append(p.spares, liveFile{number: p.nextSpare, sizeBytes: size})
	p.nextSpare++
	p.stats.recycled.Add(1)
	return p.settle(p.forgetRetired)
}

// forgetRetired ends the recycling of a file, whose old name is durably gone.
func (p *preparer) forgetRetired() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = p.retired[:copy(p.retired, p.retired[1:])]
	return nil
}

// beginSpare makes a file, which writeSpare fills with zeros. If the space were only allocated, the first use of each
// block would cost a journal commit.
func (p *preparer) beginSpare(size int64) error {
	number := p.nextSpare
	f, err := p.disk.Create(spareFile(number), size)
	if err != nil {
		return fmt.Errorf("clog: making a spare file: %w", err)
	}
	p.nextSpare++
	p.making = newFile{File: f, number: number, sizeBytes: size, from: p.stats.bytes.Load(), last: time.Now()}
	p.making.zeros, p.making.free = aio.AlignedBytes(int(min(urgentPieceBytes, size)))
	return nil
}

// writeSpare writes the next piece of the file in the making if it is due. The last piece makes the file a spare.
func (p *preparer) writeSpare(ready bool) (bool, error) {
	select {
	case <-p.quit:
		return false, aio.ErrClosed
	default:
	}
	f := &p.making
	n := min(urgentPieceBytes, f.sizeBytes-f.done)
	if !p.inline {
		since := int64(p.stats.bytes.Load() - f.from)
		n = pieceDue(f.sizeBytes, f.done, p.used.Load(), since, ready, time.Since(f.last))
	}
	if n == 0 {
		return false, nil
	}
	if err := f.WriteAt(f.zeros[:n], f.done); err != nil {
		return false, p.failMaking(err)
	}
	f.done, f.last = f.done+n, time.Now()
	p.stats.zeroed.Add(uint64(n))
	if f.done < f.sizeBytes {
		return true, nil
	}
	if err := f.Sync(); err != nil {
		return false, p.failMaking(err)
	}
	spare := liveFile{number: f.number, sizeBytes: f.sizeBytes}
	if err := p.endMaking(); err != nil {
		return false, fmt.Errorf("clog: preparing a spare file: %w", err)
	}
	p.spares = append(p.spares, spare)
	p.stats.prepared.Add(1)
	return true, nil
}

// endMaking closes the file in the making and frees the zeros.
func (p *preparer) endMaking() error {
	err := p.making.Close()
	p.making.free()
	p.making = newFile{}
	return err
}

// failMaking removes the file that was being made when err occurred. It returns err, with the error of the removal if
// that failed, too.
func (p *preparer) failMaking(err error) error {
	return fmt.Errorf("clog: preparing a spare file: %w", errors.Join(err, p.giveUpMaking()))
}

// giveUpMaking removes the file in the making.
func (p *preparer) giveUpMaking() error {
	name := spareFile(p.making.number)
	return errors.Join(p.endMaking(), p.disk.Remove(name))
}

// stopMaking closes the file in the making when the work ends. Open removes it.
func (p *preparer) stopMaking() {
	if p.making.File != nil {
		_ = p.endMaking() // nothing was written that anybody needs
	}
}

// close ends the work and closes the ready file. That file stays in the folder without groups, and Open removes it.
func (p *preparer) close() error {
	close(p.quit)
	<-p.done
	p.stopMaking()
	var err error
	if p.coming != nil {
		err = p.coming.Close()
		p.coming = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.ready; f != nil {
		p.ready = nil
		err = errors.Join(err, f.Close())
	}
	return err
}
