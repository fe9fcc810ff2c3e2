package node_test

import (
	"context"
	"path"
	"strings"
	"testing"

	"penstock/clog"
	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// flipGroup flips a bit in the body of a group with records, in the newest commit log file.
func flipGroup(t *testing.T, d *faultaio.Disk, which func(groups []clog.GroupInfo) clog.GroupInfo) (file string) {
	t.Helper()
	var groups []clog.GroupInfo
	err := clog.Scan(d, func(f clog.FileInfo, g clog.GroupInfo, recs []clog.RecordInfo) error {
		if f.Name != file {
			file, groups = f.Name, nil
		}
		if g.Records > 0 && g.Err == nil {
			groups = append(groups, g)
		}
		return nil
	})
	if err != nil || len(groups) == 0 {
		t.Fatal(len(groups), err)
	}
	flipBit(t, d, file, which(groups).Offset+clog.GroupHeaderBytes+20, 3)
	return file
}

// A bit of the commit log rots while the node runs. The scrub finds it, the content of the file goes to segments, and
// the file is released. A restart then finds all messages; without the scrub it would find a damaged log and store
// nothing any more.
func TestScrubCommitLog(t *testing.T) {
	t.Parallel()
	for name, which := range map[string]func([]clog.GroupInfo) clog.GroupInfo{
		"the checkpoint": func(g []clog.GroupInfo) clog.GroupInfo { return g[0] },
		"a message":      func(g []clog.GroupInfo) clog.GroupInfo { return g[len(g)/2] },
		"the last group": func(g []clog.GroupInfo) clog.GroupInfo { return g[len(g)-1] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := newDisk()
			var log logged
			e := openOnDisk(t, disk, scrubsOften, func(o *node.Options) { o.Logger = log.logger() })
			topic := topicOf(t, e, "t")
			channelOf(t, topic, "c")
			ids := publish(t, topic, numbered("m", 20, 500)...)
			file := flipGroup(t, disk, which)
			eventually(t, "the scrub finds it", func() bool { return e.Storage().ScrubLogDamaged == 1 })
			eventually(t, "the file is given back", func() bool {
				_, err := disk.ReadFile(file, 1<<30)
				return err != nil && e.Health() == nil
			})
			if n := strings.Count(log.String(), "a file of the commit log is damaged"); n != 1 ||
				!strings.Contains(log.String(), file) {
				t.Errorf("told %d times:\n%s", n, log.String())
			}
			ids = append(ids, publish(t, topic, "after")...)
			rounds := e.Storage().ScrubRounds
			eventually(t, "two more rounds", func() bool { return e.Storage().ScrubRounds > rounds+1 })
			if n := e.Storage().ScrubLogDamaged; n != 1 {
				t.Errorf("%d files were damaged", n)
			}
			left := disk.Kill(1)
			_ = e.Close()
			e = openOnDisk(t, left)
			if err := e.Health(); err != nil {
				t.Fatal(err)
			}
			topic, _ = e.Catalog().LookupTopic("t")
			got := readAll(t, channelOf(t, topic, "c"))
			for _, id := range ids {
				if _, ok := got[id]; !ok {
					t.Errorf("message %v is lost", id)
				}
			}
			publish(t, topic, "it takes more")
		})
	}
}

// Bits rot in small files, and in the parts of a segment beside its messages, while the node runs. Each of these is
// logged, counted and mended.
func TestScrubMendsFiles(t *testing.T) {
	t.Parallel()
	disk, ids := closedDirectory(t, 300)
	var log logged
	e := openOnDisk(t, disk, scrubsOften, func(o *node.Options) { o.Logger = log.logger() })
	files := segmentFiles(t, disk, "bad")
	topic := path.Dir(path.Dir(files[0]))
	mended, told := uint64(0), 0
	for _, tc := range []struct {
		file []string
		at   int64
	}{
		{[]string{"node.json"}, 20},
		{[]string{"node.copy.json"}, 30},
		{[]string{"node.json", "node.copy.json"}, 40},
		{[]string{topic + "/topic.json"}, 20},
		{[]string{topic + "/topic.copy.json"}, 30},
		{[]string{topic + "/topic.json", topic + "/topic.copy.json"}, 40},
		{[]string{files[0]}, 50},
		{[]string{strings.TrimSuffix(files[0], ".seg") + ".idx"}, 70},
	} {
		before := map[string]string{}
		for _, f := range tc.file {
			before[f] = content(t, disk, f)
			flipBit(t, disk, f, tc.at, 2)
		}
		eventually(t, tc.file[0]+" is as it was", func() bool {
			for _, f := range tc.file {
				if content(t, disk, f) != before[f] {
					return false
				}
			}
			return e.Storage().ScrubMended > mended && strings.Count(log.String(), "damaged; nothing is lost") > told
		})
		mended = e.Storage().ScrubMended
		_, last, _ := strings.Cut(log.String()[strings.LastIndex(log.String(), "damaged; nothing is lost"):], "file=")
		if !strings.HasPrefix(last, tc.file[0]) {
			t.Errorf("%v: told as %s", tc.file, last)
		}
		told = strings.Count(log.String(), "damaged; nothing is lost")
	}
	if err := e.Health(); err != nil {
		t.Error(err)
	}
	if n := len(strings.Split(log.String(), "damaged; nothing is lost")) - 1; n != 8 || e.Storage().ScrubMended != 8 {
		t.Errorf("%d were told, %d counted:\n%s", n, e.Storage().ScrubMended, log.String())
	}
	bad, _ := e.Catalog().LookupTopic("bad")
	if got := readAll(t, channelOf(t, bad, "c")); len(got) != len(ids) {
		t.Errorf("%d messages of %d", len(got), len(ids))
	}
	if _, err := bad.PublishMessage(context.Background(), node.Outgoing{Body: []byte("more")}); err != nil {
		t.Error(err)
	}
}

// Files that are whole but have unexpected content have not rotted: an operator has put them there, and the scrub
// leaves them alone.
func TestScrubLeavesWhatIsWhole(t *testing.T) {
	t.Parallel()
	disk := newDisk()
	e := openOnDisk(t, disk, scrubsOften)
	topicOf(t, e, "one")
	topicOf(t, e, "two")
	one, two := node.TopicDir(e, "one"), node.TopicDir(e, "two")
	other := content(t, disk, two+"/topic.json")
	for _, f := range []string{"/topic.json", "/topic.copy.json"} {
		if err := disk.WriteFile(one+f, []byte(other)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the catalog is read from one end to the other
		mended := e.Storage().ScrubMended
		flipBit(t, disk, two+"/topic.json", 20, 2)
		eventually(t, "a round", func() bool { return e.Storage().ScrubMended > mended })
	}
	if content(t, disk, one+"/topic.json") != other || content(t, disk, one+"/topic.copy.json") != other ||
		content(t, disk, two+"/topic.json") != other {
		t.Error("they were written again")
	}
}

func content(t *testing.T, d *faultaio.Disk, name string) string {
	t.Helper()
	data, err := d.ReadFile(name, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// If the list of shortened copies does not have what the node knows, it is written anew. Otherwise the next start would
// let a copy lead that has not compared itself.
func TestClusterScrubShortened(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 1, scrubsOften)
	m := tc.nodes[0]
	for _, wrong := range []string{`[{"topic":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","partition":3}]`, "[{", "[ ]\n"} {
		before := m.e.Storage().ScrubMended
		if err := m.disk.WriteFile("shortened.json", []byte(wrong)); err != nil {
			t.Fatal(err)
		}
		tc.eventually("it is written anew", func() bool {
			return content(t, m.disk, "shortened.json") == "[]\n" && m.e.Storage().ScrubMended > before
		})
	}
}
