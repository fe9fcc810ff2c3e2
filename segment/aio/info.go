package aio

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// fileSystems names the magic numbers of statfs that occur under data directories.
var fileSystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC:      "ext4", // ext2 and ext3 share it
	unix.XFS_SUPER_MAGIC:       "xfs",
	unix.BTRFS_SUPER_MAGIC:     "btrfs",
	unix.TMPFS_MAGIC:           "tmpfs",
	unix.RAMFS_MAGIC:           "ramfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay",
	unix.NFS_SUPER_MAGIC:       "nfs",
	unix.FUSE_SUPER_MAGIC:      "fuse",
	unix.F2FS_SUPER_MAGIC:      "f2fs",
	0x2fc12fc1:                 "zfs",
	0xca451a4e:                 "bcachefs",
	0x01021997:                 "9p",
}

// describe fills in what the system says about the directory. Only statfs must work; the rest is information for
// people.
func (d *fsDisk) describe() error {
	st, err := d.statfs()
	if err != nil {
		return err
	}
	magic := int64(uint32(st.Type))
	name, ok := fileSystems[magic]
	if !ok {
		name = fmt.Sprintf("0x%x", magic)
	}
	d.info.FileSystem = name
	d.info.Device, d.info.DeviceCache = d.device()
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		d.info.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	return nil
}

// Transience says why what is stored on the disk does not last, and what ends it, as the rest of a sentence that begins
// with "the data directory is". It returns "" if the data last as long as the device.
func (i *Info) Transience() string {
	const lost = "everything in it, also what was answered OK, is lost when "
	switch {
	case i.FileSystem == "tmpfs" || i.FileSystem == "ramfs":
		return "in memory (" + i.FileSystem + "): " + lost + "the machine restarts or the file system is unmounted"
	case strings.HasPrefix(i.Device, "zram") || strings.HasPrefix(i.Device, "ram"):
		return "in memory (the device " + i.Device + "): " + lost + "the machine restarts"
	case i.FileSystem == "overlay":
		return "on an overlay, as the own layer of a container is: " + lost + "the container is removed or replaced"
	}
	return ""
}

// device finds the block device below the directory and its kind of cache. With a volatile ("write back") cache, a
// write is not durable without a flush.
func (d *fsDisk) device() (name, cache string) {
	dir, err := d.root.Open(".")
	if err != nil {
		return "", ""
	}
	defer dir.Close()
	var st unix.Stat_t
	if unix.Fstat(int(dir.Fd()), &st) != nil {
		return "", ""
	}
	sys := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	target, err := filepath.EvalSymlinks(sys)
	if err != nil {
		return "", ""
	}
	// A partition has no queue of its own; its disk, one level up, has one.
	for _, place := range []string{target, filepath.Dir(target)} {
		if text, err := os.ReadFile(filepath.Join(place, "queue", "write_cache")); err == nil {
			return filepath.Base(target), strings.TrimSpace(string(text))
		}
	}
	return filepath.Base(target), ""
}
