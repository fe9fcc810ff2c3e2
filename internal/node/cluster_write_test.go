package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/forward"
	"penstock/netproto"
	"penstock/tests/support/faultaio"
)

// impatience is Options.PublishTimeout where puts that cannot be stored fail soon.
const impatience = time.Second

// impatient makes puts that cannot be stored fail soon. Those that can be stored may fail as well on a busy machine:
// see setPublishTimeout.
func impatient(o *node.Options) { o.PublishTimeout = impatience }

// neverStranded makes leaders that hear nothing of their followers go on. Otherwise they would give up after some
// seconds, which a busy machine may need for what a test does meanwhile.
func neverStranded(o *node.Options) { o.Cluster.Replication.StrandedNs = int64(time.Hour) }

// With fewer replicas in sync than min_isr, a put is refused and is in no log. With one more replica, writing goes on.
//
// B2, B12.
func TestClusterQuorum(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, impatient)
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	topic := tc.topic(l, "t")
	for i := range 10 {
		if err := h.publish(t.Context(), topic, fmt.Sprint("before", i)); err != nil {
			t.Fatal(err)
		}
	}
	tc.awaitEqualCopies("t", 0)
	rest := tc.others(l)
	tc.crash(rest[0])
	if err := h.publish(t.Context(), topic, "with two"); err != nil {
		t.Errorf("with two of three: %v", err)
	}
	tc.eventually("the second follower has it", func() bool {
		c, _ := node.StateOf(l.e, "t", 0)
		return c.Committed == c.Next
	})
	before, err := node.CopyOf(l.e, "t", 0)
	if err != nil {
		t.Fatal(err)
	}
	tc.crash(rest[1])
	// Until the leader knows that, and its appended batch has been answered.
	for i := 0; !errors.Is(err, errs.ErrNoQuorum); i++ {
		if err = h.publish(t.Context(), topic, fmt.Sprint("with one", i)); err == nil || i == 20 {
			t.Fatalf("with one of three: %v", err)
		}
	}
	after, err := node.CopyOf(l.e, "t", 0)
	if err != nil {
		t.Fatal(err)
	}
	// Puts that were tried before the leader knew may have been appended; refused puts were not.
	if n := after.NextID - before.NextID; int(n) > h.unknown {
		t.Errorf("%d messages were appended, %d are unknown", n, h.unknown)
	}
	at := after.Next
	if err := h.publish(t.Context(), topic, "refused"); !errors.Is(err, errs.ErrNoQuorum) {
		t.Errorf("without a quorum: %v", err)
	}
	if after, _ = node.CopyOf(l.e, "t", 0); after.Next != at {
		t.Errorf("a refused write was appended: the log went from %d to %d", at, after.Next)
	}
	tc.startAll()
	if err := h.publish(t.Context(), topic, "whole again"); err != nil {
		t.Error(err)
	}
	tc.awaitInSync("t")
	if tc.leader("t", 0) != l {
		t.Error("the leader has changed")
	}
	tc.checkCopies(h, "t", 1)
}

// A node that forwarded a put says what the leader says: with too few replicas in sync, nothing was stored.
//
// B2, B12.
func TestClusterQuorumForwarded(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 4)
	tc.create("t", 1)
	l := tc.leader("t", 0)
	var away *testNode // has no copy
	followers := tc.others(l)
	for i, m := range followers {
		if !slices.Contains(l.row("t", 0).State.Replicas, m.e.Node().ID) {
			away = m
			followers = slices.Delete(followers, i, i+1)
			break
		}
	}
	if away == nil || len(followers) != 2 {
		t.Fatalf("of four nodes, %d have no copy or lead", 4-1-len(followers))
	}
	h := newAckLog()
	if err := h.publish(t.Context(), tc.topic(away, "t"), "before"); err != nil {
		t.Fatal(err)
	}
	tc.awaitConnected()
	tc.crash(followers[0])
	tc.crash(followers[1])
	tc.setPublishTimeout(impatience)
	tries := 0
	tc.eventually("the leader knows that they are gone", func() bool {
		tries++
		err := h.publish(t.Context(), tc.topic(l, "t"), fmt.Sprint("at the leader", tries))
		if err == nil {
			t.Fatal("a put is stored with one of three")
		}
		return errors.Is(err, errs.ErrNoQuorum)
	})
	before, err := node.CopyOf(l.e, "t", 0)
	if err != nil {
		t.Fatal(err)
	}
	// The node that forwarded waits for the leader's answer until AnswerMargin after the deadline. On a busy machine the
	// answer may come later, and then the outcome is unknown.
	told := 0
	tc.eventually("the node that forwarded says what the leader says", func() bool {
		tries++
		begun := time.Now()
		err := h.publish(t.Context(), tc.topic(away, "t"), fmt.Sprint("forwarded", tries))
		took := time.Since(begun)
		switch {
		case errors.Is(err, errs.ErrNoQuorum):
			told++
		case !errors.Is(err, errs.ErrUnknown) || took < impatience+forward.AnswerMargin:
			t.Errorf("the leader says that nothing was stored, and the node that forwarded says after %v: %v", took, err)
			return true
		}
		return told == 3
	})
	if after, err := node.CopyOf(l.e, "t", 0); err != nil || after.Next != before.Next {
		t.Errorf("a refused write was appended: the log went from %d to %d, %v", before.Next, after.Next, err)
	}
	tc.startAll()
	tc.setPublishTimeout(longLease)
	if err := h.publish(t.Context(), tc.topic(away, "t"), "whole again"); err != nil {
		t.Error(err)
	}
}

// A follower whose disk fails leaves the ISR, and no producer notices. It does not acknowledge anything again before it
// is restarted.
//
// B18.
func TestClusterFollowerDisk(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	bad := tc.others(l)[0]
	stop := tc.startProducer(h, l, "t", "p", never)
	defer stop()
	tc.eventually("some are stored", func() bool { return h.count() > 50 })
	bad.disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Err: syscall.EIO})
	tc.eventually("it is dropped", func() bool { return len(l.row("t", 0).State.ISR) == 2 })
	tc.awaitMoreAcks(h, 200)
	if len(l.row("t", 0).State.ISR) != 2 {
		t.Error("the broken follower is in the ISR again")
	}
	if err := bad.e.Health(); !errors.Is(err, errs.ErrDisk) {
		t.Errorf("its health: %v", err)
	}
	tc.kill(bad)
	tc.start(bad)
	tc.awaitInSync("t")
	stop()
	tc.checkCopies(h, "t", 1)
}

// A leader whose disk fails gives up. Another node leads at once, and no acknowledged message is lost.
//
// B18, B81.
func TestClusterLeaderDisk(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	other := tc.others(l)[0]
	stop := tc.startProducer(h, other, "t", "p", func(err error) bool {
		return errors.Is(err, errs.ErrUnknown) || errors.Is(err, errs.ErrDisk)
	})
	defer stop()
	tc.eventually("some are stored", func() bool { return h.count() > 50 })
	l.disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Err: syscall.EIO})
	tc.eventually("another leads", func() bool { return other.row("t", 0).State.Leader != l.e.Node().ID })
	stop()
	stop = tc.startProducer(h, other, "t", "q", func(err error) bool { return errors.Is(err, errs.ErrUnknown) })
	defer stop()
	tc.awaitMoreAcks(h, 100)
	stop()
	tc.kill(l)
	tc.start(l)
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
}

// While nothing is committed, the bytes that wait are bounded: further puts are refused, and nothing of them is stored.
//
// B5, B20.
func TestClusterBackpressure(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) {
		o.MaxInboxBytes, o.AdmitTimeout = 32<<10, 20*time.Millisecond
		o.PublishTimeout = patience
		o.Cluster.Replication.MaxPendingCount = 8
	})
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	tc.awaitEqualCopies("t", 0)
	noAcks := func(_, _ string, kind netproto.Type) int {
		if kind == netproto.TypePutAck {
			return 0
		}
		return 1
	}
	tc.network.rules(noAcks)
	body := func(i int) string { return fmt.Sprint(i, "/", strings.Repeat("x", 1000)) }
	var waiting []chan result
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		var done chan result
		if done, err = submit(tc.topic(l, "t"), time.Time{}, body(i)); err == nil {
			waiting = append(waiting, done)
			h.tried[body(i)] = true
		}
	}
	if !errors.Is(err, errs.ErrOverloaded) {
		t.Fatalf("%d puts wait; then: %v", len(waiting), err)
	}
	tc.network.rules(nil)
	for i, done := range waiting {
		if r := answer(t, done); r.err != nil {
			t.Errorf("put %d: %v", i, r.err)
		}
	}
	// Puts with short deadlines are refused because of these, and are in no log.
	tc.network.rules(noAcks)
	refused := false
	for i := 2000; !refused && i < 2020; i++ {
		before, _ := node.StateOf(l.e, "t", 0)
		done, err := submit(tc.topic(l, "t"), time.Now().Add(50*time.Millisecond), body(i))
		if err != nil {
			t.Fatal(err)
		}
		h.tried[body(i)] = true
		tc.eventually("it is appended or refused", func() bool {
			c, _ := node.StateOf(l.e, "t", 0)
			return len(done) > 0 || c.NextID > before.NextID
		})
		if len(done) == 0 {
			continue
		}
		if r := answer(t, done); !errors.Is(r.err, errs.ErrDeadline) {
			t.Errorf("it waited longer than it may: %v", r.err)
		}
		delete(h.tried, body(i))
		refused = true
	}
	if !refused {
		t.Error("nothing waited until its deadline")
	}
	tc.network.rules(nil)
	tc.checkCopies(h, "t", 1)
}

// handOver makes another node the leader of a partition that is not being written.
func handOver(t *testing.T, from, to *testNode, topic string, n int) {
	t.Helper()
	eventually(t, "the leadership is handed over", func() bool {
		row := from.row(topic, n)
		return from.store.HandOver(t.Context(), row.ID, &row.State, to.e.Node().ID) == nil
	})
}

// drainNode makes a node give its leaderships away, whatever is written meanwhile, and then makes it an ordinary node
// again.
func (tc *testCluster) drainNode(m *testNode, topic string) {
	id := m.e.Node().ID
	if err := m.store.Drain(context.Background(), id, true); err != nil {
		tc.t.Error(err)
	}
	tc.eventually("it leads nothing", func() bool {
		for n := range m.e.Snapshot().Names[topic].Partitions {
			if m.row(topic, n).State.Leader == id {
				return false
			}
		}
		return true
	})
	if err := m.store.Drain(context.Background(), id, false); err != nil {
		tc.t.Error(err)
	}
}
