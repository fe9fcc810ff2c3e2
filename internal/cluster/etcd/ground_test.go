package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/tests/support/patience"
)

// The files of a member are cut, overwritten or removed while it runs: its process ends with the exit code and the
// sentence of a start with damaged files.
func TestDamagedWhileItRuns(t *testing.T) {
	t.Parallel()
	db := func(o *MemberOptions) string { return filepath.Join(o.Dir, memberDir, "snap", "db") }
	log := func(o *MemberOptions) string {
		names, err := logNames(filepath.Join(o.Dir, memberDir, "wal"))
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		return filepath.Join(o.Dir, memberDir, "wal", names[len(names)-1])
	}
	for name, tc := range map[string]struct {
		damage func(o *MemberOptions) error
		says   string
	}{
		"the database is cut to nothing": {
			func(o *MemberOptions) error { return os.Truncate(db(o), 0) }, "does not begin with the header of a database",
		},
		"the database is cut":     {func(o *MemberOptions) error { return os.Truncate(db(o), 12<<10) }, " and has 12288"},
		"the database is removed": {func(o *MemberOptions) error { return os.Remove(db(o)) }, "db was damaged while"},
		"the database begins with noise": {
			func(o *MemberOptions) error {
				f, err := os.OpenFile(db(o), os.O_WRONLY, 0)
				if err == nil {
					_, err = f.WriteAt([]byte(strings.Repeat("\xa5", 2*os.Getpagesize())), 0)
					err = errors.Join(err, f.Close())
				}
				return err
			}, "does not begin with the header of a database",
		},
		"the log is cut": {func(o *MemberOptions) error { return os.Truncate(log(o), 4096) }, " bytes and has 4096"},
		"the log is replaced": {
			func(o *MemberOptions) error {
				data, err := os.ReadFile(log(o))
				if err == nil {
					err = os.WriteFile(log(o)+".copy", data, 0o600)
				}
				return errors.Join(err, os.Rename(log(o)+".copy", log(o)))
			}, "was replaced by another file",
		},
		"the log is removed":    {func(o *MemberOptions) error { return os.Remove(log(o)) }, "its newest file was removed"},
		"everything is removed": {func(o *MemberOptions) error { return os.RemoveAll(o.Dir) }, "was damaged while"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 5 {
				c := newCluster(t, 1)
				o := c.options(0)
				child := startChild(t, o)
				child.ready(t)
				quiet(t, db(&o))
				if err := tc.damage(&o); err != nil {
					t.Fatal(err)
				}
				if !child.ended(t, 3, "cannot be used", tc.says, "The messages are unharmed. This is the only member") {
					return
				}
				t.Log("etcd used the file sooner than it was looked at")
			}
			t.Error("etcd has always used the file sooner than it was looked at")
		})
	}
}

// quiet waits until the member has done what it does after a start.
func quiet(t *testing.T, db string) {
	t.Helper()
	for ctx := within(t, enough); ; {
		info, err := os.Stat(db)
		if err != nil {
			t.Fatal(err)
		}
		if time.Since(info.ModTime()) > time.Second {
			return
		}
		if !pause(ctx, probePause) {
			t.Fatal("the member is never quiet")
		}
	}
}

// ended waits for the end of the process, with an exit code, and with last words on its standard error. It returns true
// if the process ended with a fault: it has used a file that was too short.
func (c *child) ended(t *testing.T, code int, words ...string) (fault bool) {
	t.Helper()
	end := time.AfterFunc(patience.Or(20*time.Second), c.kill)
	_, _ = io.Copy(io.Discard, c.out)
	_ = c.cmd.Wait()
	end.Stop()
	said, err := os.ReadFile(c.log)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(string(said), "unexpected fault address") {
		return true
	}
	_, last, found := strings.Cut(string(said), "last words: ")
	if c.cmd.ProcessState.ExitCode() != code || !found {
		t.Fatalf("it ends with %v, without %v", c.cmd.ProcessState, words)
	}
	for _, w := range words {
		if !strings.Contains(last, w) {
			t.Errorf("it does not say %q", w)
		}
	}
	return false
}

func TestNeeds(t *testing.T) {
	t.Parallel()
	const size = 4096
	meta := func(high, txid uint64) []byte {
		m := make([]byte, metaBytes)
		binary.NativeEndian.PutUint32(m, metaMagic)
		binary.NativeEndian.PutUint32(m[metaPageSize:], size)
		binary.NativeEndian.PutUint64(m[metaHigh:], high)
		binary.NativeEndian.PutUint64(m[metaTxid:], txid)
		sum := fnv.New64a()
		_, _ = sum.Write(m[:metaSumAt])
		binary.NativeEndian.PutUint64(m[metaSumAt:], sum.Sum64())
		return m
	}
	torn := meta(9, 9)
	torn[metaHigh]++
	for i, tc := range []struct {
		first, second []byte
		want          int64
	}{
		{meta(5, 2), meta(7, 3), 7 * size},
		{meta(8, 4), meta(7, 3), 8 * size},
		{meta(4, 0), meta(4, 1), 4 * size},
		{meta(5, 2), torn, 5 * size},
		{torn, meta(7, 3), 7 * size},
		{torn, torn, 0},
		{nil, nil, 0},
	} {
		pages := make([]byte, 2*size)
		copy(pages[metaAt:], tc.first)
		copy(pages[size+metaAt:], tc.second)
		if got := needs(pages, size); got != tc.want {
			t.Errorf("%d: it needs %d, not %d", i, got, tc.want)
		}
	}
	if got := needs(nil, size); got != 0 {
		t.Errorf("an empty file needs %d", got)
	}
}

// A file of a log is only as good as its name: newer ones replace older ones, and none may come back.
func TestGroundOfTheLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "wal"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := func(i int) string { return filepath.Join(dir, "wal", fmt.Sprintf("%016x-%016x.wal", i, i)) }
	write := func(i, size int) {
		if err := os.WriteFile(file(i), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := ground{dir: dir}
	look := func(want string) {
		t.Helper()
		if err := g.lookAtLog(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("it says %v, not %q", err, want)
		}
	}
	look("its newest file was removed")
	write(1, 100)
	look("")
	write(1, 200)
	look("")
	write(2, 100)
	look("")
	if err := os.Remove(file(1)); err != nil {
		t.Fatal(err)
	}
	look("")
	write(3, 100)
	write(4, 100)
	look("")
	if err := os.Remove(file(3)); err != nil {
		t.Fatal(err)
	}
	look("none is left")
	write(3, 100)
	if err := os.Remove(file(2)); err != nil { // as etcd does with the oldest
		t.Fatal(err)
	}
	look("")
	data := file(4) + ".copy"
	if err := os.WriteFile(data, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(data, file(4)); err != nil {
		t.Fatal(err)
	}
	look("was replaced by another file")
	write(5, 100)
	look("")
	write(5, 99)
	look("had 100 bytes and has 99")
	if err := os.Remove(file(5)); err != nil {
		t.Fatal(err)
	}
	look("its newest file was removed")
}
