package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/tests/support/faultaio"
)

func usedBytes(t testing.TB, d *faultaio.Disk) int64 {
	t.Helper()
	free, err := d.FreeBytes()
	if err != nil {
		t.Fatal(err)
	}
	return faultaio.DefaultCapacityBytes - free
}

// fillUntilFull publishes until a put is refused for lack of space, and returns the messages that were answered OK.
func fillUntilFull(t *testing.T, topic *node.Topic, acked map[node.ID]string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for i := 0; time.Now().Before(deadline); i++ {
		body := fmt.Sprintf("fill%d/%s", i, make([]byte, 4000))
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		id, err := topic.PublishMessage(ctx, node.Outgoing{Body: []byte(body)})
		cancel()
		if errors.Is(err, errs.ErrNoSpace) {
			return
		}
		if err != nil {
			t.Fatalf("publish %d: %v, want ErrNoSpace sooner or later", i, err)
		}
		acked[id] = body
	}
	t.Fatalf("never refused; %d messages stored", len(acked))
}

// When the disk is full, publishing is refused with ErrNoSpace; consuming and confirming go on. Retention then frees
// space, and publishing resumes in the same process. No acknowledged message is lost, in this life or in the next.
//
// B39 (retention by confirmation), D3 (a full disk is not a broken one)
func TestDiskFull(t *testing.T) {
	t.Parallel()
	// The size is more than the reserve (the commit log's 1 MiB, two of its files, a segment), and otherwise arbitrary.
	for slack := int64(2 << 20); slack <= 3<<20; slack += 128 << 10 {
		t.Run(fmt.Sprint(slack), func(t *testing.T) { diskFull(t, slack) })
	}
}

func diskFull(t *testing.T, slack int64) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	acked := map[node.ID]string{}
	for _, body := range numbered("first", 800, 2000) {
		acked[publish(t, topic, body)[0]] = body
	}
	disk.SetCapacity(usedBytes(t, disk) + slack)
	fillUntilFull(t, topic, acked)
	if err := e.Health(); err != nil && !errors.Is(err, errs.ErrNoSpace) { // nil: there is room again already
		t.Errorf("Health says %v", err)
	}

	// The disk that a power cut would leave now has all messages.
	next := openOnDisk(t, disk.Crash(3))
	nextTopic, _ := next.Catalog().LookupTopic("t")
	nextCh, _ := nextTopic.LookupChannel("c")
	check := func(got map[node.ID]string) {
		t.Helper()
		for id, body := range acked {
			if got[id] != body {
				t.Fatalf("%s was answered OK and is %.20q, want %.20q", id, got[id], body)
			}
		}
	}
	check(readAll(t, nextCh))
	next.Close()

	check(readAll(t, ch)) // consuming goes on while the disk is full
	eventually(t, "publishing resumes", func() bool {
		_, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: []byte("again")})
		if err != nil && !errors.Is(err, errs.ErrNoSpace) {
			t.Fatalf("publish: %v", err)
		}
		return err == nil
	})
	eventually(t, "Health is well", func() bool { return e.Health() == nil })
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	e = openOnDisk(t, disk.Kill(1))
	topic, _ = e.Catalog().LookupTopic("t")
	ch, _ = topic.LookupChannel("c")
	for id := range readAll(t, ch) {
		if _, old := acked[id]; old {
			t.Errorf("%s was confirmed before the clean stop and comes again", id)
		}
	}
}

// Space that another program frees is enough: neither a restart nor a confirmation is needed.
func TestDiskFullUntilSpaceIsAdded(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	acked := map[node.ID]string{}
	disk.SetCapacity(usedBytes(t, disk) + 1<<20)
	fillUntilFull(t, topic, acked)
	batch := [][]byte{[]byte("a"), []byte("b")}
	if _, err := topic.PublishBatch(context.Background(), batch); !errors.Is(err, errs.ErrNoSpace) {
		t.Errorf("a batch on the full disk: %v", err)
	}
	disk.SetCapacity(faultaio.DefaultCapacityBytes)
	eventually(t, "publishing resumes", func() bool {
		id, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: []byte("again")})
		if err == nil {
			acked[id] = "again"
		}
		return err == nil
	})
	got := readAll(t, ch)
	for id, body := range acked {
		if got[id] != body {
			t.Fatalf("%s is %.20q, want %.20q", id, got[id], body)
		}
	}
}

// A write into space that the commit log has finds no room, as where files are copied on write: what is in that group
// waits and is answered once there is room, and puts behind it are refused. Nothing is lost or doubled, in this life or
// in the next.
func TestNoRoomForTheCommitLog(t *testing.T) {
	for name, end := range map[string]func(d *faultaio.Disk) *faultaio.Disk{
		"room again": nil,
		"power cut":  func(d *faultaio.Disk) *faultaio.Disk { return d.Crash(1) },
		"kill":       func(d *faultaio.Disk) *faultaio.Disk { return d.Kill(1) },
	} {
		t.Run(name, func(t *testing.T) {
			disk, log := newDisk(), new(logged)
			e := openOnDisk(t, disk, func(o *node.Options) { o.Logger = log.logger() })
			topic := topicOf(t, e, "t")
			ch := channelOf(t, topic, "c")
			acked := map[node.ID]string{}
			for _, body := range numbered("m", 50, 100) {
				acked[publish(t, topic, body)[0]] = body
			}
			disk.SetNoRoom(true)
			waited := make(chan error, 1)
			var id node.ID
			go func() {
				var err error
				id, err = topic.PublishMessage(context.Background(), node.Outgoing{Body: []byte("waits")})
				waited <- err
			}()
			eventually(t, "the commit log waits for room", func() bool { return node.CommitLogWaits(e) })
			eventually(t, "health says so", func() bool { return errors.Is(e.Health(), errs.ErrNoSpace) })
			if _, err := topic.PublishMessage(context.Background(), node.Outgoing{
				Body: []byte("refused"),
			}); !errors.Is(err, errs.ErrNoSpace) {
				t.Errorf("publish without room: %v", err)
			}
			ops := disk.Ops()
			eventually(t, "the commit log tries again", func() bool { return disk.Ops() > ops+2 })
			if strings.Contains(log.String(), "has room again") {
				t.Error("publishing resumed while the commit log waits")
			}
			if end != nil {
				next := openOnDisk(t, end(disk))
				topic, _ := next.Catalog().LookupTopic("t")
				ch, _ := topic.LookupChannel("c")
				checkGot(t, readAll(t, ch), acked, "waits") // it may be there: nobody knows what became of it
				disk.SetNoRoom(false)
				return
			}
			disk.SetNoRoom(false)
			switch err := <-waited; {
			case err == nil:
				acked[id] = "waits"
			case !errors.Is(err, errs.ErrNoSpace): // refused, if a group of the node's own found no room before
				t.Errorf("the put in the group without room: %v", err)
			}
			eventually(t, "publishing resumes", func() bool {
				id, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: []byte("again")})
				if err == nil {
					acked[id] = "again"
				}
				return err == nil
			})
			eventually(t, "health is well", func() bool { return e.Health() == nil })
			checkGot(t, readAll(t, ch), acked, "")
		})
	}
}

// checkGot checks that got is what was acknowledged, and at most one message more, if its body is may.
func checkGot(t *testing.T, got, acked map[node.ID]string, may string) {
	t.Helper()
	for id, body := range acked {
		if got[id] != body {
			t.Errorf("%s is %.20q, want %.20q", id, got[id], body)
		}
	}
	for id, body := range got {
		if _, ok := acked[id]; !ok && (may == "" || body != may) {
			t.Errorf("%s came: %.20q, which was not answered OK", id, body)
		}
	}
}

// B39: segments whose messages every channel has confirmed are removed, with their files. Those with a message that one
// channel has not confirmed stay, and the last segment stays.
func TestRetentionByConfirmation(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	fast, slow := channelOf(t, topic, "fast"), channelOf(t, topic, "slow")
	ids := publish(t, topic, numbered("m", 1200, 1500)...)
	readAll(t, fast)
	publish(t, topic, numbered("more", 600, 1500)...) // the commit log moves on, so that files may go
	if n := e.Counters().TrimmedBytes.Load(); n != 0 {
		t.Errorf("%d bytes were trimmed, which the slow channel has not confirmed", n)
	}
	if got := readAll(t, slow); len(got) != 1800 || got[ids[0]] == "" {
		t.Fatalf("the slow channel got %d of 1800 messages", len(got))
	}
	readAll(t, fast)
	before := e.Stats("t", "")[0].StoredBytes
	eventually(t, "retention frees space", func() bool {
		publish(t, topic, numbered("x", 20, 1500)...)
		readAll(t, fast)
		readAll(t, slow)
		return e.Counters().TrimmedBytes.Load() > uint64(before)/2
	})
	if n := e.Stats("t", "")[0].StoredBytes; n <= 0 {
		t.Errorf("%d bytes are stored: the last segment must stay", n)
	}
	publish(t, topic, "after")
	if got := readAll(t, slow); len(got) != 1 {
		t.Errorf("after retention %d messages came, want 1", len(got))
	}
}

// B39, B56, B67: limits on bytes and age drop unconfirmed messages too, the oldest first, and never the last segment. A
// channel goes on with the oldest message that is left; new channels and resets begin there, too.
func TestRetentionByBytesAndAge(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*node.Options){
		"bytes": func(o *node.Options) { o.RetentionBytes = 200 << 10 },
		"age":   func(o *node.Options) { o.RetentionAge = 50 * time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			o := inDir(t.TempDir())
			change(&o)
			e := openWith(t, o)
			topic := topicOf(t, e, "t")
			ch := channelOf(t, topic, "c")
			s := subscribe(t, ch, 2)
			total := 0
			eventually(t, "retention trims", func() bool {
				publish(t, topic, numbered("m", 100, 1500)...)
				total += 100
				return e.Counters().TrimmedBytes.Load() > 400<<10
			})
			// Messages in flight are not in the log any more: their consumer may still finish them.
			s.finish(s.next(), s.next())
			s.Close()
			st := channelStats(t, ch)
			got := readAll(t, ch)
			if len(got) == 0 || len(got) >= total-2 {
				t.Errorf("%d of %d messages came; retention should have taken some and left some (%+v)", len(got), total, st)
			}
			for id := node.ID(total - 1); id > node.ID(total-len(got)); id-- {
				if _, ok := got[id]; !ok {
					t.Errorf("%s is missing between messages that are there", id)
				}
			}
			// B66
			if st := channelStats(t, ch); st.Depth != 0 {
				t.Errorf("depth %d after everything was read", st.Depth)
			}
			// B67, B56: the log begins where retention left it.
			late := channelOf(t, topic, "late")
			if err := late.Seek(context.Background(), node.SeekTo{Kind: node.SeekID, ID: 0}); err != nil {
				t.Fatal(err)
			}
			again := readAll(t, late)
			if len(again) == 0 || len(again) >= total {
				t.Errorf("a channel reset to the beginning got %d of %d messages", len(again), total)
			}
		})
	}
}
