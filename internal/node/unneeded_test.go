package node_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"penstock/clog"
	"penstock/internal/node"
	"penstock/segment/aio"
)

// A process ended after a group had said that a file of the commit log is not needed any more, and before the file was
// removed; and the file is damaged. Recovery ignores the part of the file that it has read already, and the node starts
// with all messages.
func TestDamagedCommitLogFileThatIsNotNeeded(t *testing.T) {
	dir, ctx := t.TempDir(), context.Background()
	first := filepath.Join(dir, "clog", "0000000001.clog")
	e := openWith(t, inDir(dir))
	top := topicOf(t, e, "t")
	c := channelOf(t, top, "c")
	count := 0
	body := func(i int) []byte { return append(fmt.Appendf(nil, "%d ", i), bytes.Repeat([]byte{'x'}, 3000)...) }
	publish := func(until func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !until(); count++ {
			if _, err := top.PublishMessage(ctx, node.Outgoing{Body: body(count)}); err != nil || time.Now().After(end) {
				t.Fatalf("after %d messages: %v", count, err)
			}
		}
	}
	publish(func() bool { return count == 20 })
	if err := c.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	publish(func() bool { return node.CommitLogOf(e).Current() > 1 })
	kept, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	publish(func() bool { return node.CommitLogOf(e).OldestKept() > 1 })
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	kept[middleOfGroups(t, kept)] ^= 1
	if err := os.WriteFile(first, kept, 0o600); err != nil {
		t.Fatal(err)
	}
	e = openWith(t, inDir(dir))
	if err := e.Health(); err != nil {
		t.Fatal(err)
	}
	top = topicOf(t, e, "t")
	all, err := top.Peek(ctx, 0, 0, count+1)
	if err != nil || len(all) != count {
		t.Fatalf("%d of %d messages are left: %v", len(all), count, err)
	}
	for i, m := range all {
		if !bytes.Equal(m.Body, body(i)) {
			t.Fatalf("message %d is %.20q", i, m.Body)
		}
	}
	if s := e.Stats("t", "c"); len(s) != 1 || len(s[0].Channels) != 1 ||
		!s[0].Channels[0].Paused || s[0].Channels[0].Depth != int64(count) {
		t.Errorf("the channel is %+v", s)
	}
	if _, err := os.Stat(first); err == nil {
		t.Error("the damaged file is there still")
	}
	if _, err := top.PublishMessage(ctx, node.Outgoing{Body: []byte("more")}); err != nil {
		t.Error(err)
	}
}

// middleOfGroups returns a place within a group, in the middle of a file of the commit log.
func middleOfGroups(t *testing.T, file []byte) int64 {
	t.Helper()
	d := diskWith(t, "clog/0000000001.clog", file)
	var at []int64
	if err := clog.Scan(d, func(_ clog.FileInfo, g clog.GroupInfo, _ []clog.RecordInfo) error {
		at = append(at, g.Offset)
		return g.Err
	}); err != nil || len(at) < 10 {
		t.Fatalf("%d groups: %v", len(at), err)
	}
	return at[len(at)/2] + 200
}

// diskWith returns a disk with one file.
func diskWith(t *testing.T, name string, data []byte) aio.Disk {
	t.Helper()
	dir := t.TempDir()
	name = filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}
