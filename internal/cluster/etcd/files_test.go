package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever is wrong with a member's files, its start ends with a sentence that names the file and the way out, and not
// with a panic of etcd's.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	for i := range 30 {
		put(t, c.dial(Options{}, 0), "k/"+string(rune('a'+i)), strings.Repeat("x", 4000))
	}
	c.stop(0, 1, 2)
	o := c.options(2)
	o.Anew = "the command"
	whole := o.Dir + ".whole"
	if err := os.Rename(o.Dir, whole); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(whole, memberDir, "wal", "*.wal"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	db := filepath.Join(o.Dir, memberDir, "snap", "db")
	log := filepath.Join(o.Dir, memberDir, "wal", filepath.Base(logs[0]))
	change := func(file string, at int, what string) error {
		f, err := os.OpenFile(file, os.O_RDWR, 0)
		if err == nil {
			_, err = f.WriteAt([]byte(what), int64(at))
			err = errors.Join(err, f.Close())
		}
		return err
	}
	noise := strings.Repeat("\xa5\x3c", 40*4096/2)
	for name, tc := range map[string]struct {
		damage func() error
		file   string
	}{
		"the database begins with zeros": {func() error { return change(db, 0, strings.Repeat("\x00", 8192)) }, db},
		"pages of the database":          {func() error { return change(db, 2*4096, noise) }, db},
		"the database is cut":            {func() error { return os.Truncate(db, 6000) }, db},
		"a record of the log":            {func() error { return change(log, 3000, "\xff\xff\xff\xff") }, filepath.Dir(log)},
		"the beginning of the log":       {func() error { return change(log, 20, "\xff\xff\xff\xff") }, filepath.Dir(log)},
		"the log is cut":                 {func() error { return os.Truncate(log, 2000) }, filepath.Dir(log)},
	} {
		if err := errors.Join(os.RemoveAll(o.Dir), os.CopyFS(o.Dir, os.DirFS(whole)), tc.damage()); err != nil {
			t.Fatal(err)
		}
		m, err := Start(o)
		if err != nil {
			t.Fatal(err)
		}
		err = m.Ready(within(t, enough))
		if !errors.Is(err, ErrDirectory) || !strings.Contains(err.Error(), tc.file) ||
			!strings.Contains(err.Error(), "messages are unharmed. Run `the command`") {
			t.Errorf("%s: %v", name, err)
		}
		_ = m.Close()
		if _, _, err := ReadStopped(t.Context(), o.Dir, o.Dir+".copy", ""); err == nil {
			t.Errorf("%s: it can be read", name)
		}
	}
	if err := checkFiles(whole); err != nil {
		t.Errorf("files that are whole: %v", err)
	}
	if err := checkFiles(t.TempDir()); err == nil {
		t.Error("a directory without a log is whole")
	}
}
