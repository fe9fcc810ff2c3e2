package node_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/backup"
	"penstock/segment"
)

// flipByte damages one byte of a file.
func flipByte(t *testing.T, name string, at int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 1)
	if _, err := f.ReadAt(p, at); err != nil {
		t.Fatal(err)
	}
	p[0] ^= 0x40
	if _, err := f.WriteAt(p, at); err != nil {
		t.Fatal(err)
	}
}

// placeOf returns the place in the file of the body of a message.
func placeOf(t *testing.T, name, body string) int64 {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(data), body)
	if at < 0 {
		t.Fatalf("%.20q is not in %s", body, name)
	}
	return int64(at)
}

// storedNode returns a single node with 300 messages of topic "t", of which channel "c" has confirmed none, and the
// names of its segment files. The first ones are full.
func storedNode(t *testing.T) (e *node.Engine, segments []string) {
	t.Helper()
	e = openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	channelOf(t, topic, "c")
	publish(t, topic, numbered("m", 300, 2000)...)
	eventually(t, "there are segments", func() bool {
		segments, _ = filepath.Glob(filepath.Join(dataPath(e), node.TopicDir(e, "t"), "0", "*.seg"))
		return len(segments) >= 4
	})
	slices.Sort(segments)
	publish(t, topicOf(t, e, "u"), numbered("u", 300, 15000)...) // takes the memory that had the messages of "t"
	return e, segments
}

// checkLacks checks that the node serves all messages but those of the numbers in lost, and knows that it lacks these.
func checkLacks(t *testing.T, e *node.Engine, lost ...int) {
	t.Helper()
	if err := e.Health(); err == nil || !strings.Contains(err.Error(), "messages from there on are not served") {
		t.Errorf("health: %v", err)
	}
	topic, _ := e.Catalog().LookupTopic("t")
	got := map[string]bool{}
	for from := node.ID(0); ; { // a reader that steps over what cannot be read
		ms, err := topic.Peek(ctxBg, 0, from, 1)
		if err != nil {
			if !errors.As(err, new(*segment.CorruptError)) {
				t.Fatal(err)
			}
			from++
			continue
		}
		if len(ms) == 0 {
			break
		}
		got[string(ms[0].Body)] = true
		from = ms[0].ID + 1
	}
	for i, body := range numbered("m", 300, 2000) {
		if got[body] == slices.Contains(lost, i) {
			t.Errorf("message %d: served %v", i, got[body])
		}
	}
}

// A backup of a node with damage that nobody has met yet names it, and is not the last good one. The node knows the
// damage from then on. A restore of the backup is refused, or says what it leaves out.
func TestBackupVerifiesBatches(t *testing.T) {
	t.Parallel()
	e, segments := storedNode(t)
	good, before := makeBackup(t, e)
	if before.State != node.BackupDone {
		t.Fatalf("%+v", before)
	}
	flipByte(t, segments[1], placeOf(t, segments[1], "m20/")+100)
	from, s := makeBackup(t, e)
	if s.State != node.BackupDamaged || s.LastDone == nil || s.LastDone.Dir != good || len(s.Missing) != 1 {
		t.Fatalf("%+v", s)
	}
	m := s.Missing[0]
	if m.Topic != "t" || m.Partition != 0 || m.Messages != 1 || !strings.HasSuffix(m.File, "0000000001.seg") {
		t.Errorf("%+v", m)
	}
	if e.Health() == nil {
		t.Error("the node does not know the damage")
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "restored")
	_, err := backup.Restore(from, to, backup.RestoreOptions{})
	var damaged *backup.DamagedError
	if !errors.As(err, &damaged) || len(damaged.Differ) != 0 || !slices.Equal(damaged.Missing, s.Missing) ||
		!strings.Contains(err.Error(), "topic t, partition 0: 1 messages from "+m.FirstID+" on") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Error("something was left")
	}
	r, err := backup.Restore(from, to, backup.RestoreOptions{AcceptLoss: true})
	if err != nil || !slices.Equal(r.Missing, s.Missing) {
		t.Fatalf("%+v, %v", r, err)
	}
	for range 2 { // the second start knows it, too
		again := openWith(t, inDir(to))
		if len(again.Info().CorruptionsAtRecover) != 1 || again.Info().PartitionsReadOnly != 0 {
			t.Errorf("%+v", again.Info())
		}
		checkLacks(t, again, 20)
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}

	copied := filepath.Join(t.TempDir(), "copied")
	list := new(backup.Manifest)
	o := backup.Options{Pause: func(time.Duration) bool { return true }}
	if err := backup.Copy(dataPath(e), copied, list, node.NewestLevel, o); err != nil || len(list.Missing) != 1 ||
		list.Missing[0] != m {
		t.Errorf("of the stopped node: %+v, %v", list.Missing, err)
	}
}

// A restore of a backup that was damaged later names every file that differs and what that means. With AcceptLoss it
// restores everything that verifies, says which messages are missing, and the node knows it.
func TestRestoreTakesTheRest(t *testing.T) {
	t.Parallel()
	e, segments := storedNode(t)
	from, s := makeBackup(t, e)
	if s.State != node.BackupDone {
		t.Fatalf("%+v", s)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	topic := filepath.Join(from, filepath.Dir(node.TopicDir(e, "t")), filepath.Base(node.TopicDir(e, "t")))
	file := func(n int) string { return filepath.Join(topic, "0", filepath.Base(segments[n])) }
	unlink(t, from) // its files are the node's own
	body := func(n, message int) int64 { return placeOf(t, file(n), fmt.Sprintf("m%d/", message)) + 100 }
	first := func(n int) (message int) {
		data, err := os.ReadFile(file(n))
		if err != nil {
			t.Fatal(err)
		}
		for !strings.Contains(string(data), fmt.Sprintf("m%d/", message)) {
			message++
		}
		return message
	}
	var rest []int // of segment 1
	for i := first(1); i < first(2); i++ {
		rest = append(rest, i)
	}
	cases := []struct {
		what   string
		damage func()
		names  []string
		means  string
		lost   []int
	}{
		{"the bodies of two messages", func() {
			flipByte(t, file(1), body(1, rest[1]))
			flipByte(t, file(1), body(1, rest[3]))
		}, []string{segments[1]}, "missing are topic t", []int{rest[1], rest[3]}},
		{"a header block", func() { flipByte(t, file(1), 30) }, []string{segments[1]}, "missing are topic t", rest},
		{"no segment", func() { must(t, os.Remove(file(1))) }, []string{segments[1]}, "", rest},
		{"topic.json and a body", func() {
			must(t, os.Remove(filepath.Join(topic, "topic.json")))
			flipByte(t, file(1), body(1, rest[0]))
		}, []string{"topic.json", segments[1]}, "its second copy is whole", []int{rest[0]}},
	}
	for _, c := range cases {
		t.Run(c.what, func(t *testing.T) {
			kept := snapshot(t, from)
			c.damage()
			_, err := backup.Restore(from, filepath.Join(t.TempDir(), "r"), backup.RestoreOptions{})
			if err == nil || !strings.Contains(err.Error(), "nothing was restored") || !strings.Contains(err.Error(), c.means) {
				t.Errorf("%v", err)
			}
			for _, name := range c.names {
				if err != nil && !strings.Contains(err.Error(), filepath.Base(name)) {
					t.Errorf("%s is not named: %v", filepath.Base(name), err)
				}
			}
			to := filepath.Join(t.TempDir(), "restored")
			r, err := backup.Restore(from, to, backup.RestoreOptions{AcceptLoss: true})
			must(t, err)
			count := uint64(0)
			for _, m := range r.Missing {
				count += m.Messages
			}
			if count != uint64(len(c.lost)) || len(r.Differ) != len(c.names) {
				t.Errorf("%d messages are said to be missing, %d are: %+v", count, len(c.lost), r)
			}
			checkLacks(t, openWith(t, inDir(to)), c.lost...)
			kept()
		})
	}
	restore(t, from)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// snapshot returns a function that makes the files below dir what they are now.
func snapshot(t *testing.T, dir string) (restore func()) {
	t.Helper()
	files := map[string][]byte{}
	must(t, filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		files[name], err = os.ReadFile(name)
		return err
	}))
	return func() {
		for name, data := range files {
			must(t, errors.Join(os.RemoveAll(name), os.WriteFile(name, data, 0o600)))
		}
	}
}

// unlink makes the files below dir have no other name.
func unlink(t *testing.T, dir string) { t.Helper(); snapshot(t, dir)() }

// A damaged file of the commit log is named with what that means. What can be read is restored, and the node says what
// it cannot read.
func TestRestoreWithADamagedCommitLog(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	publish(t, topicOf(t, e, "t"), numbered("m", 100, 2000)...)
	from, s := makeBackup(t, e)
	if s.State != node.BackupDone {
		t.Fatalf("%+v", s)
	}
	must(t, e.Close())
	names, err := filepath.Glob(filepath.Join(from, "clog", "*"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	flipByte(t, names[0], placeOf(t, names[0], "m50/")+5)
	_, err = backup.Restore(from, filepath.Join(t.TempDir(), "r"), backup.RestoreOptions{})
	if err == nil || !strings.Contains(err.Error(), filepath.Base(names[0])+" of the backup is damaged") ||
		!strings.Contains(err.Error(), "a single node that is restored stores nothing new") {
		t.Errorf("%v", err)
	}
	to := filepath.Join(t.TempDir(), "restored")
	r, err := backup.Restore(from, to, backup.RestoreOptions{AcceptLoss: true})
	if err != nil || len(r.Differ) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	again := openWith(t, inDir(to))
	if again.Health() == nil {
		t.Error("the node does not know that its commit log is damaged")
	}
	topic, _ := again.Catalog().LookupTopic("t")
	ms, err := topic.Peek(ctxBg, 0, 0, 10)
	if err != nil || len(ms) != 10 || !strings.HasPrefix(string(ms[0].Body), "m0/") {
		t.Errorf("%d messages, %v", len(ms), err)
	}
}
