package engine_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"penstock/engine"
	"penstock/segment/aio/faultaio"
)

// publishSome publishes n messages of partition 0 of "t" and waits until all copies hold them.
func (tr *trio) publishSome(h *told, n int) {
	tr.t.Helper()
	topic := tr.topic(tr.leader("t", 0), "t")
	for i := range n {
		if err := h.publish(context.Background(), topic, fmt.Sprintf("message %d", i)); err != nil {
			tr.t.Fatal(err)
		}
	}
	tr.equal("t", 0)
}

// hold waits until each of the nodes holds everything that was acknowledged.
func (tr *trio) hold(h *told, ms []*member) {
	tr.t.Helper()
	for _, m := range ms {
		why := ""
		defer func() {
			if tr.t.Failed() {
				tr.t.Log(m.name, why)
			}
		}()
		tr.eventually(m.name+" holds everything that was acknowledged", func() bool {
			c, err := engine.CopyOf(m.e, "t", 0)
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

// A node whose commit log is damaged in the middle comes first, and its commit log's goroutine has not begun yet: the
// node must not lead with what is left of its log, nor can it be elected. Where the damage is in the log's first group,
// the log names no copy at all.
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
	tr := prepareTrio(t, 3, func(o *engine.Options) {
		if o.NodeID == late {
			engine.SetBeforeRun(o, func() { <-began })
		}
	})
	t.Cleanup(release)
	tr.startAll()
	tr.create("t", 1)
	h := newTold()
	tr.publishSome(h, 40)
	x := tr.leader("t", 0)
	for _, m := range tr.up() {
		tr.kill(m)
	}
	infos, err := x.disk.ReadDir("clog")
	if err != nil || !x.disk.Corrupt("clog/"+infos[0].Name(), []byte{0xff, 0xfe, 0xfd}, at) {
		t.Fatal("nothing was damaged", err)
	}
	late = x.name
	tr.start(x)
	if x.e.Health() == nil {
		t.Fatal("the damage was not found")
	}
	row := x.row("t", 0)
	if len(row.Damaged) != 1 || row.Damaged[0].Node != x.e.Node().ID {
		t.Errorf("the node has joined, and the row says %+v is damaged", row.Damaged)
	}
	rest := make([]*member, 0, 2)
	for _, m := range tr.nodes {
		if m != x {
			tr.start(m)
			rest = append(rest, m)
		}
	}
	if l := tr.leader("t", 0); l == x {
		t.Error("the damaged copy leads")
	}
	tr.hold(h, rest)
	if engine.Leads(x.e, "t", 0) {
		t.Error("the damaged copy leads")
	}
}

// A node whose commit log cannot be read when it starts does not know what it has of a topic that was deleted
// meanwhile. Its files stay until a start that can read the log: that one finds the topic's records there, and without
// the files it could never write them to segments, nor let go of the commit log's files.
//
// B41, B79.
func TestClusterDeleteBesideAnUnreadableCommitLog(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 1)
	h := newTold()
	x := tr.others(tr.leader("t", 0))[0]
	dir := engine.TopicDir(x.e, "t")
	tr.eventually("some of the topic is in segments", func() bool {
		tr.fill(h, tr.leader("t", 0), "t", "old", 100, 400)
		return len(x.segmentFiles(t, "t")) > 0
	})
	tr.equal("t", 0)
	tr.kill(x)
	if err := tr.leader("t", 0).e.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	x.disk.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: "clog/*", Err: syscall.EIO, Count: -1})
	tr.start(x)
	if x.e.Health() == nil {
		t.Fatal("the commit log was read: the test shows nothing")
	}
	tr.eventually("the topic is gone", func() bool { _, ok := x.e.LookupTopic("t"); return !ok })
	tr.wires.kill(x.name)
	_ = x.e.Close() // ends what the deletion has begun
	x.disk = x.disk.Kill(1)
	if _, err := x.disk.ReadDir(dir); err != nil {
		t.Errorf("the files of the topic: %v, and its records are in the commit log", err)
	}
	tr.start(x)
	tr.eventually("the files are gone", func() bool {
		_, err := x.disk.ReadDir(dir)
		return err != nil
	})
	if err := x.e.Health(); err != nil {
		t.Error(err)
	}
	tr.create("t", 1)
	tr.whole("t")
}
