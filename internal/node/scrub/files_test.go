package scrub

import (
	"bytes"
	"log/slog"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/internal/node/datadir"
	"penstock/internal/node/platform"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// source is a commit log source that consists of a checkpoint only.
type source struct{}

func (source) Gather(*clog.Group)           {}
func (source) Durable(*clog.Group)          {}
func (source) Checkpoint(emit func([]byte)) { emit(make([]byte, 100)) }
func (source) CheckpointBytes() int64       { return 100 }
func (source) Failed(error)                 {}

// nothing is a replayer that ignores everything.
type nothing struct{}

func (nothing) Checkpoint([]byte) error   { return nil }
func (nothing) Record(*clog.Record) error { return nil }
func (nothing) Restart()                  {}

// commitLog opens a log on disk, and steps it until its first file has a checkpoint.
func commitLog(t *testing.T, disk aio.Disk) *clog.Log {
	t.Helper()
	arena, err := aio.NewArena(64<<10, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arena.Close() })
	l, _, err := clog.Open(disk, arena, clog.Options{FileBytes: 256 << 10, Inline: true}, nothing{})
	if err != nil {
		t.Fatal(err)
	}
	l.SetSource(source{})
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for range 20 {
		if _, err := l.Step(false); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// A damaged file of the commit log is logged once, however often the scrub meets it. The flusher is told each time,
// because its attempt to replace the file may fail.
func TestDamagedFileOfTheCommitLogIsToldOnce(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	l := commitLog(t, disk)
	files, err := disk.ReadDir("clog")
	if err != nil || len(files) == 0 || l.Current() == 0 {
		t.Fatal(files, err)
	}
	var out bytes.Buffer
	var rotten []uint64
	failed := false
	s := New(Env{
		Host: platform.NewMachine(), Log: slog.New(slog.NewTextHandler(&out, nil)), CommitLog: l,
		Failed: func() bool { return failed }, MarkRotten: func(file uint64) { rotten = append(rotten, file) },
	})
	told := map[uint64]bool{}
	if !s.readCommitLog(told) || len(rotten) > 0 || s.Stats().Bytes == 0 {
		t.Fatalf("files %v are damaged, %+v", rotten, s.Stats())
	}
	name := path.Join("clog", files[0].Name())
	data, err := disk.ReadFile(name, 1<<30)
	if err != nil || !disk.Corrupt(name, []byte{data[clog.GroupHeaderBytes+1] ^ 4}, clog.GroupHeaderBytes+1) {
		t.Fatal(name, err)
	}
	for range 3 {
		s.readCommitLog(told)
	}
	if want := slices.Repeat([]uint64{l.Current()}, 3); !slices.Equal(rotten, want) || s.Stats().LogDamaged != 1 ||
		strings.Count(out.String(), "is damaged") != 1 {
		t.Errorf("files %v are damaged, %+v, told:\n%s", rotten, s.Stats(), out.String())
	}
	failed = true
	if s.readCommitLog(told); len(rotten) != 3 {
		t.Error("the log failed, and the flusher is to replace a file of it")
	}
}

// catalog is a data directory with the files of a node and one topic.
type catalog struct {
	disk  *faultaio.Disk
	node  *datadir.Node
	topic *datadir.Topic
	scrub *Scrub
}

func newCatalog(t *testing.T) *catalog {
	t.Helper()
	c := &catalog{
		disk:  faultaio.New(faultaio.Options{}),
		node:  &datadir.Node{Format: datadir.FormatOf(datadir.FirstLevel), NodeID: "n"},
		topic: &datadir.Topic{Format: datadir.TopicFormat, ID: uuid.UUID{7}, Name: "t", Partitions: 1},
	}
	c.scrub = New(Env{
		Host: platform.NewMachine(), Log: slog.New(slog.DiscardHandler), Disk: c.disk, Interval: time.Hour,
		WithNodeFile: func(check func(*datadir.Node)) { check(c.node) },
		Topics: func() []TopicFile {
			return []TopicFile{func(check func(*datadir.Topic)) { check(c.topic) }}
		},
		Shortened: datadir.NewShortened(c.disk),
	})
	if err := datadir.WriteTwice(c.disk, datadir.NodePath, c.node); err != nil {
		t.Fatal(err)
	}
	if err := c.topic.Write(c.disk); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *catalog) read(t *testing.T, name string) string {
	t.Helper()
	data, err := c.disk.ReadFile(name, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// When a file or its second copy decays, the scrub rewrites it from the other one or from memory, and counts it once.
func TestCatalogIsMended(t *testing.T) {
	c := newCatalog(t)
	topic := datadir.TopicPath(c.topic.ID)
	for i, damaged := range [][]string{
		{"node.json"},
		{"node.copy.json"},
		{"node.json", "node.copy.json"},
		{topic + "/topic.json"},
		{topic + "/topic.copy.json"},
		{topic + "/topic.json", topic + "/topic.copy.json"},
	} {
		var before []string
		for _, name := range damaged {
			data := c.read(t, name)
			before = append(before, data)
			if !c.disk.Corrupt(name, []byte{data[20] ^ 4}, 20) {
				t.Fatal(name)
			}
		}
		for range 2 {
			if !c.scrub.readCatalog() {
				t.Fatal("nothing closes")
			}
		}
		for at, name := range damaged {
			if is := c.read(t, name); is != before[at] {
				t.Errorf("%s is\n%s", name, is)
			}
		}
		if n := c.scrub.Stats().Mended; n != uint64(i+1) {
			t.Errorf("%v: %d mended, want %d", damaged, n, i+1)
		}
	}
}

// A topic.json that is intact but belongs to another topic was put there by a person: the scrub leaves it alone.
func TestCatalogLeavesWhatIsWhole(t *testing.T) {
	c := newCatalog(t)
	name := path.Join(datadir.TopicPath(c.topic.ID), datadir.TopicFile)
	other := *c.topic
	other.ID = uuid.UUID{8}
	if err := datadir.WriteTwice(c.disk, name, &other); err != nil {
		t.Fatal(err)
	}
	before := c.read(t, name)
	c.scrub.readCatalog()
	if c.read(t, name) != before || c.scrub.Stats().Mended != 0 {
		t.Errorf("it is written anew, %+v", c.scrub.Stats())
	}
}

// The scrub reads nothing any more once the engine closes.
func TestReadingEnds(t *testing.T) {
	c := newCatalog(t)
	stop := make(chan struct{})
	close(stop)
	c.scrub.n.Stop = stop
	c.scrub.n.Copies = func() []Copy { t.Error("a round begins"); return nil }
	c.scrub.ReadSegments()
	c.scrub.ReadFiles()
	c.scrub.RetryReads()
}
