package aio

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// NoRoom says whether err means that the file system is full, or a quota is used up. What was to be written was not, or
// only a part of it; the same bytes can be written to the same place when there is room.
func NoRoom(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// Refused says whether err means that the system refused a file descriptor or memory before it touched a file: it was
// not opened, named, renamed, removed or mapped. So the device has not failed: whoever wanted that tries again. Memory
// that is refused in the middle of a write or a flush is a failure of that write: nobody knows what became of it.
func Refused(err error) bool {
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, ErrNoMemory):
		return true
	case !errors.Is(err, syscall.ENOMEM):
		return false
	}
	var p *fs.PathError
	return errors.As(err, new(*os.LinkError)) || errors.As(err, &p) && !strings.HasPrefix(p.Op, "sync")
}

// Shortage says whether err is a lack of room, descriptors or memory, which ends when something else is freed: nothing
// failed, and whoever met it tries again.
func Shortage(err error) bool { return NoRoom(err) || Refused(err) }
