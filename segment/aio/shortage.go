package aio

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
)

// NoRoom says whether err means that the file system is full, or a quota is used up. What was to be written was not; it
// can be tried again when there is room.
func NoRoom(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// Unopened says whether err means that a file or directory could not be opened for want of file descriptors or memory.
// Nothing was done to it, so that the device has not failed: whoever wanted to use it tries again.
func Unopened(err error) bool {
	var p *fs.PathError
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOMEM) && errors.As(err, &p) && strings.HasPrefix(p.Op, "open")
}
