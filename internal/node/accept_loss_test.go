package node_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/clog"
	"penstock/internal/node"
	"penstock/internal/node/aside"
	"penstock/internal/node/backup"
	"penstock/internal/node/offline"
)

// lossy is a data directory of a single node after a clean stop: 40 messages in segments and 10 behind them in the
// newest file of the commit log.
func lossy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, n := range []int{40, 10} {
		e := openWith(t, inDir(dir))
		publish(t, topicOf(t, e, "t"), numbered(fmt.Sprint("m", n, "-"), n, 100)...)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// clogFiles returns the files of a directory's commit log that were begun, the oldest first.
func clogFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(dir + "/clog/*.clog")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	return slices.DeleteFunc(files, func(name string) bool {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var number uint64
		_, err = fmt.Sscanf(filepath.Base(name), "%d.clog", &number)
		return err != nil || binary.LittleEndian.Uint64(data[24:]) != number // of the group header: see clog/FORMAT.md
	})
}

// A single node that has forgotten starts again when the loss is accepted. What segments hold and the log does not know
// is kept aside, and a second call finds nothing to do. Who does not agree finds everything as it was.
func TestAcceptLoss(t *testing.T) {
	for _, whole := range []bool{false, true} {
		path := lossy(t)
		files := clogFiles(t, path)
		gone := files[len(files)-1:]
		if whole {
			gone = files
		}
		for _, name := range gone {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := node.Open(context.Background(), inDir(path)); !errors.Is(err, clog.ErrForgotten) {
			t.Fatalf("whole %v: %v", whole, err)
		}
		before := contents(t, path)
		loss, accepted, err := offline.AcceptLoss(path, func(*offline.Loss) bool { return false })
		if err != nil || accepted || loss.Forgotten == "" || len(loss.Partitions) != 1 || loss.Wanted <= loss.Reached {
			t.Fatalf("whole %v: %v, accepted %v, %+v", whole, err, accepted, loss)
		}
		p := loss.Partitions[0]
		if p.Topic != "t" || whole && (p.NextID != 0 || p.SegmentsNextID != 50 || p.Messages != 50) ||
			!whole && (p.NextID > 50 || p.Files > 0 && p.SegmentsNextID != 50) {
			t.Errorf("whole %v: %+v", whole, p)
		}
		for name, data := range contents(t, path) {
			if before[name] != data {
				t.Errorf("whole %v: %s was changed", whole, name)
			}
		}
		if loss, accepted, err = offline.AcceptLoss(path, func(*offline.Loss) bool { return true }); err != nil || !accepted {
			t.Fatalf("whole %v: %v", whole, err)
		}
		if p := loss.Partitions[0]; (p.Files > 0) != (p.Aside != "") ||
			p.Aside != "" && !strings.HasPrefix(p.Aside, aside.Dir+"/") {
			t.Errorf("whole %v: %+v", whole, p)
		}
		kept, _ := filepath.Glob(filepath.Join(path, aside.Dir, "*", "*.seg"))
		if len(kept) != loss.Partitions[0].Files {
			t.Errorf("whole %v: %v are aside, of %+v", whole, kept, loss.Partitions[0])
		}
		loss, accepted, err = offline.AcceptLoss(path, func(*offline.Loss) bool { return true })
		if err != nil || accepted || loss.Forgotten != "" {
			t.Errorf("whole %v, again: %v, %+v", whole, err, loss)
		}
		e := openWith(t, inDir(path))
		if left, _ := filepath.Glob(filepath.Join(path, aside.Dir, "*", "*.seg")); !slices.Equal(left, kept) {
			t.Errorf("whole %v: the start left %v of %v", whole, left, kept)
		}
		topic, ok := e.Catalog().LookupTopic("t")
		if !ok {
			t.Fatal("the topic is gone")
		}
		publish(t, topic, "after")
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		// A file that was used is not used again.
		if now := clogFiles(t, path); filepath.Base(now[len(now)-1]) <= filepath.Base(files[len(files)-1]) {
			t.Errorf("whole %v: the commit log has %v after %v", whole, now, files)
		}
		openWith(t, inDir(path))
	}
}

// A restored directory has a mark that its log reaches, although the backup's own is about another moment; so it
// starts, and the loss of its files is noticed at once.
func TestRestoreWritesMark(t *testing.T) {
	path := lossy(t)
	e := openWith(t, inDir(path))
	to := filepath.Join(t.TempDir(), "backup")
	if err := e.Backups().Start(node.BackupOptions{Dir: to}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the backup ends", func() bool { return e.Backups().Status().State == node.BackupDone })
	if _, err := os.Stat(filepath.Join(to, clog.MarkName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the backup has a mark: %v", err)
	}
	for _, harm := range []bool{false, true} {
		restored := filepath.Join(t.TempDir(), "restored")
		if _, err := backup.Restore(to, restored, backup.RestoreOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(restored, clog.MarkName)); err != nil {
			t.Fatal(err)
		}
		if harm {
			if err := os.RemoveAll(filepath.Join(restored, "clog")); err != nil {
				t.Fatal(err)
			}
		}
		e, err := node.Open(context.Background(), inDir(restored))
		if harm != errors.Is(err, clog.ErrForgotten) || !harm && err != nil {
			t.Fatalf("harmed %v: %v", harm, err)
		}
		if err == nil {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A backup of a version or of a person that copied log.mark as well does not bring it back: it is about another moment.
func TestRestoreLeavesOldMark(t *testing.T) {
	path := lossy(t)
	to := filepath.Join(t.TempDir(), "backup")
	m := new(backup.Manifest)
	ahead, err := os.ReadFile(filepath.Join(path, clog.MarkName))
	if err != nil {
		t.Fatal(err)
	}
	files := clogFiles(t, path)
	if err := os.Remove(files[len(files)-1]); err != nil { // the backup is of before this file
		t.Fatal(err)
	}
	o := backup.Options{
		Pause: func(time.Duration) bool { return true },
		More:  func(_ *backup.Manifest, w *backup.Writer) error { return w.Write(clog.MarkName, ahead) },
	}
	if err := backup.Copy(path, to, m, node.NewestLevel, o); err != nil {
		t.Fatal(err)
	}
	restored := filepath.Join(t.TempDir(), "restored")
	if _, err := backup.Restore(to, restored, backup.RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	openWith(t, inDir(restored))
}
