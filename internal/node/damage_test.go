package node_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// segmentFiles lists the segment files of a topic, of the partition that has the most.
func segmentFiles(t *testing.T, d *faultaio.Disk, topic string) []string {
	t.Helper()
	var best []string
	for _, dir := range list(t, d, "topics") {
		meta, err := d.ReadFile("topics/"+dir.Name()+"/topic.json", 1<<20)
		if err != nil || !strings.Contains(string(meta), fmt.Sprintf("%q", topic)) {
			continue
		}
		for _, part := range list(t, d, "topics/"+dir.Name()) {
			if !part.IsDir() {
				continue
			}
			var files []string
			for _, f := range list(t, d, "topics/"+dir.Name()+"/"+part.Name()) {
				if strings.HasSuffix(f.Name(), ".seg") {
					files = append(files, "topics/"+dir.Name()+"/"+part.Name()+"/"+f.Name())
				}
			}
			if len(files) > len(best) {
				best = files
			}
		}
	}
	slices.Sort(best)
	return best
}

func list(t *testing.T, d *faultaio.Disk, dir string) []fs.FileInfo {
	t.Helper()
	infos, err := d.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return infos
}

// closedDirectory returns a data directory after a clean stop. It has a topic "bad" with n messages and a channel "c"
// that confirmed none, and a topic "good" with ten messages.
func closedDirectory(t *testing.T, n int) (*faultaio.Disk, []node.ID) {
	t.Helper()
	disk := newDisk()
	e := openOnDisk(t, disk)
	bad, good := topicOf(t, e, "bad"), topicOf(t, e, "good")
	channelOf(t, bad, "c")
	channelOf(t, good, "c")
	ids := publish(t, bad, numbered("m", n, 1500)...)
	publish(t, good, numbered("g", 10, 10)...)
	// When the commit log file with its last message is gone, all of "bad" has left memory and the commit log.
	last := e.CommitStats().Current
	more := topicOf(t, e, "more")
	eventually(t, "the commit log moved on", func() bool {
		publish(t, more, numbered("x", 50, 3000)...)
		return e.CommitStats().Oldest > last
	})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return disk.Kill(1), ids
}

// B35, B37: a flipped byte in the middle of a segment is found when it is read, reported with its place, and isolated.
// Earlier messages and other partitions are served, no wrong message is delivered, and readers do not loop.
func TestDamagedSegment(t *testing.T) {
	disk, ids := closedDirectory(t, 300)
	files := segmentFiles(t, disk, "bad")
	if len(files) < 4 {
		t.Fatalf("only %d segments", len(files))
	}
	if !disk.Corrupt(files[len(files)/2], []byte("rotten"), segment.SegmentHeaderBytes+20_000) {
		t.Fatal("no such file")
	}
	var log logged
	e := openOnDisk(t, disk, func(o *node.Options) { o.Logger = log.logger() })
	bad, _ := e.Catalog().LookupTopic("bad")
	c, _ := bad.LookupChannel("c")
	s := subscribe(t, c, 1000)
	count := 0
	for {
		m, ok := s.poll(time.Second)
		if !ok {
			break
		}
		if m.id != ids[count] || !strings.HasPrefix(m.body, fmt.Sprintf("m%d/", count)) {
			t.Fatalf("message %d is %s %.20q", count, m.id, m.body)
		}
		s.finish(m)
		count++
	}
	if count < 50 || count >= len(ids) {
		t.Errorf("%d of %d messages came; those before the damage should, and no other", count, len(ids))
	}
	var corrupt *segment.CorruptError
	if err := e.Health(); !errors.As(err, &corrupt) || corrupt.Path != files[len(files)/2] {
		t.Errorf("Health says %v, want the place in %s", err, files[len(files)/2])
	}
	if n := strings.Count(log.String(), "stops reading"); n != 1 {
		t.Errorf("the damage was logged %d times, want once:\n%s", n, log.String())
	}
	ops := disk.Ops()
	s.Pump()
	s.expectNothing("the rest of the partition is isolated")
	if n := disk.Ops() - ops; n > 100 {
		t.Errorf("%d disk operations while nothing can be read", n)
	}
	good, _ := e.Catalog().LookupTopic("good")
	gc, _ := good.LookupChannel("c")
	if got := readAll(t, gc); len(got) != 10 {
		t.Errorf("the other topic: %d of 10 messages", len(got))
	}
	publish(t, good, "still takes messages")
	// After a reset behind the damage, reading goes on there.
	if err := c.Seek(context.Background(), node.SeekTo{Kind: node.SeekID, ID: ids[len(ids)-1]}); err != nil {
		t.Fatal(err)
	}
	if m := s.next(); m.id != ids[len(ids)-1] {
		t.Errorf("after a reset behind the damage %s comes, want %s", m.id, ids[len(ids)-1])
	}
}

// B35: segment files that are missing, truncated or foreign do not stop the node.
func TestMissingAndCutSegments(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(t *testing.T, d *faultaio.Disk, file string){
		"missing": func(t *testing.T, d *faultaio.Disk, file string) {
			if err := d.Remove(file); err != nil {
				t.Fatal(err)
			}
		},
		"its header destroyed": func(t *testing.T, d *faultaio.Disk, file string) {
			d.Corrupt(file, make([]byte, segment.SegmentHeaderBytes), 0)
		},
		"zeros": func(t *testing.T, d *faultaio.Disk, file string) {
			d.Corrupt(file, make([]byte, 16<<10), segment.SegmentHeaderBytes)
		},
	} {
		t.Run(name, func(t *testing.T) {
			disk, ids := closedDirectory(t, 200)
			files := segmentFiles(t, disk, "bad")
			harm(t, disk, files[1])
			e := openOnDisk(t, disk)
			bad, _ := e.Catalog().LookupTopic("bad")
			c, _ := bad.LookupChannel("c")
			s := subscribe(t, c, 1000)
			count := 0
			for m, ok := s.poll(time.Second); ok; m, ok = s.poll(time.Second) {
				if m.id != ids[count] {
					t.Fatalf("message %d is %s", count, m.id)
				}
				s.finish(m)
				count++
			}
			if count == 0 || count >= len(ids) {
				t.Errorf("%d of %d messages came; those of the first segment should", count, len(ids))
			}
			if err := e.Health(); err == nil {
				t.Error("Health says nothing")
			}
			readOnly := 1
			if name == "zeros" { // it shows when somebody reads there
				readOnly = 0
			}
			if _, err := bad.PublishMessage(ctxBg, node.Outgoing{
				Body: []byte("new"),
			}); errors.Is(err, errs.ErrReadOnly) != (readOnly == 1) {
				t.Errorf("publish: %v", err)
			}
			v := e.Verdict()
			if v.Healthy || strings.Contains(v.Health, "; topic bad is read only in 1 partition: ") != (readOnly == 1) {
				t.Errorf("health: %s", v.Health)
			}
			of := e.Stats("", "")
			if n := e.Storage().ReadOnlyTopics; n != readOnly || of[0].ReadOnly != readOnly || of[1].ReadOnly != 0 {
				t.Errorf("%d topics are read only, and %d partitions of the topic", n, of[0].ReadOnly)
			}
			good, _ := e.Catalog().LookupTopic("good")
			gc, _ := good.LookupChannel("c")
			if got := readAll(t, gc); len(got) != 10 {
				t.Errorf("the other topic: %d of 10 messages", len(got))
			}
		})
	}
}

// B36, B37: a flipped byte in a part of the commit log that was marked as durable is not taken for a torn tail. The
// node says so, serves what lies before it, and stores nothing new.
func TestDamagedCommitLog(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	channelOf(t, topic, "c")
	ids := publish(t, topic, numbered("m", 100, 1000)...)
	after := disk.Crash(1)
	e.Close()
	files := list(t, after, "clog")
	name := "clog/" + files[0].Name()
	found := false
	for off := int64(100 << 10); off < 200<<10 && !found; off += 4096 { // somewhere in the middle
		found = after.Corrupt(name, []byte("rotten"), off+500)
	}
	if !found {
		t.Fatal("no commit log file")
	}
	e = openOnDisk(t, after)
	if err := e.Health(); err == nil || !strings.Contains(err.Error(), "nothing more is stored on this node") ||
		!errors.Is(err, errs.ErrReadOnly) {
		t.Errorf("Health says %v", err)
	}
	if len(e.Info().CorruptionsAtRecover) == 0 {
		t.Error("Info lists no corruption")
	}
	topic, ok := e.Catalog().LookupTopic("t")
	if !ok {
		t.Fatal("the topic is not served")
	}
	c, ok := topic.LookupChannel("c")
	if !ok {
		t.Fatal("the channel is not served")
	}
	s := subscribe(t, c, 1000)
	count := 0
	for m, ok := s.poll(time.Second); ok; m, ok = s.poll(time.Second) {
		if m.id != ids[count] {
			t.Fatalf("message %d is %s", count, m.id)
		}
		count++
	}
	if count == 0 || count >= len(ids) {
		t.Errorf("%d of %d messages came; those before the damage should", count, len(ids))
	}
	if _, err := topic.PublishMessage(context.Background(), node.Outgoing{
		Body: []byte("new"),
	}); !errors.Is(err, errs.ErrDisk) &&
		!errors.Is(err, errs.ErrReadOnly) {
		t.Errorf("publish: %v, want ErrDisk or ErrReadOnly", err)
	}
	e.Close()
	// Nothing was changed: the next start finds the same.
	again := openOnDisk(t, after.Kill(2))
	if err := again.Health(); err == nil {
		t.Error("after another start the damage is forgotten")
	}
}

// B37, B41: a topic with a damaged part can be deleted, and created again.
func TestDeleteDamagedTopic(t *testing.T) {
	disk, _ := closedDirectory(t, 200)
	disk.Corrupt(segmentFiles(t, disk, "bad")[1], make([]byte, segment.SegmentHeaderBytes), 0)
	e := openOnDisk(t, disk)
	if err := e.DeleteTopic(ctxBg, "bad"); err != nil {
		t.Fatalf("delete: %v", err)
	}
	publish(t, topicOf(t, e, "bad"), "new")
}

// A topic whose segments cannot be written fills the commit log, so that nothing can be published any more. The topic
// can still be deleted, and then publishing goes on.
func TestDeleteTopicThatFillsTheCommitLog(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	publish(t, topicOf(t, e, "bad"), "of no use")
	dir := list(t, disk, "topics")[0].Name()
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWrite, Name: "topics/" + dir + "/*/*.seg", Count: -1, Err: syscall.EIO})
	good := topicOf(t, e, "good")
	ctx, stop := context.WithCancel(ctxBg)
	ended := make(chan error, 1)
	var acked atomic.Int64
	go func() {
		for body := make([]byte, 10<<10); ; {
			if _, err := good.PublishMessage(ctx, node.Outgoing{Body: body}); err != nil {
				ended <- err
				return
			}
			acked.Add(1)
		}
	}()
	eventually(t, "the commit log is full", func() bool { return e.CommitStats().Full })
	deleted := make(chan error, 1)
	go func() { deleted <- e.DeleteTopic(ctxBg, "bad") }()
	eventually(t, "the topic is deleted", func() bool { return len(deleted) == 1 })
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	full := acked.Load()
	eventually(t, "publishing goes on", func() bool { return acked.Load() > full+1 })
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("publishing ended with %v", err)
	}
	next := openOnDisk(t, disk.Kill(1))
	if _, ok := next.Catalog().LookupTopic("bad"); ok {
		t.Error("the deleted topic is back")
	}
	if err := next.Health(); err != nil {
		t.Error(err)
	}
}

// B18: when a segment cannot be written, puts to its partition get ErrDisk. Acknowledged messages are served, in this
// life and in the next.
func TestSegmentWriteError(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWrite, Name: "topics/*/*/*.seg", After: 3, Err: syscall.EIO})
	acked := map[node.ID]string{}
	eventually(t, "publishing ends", func() bool {
		body := fmt.Sprintf("m%d/%s", len(acked), make([]byte, 1000))
		id, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte(body)})
		if err == nil {
			acked[id] = body
		} else if !errors.Is(err, errs.ErrDisk) {
			t.Fatalf("publish %d: %v, want ErrDisk", len(acked), err)
		}
		return err != nil
	})
	if err := e.Health(); err == nil {
		t.Error("Health says nothing")
	}
	after := disk.Crash(1)
	for life, c := range []*node.Channel{c, nil} {
		if c == nil {
			e := openOnDisk(t, after)
			topic, _ := e.Catalog().LookupTopic("t")
			c, _ = topic.LookupChannel("c")
		}
		got := readAll(t, c)
		for id, body := range acked {
			if got[id] != body {
				t.Fatalf("life %d: %s was answered OK and is %.20q", life, id, got[id])
			}
		}
	}
}

// A segment that cannot be created because the process has too many open files is tried again: publishing goes on, and
// the log says so once.
func TestSegmentRefusedForAWhile(t *testing.T) {
	disk := newDisk()
	var log logged
	e := openOnDisk(t, disk, func(o *node.Options) { o.Logger = log.logger() })
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	refused := func() (n int) { // it counts what the rule lets fail, too
		for _, op := range disk.Log() {
			if op.Kind == faultaio.KindCreate && strings.HasSuffix(op.Name, ".seg") {
				n++
			}
		}
		return n
	}
	disk.Inject(faultaio.Rule{Kind: faultaio.KindCreate, Name: "topics/*/*/*.seg", Count: -1, Err: syscall.EMFILE})
	acked := map[node.ID]string{}
	put := func() {
		body := fmt.Sprintf("m%d/%s", len(acked), make([]byte, 1000))
		acked[publish(t, topic, body)[0]] = body
	}
	eventually(t, "a segment was refused again and again", func() bool { // each round of the flusher tries twice
		put()
		return refused() >= 6
	})
	put()
	disk.ClearRules()
	eventually(t, "it is written", func() bool {
		put()
		return len(segmentFiles(t, disk, "t")) > 0
	})
	if err := e.Health(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "tried again"); n != 1 {
		t.Errorf("it was told %d times, want once:\n%s", n, log.String())
	}
	got := readAll(t, c)
	for id, body := range acked {
		if got[id] != body {
			t.Fatalf("%s was answered OK and is %.20q", id, got[id])
		}
	}
}

// After a sync that failed for lack of space, the file accepts nothing more, however much space there is later: that is
// not a full disk, which passes. The other topics go on.
func TestSegmentSyncedWithoutRoom(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	good, topic := topicOf(t, e, "good"), topicOf(t, e, "t")
	dir := node.TopicDir(e, "t")
	disk.Inject(faultaio.Rule{Kind: faultaio.KindSync, Name: dir + "/*/*.seg", Err: syscall.ENOSPC})
	eventually(t, "publishing ends", func() bool {
		_, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: make([]byte, 3000)})
		if err != nil && !errors.Is(err, errs.ErrDisk) {
			t.Fatalf("%v, want ErrDisk", err)
		}
		return err != nil
	})
	publish(t, good, "still takes messages")
}
