package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Volume is a small ext4 file system of its own, for a disk that fills up or hangs.
type Volume struct {
	Path  string // where it is mounted
	image string
}

// VolumeMissing says why this machine cannot mount one; nil: it can.
func VolumeMissing() error {
	if os.Geteuid() != 0 {
		return errors.New("mounting a file system needs root")
	}
	for _, command := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(command); err != nil {
			return fmt.Errorf("a small file system needs %s", command)
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return errors.New("a small file system needs a loop device")
	}
	return nil
}

// NewVolume makes a file system of that size in dir and mounts it there.
func NewVolume(dir, name string, sizeBytes int64) (*Volume, error) {
	v := &Volume{Path: filepath.Join(dir, name), image: filepath.Join(dir, name+".img")}
	if err := os.Mkdir(v.Path, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Create(v.image)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(sizeBytes), f.Close()); err != nil {
		return nil, err
	}
	if err := run("mkfs.ext4", "-q", "-m", "0", v.image); err != nil {
		return nil, err
	}
	if err := run("mount", "-o", "loop", v.image, v.Path); err != nil {
		return nil, err
	}
	return v, nil
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// ballast is the file that Fill makes.
func (v *Volume) ballast() string { return filepath.Join(v.Path, "ballast") }

// Fill takes all free space but leaveBytes.
func (v *Volume) Fill(leaveBytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(v.Path, &st); err != nil {
		return err
	}
	take := int64(st.Bavail)*st.Bsize - leaveBytes
	if take <= 0 {
		return nil
	}
	f, err := os.OpenFile(v.ballast(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, take), f.Close())
}

// Free gives the space back that Fill took.
func (v *Volume) Free() error { return os.Remove(v.ballast()) }

// FreezeMissing says why this machine cannot let a disk hang; nil: it can.
func FreezeMissing() error {
	if err := VolumeMissing(); err != nil {
		return err
	}
	if _, err := exec.LookPath("fsfreeze"); err != nil {
		return errors.New("a disk that hangs needs fsfreeze")
	}
	return nil
}

// Freeze lets every write and flush hang until Thaw. A process that is killed meanwhile ends after it.
func (v *Volume) Freeze() error { return run("fsfreeze", "-f", v.Path) }

// Thaw lets them go on.
func (v *Volume) Thaw() error { return run("fsfreeze", "-u", v.Path) }

// Close unmounts it; the process that used it has ended. The kernel closes the files of an io_uring some time after the
// end of its process, so Close tries again for up to 10 s.
func (v *Volume) Close() error {
	err := run("umount", v.Path)
	for end := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(end); err = run("umount", v.Path) {
		time.Sleep(50 * time.Millisecond)
	}
	return errors.Join(err, os.Remove(v.image))
}
