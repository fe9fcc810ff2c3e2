package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/backup"
	"penstock/internal/node/errs"
)

// makeBackup backs the engine up into a new directory and waits for the end.
func makeBackup(t *testing.T, e *node.Engine) (string, node.BackupStatus) {
	t.Helper()
	to := filepath.Join(t.TempDir(), "backup")
	if err := e.Backups().Start(node.BackupOptions{Dir: to, Rate: -1, MadeBy: "test"}); err != nil {
		t.Fatal(err)
	}
	return to, awaitBackup(t, e)
}

func awaitBackup(t *testing.T, e *node.Engine) node.BackupStatus {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s := e.Backups().Status()
		if s.State != node.BackupRunning {
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("the backup does not end: %+v", s)
		}
	}
}

// restore restores a backup into a new directory.
func restore(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "restored")
	if _, err := backup.Restore(from, to, backup.RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	return to
}

// sequence records what a producer was told: next is the first number that was not answered OK.
type sequence struct{ next atomic.Int64 }

// produce publishes numbered messages until stop is closed.
func (s *sequence) produce(t *testing.T, topic *node.Topic, name string, stop <-chan struct{}) {
	pad := strings.Repeat("x", 900)
	for {
		select {
		case <-stop:
			return
		default:
		}
		body := fmt.Sprintf("%s %d %s", name, s.next.Load(), pad)
		if _, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: []byte(body)}); err != nil {
			if !errors.Is(err, errs.ErrClosed) {
				t.Errorf("publish: %v", err)
			}
			return
		}
		s.next.Add(1)
	}
}

// checkSequences checks that the channel has, of each producer, the numbers from 0 on, in order and without a gap, at
// least those below atLeast.
func checkSequences(t *testing.T, c *node.Channel, atLeast map[string]int64) {
	t.Helper()
	next := map[string]int64{}
	s := subscribe(t, c, 1)
	defer s.Close()
	for st := channelStats(t, c); st.Depth > 0 || st.InFlightCount > 0; st = channelStats(t, c) {
		m, ok := s.poll(patience)
		if !ok {
			t.Fatalf("no message, although the channel has some: %+v", channelStats(t, c))
		}
		var name string
		var n int64
		if _, err := fmt.Sscanf(m.body, "%s %d", &name, &n); err != nil {
			t.Fatalf("message %q: %v", m.body, err)
		}
		if n != next[name] {
			t.Fatalf("after %d of producer %s comes %d", next[name]-1, name, n)
		}
		next[name]++
		s.finish(m)
	}
	for name, n := range atLeast {
		if next[name] < n {
			t.Errorf("producer %s was answered %d messages before the backup began, and %d are in it", name, n, next[name])
		}
	}
}

// A backup of an engine under load has the state of one moment: every message that was answered OK before it began, of
// each producer a prefix, and the confirmations that were stored. Segments are written, released and removed by
// retention meanwhile, and topics come and go. The restored engine takes messages like any other.
func TestBackupUnderLoad(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	stop, wg := make(chan struct{}), sync.WaitGroup{}
	defer wg.Wait()
	halt := sync.OnceFunc(func() { close(stop) })
	defer halt()

	quiet := topicOf(t, e, "quiet")
	half := channelOf(t, quiet, "half")
	publish(t, quiet, numbered("quiet", 100, 500)...)
	s := subscribe(t, half, 1)
	for range 60 {
		s.finish(s.next())
	}
	s.Close()
	eventuallyDepth(t, half, 40)

	busy := topicOf(t, e, "busy")
	channelOf(t, busy, "all")
	producers := map[string]*sequence{}
	for i := range 3 {
		name := fmt.Sprint("p", i)
		p := new(sequence)
		producers[name] = p
		wg.Go(func() { p.produce(t, busy, name, stop) })
	}
	trimmed := topicOf(t, e, "trimmed") // retention removes its segments all the time
	reader := channelOf(t, trimmed, "reader")
	wg.Go(func() { new(sequence).produce(t, trimmed, "t", stop) })
	eater := subscribe(t, reader, 50)
	defer func() { // the goroutine below must not finish messages of a closed consumer
		halt()
		wg.Wait()
		eater.Close()
	}()
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if m, ok := eater.poll(time.Millisecond); ok {
				eater.finish(m)
			}
		}
	})
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := fmt.Sprint("passing", i)
			topic, err := e.Topic(context.Background(), name)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = topic.PublishMessage(context.Background(), node.Outgoing{Body: bytes.Repeat([]byte("y"), 8000)})
			if err := e.DeleteTopic(context.Background(), name); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for end := time.Now().Add(patience); e.Counters().TrimmedBytes.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("retention removes nothing")
		}
	}
	for range 3 {
		before := map[string]int64{}
		for name, p := range producers {
			before[name] = p.next.Load()
		}
		from, status := makeBackup(t, e)
		if status.State != node.BackupDone || status.Files == 0 || status.Moment.IsZero() {
			t.Fatalf("%+v", status)
		}
		if status.LinkedBytes == 0 {
			t.Error("no segment was linked")
		}
		checkRestored(t, restore(t, from), before)
	}
	if leftovers, err := os.ReadDir(filepath.Join(dataPath(e), "held")); err == nil && len(leftovers) > 0 {
		t.Errorf("%d second names are left", len(leftovers))
	}
}

func dataPath(e *node.Engine) string { return node.DataPathOf(e) }

func eventuallyDepth(t *testing.T, c *node.Channel, depth int64) {
	t.Helper()
	for end := time.Now().Add(patience); channelStats(t, c).Depth != depth; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the depth is %d, not %d", channelStats(t, c).Depth, depth)
		}
	}
}

func checkRestored(t *testing.T, dir string, before map[string]int64) {
	t.Helper()
	log := new(logged)
	o := inDir(dir)
	o.Logger = log.logger()
	e := openWith(t, o)
	defer e.Close()
	if in := e.Info(); len(in.CorruptionsAtRecover) != 0 || in.PartitionsReadOnly != 0 {
		t.Fatalf("recovery found %v", in.CorruptionsAtRecover)
	}
	if err := e.Health(); err != nil {
		t.Fatal(err)
	}
	if s := e.Storage(); s.TornGroups != 0 || s.TornBytes != 0 {
		t.Errorf("%d groups of the backup are torn", s.TornGroups)
	}
	if strings.Contains(log.String(), "without metadata") {
		t.Errorf("a topic has no topic.json:\n%s", log)
	}
	quiet := topicOf(t, e, "quiet")
	s := subscribe(t, channelOf(t, quiet, "half"), 1)
	for i := 60; i < 100; i++ {
		m := s.next()
		if want := numbered("quiet", 100, 500)[i]; m.body != want {
			t.Fatalf("message %d of the channel is %.12q, not %.12q", i-60, m.body, want)
		}
		s.finish(m)
	}
	s.Close()
	checkSequences(t, channelOf(t, topicOf(t, e, "busy"), "all"), before)
	// It goes on: the files of the commit log, which the copy made shorter, are used again or replaced.
	publish(t, topicOf(t, e, "busy"), numbered("more", 300, 8000)...)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	again := openWith(t, inDir(dir))
	if n := channelStats(t, channelOf(t, topicOf(t, again, "busy"), "all")).Depth; n != 300 {
		t.Errorf("after another start %d messages wait", n)
	}
	again.Close()
}

// A backup is refused where it cannot be made, and leaves nothing there.
func TestBackupRefused(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dataPath(e), link); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{
		"relative", "", full, dataPath(e), filepath.Join(dataPath(e), "in"), filepath.Dir(dataPath(e)),
		filepath.Join(link, "in"),
	} {
		if err := e.Backups().Start(node.BackupOptions{Dir: to}); !errors.Is(err, node.ErrBackupDir) {
			t.Errorf("into %q: %v", to, err)
		}
	}
	if s := e.Backups().Status(); s.State != node.BackupNone {
		t.Errorf("%+v", s)
	}
	if _, err := os.Stat(filepath.Join(dataPath(e), "in")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a directory was made in the data directory")
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.Backups().Start(node.BackupOptions{Dir: full}); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// A request that is refused, and a backup that fails, leave the last good backup known.
func TestLastGoodBackupIsRemembered(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	good, status := makeBackup(t, e)
	last := status.LastDone
	if status.State != node.BackupDone || last == nil || last.Dir != good || !last.Moment.Equal(status.Moment) {
		t.Fatalf("%+v, last %+v", status, last)
	}
	for _, to := range []string{good, dataPath(e), "relative"} { // good is not empty
		if err := e.Backups().Start(node.BackupOptions{Dir: to}); !errors.Is(err, node.ErrBackupDir) {
			t.Fatalf("into %q: %v", to, err)
		}
		if s := e.Backups().Status(); !reflect.DeepEqual(s, status) {
			t.Errorf("after a refusal: %+v, want %+v", s, status)
		}
	}
	held := filepath.Join(dataPath(e), "held")
	if err := errors.Join(os.RemoveAll(held), os.Chmod(dataPath(e), 0o500)); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		_, failed := makeBackup(t, e)
		if failed.State != node.BackupFailed || failed.LastDone == nil || *failed.LastDone != *last {
			t.Errorf("after a failure: %+v", failed)
		}
	}
	if err := os.Chmod(dataPath(e), 0o700); err != nil {
		t.Fatal(err)
	}
}

// Every bit of every file of a backup counts: a restore names the file that differs, and leaves nothing.
func TestDamagedBackupIsRefused(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	channelOf(t, topic, "c")
	publish(t, topic, numbered("m", 200, 2000)...)
	from, status := makeBackup(t, e)
	if status.State != node.BackupDone {
		t.Fatalf("%+v", status)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	names := filesOf(t, from)
	for _, kind := range []string{".seg", ".clog", ".json"} {
		if !slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, kind) }) {
			t.Fatalf("the backup has %v", names)
		}
	}
	for _, name := range append(names, backup.ManifestFile) {
		checkDamageIsRefused(t, from, name)
	}
	if _, err := backup.Restore(from, t.TempDir(), backup.RestoreOptions{NodeID: "other"}); err != nil {
		t.Errorf("the whole backup: %v", err)
	}
	if _, err := backup.Restore(from, from, backup.RestoreOptions{}); err == nil {
		t.Error("restored into a directory in use")
	}
}

// The cluster's metadata in the backup of a member are verified like its data, both by a restore of the member and by
// whoever reads only the metadata.
func TestDamagedMetadataOfABackupAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() // removed after the cluster has stopped
	tc := prepareTestCluster(t, 1)
	m := tc.nodes[0]
	m.disk, m.dir = nil, dir
	tc.startAll()
	tc.create("t", 1)
	from, status := makeBackup(t, m.e)
	if status.State != node.BackupDone || status.NoMetadata != "" {
		t.Fatalf("%+v", status)
	}
	if names := filesOf(t, from); !slices.Contains(names, backup.MetadataFile) {
		t.Fatalf("the backup has %v", names)
	}
	checkDamageIsRefused(t, from, backup.MetadataFile)
	list, err := backup.ReadManifest(from)
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(from, backup.MetadataFile)
	whole, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		flipped := bytes.Clone(whole)
		flipped[i] ^= 1 << (i % 8)
		if err := os.WriteFile(at, flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := list.Metadata(from); err == nil || !strings.Contains(err.Error(), backup.MetadataFile) {
			t.Fatalf("bit %d of byte %d: %v", i%8, i, err)
		}
	}
	if err := os.WriteFile(at, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := list.Metadata(from); err != nil || !bytes.Equal(data, whole) {
		t.Errorf("the whole metadata: %v", err)
	}
	restore(t, from)
}

// filesOf returns the names of the files that the manifest lists.
func filesOf(t *testing.T, from string) (names []string) {
	t.Helper()
	m, err := backup.ReadManifest(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range m.Files {
		names = append(names, f.Name)
	}
	return names
}

// checkDamageIsRefused damages a file of the backup in several ways and removes it: a restore names the file and leaves
// nothing. Afterwards the file is whole again.
func checkDamageIsRefused(t *testing.T, from, name string) {
	t.Helper()
	at := filepath.Join(from, name)
	whole, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string) {
		t.Helper()
		to := filepath.Join(t.TempDir(), "restored")
		_, err := backup.Restore(from, to, backup.RestoreOptions{})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s %s: %v", what, name, err)
		}
		if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s %s: something was left", what, name)
		}
	}
	for _, damage := range []func([]byte) []byte{
		func(p []byte) []byte { p[len(p)/3] ^= 4; return p },
		func(p []byte) []byte { p[len(p)-4] ^= 1; return p },
		func(p []byte) []byte { return p[:len(p)-1] },
		func([]byte) []byte { return nil },
	} {
		if err := os.WriteFile(at, damage(bytes.Clone(whole)), 0o600); err != nil {
			t.Fatal(err)
		}
		refused("damaged")
	}
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	refused("without")
	if err := os.WriteFile(at, whole, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A backup notes the topics that come, go and grow before its moment, and none that come later.
func TestBackupNotesTopics(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topicOf(t, e, "old")
	grows := topicOf(t, e, "grows")
	noted := node.NotedTopics(e, func() {
		topicOf(t, e, "passing")
		if err := e.DeleteTopic(context.Background(), "passing"); err != nil {
			t.Fatal(err)
		}
		if _, err := grows.ConfigureAs(context.Background(), "", meta.TopicSettings{Partitions: 3}); err != nil {
			t.Fatal(err)
		}
	})
	topicOf(t, e, "later")
	if want := map[string]int{"old": 1, "grows": 3, "passing": 1}; !maps.Equal(noted, want) {
		t.Errorf("%v", noted)
	}
}

// A topic that is created after a backup began, and deleted before the backup looks at its topics again, is in the
// backup as a whole, or not at all: its records in the copy of the commit log do not lack its metadata.
func TestTopicsComeAndGoDuringABackup(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	publish(t, topicOf(t, e, "big"), numbered("m", 500, 8000)...) // so that copying the commit log takes a while
	stop, wg := make(chan struct{}), sync.WaitGroup{}
	defer wg.Wait()
	defer close(stop)
	for i := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprint("passing", i, "-", n)
				topic, err := e.Topic(context.Background(), name)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = topic.PublishMessage(context.Background(), node.Outgoing{Body: []byte("y")})
				if err := e.DeleteTopic(context.Background(), name); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 4 {
		from, status := makeBackup(t, e)
		if status.State != node.BackupDone {
			t.Fatalf("%+v", status)
		}
		log := new(logged)
		o := inDir(restore(t, from))
		o.Logger = log.logger()
		restored := openWith(t, o)
		if strings.Contains(log.String(), "without metadata") {
			t.Errorf("a topic has no topic.json:\n%s", log)
		}
		restored.Close()
	}
}
