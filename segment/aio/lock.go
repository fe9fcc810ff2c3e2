package aio

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"penstock/segment/aio/internal/contract"
)

// lockPoll is the pause between two attempts to take a lock that another process holds.
const lockPoll = 10 * time.Millisecond

// takeLock opens the lock file and locks it, shared for readers. It returns nil without an error if there is nothing to
// lock.
//
// The lock belongs to the open file description, not to the process. Every ring registers that file as a fixed file. So
// the kernel keeps the file, and with it the lock, until the writes that a killed process had in flight have landed. A
// successor that gets the lock therefore never sees bytes change during its recovery.
func takeLock(root *os.Root, opts DiskOptions) (*os.File, error) {
	flag, how := os.O_RDWR|os.O_CREATE, unix.LOCK_EX
	if opts.ReadOnly {
		if opts.NoLock {
			return nil, nil
		}
		flag, how = os.O_RDONLY, unix.LOCK_SH
	}
	f, err := root.OpenFile(contract.LockName, flag, 0o600)
	if opts.ReadOnly && errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the directory was never in use
	}
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(opts.LockWait)
	for {
		err = retry(func() error { return unix.Flock(int(f.Fd()), how|unix.LOCK_NB) })
		if err != syscall.EWOULDBLOCK || !time.Now().Before(deadline) {
			break
		}
		time.Sleep(lockPoll)
	}
	if err != nil {
		f.Close()
		if err == syscall.EWOULDBLOCK {
			return nil, fmt.Errorf("%w: its file %s is locked (waited %v); stop that process, or use another directory",
				ErrLocked, contract.LockName, opts.LockWait)
		}
		return nil, fmt.Errorf("locking %s: %w", contract.LockName, err)
	}
	return f, nil
}

// releaseLock unlocks explicitly. The kernel frees a closed ring, and with it the ring's reference to the lock file, a
// little later; without the explicit unlock the lock might still be held at the next open.
func releaseLock(f *os.File) error {
	if f == nil {
		return nil
	}
	err := retry(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) })
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
