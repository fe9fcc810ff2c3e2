package aio_test

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"penstock/segment/aio"
)

// What a shortage is decides whether a device has failed: the system refuses before it touches a file, or the disk has
// no room. In the middle of a write or a flush, a lack of memory is a failure.
func TestShortages(t *testing.T) {
	at := func(op string, err error) error {
		return fmt.Errorf("something: %w", &fs.PathError{Op: op, Path: "a", Err: err})
	}
	for _, c := range []struct {
		err             error
		noRoom, refused bool
	}{
		{at("write", syscall.ENOSPC), true, false},
		{fmt.Errorf("a write: %w", syscall.EDQUOT), true, false},
		{at("openat", syscall.EMFILE), false, true},
		{at("openat", syscall.ENFILE), false, true},
		{at("openat", syscall.ENOMEM), false, true},
		{at("mkdirat", syscall.ENOMEM), false, true},
		{at("unlinkat", syscall.ENOMEM), false, true},
		{at("map", syscall.ENOMEM), false, true},
		{&os.LinkError{Op: "renameat", Old: "a", New: "b", Err: syscall.ENOMEM}, false, true},
		{fmt.Errorf("a read: %w", aio.ErrNoMemory), false, true},
		{fmt.Errorf("a write: %w", syscall.ENOMEM), false, false},
		{at("sync", syscall.ENOMEM), false, false},
		{at("openat", syscall.EIO), false, false},
		{syscall.EIO, false, false},
		{nil, false, false},
	} {
		if got := aio.NoRoom(c.err); got != c.noRoom {
			t.Errorf("%v: no room: %v", c.err, got)
		}
		if got := aio.Refused(c.err); got != c.refused {
			t.Errorf("%v: refused: %v", c.err, got)
		}
		if got := aio.Shortage(c.err); got != (c.noRoom || c.refused) {
			t.Errorf("%v: a shortage: %v", c.err, got)
		}
	}
}
