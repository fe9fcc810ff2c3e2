package node_test

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
)

// publishMany publishes n messages of some size through a node.
func (tc *testCluster) publishMany(h *ackLog, m *testNode, topic, prefix string, n, size int) {
	tc.t.Helper()
	for i := 0; i < n; i += 10 {
		var bodies []string
		for j := range min(10, n-i) {
			bodies = append(bodies, fmt.Sprintf("%s/%d/%s", prefix, i+j, strings.Repeat("x", size)))
		}
		if err := h.publish(tc.t.Context(), tc.topic(m, topic), bodies...); err != nil {
			tc.t.Fatal(err)
		}
	}
}

// Deferred messages and the state of the channels reach a replica that begins with an empty disk, together with the
// log.
//
// B50, B78, B79.
func TestClusterCatchUpDeferred(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	c := tc.channel("t", "c")
	topic := tc.topic(l, "t")
	const delay = 1500 * time.Millisecond
	due := map[string]time.Time{"by DPUB": time.Now().Add(delay), "by REQ": time.Now().Add(delay)}
	if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("by DPUB"), Delay: delay}); err != nil {
		t.Fatal(err)
	}
	publish(t, topic, "by REQ")
	s := subscribe(t, c, 10)
	if err := s.Requeue(s.next().id, delay); err != nil {
		t.Fatal(err)
	}
	tc.publishMany(h, l, "t", "more", 300, 400)
	for finished := 0; finished < 300; {
		m := s.next()
		if strings.HasPrefix(m.body, "more/") {
			s.finish(m)
			finished++
			continue
		}
		due[m.body] = time.Now().Add(delay) // it came early for this test, on a slow machine
		if err := s.Requeue(m.id, delay); err != nil {
			t.Fatal(err)
		}
		s.Pump()
	}
	waitConfirmed(t, tc, "t")
	empty := tc.others(l)[0]
	tc.kill(empty)
	tc.wipe(empty)
	tc.start(empty)
	tc.awaitInSync("t")
	tc.awaitEqualCopies("t", 0)
	handOver(t, l, empty, "t", 0)
	s2 := subscribe(t, tc.channelAt(tc.leader("t", 0), "t", "c"), 10)
	var came []string
	for range 2 {
		m := s2.next()
		if early := due[m.body].Sub(m.at); early > 5*time.Millisecond {
			t.Errorf("%s came %v early", m.body, early)
		}
		came = append(came, m.body)
		s2.finish(m)
	}
	if slices.Sort(came); fmt.Sprint(came) != "[by DPUB by REQ]" {
		t.Errorf("came: %v", came)
	}
	s2.expectNothing("that was all")
}

// The damaged range of the leader's log is many times larger than one repair request: it is repaired piece by piece.
//
// B37.
func TestClusterDamagedLarge(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) {
		o.Cluster.Replication.MaxRangeBytes, o.Cluster.Replication.MaxSendBytes = 6<<10, 6<<10
	})
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	tc.publishMany(h, l, "t", "m", 6000, 400)
	tc.awaitEqualCopies("t", 0)
	empty := tc.others(l)[0]
	tc.kill(empty)
	tc.wipe(empty)
	dir := path.Join(node.TopicDir(l.e, "t"), "0")
	files := segmentBytes(t, l.disk, dir)
	name := slices.Sorted(maps.Keys(files))[1]
	at := len(files[name]) / 4
	if !l.disk.Corrupt(path.Join(dir, name), make([]byte, len(files[name])/2), int64(at)) {
		t.Fatal("the segment is gone")
	}
	tc.start(empty)
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
}

// flip changes a byte in the middle of one of the segments in dir.
func flip(t *testing.T, m *testNode, dir string, which int) {
	t.Helper()
	files := segmentBytes(t, m.disk, dir)
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(names) <= which+1 {
		t.Fatalf("%s has only %d segments", m.name, len(names))
	}
	data, at := files[names[which]], len(files[names[which]])/2
	if !m.disk.Corrupt(path.Join(dir, names[which]), []byte{data[at] ^ 0x40}, int64(at)) {
		t.Fatal("the segment is gone")
	}
}
