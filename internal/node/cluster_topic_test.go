package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/replicate"
	"penstock/tests/support/faultaio"
)

// What is asked of a deleted topic ends with ErrDeleted on every node, and not when its time is over: nobody leads it.
func TestClusterAskDeletedTopic(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 2)
	topics := map[*testNode]*node.Topic{}
	for _, m := range tc.nodes {
		topics[m] = tc.topic(m, "t")
	}
	if err := tc.nodes[0].e.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	for m, topic := range topics {
		tc.eventually("the topic is gone", func() bool { _, ok := m.e.Catalog().LookupTopic("t"); return !ok })
		if _, err := topic.Channel(t.Context(), "c"); !errors.Is(err, errs.ErrDeleted) {
			t.Errorf("%s: a channel is created: %v", m.name, err)
		}
		if _, err := topic.ChannelElsewhere("c").ReadSettings(t.Context()); !errors.Is(err, errs.ErrDeleted) {
			t.Errorf("%s: settings are read: %v", m.name, err)
		}
	}
}

// A single node's data directory becomes the first node of a cluster, with its messages, the channels' confirmations
// and pauses, and its deferred messages. Nodes that join accept messages for it.
//
// B79.
func TestClusterImport(t *testing.T) {
	t.Parallel()
	tc := prepareTestCluster(t, 3)
	first := tc.nodes[0]
	o := tc.options(first)
	alone, err := node.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	topic := topicOf(t, alone, "t")
	channelOf(t, topic, "paused")
	c := channelOf(t, topic, "c")
	ids := publish(t, topic, numbered("m", 5, 0)...)
	s := subscribe(t, c, 10)
	s.finish(s.next(), s.next())
	if err := channelOf(t, topic, "paused").Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := alone.Close(); err != nil {
		t.Fatal(err)
	}
	first.disk = first.disk.Kill(1)
	tc.startAll()
	// The topic gets as many replicas as a topic that is created in the cluster; the first node goes on leading.
	if m := tc.leader("t", 0); m != first {
		t.Fatalf("%s leads", m.name)
	}
	for _, m := range tc.nodes[1:] {
		ids = append(ids, publish(t, tc.topic(m, "t"), "through "+m.name)...)
	}
	got := readAll(t, tc.channelAt(first, "t", "c"))
	if len(got) != 5 || got[ids[6]] != "through n3" || got[ids[1]] != "" {
		t.Errorf("of 7 messages, 2 confirmed, came %v", got)
	}
	if st := channelStats(t, tc.channelAt(first, "t", "paused")); !st.Paused || st.Depth != 7 {
		t.Errorf("the paused channel: %+v", st)
	}
	tc.awaitInSync("t")
	waitConfirmed(t, tc, "t")
	tc.kill(first)
	tc.start(first)
	now := tc.leader("t", 0)
	if got := readAll(t, tc.channelAt(now, "t", "c")); len(got) != 0 {
		t.Errorf("after another start came again: %v", got)
	}
	if st := channelStats(t, tc.channelAt(now, "t", "paused")); !st.Paused || st.Depth != 7 {
		t.Errorf("the paused channel, after another start: %+v", st)
	}
}

// A node refuses the data directory of another cluster, and a process refuses the directory of another node.
//
// B79, P10.
func TestClusterForeignDirectory(t *testing.T) {
	t.Parallel()
	a, b := newTestCluster(t, 1), newTestCluster(t, 1)
	a.create("t", 1)
	publish(t, a.topic(a.nodes[0], "t"), "kept")
	stranger := a.nodes[0]
	a.kill(stranger)
	foreign := &testNode{name: stranger.name, disk: stranger.disk.Kill(7), life: 10}
	b.kill(b.nodes[0])
	e, err := b.open(foreign)
	if err == nil {
		e.Close()
		t.Fatal("a node of another cluster was taken in")
	}
	if !strings.Contains(err.Error(), "belongs to another cluster") {
		t.Errorf("it says: %v", err)
	}
	other := &testNode{name: "n9", disk: stranger.disk.Kill(8), life: 20}
	if e, err = b.open(other); err == nil {
		e.Close()
		t.Fatal("the directory of n1 was opened as n9")
	}
	b.start(b.nodes[0])
	a.start(stranger)
	if got := readAll(t, a.channel("t", "c")); len(got) != 1 {
		t.Errorf("after the refusal %v is there", got)
	}
}

func inSync(row *meta.Partition, m *testNode) bool {
	return slices.Contains(row.State.ISR, replicate.Member{Node: m.e.Node().ID, Store: m.e.Node().Store})
}

// With many partitions, producers at all nodes publish to all of them while the nodes end one after the other. Every
// partition is right.
//
// B15, B17.
func TestClusterManyPartitions(t *testing.T) {
	t.Parallel()
	const partitions = 24
	tc := newTestCluster(t, 3)
	tc.create("t", partitions)
	h := newAckLog()
	for i, m := range tc.nodes {
		stop := tc.startProducers(h, tc.nodes, "t", fmt.Sprint(i), duringFailover)
		tc.awaitMoreAcks(h, 200)
		tc.crash(m)
		tc.awaitMoreAcks(h, 200)
		tc.start(m)
		tc.awaitInSync("t")
		stop()
	}
	tc.checkCopies(h, "t", partitions)
}

// DeleteTopic returns as soon as this node has removed the topic. This node's disk is so slow here that the rest of the
// cluster has finished by then.
func TestClusterDeleteIsHeardOf(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	l := tc.leader("t", 0)
	publish(t, tc.topic(l, "t"), "m")
	tc.awaitEqualCopies("t", 0)
	l.disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Hold: true, Count: -1})
	release := sync.OnceFunc(func() {
		l.disk.ClearRules()
		l.disk.ReleaseHeld()
	})
	t.Cleanup(release)
	deleted := make(chan error, 1)
	go func() { deleted <- l.e.DeleteTopic(context.Background(), "t") }()
	for _, m := range tc.others(l) {
		tc.eventually(m.name+" has removed it", func() bool { _, ok := m.e.Catalog().LookupTopic("t"); return !ok })
	}
	release()
	if err := <-deleted; err != nil {
		t.Error(err)
	}
}

// An operation may name partitions of which this node has not heard yet, because the requester knows more of them. The
// node refuses the operation, and the requester asks again.
func TestClusterOperationOnUnknownPartitions(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 1)
	tc.create("t", 1)
	l := tc.leader("t", 0)
	tc.eventually("its own partition is served", func() bool { return node.BeginPause(l.e, "t", 0) != nil })
	if node.BeginPause(l.e, "t", 1) != nil {
		t.Error("a partition is served that nobody knows")
	}
}
