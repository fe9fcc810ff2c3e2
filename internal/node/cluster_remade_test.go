package node_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// A topic to which no message was ever published is also deleted by a node that restarted meanwhile. The node's commit
// log has nothing of the topic, and its directory must be removed nevertheless: if it stayed, a topic of the same name
// would make the next start fail.
//
// B41, B79.
func TestClusterDeleteOfWhatNobodyWrote(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 2)
	m := tc.nodes[2]
	dir := node.TopicDir(m.e, "t")
	tc.kill(m)
	tc.start(m)
	if err := tc.nodes[0].e.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	tc.eventually("the files are gone", func() bool {
		_, err := m.disk.ReadDir(dir)
		return err != nil
	})
	tc.create("t", 1)
	tc.kill(m)
	tc.start(m)
	tc.awaitInSync("t")
}

// A node whose disk is full both when a topic is made and when the topic is deleted removes the files that it had
// begun.
func TestDeleteOfATopicThatWasHalfMade(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	m := tc.nodes[2]
	m.disk.Inject(faultaio.Rule{
		Kind: faultaio.KindWrite, Name: "topics/*/topic.copy.json*", Count: -1, Err: syscall.ENOSPC,
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := tc.nodes[0].e.CreateTopic(ctx, "t", 2); err != nil {
		t.Fatal(err)
	}
	dir := node.TopicDir(tc.nodes[0].e, "t")
	tc.eventually("the node has begun it", func() bool {
		_, err := m.disk.ReadFile(dir+"/topic.json", 1<<20)
		return err == nil
	})
	if _, ok := m.e.Catalog().LookupTopic("t"); ok {
		t.Fatal("it could be made")
	}
	if err := tc.nodes[0].e.DeleteTopic(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	tc.eventually("the files are gone", func() bool {
		_, err := m.disk.ReadDir(dir)
		return err != nil
	})
}

// A node ends while the files of a deleted topic are still there and those of the next topic of the same name already
// exist. It starts again, whichever of the two it finds first and whichever is newer, and serves the one that the
// cluster has. Files of a topic that the cluster does not know stay.
//
// B41, B79, B86.
func TestClusterTwoTopicsOfOneName(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"00000000-0000-4000-8000-000000000001", "ffffffff-ffff-4fff-bfff-fffffffffffe"} {
		for _, created := range []int64{1, 1 << 62} {
			tc := newTestCluster(t, 3)
			tc.create("t", 2)
			h := newAckLog()
			tc.publishMany(h, tc.nodes[0], "t", "kept", 20, 100)
			m := tc.nodes[2]
			tc.kill(m)
			dir := "topics/" + id
			if err := m.disk.MkdirAll(dir); err != nil {
				t.Fatal(err)
			}
			meta := fmt.Sprintf(`{"format":2,"id":%q,"name":"t","partitions":1,"created_ns":%d}`, id, created)
			if err := m.disk.WriteFile(dir+"/topic.json", []byte(meta)); err != nil {
				t.Fatal(err)
			}
			tc.start(m)
			tc.awaitInSync("t")
			tc.eventually("the node has the cluster's topic", func() bool { return tc.topic(m, "t").Partitions() == 2 })
			tc.checkCopies(h, "t", 2)
			if _, err := m.disk.ReadDir(dir); err != nil {
				t.Errorf("the other topic's files: %v", err)
			}
		}
	}
}
