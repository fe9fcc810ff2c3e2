package volatile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// FileSystem is a mounted file system on a Device.
type FileSystem struct {
	*Device
	Kind string // ext4 or xfs
	Path string // where it is mounted
	root *os.File
}

// makers are the commands that make file systems; the device's path follows.
var makers = map[string][]string{
	"ext4": {"mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"},
	"xfs":  {"mkfs.xfs", "-q", "-f", "-K"},
}

// KindMissing says why this machine cannot have a file system of a kind; nil: it can.
func KindMissing(kind string) error {
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return err
	}
	if !strings.Contains(string(known), "\t"+kind+"\n") {
		return fmt.Errorf("the kernel has no %s", kind)
	}
	if _, err := exec.LookPath(makers[kind][0]); err != nil {
		return fmt.Errorf("%s is not installed", makers[kind][0])
	}
	return nil
}

// Make makes a file system on the device. It stays unmounted.
func Make(d *Device, kind, path string) (*FileSystem, error) {
	loop, err := d.Attach()
	if err != nil {
		return nil, err
	}
	args := append(makers[kind][1:len(makers[kind]):len(makers[kind])], loop)
	if out, err := exec.Command(makers[kind][0], args...).CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w: %s", makers[kind][0], err, out), d.Detach())
	}
	return &FileSystem{Device: d, Kind: kind, Path: path}, d.Detach()
}

// Mount mounts it, after its journal was replayed.
func (f *FileSystem) Mount() error {
	loop, err := f.Attach()
	if err != nil {
		return err
	}
	if err := unix.Mount(loop, f.Path, f.Kind, unix.MS_NOATIME, ""); err != nil {
		return errors.Join(fmt.Errorf("mounting %s: %w", f.Kind, err), f.Detach())
	}
	f.root, err = os.Open(f.Path)
	return err
}

// Repair lets the tool of the file system make it consistent, as an operator does whose device has failed: a mount
// alone replays the journal, which may lack what the device refused. It must not be mounted. ext4 only.
func (f *FileSystem) Repair() error {
	loop, err := f.Attach()
	if err != nil {
		return err
	}
	out, err := exec.Command("e2fsck", "-f", "-y", loop).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode()&^repaired == 0 {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("repairing %s: %w\n%s", f.Kind, err, out)
	}
	return errors.Join(err, f.Detach())
}

// repaired are the exit codes of e2fsck that say that errors were found and corrected.
const repaired = 1 | 2

// shutdown is FS_IOC_SHUTDOWN, the same for both kinds; noLogFlush is the flag with which nothing more is written, not
// even the journal.
const (
	shutdown   = 0x8004587d
	noLogFlush = 2
)

// Shutdown ends the mounted file system at once: every call on it fails, and nothing that it still knows reaches the
// device.
func (f *FileSystem) Shutdown() error {
	if err := unix.IoctlSetPointerInt(int(f.root.Fd()), shutdown, noLogFlush); err != nil {
		return fmt.Errorf("shutting %s down: %w", f.Kind, err)
	}
	return nil
}

// Unmount unmounts it and lets go of the device. The processes that used it have ended; nothing is to do if it is not
// mounted.
func (f *FileSystem) Unmount() error {
	if f.root == nil {
		return nil
	}
	f.root.Close()
	f.root = nil
	if err := unmount(f.Path); err != nil {
		return err
	}
	return f.Detach()
}

// unmountTimeout is for what a killed process still has in flight: the kernel lets go of its files when that has ended.
const unmountTimeout = 30 * time.Second

func unmount(path string) error {
	for end := time.Now().Add(unmountTimeout); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Unmount(path, 0)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return errors.Join(fmt.Errorf("unmounting %s: %w", path, err), unix.Unmount(path, unix.MNT_DETACH))
		}
	}
}
