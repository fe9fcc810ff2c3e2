package aio

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// File systems that copy on write need new blocks for each write, also into a file that has its space. So a commit log
// that was preallocated would meet a full disk in the middle of a group. btrfs writes files in place that were told to
// be so (NOCOW) before they had any content; their content has our checksums instead of those of btrfs.

// copyingSystems are the file systems that copy on write.
var copyingSystems = map[string]bool{"btrfs": true, "zfs": true, "bcachefs": true}

// noCopy is FS_NOCOW_FL of chattr +C.
const noCopy = 0x00800000

// writeInPlace makes an empty file one that is written in place, where a file would be copied otherwise and can be told
// not to. If that fails, the file is like any other: probeCopy has told of it.
func (d *fsDisk) writeInPlace(fd int) {
	if d.copies {
		_ = setNoCopy(fd)
	}
}

func setNoCopy(fd int) error {
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags|noCopy))
}

// probeCopy finds out whether files are copied on write here, by trying it with the empty probe file.
func (d *fsDisk) probeCopy(fd int) {
	if d.copies = copyingSystems[d.info.FileSystem]; !d.copies {
		return
	}
	err := setNoCopy(fd)
	flags := uint32(0)
	if err == nil {
		flags, err = unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	}
	if err == nil && flags&noCopy == 0 {
		err = syscall.EOPNOTSUPP
	}
	d.info.CopyOnWrite = err != nil
}
