package backup

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/node/datadir"
	"penstock/segment/aio"
)

// A directory lies below a place by its real path: not by dots, by a link that leads out, or by the beginning of its
// name.
func TestBelow(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	place, other := filepath.Join(base, "backups"), filepath.Join(base, "other")
	must(t, os.Mkdir(place, 0o700))
	must(t, os.Mkdir(other, 0o700))
	must(t, os.Symlink(other, filepath.Join(place, "out")))
	must(t, os.Symlink(place, filepath.Join(base, "in")))
	for dir, below := range map[string]bool{
		place + "/a": true, place + "/a/b": true, base + "/in/a": true, place + "/a/../b": true,
		place: false, base: false, other: false, "/": false, place + "-2/a": false, place + "/../other/a": false,
		place + "/out": false, place + "/out/a": false, place + "/a/../../other": false, base + "/in": false,
	} {
		err := Below(place, dir)
		if (err == nil) != below || err != nil && !strings.Contains(err.Error(), "backup-path") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if err := Below("/", other); err != nil {
		t.Errorf("below the root is everything: %v", err)
	}
	if err := Below(filepath.Join(base, "new"), filepath.Join(base, "new", "a")); err != nil {
		t.Errorf("a place that does not exist yet: %v", err)
	}
}

// filesBelow lists everything below a directory.
func filesBelow(t *testing.T, root string) (names []string) {
	t.Helper()
	must(t, filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		names = append(names, name)
		return err
	}))
	return names
}

// A backup, the directory that it is made of and the one that it is restored to never lie in each other, whichever
// command is told so, also by symbolic links. Nothing is written then.
func TestDirectoriesLieApart(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	disk, err := aio.OpenDisk(data, aio.DiskOptions{Mode: aio.ModePwrite})
	must(t, err)
	_, err = datadir.OpenNodeFile(disk, slog.New(slog.DiscardHandler), "n1", datadir.FirstLevel, false, uuid.New)
	must(t, err)
	must(t, disk.MkdirAll("topics"))
	must(t, disk.Close())
	made, _ := memberBackup(t)
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(data, link))
	must(t, os.Symlink(made, link+"2"))
	for what, try := range map[string]func() error{
		"backup into its source": func() error {
			return Copy(data, filepath.Join(data, "topics", "backup"), new(Manifest), datadir.NewestLevel, quick())
		},
		"backup into its source by a link": func() error {
			return Copy(data, filepath.Join(link, "topics", "backup"), new(Manifest), datadir.NewestLevel, quick())
		},
		"backup of a backup": func() error {
			return Copy(made, filepath.Join(t.TempDir(), "b"), new(Manifest), datadir.NewestLevel, quick())
		},
		"restore into the backup": func() error {
			_, err := Restore(made, filepath.Join(made, "data"), RestoreOptions{})
			return err
		},
		"restore onto the backup": func() error {
			_, err := Restore(made, link+"2", RestoreOptions{})
			return err
		},
	} {
		before := append(filesBelow(t, data), filesBelow(t, made)...)
		err := try()
		if err == nil || !strings.Contains(err.Error(), "in each other") && !strings.Contains(err.Error(), "is a backup") {
			t.Errorf("%s: %v", what, err)
		}
		if after := append(filesBelow(t, data), filesBelow(t, made)...); len(after) != len(before) {
			t.Errorf("%s left %d files instead of %d", what, len(after), len(before))
		}
	}
}

// No node runs on a backup, and no tool changes one: it would not verify any more.
func TestBackupIsNoDataDirectory(t *testing.T) {
	made, _ := memberBackup(t)
	before := filesBelow(t, made)
	if err := datadir.Check(made, datadir.NewestLevel); err == nil || !strings.Contains(err.Error(), "penstock restore") {
		t.Errorf("a node may run on a backup: %v", err)
	}
	_, _, err := datadir.Upgrade(made, datadir.NewestLevel)
	if err == nil || !strings.Contains(err.Error(), "penstock restore") {
		t.Errorf("a backup may be upgraded: %v", err)
	}
	if after := filesBelow(t, made); len(after) != len(before) {
		t.Errorf("%d files instead of %d", len(after), len(before))
	}
	to := filepath.Join(t.TempDir(), "data")
	if _, err := Restore(made, to, RestoreOptions{}); err != nil {
		t.Errorf("the backup: %v", err)
	}
	must(t, datadir.Check(to, datadir.NewestLevel))
}
