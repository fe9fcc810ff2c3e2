package node_test

import (
	"errors"
	"slices"
	"testing"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// A topic has the replicas that it was made with. More of them are copied from the leader while messages are published,
// and count when they have everything; those that are not wanted any more give up their bytes. No put fails, and the
// leader is never the one that goes.
func TestClusterReplicasOfATopic(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { o.Cluster.Replicas = 3 })
	first := tc.nodes[0]
	if _, err := first.e.CreateTopicWith(t.Context(), "t", node.TopicOptions{Partitions: 1, Replicas: 2}); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []node.TopicOptions{{Replicas: 4}, {Replicas: 17}, {Replicas: -1}, {Partitions: -1}} {
		_, err := first.e.CreateTopicWith(t.Context(), "u", bad)
		if !errors.Is(err, meta.ErrTooFewNodes) && !errors.Is(err, errs.ErrTopicOptions) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, ok := first.e.Catalog().LookupTopic("u"); ok {
		t.Error("a topic was made that cannot be")
	}
	tc.awaitInSync("t")
	l := tc.leader("t", 0)
	if st := l.row("t", 0).State; len(st.Replicas) != 2 || st.MinISR != 2 {
		t.Fatalf("the topic begins with %+v", st)
	}
	h := newAckLog()
	tc.publishMany(h, l, "t", "before", 1000, 200)
	stop := tc.startProducer(h, l, "t", "during", never)
	defer stop()
	topic := l.row("t", 0).ID.Topic
	sized := func(want, least int) {
		t.Helper()
		if now, err := first.store.SetReplicas(t.Context(), topic, want); err != nil || now.MinISR != least {
			t.Fatalf("%d replicas: %+v, %v", want, now, err)
		}
		tc.eventually("the replicas are as they were asked for", func() bool {
			st := l.row("t", 0).State
			return len(st.Replicas) == want && len(st.ISR) == want && st.MinISR == least
		})
	}
	sized(3, 2)
	tc.awaitMoreAcks(h, 50)
	sized(1, 1)
	tc.awaitMoreAcks(h, 50)
	stop()
	if now := tc.leader("t", 0); !slices.Contains(l.row("t", 0).State.Replicas, now.e.Node().ID) {
		t.Errorf("%s leads, which is no replica", now.name)
	}
	for _, m := range tc.nodes {
		if !slices.Contains(l.row("t", 0).State.Replicas, m.e.Node().ID) {
			tc.awaitRemoved(m, "t")
		}
	}
	sized(3, 2)
	tc.checkCopies(h, "t", 1)
}

// A single node has one replica of everything, and says so.
func TestReplicasOfASingleNode(t *testing.T) {
	e := open(t, t.TempDir())
	_, err := e.CreateTopicWith(t.Context(), "t", node.TopicOptions{Replicas: 2})
	if !errors.Is(err, errs.ErrTopicOptions) {
		t.Errorf("two replicas: %v", err)
	}
	if _, err = e.CreateTopicWith(t.Context(), "t", node.TopicOptions{Replicas: 1}); err != nil {
		t.Errorf("one replica: %v", err)
	}
}
