package node_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"penstock/clog"
	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// newestClog returns the newest file of the commit log that has a group.
func newestClog(t *testing.T, d *faultaio.Disk) (name string) {
	t.Helper()
	err := clog.Scan(d, func(f clog.FileInfo, _ clog.GroupInfo, _ []clog.RecordInfo) error {
		name = f.Name
		return nil
	})
	if err != nil || name == "" {
		t.Fatal(name, err)
	}
	return name
}

// harms are what an operator or a mount does to a commit log, with what is said about it.
var harms = []struct {
	name string
	harm func(t *testing.T, d *faultaio.Disk) error
	says string
}{
	{"the folder", func(_ *testing.T, d *faultaio.Disk) error { return d.RemoveAll("clog") }, "clog is empty or gone"},
	{"its current file", func(t *testing.T, d *faultaio.Disk) error {
		return d.Remove(newestClog(t, d))
	}, ".clog is gone"},
}

// A node that has forgotten and ends before it is whole has still forgotten, although its log is marked anew.
func TestClusterForgottenIsRemembered(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	tc.publishReplicated(h, 10)
	x := tc.nodes[1]
	tc.killAll()
	if err := x.disk.RemoveAll("clog"); err != nil {
		t.Fatal(err)
	}
	tc.openWithoutStore(x)
	tc.staysShortened(h, x, func() {})
}

// A single node without its commit log, or without the current file of it, is refused, by name, and nothing is changed.
// What was moved away and comes back is all there.
func TestForgottenIsRefused(t *testing.T) {
	for _, c := range harms {
		disk := faultaio.New(faultaio.Options{Log: true})
		e := openOnDisk(t, disk)
		topic := topicOf(t, e, "t")
		publish(t, topic, numbered("m", 5, 100)...)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		disk = disk.Kill(1)
		e = openOnDisk(t, disk) // a second file
		topic, _ = e.Catalog().LookupTopic("t")
		publish(t, topic, numbered("n", 5, 100)...)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		whole, disk := disk.Kill(1), disk.Kill(1)
		if err := c.harm(t, disk); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			before := disk.Ops()
			_, err := node.Open(context.Background(), smallOptions(disk))
			if !errors.Is(err, clog.ErrForgotten) || !strings.Contains(err.Error(), c.says) ||
				!strings.Contains(err.Error(), "accept-loss") {
				t.Fatalf("%s: %v", c.name, err)
			}
			for _, op := range disk.Log()[before:] {
				if strings.HasPrefix(op.Name, "clog") || strings.HasPrefix(op.Name, "topics/") || op.Name == clog.MarkName {
					if op.Kind != faultaio.KindSync {
						t.Errorf("%s: it was changed: %v", c.name, op)
					}
				}
			}
			disk = disk.Kill(2)
		}
		e = openOnDisk(t, whole)
		if topic, ok := e.Catalog().LookupTopic("t"); !ok {
			t.Error("the topic is gone")
		} else if got := readAll(t, channelOf(t, topic, "c")); len(got) != 10 {
			t.Errorf("%d messages", len(got))
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A first start that ends at any operation leaves a directory that the next start takes, whatever its level.
func TestFirstStartAtEveryCrash(t *testing.T) {
	start := func(d *faultaio.Disk) error {
		e, err := node.Open(context.Background(), smallOptions(d))
		if err != nil {
			return err
		}
		_, err = e.CreateTopic(context.Background(), "t", 1)
		if err == nil {
			topic, _ := e.Catalog().LookupTopic("t")
			_, err = topic.PublishMessage(context.Background(), node.Outgoing{Body: []byte("m")})
		}
		return errors.Join(err, e.Close())
	}
	whole := newDisk()
	if err := start(whole); err != nil {
		t.Fatal(err)
	}
	ops := whole.Ops()
	if testing.Short() {
		ops = min(ops, 60)
	}
	for op := range ops {
		for crash := range uint64(2) {
			d := faultaio.New(faultaio.Options{Seed: crash})
			d.CrashAt(op)
			_ = start(d)
			left := d.Crash(crash)
			for range 2 {
				if err := start(left); err != nil && !strings.Contains(err.Error(), "exist") {
					t.Fatalf("op %d, crash %d: %v", op, crash, err)
				}
				left = left.Kill(crash)
			}
		}
	}
}
