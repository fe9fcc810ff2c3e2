package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
)

// A mount that systemd made for one service is told from the others.
func TestPrivateMount(t *testing.T) {
	const mounts = `22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:25 / /tmp rw - tmpfs tmpfs rw
31 22 254:1 /tmp/systemd-private-9f1a-penstock.service-Xy/tmp /tmp rw,nosuid - ext4 /dev/vda1 rw
32 22 254:1 /var/tmp/systemd-private-9f1a-penstock.service-Zz/tmp /var/tmp rw - ext4 /dev/vda1 rw
33 22 254:1 /var/lib/penstock /var/lib/penstock rw - ext4 /dev/vda1 rw
34 31 254:3 / /tmp/disk rw - ext4 /dev/vdb rw
35 22 254:1 /tmp/systemd-private-9f1a-penstock.service-Xy/tmp /mnt/with\040blank rw - ext4 /dev/vda1 rw
36 22 254:1 /tmp/systemd-private-9f1a-penstock.service-Xy/tmp /srv rw - ext4 /dev/vda1 rw
37 22 254:9 / /srv rw - ext4 /dev/vdc rw
short
`
	for path, want := range map[string]string{
		"/tmp":                  "/tmp",
		"/tmp/backup":           "/tmp",
		"/tmpfiles/backup":      "",
		"/var/tmp/a/b":          "/var/tmp",
		"/tmp/disk/backup":      "",
		"/var/lib/penstock":     "",
		"/mnt/with blank/x":     "/mnt/with blank",
		"/srv/backup":           "",
		"/backup":               "",
		"/tmp/systemd-private-": "/tmp",
	} {
		if got := privateMount(mounts, path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// What a sandbox looks like is explained, and other errors are left alone.
func TestExplain(t *testing.T) {
	for _, err := range []error{syscall.EROFS, fs.ErrPermission, syscall.EACCES} {
		got := explain(fmt.Errorf("mkdir: %w", err))
		if !errors.Is(got, err) || !strings.Contains(got.Error(), "sandbox") {
			t.Errorf("%v: %v", err, got)
		}
	}
	if got := explain(syscall.ENOSPC); !errors.Is(got, syscall.ENOSPC) || strings.Contains(got.Error(), "sandbox") {
		t.Errorf("%v", got)
	}
}
