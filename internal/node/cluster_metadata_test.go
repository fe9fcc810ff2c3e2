package node_test

import (
	"context"
	"errors"
	"path"
	"strings"
	"testing"

	"penstock/internal/node"
)

// The metadata of a topic rots on one node, in both copies of the file. The node's copies of the partitions are whole
// and in sync, and the node starts first after all have ended. It must lead with these copies, and not with empty logs
// in their place.
func TestClusterUnreadableTopicMetadata(t *testing.T) {
	t.Parallel()
	tc := prepareTestCluster(t, 3, func(*node.Options) {})
	tc.startAll()
	tc.create("t", 1)
	h := newAckLog()
	tc.publishReplicated(h, 40)
	x := tc.leader("t", 0)
	for _, m := range tc.running() {
		tc.kill(m)
	}
	infos, err := x.disk.ReadDir("topics")
	if err != nil || len(infos) != 1 {
		t.Fatal("want one topic's directory", infos, err)
	}
	file := path.Join("topics", infos[0].Name(), "topic.json")
	for _, name := range []string{file, strings.Replace(file, ".json", ".copy.json", 1)} {
		if !x.disk.Corrupt(name, []byte{0xfb}, 0) {
			t.Fatal("nothing was damaged")
		}
	}
	tc.start(x)
	for _, m := range tc.nodes {
		if m != x {
			tc.start(m)
		}
	}
	tc.awaitHeld(h, tc.nodes)
	if told := x.e.Info().CorruptionsAtRecover; len(told) != 1 {
		t.Errorf("it was found damaged, and told is %q", told)
	}
	data, err := x.disk.ReadFile(file, 1<<20)
	if err != nil || len(data) == 0 || data[0] != '{' {
		t.Errorf("it was not written anew: %q %v", data, err)
	}
}

// A topic is deleted while a node is down, and the topic's metadata rots there, in both copies of the file. The node
// removes the topic nevertheless; otherwise its commit log would keep it for ever.
func TestClusterDeletedTopicWithUnreadableMetadata(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	tc.publishReplicated(h, 40)
	x := tc.nodes[2]
	dir := node.TopicDir(x.e, "t")
	tc.kill(x)
	for _, name := range []string{"topic.json", "topic.copy.json"} {
		if !x.disk.Corrupt(dir+"/"+name, []byte{0xfb}, 0) {
			t.Fatal("nothing was damaged")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := tc.nodes[0].e.DeleteTopic(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	tc.start(x)
	tc.eventually("the files are gone", func() bool {
		_, err := x.disk.ReadDir(dir)
		return err != nil
	})
	tc.kill(x)
	tc.start(x)
	if _, err := x.disk.ReadDir(dir); err == nil {
		t.Error("the files are back")
	}
}

// The same for a topic of which the node's commit log has nothing: its process ended when it had just made the files.
func TestClusterDeletedTopicThatWasHalfMadeAndIsUnreadable(t *testing.T) {
	t.Parallel()
	tc, _, l, _, free := moved(t)
	dir := node.TopicDir(l.e, "t")
	tc.stop(free)
	if err := errors.Join(free.disk.MkdirAll(dir), free.disk.WriteFile(dir+"/topic.json", []byte("{"))); err != nil {
		t.Fatal(err)
	}
	tc.start(free)
	if _, err := free.disk.ReadDir(dir); err != nil {
		t.Fatalf("what is no topic's was touched while the topic exists: %v", err)
	}
	tc.stop(free)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := l.e.DeleteTopic(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	tc.start(free)
	tc.eventually("the files are gone", func() bool {
		_, err := free.disk.ReadDir(dir)
		return err != nil
	})
}
