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
		tc.eventually("the topic is gone", func() bool { _, ok := m.e.LookupTopic("t"); return !ok })
		if _, err := topic.Channel(t.Context(), "c"); !errors.Is(err, errs.ErrDeleted) {
			t.Errorf("%s: a channel is created: %v", m.name, err)
		}
		if _, err := topic.ChannelElsewhere("c").ReadSettings(t.Context()); !errors.Is(err, errs.ErrDeleted) {
			t.Errorf("%s: settings are read: %v", m.name, err)
		}
	}
}

// A deleted topic is gone on every node, also on nodes that were down meanwhile, when they come back. A new topic of
// the same name has nothing of the old one.
//
// B41, B79 (data of what was deleted is dropped), B86.
func TestClusterDelete(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 2)
	h := newAckLog()
	tc.channel("t", "c")
	tc.publishMany(h, tc.nodes[0], "t", "old", 100, 100)
	away := tc.nodes[2]
	old, _ := away.e.LookupTopic("t")
	dir := node.TopicDir(away.e, "t")
	tc.awaitEqualCopies("t", 0)
	tc.kill(away)
	if err := tc.nodes[1].e.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	for _, m := range tc.running() {
		tc.eventually("the topic is gone", func() bool { _, ok := m.e.LookupTopic("t"); return !ok })
	}
	if _, err := tc.nodes[0].e.CreateTopic(t.Context(), "t", 1); err != nil {
		t.Fatal(err)
	}
	tc.start(away)
	tc.eventually("the node that was away has the new topic", func() bool {
		now, ok := away.e.LookupTopic("t")
		return ok && now != old && now.Partitions() == 1
	})
	tc.awaitInSync("t")
	for _, m := range tc.nodes {
		if names := tc.topic(m, "t").ChannelNames(); len(names) != 0 {
			t.Errorf("%s: the new topic has the channels %v", m.name, names)
		}
	}
	h = newAckLog()
	tc.publishMany(h, tc.nodes[1], "t", "new", 20, 100)
	tc.checkCopies(h, "t", 1)
	got := readAll(t, tc.channel("t", "c"))
	if len(got) != 20 || slices.ContainsFunc(values(got), func(s string) bool { return strings.HasPrefix(s, "old") }) {
		t.Errorf("%d messages came", len(got))
	}
	tc.eventually("the old files are gone", func() bool {
		_, err := away.disk.ReadDir(dir)
		return err != nil
	})
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

// A partition moves to another node while messages are published to it. The new replica is in sync before the old one
// goes, and no put fails.
//
// B75, B89, B94.
func TestClusterMove(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 4, func(o *node.Options) { o.Cluster.Replicas = 3 })
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	row := l.row("t", 0)
	has := func(m *testNode) bool { return slices.Contains(l.row("t", 0).State.Replicas, m.e.Node().ID) }
	var to *testNode
	for _, m := range tc.nodes {
		if !has(m) {
			to = m
		}
	}
	tc.publishMany(h, to, "t", "before", 1000, 200)
	stop := tc.startProducer(h, to, "t", "during", never)
	defer stop()
	for _, from := range tc.others(to) {
		if !has(from) || from == l {
			continue
		}
		if err := l.store.MovePartition(t.Context(), row.ID, from.e.Node().ID, to.e.Node().ID); err != nil {
			t.Fatal(err)
		}
		least := 3
		tc.eventually("it has moved", func() bool {
			st := l.row("t", 0).State
			least = min(least, len(st.ISR))
			return !slices.Contains(st.Replicas, from.e.Node().ID) && inSync(l.row("t", 0), to)
		})
		if least < 3 {
			t.Errorf("only %d replicas were in sync during the move", least)
		}
		break
	}
	tc.awaitMoreAcks(h, 50)
	stop()
	c, err := node.CopyOf(to.e, "t", 0)
	tc.eventually("the new replica has everything", func() bool {
		var lc node.Copy
		c, err = node.CopyOf(to.e, "t", 0)
		lc, _ = node.CopyOf(l.e, "t", 0)
		return err == nil && c.End == lc.End && string(c.Bytes) == string(lc.Bytes)
	})
	stored, err := c.Messages(0)
	if err != nil {
		t.Fatal(err)
	}
	h.check(t, stored)
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
		tc.eventually(m.name+" has removed it", func() bool { _, ok := m.e.LookupTopic("t"); return !ok })
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
