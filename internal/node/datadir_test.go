package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"penstock/internal/node"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// prepared returns a data directory after a clean stop, with a topic that has one message.
func prepared(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	o := inDir(dir)
	o.NodeID = "alpha"
	e := openWith(t, o)
	publish(t, topicOf(t, e, "t"), "kept")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// contents returns every file of a directory, except those that each start may change.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "LOCK" {
			return err
		}
		data, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir)] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func edit(t *testing.T, path, old, new string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), old) {
		t.Fatalf("%s has no %q:\n%s", path, old, data)
	}
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(data), old, new)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// editNode changes node.json and its second copy, without their checksums, as an operator would.
func editNode(t *testing.T, dir, old, new string) (undo func()) {
	t.Helper()
	var undos []func() error
	for _, name := range []string{dir + "/node.json", dir + "/node.copy.json"} {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		undos = append(undos, func() error { return os.WriteFile(name, whole, 0o600) })
		plain := regexp.MustCompile(`,\n  "crc32c": "[0-9a-f]{8}"`).ReplaceAll(whole, nil)
		if err := os.WriteFile(name, plain, 0o600); err != nil {
			t.Fatal(err)
		}
		edit(t, name, old, new)
	}
	return func() {
		for _, undo := range undos {
			if err := undo(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A directory that must not be opened is refused with a sentence that says what to do, and is left as it was. When that
// has been done, it opens with all its messages.
func TestRefusedDataDirectories(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name  string
		harm  func(t *testing.T, dir string) (undo func())
		nodeI string
		want  []string
	}{
		{"newer format", func(t *testing.T, dir string) func() {
			return editNode(t, dir, `"format": 7`, `"format": 8`)
		}, "alpha", []string{"format 8", "newer version", "nothing was changed"}},
		{"another node", func(*testing.T, string) func() {
			return func() {}
		}, "beta", []string{`"alpha"`, `"beta"`, "nothing was changed"}},
		{"node.json missing", func(t *testing.T, dir string) func() {
			if err := os.Rename(dir+"/node.json", dir+"/elsewhere"); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := os.Rename(dir+"/elsewhere", dir+"/node.json"); err != nil {
					t.Fatal(err)
				}
			}
		}, "alpha", []string{"no node.json", "nothing was changed", "restore"}},
		{"node.json unreadable", func(t *testing.T, dir string) func() {
			return editNode(t, dir, `{`, `[`)
		}, "alpha", []string{"node.json", "cannot read", "backup"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			dir := prepared(t)
			undo := tc.harm(t, dir)
			before := contents(t, dir)
			o := inDir(dir)
			o.NodeID = tc.nodeI
			_, err := node.Open(context.Background(), o)
			if err == nil {
				t.Fatal("it was opened")
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			after := contents(t, dir)
			for path, data := range before {
				if after[path] != data {
					t.Errorf("%s was changed", path)
				}
			}
			undo()
			o.NodeID = "alpha"
			e := openWith(t, o)
			topic, _ := e.Catalog().LookupTopic("t")
			if got := readAll(t, channelOf(t, topic, "c")); len(got) != 1 {
				t.Errorf("put right, it has %d messages, want 1", len(got))
			}
		})
	}
}

// A directory belongs to only one process at a time.
func TestDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	e := openWith(t, inDir(dir))
	_, err := node.Open(context.Background(), inDir(dir))
	if !errors.Is(err, aio.ErrLocked) {
		t.Fatalf("a second engine: %v, want ErrLocked", err)
	}
	if !strings.Contains(err.Error(), dir) {
		t.Errorf("%q does not name the directory", err)
	}
	publish(t, topicOf(t, e, "t"), "undisturbed")
	if err := os.Remove(filepath.Join(dir, "LOCK")); err != nil {
		t.Fatal(err)
	}
	if _, err := node.Open(context.Background(), inDir(dir)); !errors.Is(err, aio.ErrLocked) {
		t.Fatalf("a second engine, after LOCK was deleted: %v, want ErrLocked", err)
	}
	_ = e.Close() // its commit log may have failed, because of the deleted file
	openWith(t, inDir(dir))
}

// P20: missing or unreadable metadata never deletes data. The directory is left as it is, logged and not served; all
// others are served. When the metadata is restored, the messages are there.
func TestUnreadableTopicIsLeftAlone(t *testing.T) {
	dir := prepared(t)
	topics, err := filepath.Glob(dir + "/topics/*")
	if err != nil || len(topics) != 1 {
		t.Fatal(topics, err)
	}
	meta := topics[0] + "/topic.json"
	good, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"cut": good[:len(good)/2],
		"of another topic": mustJSON(t, map[string]any{
			"format": 1, "id": "00000000-0000-4000-8000-000000000000", "name": "t", "partitions": 1,
		}),
		"missing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			for _, name := range []string{meta, topics[0] + "/topic.copy.json"} {
				err := os.WriteFile(name, data, 0o600)
				if data == nil {
					err = os.Remove(name)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			var log logged
			o := inDir(dir)
			o.Logger = log.logger()
			e := openWith(t, o)
			if _, ok := e.Catalog().LookupTopic("t"); ok {
				t.Error("it is served")
			}
			if !strings.Contains(log.String(), filepath.Base(topics[0])) {
				t.Errorf("the log does not name the directory:\n%s", log.String())
			}
			publish(t, topicOf(t, e, "other"), "works")
			if err := e.DeleteTopic(context.Background(), "other"); err != nil {
				t.Fatal(err)
			}
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(topics[0] + "/0"); err != nil {
				t.Errorf("its data: %v", err)
			}
		})
	}
	if err := os.WriteFile(meta, good, 0o600); err != nil {
		t.Fatal(err)
	}
	e := openWith(t, inDir(dir))
	topic, ok := e.Catalog().LookupTopic("t")
	if !ok {
		t.Fatal("restored, it is not served")
	}
	if got := readAll(t, channelOf(t, topic, "c")); len(got) != 1 {
		t.Errorf("restored, it has %d messages, want 1", len(got))
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A disk that refuses writes is reported at once and by its path, whether the directory is new or old.
func TestReadOnlyDisk(t *testing.T) {
	for _, fresh := range []bool{true, false} {
		disk := newDisk()
		if !fresh {
			e := openOnDisk(t, disk)
			publish(t, topicOf(t, e, "t"), "m")
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			disk = disk.Kill(1)
		}
		disk.Inject(faultaio.Rule{Kind: faultaio.KindAny, Err: syscall.EROFS, Count: -1})
		_, err := node.Open(context.Background(), smallOptions(disk))
		if !errors.Is(err, syscall.EROFS) {
			t.Errorf("fresh %v: %v, want EROFS", fresh, err)
		}
	}
}

// A topic whose files cannot be made does not exist, in this life or the next: it is neither there in part, nor twice
// after another attempt.
func TestCreateTopicFails(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	start := disk.Ops()
	topicOf(t, e, "first")
	steps := disk.Ops() - start
	for step := range steps + 2 {
		disk.Inject(faultaio.Rule{Kind: faultaio.KindAny, Name: "topics/*", After: step, Err: syscall.EIO})
		disk.Inject(faultaio.Rule{Kind: faultaio.KindAny, Name: "topics/*/*", After: step, Err: syscall.EIO})
		_, err := e.CreateTopic(context.Background(), "t", 2)
		disk.ClearRules()
		if err == nil {
			break
		}
		if _, ok := e.Catalog().LookupTopic("t"); ok {
			t.Fatalf("step %d: creation failed (%v) and the topic is there", step, err)
		}
	}
	publish(t, topicOf(t, e, "t"), "m")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk.Kill(1))
	topic, ok := e.Catalog().LookupTopic("t")
	if !ok {
		t.Fatal("the topic is gone")
	}
	if got := readAll(t, channelOf(t, topic, "c")); len(got) != 1 {
		t.Errorf("%d messages, want 1", len(got))
	}
	if len(e.Catalog().Topics()) != 2 {
		t.Errorf("%d topics, want 2", len(e.Catalog().Topics()))
	}
}
