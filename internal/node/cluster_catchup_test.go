package node_test

import (
	"context"
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

// A follower that comes back catches up with the leader, wherever its log ends: a little or many segments behind, with
// nothing missing, or with a tail that the cluster never committed.
//
// B73, B75, B77, B94.
func TestClusterCatchUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		behind int  // messages that it misses
		ahead  bool // it was the leader, and died with a tail of its own
		load   bool // writes go on while it catches up
	}{
		"equal":                   {},
		"behind":                  {behind: 20},
		"many segments":           {behind: 1500, load: true},
		"ahead":                   {ahead: true},
		"diverged":                {behind: 30, ahead: true},
		"diverged, many segments": {behind: 1500, ahead: true, load: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc := newTestCluster(t, 3)
			tc.create("t", 1)
			h := newAckLog()
			l := tc.leader("t", 0)
			tc.publishMany(h, l, "t", "common", 200, 400)
			tc.awaitEqualCopies("t", 0)
			back := tc.others(l)[0]
			if c.ahead {
				back = l
				tc.appendUnreplicated(h, l, "t")
			}
			tc.kill(back)
			rest := tc.running()[0]
			tc.publishMany(h, rest, "t", "missed", c.behind, 400)
			stop := func() {}
			if c.load {
				stop = tc.startProducer(h, rest, "t", "during", never)
				defer stop()
			}
			tc.start(back)
			tc.awaitInSync("t")
			stop()
			tc.checkCopies(h, "t", 1)
			isOwn := func(s string) bool { return strings.HasPrefix(s, "own") }
			if c.ahead && slices.ContainsFunc(messages(t, tc.awaitEqualCopies("t", 0)), isOwn) {
				t.Error("what only the old leader had is there")
			}
		})
	}
}

// appendUnreplicated makes the leader append batches that no other node receives.
func (tc *testCluster) appendUnreplicated(h *ackLog, l *testNode, topic string) {
	tc.t.Helper()
	tc.network.isolate(l.name, true)
	before, _ := node.CopyOf(l.e, topic, 0)
	for i := range 5 {
		body := fmt.Sprint("own", i)
		if _, err := submit(tc.topic(l, topic), time.Time{}, body); err != nil {
			tc.t.Fatal(err)
		}
		h.tried[body] = true
	}
	tc.eventually("it is appended", func() bool { c, _ := node.StateOf(l.e, topic, 0); return c.NextID > before.NextID })
	tc.kill(l)
	tc.network.isolate(l.name, false)
	tc.start(l) // kill wants a running node; it comes back with its tail, alone
}

func messages(t *testing.T, c node.Copy) []string {
	t.Helper()
	all, err := c.Messages(0)
	if err != nil {
		t.Fatal(err)
	}
	return values(all)
}

// The leader's retention has removed batches that a follower lacks: the follower begins anew where the leader's log
// begins.
//
// B74.
func TestClusterFullSync(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { o.RetentionBytes = 200 << 10 })
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	c := tc.channel("t", "c")
	tc.publishMany(h, l, "t", "old", 100, 400)
	readAll(t, c)
	back := tc.others(l)[0]
	was := tc.awaitEqualCopies("t", 0)
	tc.kill(back)
	newer := newAckLog()
	for i := 0; ; i++ {
		tc.publishMany(newer, l, "t", fmt.Sprint("new", i), 200, 400)
		if c, _ := node.StateOf(l.e, "t", 0); c.Start > was.End {
			break
		} else if i == 50 {
			t.Fatalf("retention has removed up to %d, the follower ends at %d", c.Start, was.End)
		}
	}
	tc.start(back)
	tc.awaitInSync("t")
	tc.eventually("the same is stored", func() bool {
		a, err := node.CopyOf(l.e, "t", 0)
		b, berr := node.CopyOf(back.e, "t", 0)
		return err == nil && berr == nil && a.End == b.End && string(a.Cursors) == string(b.Cursors) && b.Start > 0 &&
			strings.HasSuffix(string(a.Bytes), string(b.Bytes[max(a.Start-b.Start, 0):]))
	})
	// The follower can lead, and its channels have the state that they had.
	handOver(t, l, back, "t", 0)
	tc.leader("t", 0)
	id := publish(t, tc.topic(back, "t"), "last")[0]
	s := subscribe(t, tc.channelAt(back, "t", "c"), 2000)
	for m := s.next(); m.id != id; m = s.next() {
		if strings.HasPrefix(m.body, "old") {
			t.Fatalf("%.20q was confirmed and comes again", m.body)
		}
		s.finish(m)
	}
}

// A catch-up that is interrupted by the end of either side continues where it stood.
//
// B76, B77.
func TestClusterCatchUpBroken(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) {
		o.Cluster.Replication.CatchUpBytesPerSec = 600 << 10
		o.Cluster.Replication.MaxRangeBytes = 32 << 10
	})
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	back := tc.others(l)[0]
	tc.kill(back)
	tc.publishMany(h, l, "t", "missed", 1000, 400)
	whole, _ := node.CopyOf(l.e, "t", 0)
	partly := func(more int64) func() bool {
		return func() bool { c, _ := node.StateOf(back.e, "t", 0); return int64(c.End) > more }
	}
	tc.start(back)
	tc.eventually("a part has come", partly(50<<10))
	tc.kill(back)
	tc.start(back)
	c, err := node.CopyOf(back.e, "t", 0)
	if err != nil || c.End < 40<<10 || c.End >= whole.End {
		t.Errorf("after the follower's death it stands at %d of %d: %v", c.End, whole.End, err)
	}
	tc.eventually("more has come", partly(100<<10))
	tc.network.dropConnections(back.name)
	tc.eventually("more has come", partly(150<<10))
	tc.kill(l)
	tc.start(l)
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
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
	if _, err := topic.PublishDeferred(t.Context(), []byte("by DPUB"), delay); err != nil {
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

// Stored bytes of the leader have rotted. It finds that when it reads them for a replica that begins with an empty
// disk, and fetches them from the third replica. In the end all three have the right bytes.
//
// B37.
func TestClusterDamagedLeader(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	tc.publishMany(h, l, "t", "m", 6000, 400) // so many that the commit log has let go of the first of them
	tc.awaitEqualCopies("t", 0)
	empty := tc.others(l)[0]
	tc.kill(empty)
	tc.wipe(empty)
	flip(t, l, path.Join(node.TopicDir(l.e, "t"), "0"), 1)
	tc.start(empty)
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
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

// A consumer reaches bytes that have rotted on the leader. No wrong message is delivered; another node becomes the
// leader, and delivers everything. The damaged copy is repaired and may lead again.
//
// B18, B37.
func TestClusterDamagedDelivery(t *testing.T) {
	t.Parallel()
	// Both with and without removal of segments that all channels have confirmed.
	for name, kept := range map[string]bool{"kept": true, "trimmed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			damagedDelivery(t, kept)
		})
	}
}

func damagedDelivery(t *testing.T, kept bool) {
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	tc.channel("t", "c")
	if kept {
		tc.channel("t", "keeper")
	}
	tc.publishMany(h, l, "t", "m", 6000, 400)
	tc.awaitEqualCopies("t", 0)
	flip(t, l, path.Join(node.TopicDir(l.e, "t"), "0"), 1)
	got := map[string]node.ID{}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(got) < len(h.acked) && ctx.Err() == nil {
		c, ok := tc.topic(tc.leader("t", 0), "t").LookupChannel("c")
		if !ok {
			continue // the leader is about to be another one
		}
		here, stop := context.WithCancel(ctx)
		err := c.Consume(here, node.ConsumeOptions{}, func(_ context.Context, m *node.Message) error {
			if got[string(m.Body)] = m.ID; len(got) == len(h.acked) {
				stop()
			}
			return nil
		})
		stop()
		if err != nil {
			t.Fatal(err)
		}
	}
	for body, id := range h.acked {
		if got[body] != id {
			t.Fatalf("%s %.40q came as %s; %d of %d came", id, body, got[body], len(got), len(h.acked))
		}
	}
	if len(got) != len(h.acked) {
		t.Errorf("%d messages came, %d were published", len(got), len(h.acked))
	}
	tc.awaitInSync("t")
	if kept {
		tc.awaitEqualCopies("t", 0)
	}
	if now := tc.leader("t", 0); now != l { // it may have been repaired at once
		handOver(t, now, l, "t", 0)
	}
	tc.leader("t", 0)
}
