package aio

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"penstock/segment/aio/contract"
)

// lockPoll is the pause between two attempts to take a lock that another process holds.
const lockPoll = 10 * time.Millisecond

// ExitTime is how long a process that was killed may hold its locks: the kernel frees its rings late. Whoever opens the
// directory after it waits that long.
const ExitTime = 2 * time.Second

// locks are what keeps others out of a data directory: a lock of the directory itself, and one of its file LOCK. The
// directory's lock is the one that nobody can remove: whoever deletes LOCK does not let a second process in. LOCK keeps
// out processes of versions that know only LOCK, and is all there is on file systems where a directory cannot be locked
// (NFS).
//
// A lock belongs to the open file description, not to the process. Every ring registers both as fixed files. So the
// kernel keeps them, and with them the locks, until the writes that a killed process had in flight have landed. A
// successor that gets the locks therefore never sees bytes change during its recovery.
type locks struct {
	dir  *os.File // fsDisk.dir, which closes it
	held bool     // dir is locked
	file *os.File // LOCK; nil: not locked
}

// takeLocks locks dir and then LOCK, shared for readers. Everybody takes them in this order. With NoLock it locks
// nothing.
func takeLocks(root *os.Root, dir *os.File, opts DiskOptions, log *slog.Logger) (l locks, err error) {
	if opts.ReadOnly && opts.NoLock {
		return l, nil
	}
	how := unix.LOCK_EX
	if opts.ReadOnly {
		how = unix.LOCK_SH
	}
	defer func() {
		if err != nil {
			_ = l.release()
		}
	}()
	deadline := time.Now().Add(opts.LockWait)
	l.dir = dir
	switch err := flock(dir, how, deadline); {
	case err == syscall.EWOULDBLOCK:
		return l, fmt.Errorf("%w: %s (waited %v); stop that process, or use another directory", ErrLocked,
			whatIsLocked(root), max(opts.LockWait, 0))
	case err != nil:
		log.Warn("the data directory itself cannot be locked here; its file LOCK alone keeps other processes out, so "+
			"nobody may delete that file while this process runs", "err", err)
	default:
		l.held = true
	}
	return l, l.lockFile(root, opts, how, deadline)
}

// lockFile opens and locks LOCK.
func (l *locks) lockFile(root *os.Root, opts DiskOptions, how int, deadline time.Time) error {
	flag := os.O_RDWR | os.O_CREATE
	if opts.ReadOnly {
		flag = os.O_RDONLY
	}
	f, err := root.OpenFile(contract.LockName, flag, 0o600)
	if opts.ReadOnly && errors.Is(err, fs.ErrNotExist) {
		return nil // the directory was never in use, or its LOCK was deleted
	}
	if err != nil {
		return err
	}
	switch err := flock(f, how, deadline); {
	case err == nil:
		l.file = f
		return nil
	case err == syscall.EWOULDBLOCK:
		f.Close()
		return fmt.Errorf("%w: its file %s is locked (waited %v); stop that process, or use another directory",
			ErrLocked, contract.LockName, max(opts.LockWait, 0))
	default:
		f.Close()
		return fmt.Errorf("locking %s: %w", contract.LockName, err)
	}
}

// flock locks f, and tries again until the deadline while another process holds it.
func flock(f *os.File, how int, deadline time.Time) error {
	for {
		err := retry(func() error { return unix.Flock(int(f.Fd()), how|unix.LOCK_NB) })
		if err != syscall.EWOULDBLOCK || !time.Now().Before(deadline) {
			return err
		}
		time.Sleep(lockPoll)
	}
}

// whatIsLocked says what is locked in a directory that is locked itself.
func whatIsLocked(root *os.Root) string {
	if _, err := root.Stat(contract.LockName); errors.Is(err, fs.ErrNotExist) {
		return "its directory is locked although " + contract.LockName + " was removed"
	}
	return "its directory and its file " + contract.LockName + " are locked"
}

// fds returns what a ring must keep open.
func (l *locks) fds() (fds []int32) {
	if l.file != nil {
		fds = append(fds, int32(l.file.Fd()))
	}
	if l.held {
		fds = append(fds, int32(l.dir.Fd()))
	}
	return fds
}

// release unlocks explicitly, and closes LOCK. The kernel frees a closed ring, and with it the ring's references to the
// files, a little later; without the explicit unlock they might still be locked at the next open. The directory comes
// last, as its lock is taken first.
func (l *locks) release() error {
	var err error
	if f := l.file; f != nil {
		err = errors.Join(unlock(f), f.Close())
		l.file = nil
	}
	if l.held {
		err = errors.Join(err, unlock(l.dir))
		l.held = false
	}
	return err
}

func unlock(f *os.File) error {
	return retry(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) })
}
