package node_test

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// A commit log file stays while it is the only place where a batch is on stable storage, even if the segments with that
// batch cannot be flushed and another topic needs the room.
//
// B18, B43.
func TestUnsyncedSegmentsKeepTheCommitLog(t *testing.T) {
	t.Parallel()
	disk := newDisk()
	e := openOnDisk(t, disk, func(o *node.Options) { o.PublishTimeout = 2 * time.Second })
	bad, good := topicOf(t, e, "bad"), topicOf(t, e, "good")
	channelOf(t, bad, "c")
	channelOf(t, good, "c")
	disk.Inject(faultaio.Rule{
		Kind: faultaio.KindSync, Name: node.TopicDir(e, "bad") + "/*/*.seg", Count: -1, Err: syscall.EIO,
	})
	acked := map[node.ID]string{}
	for _, body := range numbered("m", 100, 1000) {
		acked[publish(t, bad, body)[0]] = body
	}
	pad := bytes.Repeat([]byte{'x'}, 10_000)
	stored := 0
	for stored < 4<<20 { // four times what the commit log may hold
		if _, err := good.PublishMessage(ctxBg, node.Outgoing{Body: pad}); err != nil {
			break
		}
		stored += len(pad)
	}
	if stored < 100<<10 {
		t.Errorf("only %d bytes of the other topic were stored", stored)
	}
	after := disk.Crash(1)
	e = openOnDisk(t, after)
	bad, _ = e.Catalog().LookupTopic("bad")
	c, _ := bad.LookupChannel("c")
	if c == nil {
		t.Fatal("the channel is gone")
	}
	got := readAll(t, c)
	for id, body := range acked {
		if got[id] != body {
			t.Fatalf("%d bytes later %s, which was answered OK, is %.20q (%d of %d are there)",
				stored, id, got[id], len(got), len(acked))
		}
	}
}
