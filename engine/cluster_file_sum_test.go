package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"penstock/engine"
	"penstock/segment/aio/faultaio"
)

// All nodes die, and both copies of topic.json of the leader's node have a bad byte. That node starts first, and must not lead with the empty log that it
// would make of the topic's row: the other two serve everything, and when the file was restored so does the third.
func TestClusterTopicFileDamaged(t *testing.T) {
	t.Parallel()
	tr := prepareTrio(t, 3, func(o *engine.Options) {
		o.Cluster.Replication.LagMaxNs = int64(2 * time.Second) // the damaged copy may be in the first ISR, and acknowledges nothing
	})
	tr.store.LeaseTTL = time.Second
	tr.startAll()
	tr.create("t", 1)
	h := newTold()
	for i := range 20 {
		if err := h.publish(context.Background(), tr.topic(tr.leader("t", 0), "t"), fmt.Sprintf("m %d", i)); err != nil {
			t.Fatal(err)
		}
	}
	tr.equal("t", 0)
	x := tr.leader("t", 0)
	id := x.row("t", 0).ID.Topic.String()
	for _, m := range tr.up() {
		tr.kill(m)
	}
	whole := harmFile(t, x.disk, "topics/"+id+"/topic.json")
	harmFile(t, x.disk, "topics/"+id+"/topic.copy.json")
	tr.start(x)
	tr.startAll()
	l := tr.leader("t", 0)
	if l == x {
		t.Fatal("the node whose topic.json is damaged leads")
	}
	if err := h.publish(context.Background(), tr.topic(l, "t"), "on"); err != nil {
		t.Fatal(err)
	}
	tr.kill(x)
	if err := x.disk.WriteFile("topics/"+id+"/topic.json", whole); err != nil {
		t.Fatal(err)
	}
	tr.start(x)
	tr.whole("t")
	tr.checkAll(h, "t", 1)
}

// harmFile turns a bit in the middle of a file and returns what it was.
func harmFile(t *testing.T, d *faultaio.Disk, name string) (whole []byte) {
	t.Helper()
	whole, err := d.ReadFile(name, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(whole)
	bad[len(bad)/2] ^= 1
	if err := d.WriteFile(name, bad); err != nil {
		t.Fatal(err)
	}
	return whole
}
