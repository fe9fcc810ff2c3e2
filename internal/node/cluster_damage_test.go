package node_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// publishReplicated publishes n messages of partition 0 of "t" and waits until all copies hold them.
func (tc *testCluster) publishReplicated(h *ackLog, n int) {
	tc.t.Helper()
	topic := tc.topic(tc.leader("t", 0), "t")
	for i := range n {
		if err := h.publish(context.Background(), topic, fmt.Sprintf("message %d", i)); err != nil {
			tc.t.Fatal(err)
		}
	}
	tc.awaitEqualCopies("t", 0)
}

// awaitHeld waits until each of the nodes has every message that was acknowledged.
func (tc *testCluster) awaitHeld(h *ackLog, ms []*testNode) {
	tc.t.Helper()
	for _, m := range ms {
		why := ""
		defer func() {
			if tc.t.Failed() {
				tc.t.Log(m.name, why)
			}
		}()
		var read time.Time // reading all of it on and on would take most of a processor
		tc.eventually(m.name+" holds everything that was acknowledged", func() bool {
			if time.Since(read) < 50*time.Millisecond {
				return false
			}
			defer func() { read = time.Now() }()
			c, err := node.CopyOf(m.e, "t", 0)
			if err != nil {
				why = err.Error()
				return false
			}
			all, err := c.Messages(0)
			if err != nil {
				why = err.Error()
				return false
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			lost := 0
			for body, id := range h.acked {
				if all[id] != body {
					lost++
				}
			}
			why = fmt.Sprintf("%d of %d acknowledged messages are missing", lost, len(h.acked))
			return lost == 0
		})
	}
}

// A node whose commit log is damaged in the middle starts first, and its commit log's goroutine has not begun yet. The
// node must not lead with the rest of its log, and must not be elected. If the damage is in the first group of the log,
// the log does not even name the copies.
func TestClusterDamagedLogNeverLeads(t *testing.T) {
	t.Parallel()
	t.Run("middle", func(t *testing.T) { testDamagedLogNeverLeads(t, 10*4096+100) })
	t.Run("beginning", func(t *testing.T) { testDamagedLogNeverLeads(t, 70) })
}

func testDamagedLogNeverLeads(t *testing.T, at int64) {
	t.Parallel()
	began := make(chan struct{})
	release := sync.OnceFunc(func() { close(began) })
	late := ""
	tc := prepareTestCluster(t, 3, func(o *node.Options) {
		if o.NodeID == late {
			node.SetBeforeRun(o, func() { <-began })
		}
	})
	t.Cleanup(release)
	tc.startAll()
	tc.create("t", 1)
	h := newAckLog()
	tc.publishReplicated(h, 40)
	x := tc.leader("t", 0)
	for _, m := range tc.running() {
		tc.kill(m)
	}
	infos, err := x.disk.ReadDir("clog")
	if err != nil || !x.disk.Corrupt("clog/"+infos[0].Name(), []byte{0xff, 0xfe, 0xfd}, at) {
		t.Fatal("nothing was damaged", err)
	}
	late = x.name
	tc.start(x)
	if x.e.Health() == nil {
		t.Fatal("the damage was not found")
	}
	row := x.row("t", 0)
	if len(row.Damaged) != 1 || row.Damaged[0].Node != x.e.Node().ID {
		t.Errorf("the node has joined, and the row says %+v is damaged", row.Damaged)
	}
	rest := make([]*testNode, 0, 2)
	for _, m := range tc.nodes {
		if m != x {
			tc.start(m)
			rest = append(rest, m)
		}
	}
	if l := tc.leader("t", 0); l == x {
		t.Error("the damaged copy leads")
	}
	tc.awaitHeld(h, rest)
	if node.Leads(x.e, "t", 0) {
		t.Error("the damaged copy leads")
	}
}

// A node whose commit log cannot be read when it starts does not know what it has of a topic that was deleted
// meanwhile. The topic's files stay until a start that can read the log. That start finds batches of the topic there;
// without the files it could never write them to segments, nor release the commit log's files.
//
// B41, B79.
func TestClusterDeleteBesideAnUnreadableCommitLog(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	x := tc.others(tc.leader("t", 0))[0]
	dir := node.TopicDir(x.e, "t")
	tc.eventually("some of the topic is in segments", func() bool {
		tc.publishMany(h, tc.leader("t", 0), "t", "old", 100, 400)
		return len(x.segmentFiles(t, "t")) > 0
	})
	tc.awaitEqualCopies("t", 0)
	tc.kill(x)
	if err := tc.leader("t", 0).e.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	x.disk.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: "clog/*", Err: syscall.EIO, Count: -1})
	tc.start(x)
	if x.e.Health() == nil {
		t.Fatal("the commit log was read: the test shows nothing")
	}
	tc.eventually("the topic is gone", func() bool { _, ok := x.e.Catalog().LookupTopic("t"); return !ok })
	tc.network.kill(x.name)
	_ = x.e.Close() // ends what the deletion has begun
	x.disk = x.disk.Kill(1)
	if _, err := x.disk.ReadDir(dir); err != nil {
		t.Errorf("the files of the topic: %v, and its records are in the commit log", err)
	}
	tc.start(x)
	tc.eventually("the files are gone", func() bool {
		_, err := x.disk.ReadDir(dir)
		return err != nil
	})
	if err := x.e.Health(); err != nil {
		t.Error(err)
	}
	tc.create("t", 1)
	tc.awaitInSync("t")
}
