package aio

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"

	"penstock/internal/uring"
	"penstock/segment/aio/contract"
)

// probeName is the file that the probes write and that is removed before OpenDisk returns. OpenDisk holds the lock, so
// one name is enough, and a crash leaves at most one file.
const probeName = "PROBE"

// probeByte is what the probe file is filled with.
const probeByte = 'p'

// maxBlockBytes is the largest alignment that a device may demand.
const maxBlockBytes = 64 << 10

// probe finds out, by trying, what this directory can do, and fills d.info.
func (d *fsDisk) probe(opts DiskOptions) error {
	if err := d.describe(); err != nil {
		return err
	}
	d.info.Engine = "pwrite"
	if d.readOnly {
		d.info.Reason = "the directory is open for reading only"
		d.direct = !opts.Buffered && d.readsDirect()
		d.info.Direct, d.info.BlockBytes = d.direct, d.blockBytes
		return nil
	}
	defer func() { _ = d.root.Remove(probeName) }()
	f, err := d.probeDirect(opts)
	if err != nil {
		return fmt.Errorf("probing the file system: %w", err)
	}
	defer func() {
		_ = f.Truncate(0) // it may be LOCK
		f.Close()
	}()
	if err := d.probeMapping(f); err != nil {
		return err
	}
	d.dsync = d.probeDsync(f)
	d.info.Direct, d.info.BlockBytes = d.direct, d.blockBytes
	d.info.Reason = d.chooseEngine(f, opts)
	if d.uring {
		d.info.Engine = uring.Engine
	}
	return nil
}

// readsDirect tries a direct read of the lock file, which every data directory has.
func (d *fsDisk) readsDirect() bool {
	f, err := d.root.OpenFile(contract.LockName, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	d.blockBytes = directBlock(int(f.Fd()))
	buf := d.bounce.get()
	defer d.bounce.put(buf)
	_, err = preadSome(int(f.Fd()), buf[:d.blockBytes], 0)
	return err == nil
}

// unsupported says whether err is one of those with which file systems refuse a way of writing.
func unsupported(err error) bool {
	for _, e := range []syscall.Errno{syscall.EINVAL, syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.ENOTTY} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// probeDirect writes one block with O_DIRECT or, if that is refused, without, and returns the file. A full disk counts
// as a success: the disk must open, so that consumers can go on.
func (d *fsDisk) probeDirect(opts DiskOptions) (*os.File, error) {
	if !opts.Buffered {
		f, err := d.writeProbe(unix.O_DIRECT)
		if err == nil {
			d.direct = true
			return f, nil
		}
		if !unsupported(err) {
			return nil, err
		}
	}
	return d.writeProbe(0)
}

// writeProbe writes a block to the probe file or, if there is no inode for one, to LOCK, which is empty otherwise.
func (d *fsDisk) writeProbe(flag int) (*os.File, error) {
	f, err := d.root.OpenFile(probeName, os.O_RDWR|os.O_CREATE|os.O_TRUNC|flag, 0o600)
	if contract.NoRoom(err) {
		f, err = d.root.OpenFile(contract.LockName, os.O_RDWR|flag, 0o600)
	}
	if err != nil {
		return nil, err
	}
	d.probeCopy(int(f.Fd()))
	if flag != 0 {
		d.blockBytes = directBlock(int(f.Fd()))
	}
	block, free := AlignedBytes(d.blockBytes)
	defer free()
	for i := range block {
		block[i] = probeByte
	}
	if err := pwriteFull(int(f.Fd()), block, 0, 0); err != nil && !contract.NoRoom(err) {
		f.Close()
		return nil, err
	}
	return f, nil
}

// probeMapping maps the probe file as segments are mapped, and looks whether the mapping has what was written. Without
// that, what a node answers OK could never be delivered.
func (d *fsDisk) probeMapping(f *os.File) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("probing the file system: %w", err)
	}
	mem, err := mmap.MapRegion(f, d.blockBytes, mmap.RDONLY, 0, 0)
	switch {
	case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("probing the file system: mapping a file: %w", err)
	case err != nil:
		return fmt.Errorf("the file system (%s) maps no files into memory (%w), so that nothing stored here could be "+
			"delivered: nothing was stored. Put the data directory on a local disk; of FUSE, mount it without direct_io; of "+
			"9p, mount it with cache=mmap", d.info.FileSystem, err)
	}
	if size >= int64(d.blockBytes) { // otherwise the disk is full
		m := newMapping(probeName, mem)
		got := make([]byte, d.blockBytes)
		err = errors.Join(m.Copy(got, 0), m.Unmap())
		if err == nil && bytes.IndexFunc(got, func(r rune) bool { return r != probeByte }) >= 0 {
			err = errors.New("the mapping has something else than what was written")
		}
		if err != nil {
			return fmt.Errorf("the file system (%s) does not map files as they are written (%w): nothing was stored. Put "+
				"the data directory on a local disk", d.info.FileSystem, err)
		}
		return nil
	}
	return mem.Unmap()
}

// directBlock is the alignment for direct writes: BlockBytes, or more if the file system requires more.
func directBlock(fd int) int {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	if err != nil || st.Mask&unix.STATX_DIOALIGN == 0 {
		return BlockBytes
	}
	return max(BlockBytes, min(int(st.Dio_offset_align), maxBlockBytes))
}

func (d *fsDisk) probeDsync(f *os.File) bool {
	block, free := AlignedBytes(d.blockBytes)
	defer free()
	err := pwriteFull(int(f.Fd()), block, 0, unix.RWF_DSYNC)
	return err == nil || contract.NoRoom(err)
}

// chooseEngine decides between ring and pwrite and returns the reason in one clause.
func (d *fsDisk) chooseEngine(f *os.File, opts DiskOptions) string {
	switch {
	case opts.Mode == ModePwrite:
		return "chosen by configuration"
	case !d.dsync:
		return "the kernel or file system has no RWF_DSYNC"
	case opts.Mode != ModeUring && !d.direct:
		return "without O_DIRECT every write of a ring is handed to a kernel thread"
	}
	if err := probeRing(int(f.Fd()), d.blockBytes); err != nil {
		return "io_uring is not usable here: " + err.Error()
	}
	d.uring = true
	if opts.Mode == ModeUring {
		return "chosen by configuration"
	}
	return "io_uring and O_DIRECT work"
}
