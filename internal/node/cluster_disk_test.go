package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/replicate/peer"
	"penstock/tests/support/faultaio"
)

// hang makes all operations that change the disk hang until release is called.
func (m *testNode) hang() (release func()) {
	d := m.disk
	d.Inject(faultaio.Rule{Kind: faultaio.KindAny, Hold: true, Count: -1})
	return func() {
		d.ClearRules()
		d.ReleaseHeld()
	}
}

// shortPatience makes the node find a hung disk soon, for tests that make one hang.
func shortPatience(o *node.Options) {
	o.DiskPatience, o.DiskFailedAfter = 500*time.Millisecond, 2*time.Second
}

// long is eventually for conditions that take half a minute by themselves.
func long(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within minutes: %s", what)
		}
	}
}

// diskOf returns the disk state of a node as another node knows it.
func (m *testNode) diskOf(other *testNode) meta.DiskState {
	n := m.e.Snapshot().Nodes[other.e.Node().ID]
	if n == nil {
		return "unknown"
	}
	return n.Disk
}

// F6: a leader whose disk hangs gives its leadership away and reports that its disk has failed. When the disk answers
// again, the node comes back.
func TestClusterLeaderDiskHangs(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, impatient, shortPatience)
	tc.create("t", 1)
	l := tc.leader("t", 0)
	rest := tc.others(l)
	h := newAckLog()
	stop := tc.startProducers(h, tc.nodes, "t", "1", func(err error) bool { return err != nil })
	defer stop()
	tc.awaitMoreAcks(h, 20)
	release := l.hang()
	defer release()
	tc.eventually("another node leads", func() bool {
		row := rest[0].row("t", 0)
		return row.State.Leader != l.e.Node().ID
	})
	tc.awaitMoreAcks(h, 50)
	tc.eventually("the others hear that the disk failed", func() bool { return rest[0].diskOf(l) == meta.DiskFailed })
	tc.eventually("the node says so itself", func() bool { return errors.Is(l.e.Health(), errs.ErrDiskHung) })
	if row := rest[0].row("t", 0); row.State.Leader == l.e.Node().ID {
		t.Error("a node whose disk hangs leads")
	}
	s := l.e.Storage()
	if s.DiskHandOvers == 0 || s.DiskHangs == 0 || s.DiskState != "failed" {
		t.Errorf("%d hand-overs, %d hangs, state %s", s.DiskHandOvers, s.DiskHangs, s.DiskState)
	}
	release()
	long(t, "the disk is good again, and the others hear it", func() bool {
		return l.e.Storage().DiskState == "good" && l.e.Health() == nil && rest[0].diskOf(l) == meta.DiskGood
	})
	tc.awaitMoreAcks(h, 20)
	stop()
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
}

// A leader whose disk hangs keeps the leaderships that no node with a good disk can take, and its publishers get
// errors.
func TestClusterAllDisksHang(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, impatient, shortPatience)
	tc.create("t", 1)
	l := tc.leader("t", 0)
	h := newAckLog()
	if err := h.publish(t.Context(), tc.topic(l, "t"), "before"); err != nil {
		t.Fatal(err)
	}
	var releases []func()
	for _, m := range tc.nodes {
		releases = append(releases, m.hang())
	}
	release := func() {
		for _, f := range releases {
			f()
		}
	}
	defer release()
	if err := h.publish(t.Context(), tc.topic(l, "t"), "meanwhile"); err == nil {
		t.Error("it was answered OK although no disk has it")
	}
	tc.eventually("all say that their disks failed", func() bool {
		for _, m := range tc.nodes {
			_ = h.publish(context.Background(), tc.topic(m, "t"), fmt.Sprint(m.name, time.Now().UnixNano()))
			if tc.nodes[0].diskOf(m) != meta.DiskFailed {
				return false
			}
		}
		return true
	})
	release()
	tc.eventually("publishing goes on", func() bool {
		return h.publish(context.Background(), tc.topic(tc.nodes[0], "t"), fmt.Sprint("after", time.Now().UnixNano())) == nil
	})
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
}

// A node with a hung disk goes on answering requests of other nodes and handling their frames, although a write for one
// of these nodes hangs.
//
// F6.
func TestClusterHungFollowerHears(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 2)
	tc.create("t", 1)
	l := tc.leader("t", 0)
	f := tc.others(l)[0]
	// These partitions have no second replica, so the hung disk of the other node does not concern them.
	if _, err := l.store.CreateTopic(t.Context(), meta.Topic{
		Name: "alone", Partitions: 2, Replicas: 1, MinISR: 1,
	}); err != nil {
		t.Fatal(err)
	}
	tc.awaitInSync("alone")
	topic, own := tc.topic(f, "alone"), 0
	for tc.leader("alone", own) != l {
		own++
	}
	h := newAckLog()
	if err := h.publish(t.Context(), tc.topic(l, "t"), "before"); err != nil {
		t.Fatal(err)
	}
	release := f.hang()
	defer release()
	// A put that comes alone: its batch reaches an idle follower.
	done := make(chan error, 1)
	go func() {
		done <- h.publish(context.Background(), tc.topic(l, "t"), "it waits for the follower")
	}()
	tc.eventually("the follower's disk has a write", func() bool { return node.WritesWaiting(f.e) > 0 })
	began := time.Now()
	tc.eventually("a put to a partition of the other node is answered", func() bool {
		// The answer has to arrive on the connection that brought the batch.
		return node.PutTo(t.Context(), topic, own, &node.Put{Messages: [][]byte{[]byte("by way of the follower")}}) == nil
	})
	if took := time.Since(began); took > peer.DefaultSilenceTimeout-500*time.Millisecond {
		t.Errorf("it took %v: the connection had to end before", took)
	}
	release()
	if err := <-done; err != nil && !strings.Contains(err.Error(), "unknown") {
		t.Error(err)
	}
}

// Close of a node whose disk hangs returns, and says why.
func TestCloseWithHungDisk(t *testing.T) {
	t.Parallel()
	disk := faultaio.New(faultaio.Options{Seed: 1})
	o := smallOptions(disk)
	shortPatience(&o)
	e, err := node.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	topic, err := e.CreateTopic(t.Context(), "t", 1)
	if err != nil {
		t.Fatal(err)
	}
	disk.Inject(faultaio.Rule{Kind: faultaio.KindAny, Hold: true, Count: -1})
	ctx, cancel := context.WithCancel(t.Context())
	published := make(chan error, 1)
	go func() {
		_, err := topic.PublishMessage(ctx, node.Outgoing{Body: []byte("x")})
		published <- err
	}()
	eventually(t, "the disk has a write", func() bool { return node.WritesWaiting(e) > 0 })
	eventually(t, "the disk counts as failed", func() bool { return errors.Is(e.Health(), errs.ErrDiskHung) })
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	select {
	case err := <-closed:
		if !errors.Is(err, errs.ErrDiskHung) {
			t.Errorf("Close: %v", err)
		}
	case <-time.After(patience):
		t.Error("Close waits for a disk that hangs")
	}
	cancel()
	disk.ClearRules()
	disk.ReleaseHeld()
	<-published
}

// An idle disk is probed, so that a hang is found before a message is published.
func TestIdleDiskIsProbed(t *testing.T) {
	t.Parallel()
	disk := faultaio.New(faultaio.Options{Seed: 1})
	o := smallOptions(disk)
	shortPatience(&o)
	e, err := node.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	long(t, "the disk is asked", func() bool { return e.Storage().DiskProbes > 0 })
	disk.Inject(faultaio.Rule{Kind: faultaio.KindAny, Hold: true, Count: -1})
	long(t, "the hang is noticed", func() bool { return errors.Is(e.Health(), errs.ErrDiskHung) })
	disk.ClearRules()
	disk.ReleaseHeld()
	long(t, "the disk is good again", func() bool { return e.Health() == nil && e.Storage().DiskState == "good" })
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
