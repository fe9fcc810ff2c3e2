package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// A process may see other files under a path than those who name it: the unit of systemd has a /tmp of its own
// (PrivateTmp), and most of the file system is read-only there (ProtectSystem). A backup is for others, so it must not
// be made where they do not see it.

// Seen returns an error if only this process's service sees the directory name, which need not exist.
func Seen(name string) error {
	real, err := realPath(name)
	if err != nil {
		return nil // NewWriter says it better
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	if at := privateMount(string(mounts), real); at != "" {
		return fmt.Errorf("%s is in the private %s of this node's service (PrivateTmp), which nobody else sees and which is "+
			"removed when the service stops: name a directory elsewhere, such as one in /var/lib/penstock-backups", name, at)
	}
	return nil
}

// privateMount returns where the mount is that has the path, if systemd made it for one service only; otherwise "".
// mounts is /proc/self/mountinfo: the number of a mount, that of its parent, its device, the directory in its file
// system that is mounted, and where. Of several mounts at one place the last one counts.
func privateMount(mounts, path string) string {
	best, private := "", false
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		root, at := unescape(f[3]), unescape(f[4])
		below := at == "/" || path == at || strings.HasPrefix(path, at+"/")
		if below && len(at) >= len(best) {
			best, private = at, strings.Contains(root, "/systemd-private-")
		}
	}
	if !private {
		return ""
	}
	return best
}

// unescape replaces the octal escapes of mountinfo, such as \040 for a blank.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// explain adds to an error of making a directory what may be behind it: the sandbox of a unit, which looks like a
// read-only file system, or like missing rights below /home.
func explain(err error) error {
	if !errors.Is(err, syscall.EROFS) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w: this node may not write there. If it is a service of systemd, its sandbox (ProtectSystem, "+
		"ProtectHome) may be the reason: name a directory in /var/lib/penstock-backups, or allow another one with "+
		"ReadWritePaths= in systemctl edit penstock", err)
}
