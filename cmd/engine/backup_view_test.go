package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// startInView starts a node that sees the directory shown under the path at, read-only if how is ro.
func startInView(t *testing.T, dir, shown, at, how string) *process {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("another view of the file system needs root")
	}
	const script = `mount --make-rprivate / && mount --bind "$1" "$2" && mount -o remount,bind,"$3" "$2" || exit
		shift 3
		exec "$@"`
	view := []string{"--mount", "sh", "-c", script, "sh", shown, at, how}
	if out, err := exec.Command("unshare", append(view, "true")...).CombinedOutput(); err != nil {
		t.Skipf("this machine allows no mount namespaces: %v: %s", err, out)
	}
	return startProcess(t, "", "unshare", append(view, binary(t), "serve", "--data-path", dir,
		"--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--lookup-address", "127.0.0.1:0",
		"--backup-path", "/"))
}

// Whoever is told that a backup is complete can look at it. A node in a sandbox refuses what nobody else would see, and
// what it may not write, by that name; and where the node cannot know, the command looks.
func TestBackupInAnotherView(t *testing.T) {
	base := t.TempDir()
	place := func(name string) string {
		dir := filepath.Join(base, filepath.FromSlash(name))
		must(t, os.MkdirAll(dir, 0o700))
		return dir
	}
	at := place("tmp")
	for _, tc := range []struct{ name, shown, how, want string }{
		{"a private /tmp", "systemd-private-1-penstock.service-x/tmp", "rw", "PrivateTmp"},
		{"read-only", "elsewhere", "ro", "sandbox"},
		{"a container", "elsewhere", "rw", "from here it is not there"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := startInView(t, t.TempDir(), place(tc.shown), at, tc.how)
			o := execute(t, "backup", filepath.Join(at, "x"), "--http-address", p.http)
			if o.code == 0 || !strings.Contains(o.stderr, tc.want) || strings.Contains(o.stdout, "has the node's data") {
				t.Errorf("%+v, want %q", o, tc.want)
			}
			to := filepath.Join(t.TempDir(), "seen")
			execute(t, "backup", to, "--http-address", p.http).well(t)
			if _, err := os.Stat(filepath.Join(to, "backup.json")); err != nil {
				t.Error(err)
			}
		})
	}
}
