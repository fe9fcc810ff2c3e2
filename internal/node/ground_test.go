package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/segment/aio"
)

// groundLimit is how long a node may answer OK after its ground is gone: it looks once a second. The rest is for a busy
// machine.
const groundLimit = 3 * time.Second

// groundFaults take the ground away under a node. seen is what the node has to say.
var groundFaults = []struct {
	name string
	do   func(dir string) error
	seen string
}{
	{"clog", func(dir string) (err error) {
		for range 100 { // the node may make a file in it meanwhile
			if err = os.RemoveAll(filepath.Join(dir, "clog")); err == nil {
				break
			}
		}
		return err
	}, "clog"},
	{"current file", func(dir string) error {
		files, err := filepath.Glob(filepath.Join(dir, "clog", "*.clog"))
		for _, f := range files { // the newest two: one of them may be ready and not used yet
			err = errors.Join(err, os.Remove(f))
		}
		return err
	}, ".clog was removed"},
	{"clog is moved", func(dir string) error {
		return os.Rename(filepath.Join(dir, "clog"), filepath.Join(dir, "clog.old"))
	}, "clog"},
	{"data directory", func(dir string) error { return os.Rename(dir, dir+".old") }, "was removed or renamed"},
	{"data directory is replaced", func(dir string) error {
		return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700))
	}, "was replaced"},
	{"node.json", func(dir string) error {
		name := filepath.Join(dir, "node.json")
		text, err := os.ReadFile(name)
		return errors.Join(err, os.WriteFile(name+".new", text, 0o600), os.Rename(name+".new", name))
	}, "node.json was replaced"},
	{"LOCK", func(dir string) error { return os.Remove(filepath.Join(dir, "LOCK")) }, "LOCK was removed"},
	{"topics", func(dir string) error {
		return os.Rename(filepath.Join(dir, "topics"), filepath.Join(dir, "topics.old"))
	}, "topics"},
	{"segment", func(dir string) error {
		names, err := filepath.Glob(filepath.Join(dir, "topics", "*", "*", "*.seg"))
		if len(names) == 0 {
			return errors.Join(err, errors.New("there is no segment"))
		}
		return errors.Join(err, os.Remove(names[len(names)-1]))
	}, ".seg was removed"},
}

// A node under which files are taken away answers nothing OK any more, says what is gone, and promises nothing. Healthy
// nodes of the same directories come back.
func TestGroundIsTakenAway(t *testing.T) {
	for _, fault := range groundFaults {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			groundIsTakenAway(t, fault.do, fault.seen)
		})
	}
}

func groundIsTakenAway(t *testing.T, do func(dir string) error, seen string) {
	dir := filepath.Join(t.TempDir(), "data")
	o, log := inDir(dir), &logged{}
	o.Logger = log.logger()
	o.MinSegmentBytes, o.MaxSegmentBytes = 64<<20, 64<<20 // the newest segment is still the newest a second later
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	body := bytes.Repeat([]byte("x"), 4000)
	var acked atomic.Int64
	failed, quit := make(chan error, 1), make(chan struct{})
	defer close(quit)
	go func() { // publishes without a pause, also after the first error
		for first := true; ; {
			select {
			case <-quit:
				return
			default:
			}
			_, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: body})
			switch {
			case err == nil:
				acked.Add(1)
			case first:
				first = false
				failed <- err
			}
		}
	}()
	eventually(t, "segments are written and the ground was seen", func() bool {
		names, _ := filepath.Glob(filepath.Join(dir, "topics", "*", "*", "*.seg"))
		return len(names) > 0 && acked.Load() > 200 && node.GroundLooks(e) > 1
	})
	began := time.Now()
	if err := do(dir); err != nil {
		t.Fatal(err)
	}
	var err error
	select {
	case err = <-failed:
	case <-time.After(patience):
		t.Fatal("it goes on answering OK")
	}
	took := time.Since(began)
	after := acked.Load()
	t.Logf("refused after %v: %v", took, err)
	if took > groundLimit {
		t.Errorf("refused after %v", took)
	}
	if !errors.Is(err, errs.ErrDisk) || strings.Contains(err.Error(), "safe") {
		t.Errorf("a publisher is told: %v", err)
	}
	eventually(t, "the node says that it is lost", func() bool { return e.Storage().GroundLost })
	lost := (*aio.GroundError)(nil)
	if err := e.Health(); !errors.As(err, &lost) || !strings.Contains(err.Error(), seen) ||
		strings.Contains(err.Error(), "safe") || !strings.Contains(err.Error(), "nothing more is answered OK") {
		t.Errorf("it says %v, want %q in it", err, seen)
	}
	if v := e.Verdict(); v.Ready || v.Serves || !strings.Contains(v.Why, seen) {
		t.Errorf("ready %v, serves %v: %s", v.Ready, v.Serves, v.Why)
	}
	if faults := e.Warnings(); len(faults) == 0 || faults[0].Name != "ground_lost" {
		t.Errorf("faults %v", faults)
	}
	if strings.Contains(log.String(), "safe") || strings.Count(log.String(), "its ground is gone") != 1 {
		t.Errorf("the log says: %s", log)
	}
	for range 20 {
		if _, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: body}); err == nil {
			t.Error("answered OK after the first refusal")
		}
	}
	if now := acked.Load(); now != after {
		t.Errorf("%d were answered OK after the first refusal", now-after)
	}
	_ = e.Close()
}

// A busy node with small files does all that changes names: the commit log's files are recycled, segments roll over,
// retention removes them, topics are made and deleted, the scrub reads, backups link files, and node.json is replaced.
// None of it is taken for a loss, although somebody looks all the time.
func TestGroundHasNoFalseAlarm(t *testing.T) {
	data := t.TempDir()
	o := inDir(data)
	o.ScrubInterval, o.NodeID = time.Second, "n"
	o.MaxSegmentBytes, o.MinSegmentBytes = 32<<10, 16<<10
	node.LookByHand(&o)
	e := openWith(t, o)
	kept := topicOf(t, e, "kept")
	configure(t, kept, func(s *meta.TopicSettings) { s.RetentionBytes = 100 << 10 })
	var looking sync.WaitGroup
	quit := make(chan struct{})
	looking.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
				node.LookAtGround(e)
			}
		}
	})
	defer looking.Wait()
	defer close(quit)
	ctx := context.Background()
	body := bytes.Repeat([]byte("x"), 8000)
	const rounds = 60
	for round := range rounds {
		name := fmt.Sprintf("t%d", round%3)
		brief := topicOf(t, e, name)
		for range 20 {
			for _, topic := range []*node.Topic{kept, brief} {
				if _, err := topic.PublishMessage(ctx, node.Outgoing{Body: body}); err != nil {
					t.Fatalf("round %d: %v: %v", round, err, e.Health())
				}
			}
		}
		if err := e.DeleteTopic(ctx, name); err != nil {
			t.Fatalf("round %d: %v: %v", round, err, e.Health())
		}
		if err := node.RewriteNodeFile(e); err != nil {
			t.Fatal(err)
		}
		if round%20 == 0 {
			if _, s := makeBackup(t, e); s.State != node.BackupDone {
				t.Errorf("%+v", s)
			}
		}
	}
	if err := e.Health(); err != nil {
		t.Error(err)
	}
	if s := e.Storage(); s.GroundLost || s.TrimmedBytes == 0 {
		t.Errorf("lost: %v; retention removed %d bytes", s.GroundLost, s.TrimmedBytes)
	}
	if s := e.CommitStats(); s.Recycled == 0 {
		t.Error("no file of the commit log was recycled")
	}
	t.Logf("%d looks, %d files recycled", node.GroundLooks(e), e.CommitStats().Recycled)
}

// The leader of a cluster loses its ground: another node leads, all that was acknowledged is there, and after a restart
// all copies of the node count as shortened, so that they compare themselves before they lead.
func TestClusterGroundIsTakenAway(t *testing.T) {
	for _, name := range []string{"clog", "LOCK", "segment"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, fault := range groundFaults {
				if fault.name == name {
					clusterGroundIsTakenAway(t, fault.do)
				}
			}
		})
	}
}

func clusterGroundIsTakenAway(t *testing.T, do func(dir string) error) {
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()} // removed after the cluster has stopped
	tc := prepareTestCluster(t, 3, func(o *node.Options) {
		o.MinSegmentBytes, o.MaxSegmentBytes = 64<<20, 64<<20 // the newest segment is still the newest when it is removed
	})
	for i, m := range tc.nodes {
		m.disk, m.dir = nil, dirs[i]
	}
	tc.startAll()
	tc.create("t", 1)
	l := tc.leader("t", 0)
	rest := tc.others(l)
	h := newAckLog()
	allowed := func(error) bool { return true }
	stop := tc.startProducers(h, rest, "t", "1", allowed)
	defer stop()
	tc.awaitMoreAcks(h, 50)
	eventually(t, "the leader has a segment and has seen its ground", func() bool {
		names, _ := filepath.Glob(filepath.Join(l.dir, "topics", "*", "*", "*.seg"))
		return len(names) > 0 && node.GroundLooks(l.e) > 1
	})
	if err := do(l.dir); err != nil {
		t.Fatal(err)
	}
	tc.eventually("another node leads", func() bool {
		return rest[0].row("t", 0).State.Leader != l.e.Node().ID
	})
	tc.eventually("it is in the ISR no more", func() bool {
		for _, m := range rest[0].row("t", 0).State.ISR {
			if m.Node == l.e.Node().ID {
				return false
			}
		}
		return true
	})
	stop() // producers end when the leader that they are forwarded to says that its disk failed
	stop = tc.startProducers(h, rest, "t", "2", allowed)
	defer stop()
	tc.awaitMoreAcks(h, 50)
	if v := l.e.Verdict(); v.Ready || v.Serves || !l.e.Storage().GroundLost {
		t.Errorf("the node says: %+v", v)
	}
	stop()
	tc.eventually("its copies are listed as shortened", func() bool {
		disk, err := aio.OpenDisk(l.dir, aio.DiskOptions{ReadOnly: true, NoLock: true})
		if err != nil {
			return false
		}
		defer disk.Close()
		list, err := datadir.ReadShortened(disk)
		return err == nil && list.Has(datadir.UnnamedCopies) && list.Count() > 1
	})
	tc.network.kill(l.name)
	tc.kv.Cut(l.client)
	_ = l.e.Close()
	l.e = nil
	tc.checkCopies(h, "t", 1)
}

// The newest segment is watched also while nothing is published.
func TestIdleSegmentIsWatched(t *testing.T) {
	dir := t.TempDir()
	e := openWith(t, inDir(dir))
	publish(t, topicOf(t, e, "t"), numbered("m", 100, 2000)...)
	if err := e.Close(); err != nil { // writes all to segments
		t.Fatal(err)
	}
	e = openWith(t, inDir(dir))
	eventually(t, "the ground was looked at", func() bool { return node.GroundLooks(e) > 1 })
	names, err := filepath.Glob(filepath.Join(dir, "topics", "*", "*", "*.seg"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	if err := os.Remove(names[len(names)-1]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node says that it is lost", func() bool { return e.Storage().GroundLost })
}
