package node_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/tests/support/aiotest"
)

// A snapshot makes btrfs copy the next write of every block, also in files that are written in place otherwise. So on a
// full disk a write into the commit log's own file finds no room. That is a full disk, and the node goes on by itself.
func TestSnapshotOnFullBtrfs(t *testing.T) {
	if _, err := exec.LookPath("btrfs"); err != nil {
		t.Skip("the machine has no btrfs-progs")
	}
	at := aiotest.MountImage(t, "btrfs", 256<<20)
	btrfs := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("btrfs", args...).CombinedOutput(); err != nil {
			t.Fatalf("btrfs %v: %v: %s", args, err, out)
		}
	}
	dir := filepath.Join(at, "data")
	btrfs("subvolume", "create", dir)
	e := openWith(t, inDir(dir))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	acked := map[node.ID]string{}
	for _, body := range numbered("m", 400, 2000) {
		acked[publish(t, topic, body)[0]] = body
	}
	btrfs("subvolume", "snapshot", "-r", dir, filepath.Join(at, "snapshot"))
	hog := aiotest.FillUp(t, filepath.Join(at, "hog"))

	s := subscribe(t, ch, 10)
	got := map[node.ID]string{}
	take := func() {
		m := s.next()
		got[m.id] = m.body
		s.finish(m)
	}
	for range 10 { // confirmations go to the commit log on a full disk, too
		take()
	}
	eventually(t, "the commit log waits for room", func() bool { return node.CommitLogWaits(e) })
	if _, err := topic.PublishMessage(context.Background(), node.Outgoing{
		Body: []byte("refused"),
	}); !errors.Is(err, errs.ErrNoSpace) {
		t.Errorf("publish without room: %v", err)
	}
	if err := e.Health(); !errors.Is(err, errs.ErrNoSpace) {
		t.Errorf("health without room: %v", err)
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	eventually(t, "publishing resumes", func() bool {
		id, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: []byte("again")})
		if err == nil {
			acked[id] = "again"
		}
		return err == nil
	})
	eventually(t, "health is well", func() bool { return e.Health() == nil && !node.CommitLogWaits(e) })
	for len(got) < len(acked) {
		take()
	}
	s.Close()
	for id, body := range acked {
		if got[id] != body {
			t.Fatalf("%s is %.20q, want %.20q", id, got[id], body)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	e = openWith(t, inDir(dir))
	topic, _ = e.Catalog().LookupTopic("t")
	if ch, _ = topic.LookupChannel("c"); channelStats(t, ch).Depth != 0 {
		t.Errorf("%d messages of which each was confirmed come again", channelStats(t, ch).Depth)
	}
}
