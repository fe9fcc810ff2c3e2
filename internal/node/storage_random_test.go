package node_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/backup"
	"penstock/internal/node/datadir"
	"penstock/tests/support/seedtest"
)

// storeSim is one node on a real directory, to which random operations happen: messages come, are finished and are
// removed by retention; backups are made, refused, restored and mistaken for data directories; files rot. After each
// operation the counts are compared with a full read, and all backups with what they were.
type storeSim struct {
	t        *testing.T
	seed     uint64
	rng      *rand.Rand
	dir      string
	e        *node.Engine
	sent     int
	finished map[string]bool // bodies
	backups  []*storeBackup
	last     string // directory of the last backup that the engine has completed since it was opened
}

type storeBackup struct {
	dir   string
	files map[string][32]byte
	has   map[string][]string // unfinished bodies, by topic
	space int64               // of the topics in the data directory
}

// mostLogBytes is more than what a backup has of the commit log here.
const mostLogBytes = 700 << 10

var storeTopics = []string{"a", "b", "c"}

func (s *storeSim) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d: %s", s.seed, fmt.Sprintf(format, args...))
}

func (s *storeSim) open() {
	s.e, s.last = openWith(s.t, inDir(s.dir)), ""
	for _, name := range storeTopics {
		channelOf(s.t, topicOf(s.t, s.e, name), "c")
	}
	for i := range 40 { // quiet ones, whose files are mostly holes
		if _, there := s.e.Catalog().LookupTopic(fmt.Sprint("quiet", i)); !there {
			publish(s.t, topicOf(s.t, s.e, fmt.Sprint("quiet", i)), "m")
		}
	}
}

func (s *storeSim) close() {
	if err := s.e.Close(); err != nil {
		s.fail("close: %v", err)
	}
}

func (s *storeSim) topic() *node.Topic {
	return topicOf(s.t, s.e, storeTopics[s.rng.IntN(len(storeTopics))])
}

// logOf reads all that the log of a topic has.
func logOf(t *testing.T, topic *node.Topic) []string {
	t.Helper()
	for {
		all, err := readLog(t, topic)
		var trimmed *node.TrimmedError
		switch {
		case err == nil:
			return all
		case !errors.As(err, &trimmed): // else retention works just now
			t.Fatal(err)
		}
	}
}

// readLog reads the log of a topic as far as it can be read. err is why it ends before its end.
func readLog(t *testing.T, topic *node.Topic) (all []string, err error) {
	t.Helper()
	r, err := topic.OpenReader(0, node.Start{Kind: node.StartOldest})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ended, end := context.WithCancel(ctxBg)
	end()
	for {
		got, err := r.Next(ended, 1<<20)
		if errors.Is(err, context.Canceled) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		for _, m := range meant(t, got) {
			name, _, _ := strings.Cut(m.body, "/")
			all = append(all, name)
		}
		got.Release()
	}
}

// waits returns the messages of a topic that nobody has finished.
func (s *storeSim) waits(t *node.Topic) []string {
	return slices.DeleteFunc(logOf(s.t, t), func(b string) bool { return s.finished[b] })
}

// check compares counts with what there is. Retention may work just now, so it looks until they agree.
func (s *storeSim) check() {
	s.t.Helper()
	for _, name := range storeTopics {
		t := topicOf(s.t, s.e, name)
		c := channelOf(s.t, t, "c")
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			st, has := channelStats(s.t, c), s.waits(t)
			if counted := st.Depth + int64(st.InFlightCount+st.DeferredCount); counted == int64(len(has)) {
				break
			} else if time.Now().After(end) {
				s.fail("topic %s has %d messages that nobody has finished, and counts %d: %+v", name, len(has), counted, st)
			}
		}
	}
	for _, b := range s.backups {
		if now := sumsOf(s.t, b.dir); !maps.Equal(now, b.files) {
			s.fail("the backup %s has changed: %d files, %d before", b.dir, len(now), len(b.files))
		}
	}
	if st := s.e.Backups().Status(); s.last != "" && (st.LastDone == nil || st.LastDone.Dir != s.last) {
		s.fail("the last good backup is in %s, and the status says %+v", s.last, st.LastDone)
	}
}

// sumsOf returns the checksums of the files below a directory.
func sumsOf(t *testing.T, root string) map[string][32]byte {
	t.Helper()
	all := map[string][32]byte{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		all[name] = sha256.Sum256(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// spaceOf is what the files below a directory take on the disk.
func spaceOf(t *testing.T, root string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := os.Stat(name)
		if err == nil {
			n += st.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *storeSim) publish() {
	n, pad := 1+s.rng.IntN(80), 100+s.rng.IntN(2000)
	publish(s.t, s.topic(), numbered(fmt.Sprintf("m%d-", s.sent), n, pad)...)
	s.sent++
}

func (s *storeSim) finish() {
	c := channelOf(s.t, s.topic(), "c")
	k := subscribe(s.t, c, 1)
	defer func() { // what was finished counts after the next start
		done := make(chan error, 1)
		k.local().Sync(func(err error) { done <- err })
		if err := <-done; err != nil {
			s.fail("sync: %v", err)
		}
		k.Close()
	}()
	for range s.rng.IntN(60) {
		m, ok := k.poll(20 * time.Millisecond)
		if !ok {
			return
		}
		name, _, _ := strings.Cut(m.body, "/")
		s.finished[name] = true
		k.finish(m)
	}
}

func (s *storeSim) retain() {
	bytes := []int64{-1, 100 << 10, 200 << 10}[s.rng.IntN(3)]
	configure(s.t, s.topic(), func(o *meta.TopicSettings) { o.RetentionBytes = bytes })
}

// backUp makes a backup: of the running engine, or of its directory when it has ended.
func (s *storeSim) backUp() {
	b := &storeBackup{dir: filepath.Join(s.t.TempDir(), "backup"), has: map[string][]string{}}
	for _, name := range storeTopics { // retention would go on meanwhile
		configure(s.t, topicOf(s.t, s.e, name), func(o *meta.TopicSettings) { o.RetentionBytes = -1 })
	}
	s.check()
	for _, name := range storeTopics {
		b.has[name] = s.waits(topicOf(s.t, s.e, name))
	}
	if s.rng.IntN(3) > 0 {
		if err := s.e.Backups().Start(node.BackupOptions{Dir: b.dir, Rate: -1, MadeBy: "test"}); err != nil {
			s.fail("backup: %v", err)
		}
		if st := awaitBackup(s.t, s.e); st.State != node.BackupDone {
			s.fail("backup: %+v", st)
		}
		s.last = b.dir
	} else {
		s.close()
		if err := s.copyTo(b.dir); err != nil {
			s.fail("backup of the directory: %v", err)
		}
		s.open()
	}
	b.files, b.space = sumsOf(s.t, b.dir), spaceOf(s.t, filepath.Join(s.dir, "topics"))
	if n := spaceOf(s.t, b.dir); n > b.space+mostLogBytes {
		s.fail("a backup of topics that take %d bytes takes %d", b.space, n)
	}
	s.backups = append(s.backups, b)
}

func (s *storeSim) copyTo(to string) error {
	o := backup.Options{Pause: func(time.Duration) bool { return true }}
	return backup.Copy(s.dir, to, new(backup.Manifest), datadir.NewestLevel, o)
}

// copyInto is copyTo for a directory inside of the data. It fails when the copy goes into itself.
func (s *storeSim) copyInto(to string) error {
	ended := make(chan error, 1)
	go func() { ended <- s.copyTo(to) }()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-look.C:
			if _, err := os.Stat(filepath.Join(to, "topics", filepath.Base(to))); err == nil {
				s.fail("a backup of the directory is copied into itself")
			}
		}
	}
}

// mistake does what must be refused.
func (s *storeSim) mistake() {
	inside := filepath.Join(s.dir, "topics", "backup")
	wrong := func(what string, err error) {
		if err == nil {
			s.fail("%s is not refused", what)
		}
	}
	wrong("a backup into the data", s.e.Backups().Start(node.BackupOptions{Dir: inside}))
	if len(s.backups) > 0 {
		b := s.backups[s.rng.IntN(len(s.backups))]
		wrong("a backup onto another", s.e.Backups().Start(node.BackupOptions{Dir: b.dir}))
		_, err := backup.Restore(b.dir, filepath.Join(b.dir, "data"), backup.RestoreOptions{})
		wrong("a restore into the backup", err)
		e, err := node.Open(ctxBg, inDir(b.dir))
		if err == nil {
			_ = e.Close()
		}
		wrong("an engine on a backup", err)
	}
	if s.rng.IntN(3) == 0 {
		s.close()
		wrong("a backup of the directory into itself", s.copyInto(inside))
		s.open()
	}
}

// restore restores a backup and looks whether it has what there was.
func (s *storeSim) restore() {
	if len(s.backups) == 0 {
		return
	}
	b := s.backups[s.rng.IntN(len(s.backups))]
	to := restore(s.t, b.dir)
	e := openWith(s.t, inDir(to))
	defer e.Close()
	for _, name := range storeTopics {
		t, has := topicOf(s.t, e, name), map[string]bool{}
		for _, body := range logOf(s.t, t) {
			has[body] = true
		}
		for _, body := range b.has[name] {
			if !has[body] {
				s.fail("message %s of topic %s was there before the backup, and is not in it", body, name)
			}
		}
		if d := channelStats(s.t, channelOf(s.t, t, "c")).Depth; d < int64(len(b.has[name])) {
			s.fail("topic %s had %d messages that nobody had finished, the restored one %d", name, len(b.has[name]), d)
		}
	}
}

func (s *storeSim) op() {
	switch s.rng.IntN(18) {
	default:
		s.publish()
	case 0, 1, 2:
		s.finish()
	case 3, 4:
		s.retain()
	case 5, 6, 7:
		s.backUp()
	case 8, 9, 10:
		s.mistake()
	case 11:
		s.restore()
	case 12:
		s.close()
		s.open()
	case 13:
		s.rot()
	case 14:
		s.rotOriginal()
	}
	s.check()
}

// rot turns a bit of a file of a backup: no restore takes it. Then it turns it back.
func (s *storeSim) rot() {
	if len(s.backups) == 0 {
		return
	}
	b := s.backups[s.rng.IntN(len(s.backups))]
	name := slices.Sorted(maps.Keys(b.files))[s.rng.IntN(len(b.files))]
	data, err := os.ReadFile(name)
	if err != nil || len(data) == 0 {
		return
	}
	at := s.rng.IntN(len(data))
	for turn := range 2 {
		data[at] ^= 0x10
		// The file may be a link to one of the node's: the node keeps its own.
		if err := errors.Join(os.WriteFile(name+".new", data, 0o600), os.Rename(name+".new", name)); err != nil {
			s.fail("%v", err)
		}
		if turn == 0 {
			if _, err := backup.Restore(b.dir, filepath.Join(s.t.TempDir(), "rotten"), backup.RestoreOptions{}); err == nil {
				s.fail("a backup with a wrong bit in %s is restored", name)
			}
		}
	}
}

// rotOriginal turns a bit of a message in a segment of a copy of the directory. A backup of that copy names the message
// exactly if a node on the copy cannot read it, which it can if the commit log has it, too.
func (s *storeSim) rotOriginal() {
	name := storeTopics[s.rng.IntN(len(storeTopics))]
	bodies := s.waits(topicOf(s.t, s.e, name))
	if len(bodies) == 0 {
		return
	}
	body := bodies[s.rng.IntN(len(bodies))]
	s.close()
	defer s.open()
	rotten := filepath.Join(s.t.TempDir(), "rotten")
	if err := os.CopyFS(rotten, os.DirFS(s.dir)); err != nil {
		s.fail("%v", err)
	}
	files, err := filepath.Glob(filepath.Join(rotten, "topics", "*", "0", "*.seg"))
	if err != nil {
		s.fail("%v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		at := bytes.Index(data, []byte(body+"/"))
		if err == nil && at < 0 {
			continue
		}
		data[at] ^= 0x10
		m := new(backup.Manifest)
		if err := errors.Join(err, os.WriteFile(file, data, 0o600), backup.Copy(rotten, filepath.Join(s.t.TempDir(), "of"),
			m, datadir.NewestLevel, backup.Options{Pause: func(time.Duration) bool { return true }})); err != nil {
			s.fail("a backup of a directory with a wrong bit: %v", err)
		}
		e := openWith(s.t, inDir(rotten))
		defer e.Close()
		got, err := readLog(s.t, topicOf(s.t, e, name))
		if slices.Contains(got, body) != (len(m.Missing) == 0) {
			s.fail("a node that should have %s of topic %s reads %d messages, then %v, and its backup lacks %v",
				body, name, len(got), err, m.Missing)
		}
		return
	}
}

// Random operations on a node and its backups. TEST_SIM_SEEDS=from-to chooses the seeds.
func TestStorageRandom(t *testing.T) {
	t.Parallel()
	from, to := seedtest.Range(t, 3, 1)
	for seed := from; seed < to; seed++ {
		s := &storeSim{
			t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 43)), dir: filepath.Join(t.TempDir(), "data"),
			finished: map[string]bool{},
		}
		s.open()
		for range 30 {
			s.op()
		}
		s.close()
	}
}
