package node_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/replicate"
	"penstock/segment"
)

// Settings that are changed through any node reach all nodes, survive a restart, and hold at whichever node leads. A
// quota refuses puts that other nodes forward; the next leader enforces it too; and confirmations make room.
//
// B87, B4
func TestClusterTopicSettings(t *testing.T) {
	t.Parallel()
	const quota = 20
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	leader := tc.leader("t", 0)
	other := tc.others(leader)[0]
	tc.channel("t", "c")
	if s := tc.topic(other, "t").Settings(); s.Version != 0 || s.MinISR != 0 {
		t.Errorf("a new topic has %+v", s)
	}
	want := configure(t, tc.topic(other, "t"), func(s *meta.TopicSettings) { s.QuotaCount = quota })
	everywhere := func(want meta.TopicSettings) {
		t.Helper()
		for _, m := range tc.running() {
			tc.eventually("the settings are known", func() bool { return tc.topic(m, "t").Settings() == want })
		}
	}
	everywhere(want)
	_, err := tc.topic(leader, "t").ConfigureAs(t.Context(), "", meta.TopicSettings{})
	if !errors.Is(err, errs.ErrVersion) {
		t.Errorf("the version of before: %v", err)
	}
	if _, err := tc.topic(leader, "t").ConfigureAs(t.Context(), "", meta.TopicSettings{
		Version: 1, MinISR: 4,
	}); !errors.Is(err, meta.ErrSettings) {
		t.Errorf("min_isr 4 of 3: %v", err)
	}

	fill := func() (n int) {
		t.Helper()
		for ; ; n++ {
			_, err := tc.topic(tc.others(tc.leader("t", 0))[0], "t").PublishMessage(context.Background(), node.Outgoing{
				Body: []byte("x"),
			})
			if errors.Is(err, errs.ErrQuota) {
				return n
			}
			if err != nil || n > quota {
				t.Fatalf("message %d: %v", n, err)
			}
		}
	}
	if n := fill(); n != quota {
		t.Errorf("%d messages were stored, the quota is %d", n, quota)
	}
	tc.awaitEqualCopies("t", 0)
	tc.kill(leader)
	if n := fill(); n != 0 {
		t.Errorf("the next leader stored %d more", n)
	}
	consumer := subscribe(t, tc.channel("t", "c"), 10)
	consumer.take(5)
	tc.eventually("what is confirmed makes room", func() bool {
		_, err := tc.topic(other, "t").PublishMessage(context.Background(), node.Outgoing{Body: []byte("x")})
		return err == nil
	})
	consumer.Close()

	want = configure(t, tc.topic(tc.others(leader)[0], "t"), func(s *meta.TopicSettings) {
		s.QuotaCount, s.RetentionBytes = 0, -1
	})
	tc.start(leader)
	everywhere(want)
	publish(t, tc.topic(leader, "t"), numbered("y", 2*quota, 0)...)
}

// A larger min_isr holds for every partition, so that nothing is stored while a replica is missing. A smaller min_isr
// lets puts go on at once, while the replica is still missing.
//
// B2, B87
func TestClusterMinISR(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) {
		o.Cluster.Replication.LagMaxNs = int64(time.Second)
		o.PublishTimeout = 2 * time.Second
	})
	tc.create("t", 2)
	minISR := func(want int) {
		t.Helper()
		for _, m := range tc.running() {
			tc.eventually("min_isr reaches the partitions", func() bool {
				return m.row("t", 0).State.MinISR == want && m.row("t", 1).State.MinISR == want
			})
		}
	}
	configure(t, tc.topic(tc.nodes[0], "t"), func(s *meta.TopicSettings) { s.MinISR = 3 })
	minISR(3)
	publish(t, tc.topic(tc.nodes[1], "t"), "all three have it")
	away := tc.others(tc.leader("t", 0))[0]
	tc.kill(away)
	here := tc.topic(tc.running()[0], "t")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tc.eventually("a write is refused while a replica is away", func() bool {
		_, err := here.PublishMessage(ctx, node.Outgoing{Body: []byte("x")})
		return errors.Is(err, errs.ErrNoQuorum)
	})
	configure(t, here, func(s *meta.TopicSettings) { s.MinISR = 0 })
	minISR(2)
	tc.leader("t", 0)
	tc.leader("t", 1)
	for range 4 { // both partitions
		tc.eventually("writes go on", func() bool {
			_, err := here.PublishMessage(ctx, node.Outgoing{Body: []byte("two have it")})
			return err == nil
		})
	}
	tc.start(away)
	tc.awaitInSync("t")
	tc.awaitEqualCopies("t", 0)
	tc.awaitEqualCopies("t", 1)
}

// A single node brings its settings into a cluster. A node that starts knows the settings before it has news of the
// cluster.
//
// B79, B87
func TestClusterKeepsASingleNodesSettings(t *testing.T) {
	t.Parallel()
	tc := prepareTestCluster(t, 3)
	first := tc.nodes[0]
	alone, err := node.Open(t.Context(), tc.options(first))
	if err != nil {
		t.Fatal(err)
	}
	want := configure(t, topicOf(t, alone, "t"), func(s *meta.TopicSettings) { s.QuotaCount, s.MinISR = 2, 1 })
	want.MinISR = 0 // one node said nothing of a cluster's replicas
	publish(t, topicOf(t, alone, "t"), "a", "b")
	if err := alone.Close(); err != nil {
		t.Fatal(err)
	}
	first.disk = first.disk.Kill(1)
	tc.startAll()
	for _, m := range tc.nodes {
		topic := tc.topic(m, "t")
		tc.eventually("the settings are known", func() bool { return topic.Settings() == want })
		_, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("c")})
		over := &errs.LimitError{
			Err: errs.ErrQuota, What: "with this request the number of the partition's unconfirmed messages", Value: 3,
			Most:    2,
			Setting: "quota-count", OfTopic: true,
		}
		if !errors.Is(err, errs.ErrQuota) || err.Error() != over.Error() { // one of the nodes leads, and the others forward
			t.Errorf("through %s: %v", m.name, err)
		}
	}
	want = configure(t, tc.topic(tc.nodes[1], "t"), func(s *meta.TopicSettings) {
		s.QuotaCount, s.RetentionCount = 0, -1
	})
	tc.eventually("the first node knows them", func() bool { return tc.topic(first, "t").Settings() == want })
	tc.kill(first)
	tc.start(first)
	if got := tc.topic(first, "t").Settings(); got != want {
		t.Errorf("after a start it has %+v", got)
	}
}

// retentionLimits sets the limit of each topic of the test, by the topic's name. Each limit is far below what the test
// publishes.
var retentionLimits = map[string]func(*meta.TopicSettings){
	"bytes":      func(s *meta.TopicSettings) { s.RetentionBytes = 200 << 10 },
	"count":      func(s *meta.TopicSettings) { s.RetentionCount = 130 },
	"age":        func(s *meta.TopicSettings) { s.RetentionAgeMs = 50 },
	"drop-bytes": func(s *meta.TopicSettings) { s.QuotaBytes, s.QuotaMode = 200<<10, meta.QuotaDropOldest },
	"drop-count": func(s *meta.TopicSettings) { s.QuotaCount, s.QuotaMode = 130, meta.QuotaDropOldest },
}

// newRetentionCluster makes a cluster with a topic for each of the limits, and "keeps" without a limit. Each has a
// channel and one message: a first segment without messages would go, whatever the limits are.
func newRetentionCluster(t *testing.T, names []string) *testCluster {
	t.Helper()
	tc := newTestCluster(t, 3, func(o *node.Options) { o.RetentionCount = 1 })
	for i, name := range append(names, "keeps") {
		tc.create(name, 1)
		tc.channel(name, "c")
		want := configure(t, tc.topic(tc.nodes[i%3], name), func(s *meta.TopicSettings) {
			s.RetentionCount = -1
			if limit := retentionLimits[name]; limit != nil {
				limit(s)
			}
		})
		for _, m := range tc.nodes {
			tc.eventually("the settings are known", func() bool { return tc.topic(m, name).Settings() == want })
		}
		publish(t, tc.topic(tc.nodes[i%3], name), "first")
	}
	return tc
}

// A topic's retention, and a quota that drops the oldest, remove segments on every replica, confirmed or not. A
// consumer gets an unbroken end of the log from every leader. A replica that was down while all of its messages were
// removed gets the rest of the log, and may lead then.
//
// B39, B67, B87
func TestClusterTopicRetention(t *testing.T) {
	t.Parallel()
	const body = 1500
	names := slices.Sorted(maps.Keys(retentionLimits))
	tc := newRetentionCluster(t, names)
	total := 1 // the first
	// fill publishes until the log of every replica begins behind where.
	fill := func(where map[string]segment.Offset) {
		t.Helper()
		tc.eventually("every replica trims", func() bool {
			var answers []chan result
			for i, name := range append(names, "keeps") {
				m := tc.running()[i%len(tc.running())]
				answers = append(answers, submitAll(t, tc.topic(m, name), numbered("m", 25, body))...)
			}
			for _, done := range answers {
				if r := answer(t, done); r.err != nil {
					t.Fatal(r.err)
				}
			}
			total += 25
			for _, m := range tc.running() {
				for _, name := range names {
					c, err := node.StateOf(m.e, name, 0)
					if err != nil || c.Start <= where[name] {
						return false
					}
				}
			}
			return true
		})
	}
	fill(nil)
	away := tc.others(tc.leader("age", 0))[0]
	ends := map[string]segment.Offset{}
	for _, name := range names {
		ends[name] = tc.awaitEqualCopies(name, 0).End
	}
	tc.kill(away)
	for _, name := range names {
		tc.leader(name, 0)
	}
	fill(ends)
	tc.start(away)
	for _, name := range names {
		tc.awaitInSync(name)
		tc.awaitEqualCopies(name, 0)
	}
	for _, m := range tc.nodes {
		c, err := node.CopyOf(m.e, "keeps", 0)
		if err != nil || c.Start != 0 {
			t.Errorf("%s lets bytes of a topic without a limit go: it begins at %d, %v", m.name, c.Start, err)
		}
	}
	restartAllBut(tc, away, names)
	for _, name := range names {
		tc.leader(name, 0)
		publish(t, tc.topic(tc.nodes[0], name), "last")
		got := readAll(t, tc.channel(name, "c"))
		if len(got) >= total {
			t.Errorf("%s: %d of %d messages are left", name, len(got), total)
		}
		checkNoGaps(t, name, got, node.ID(total))
	}
	tc.leader("keeps", 0)
	if n := len(readAll(t, tc.channel("keeps", "c"))); n != total {
		t.Errorf("the topic without a limit has %d of %d messages", n, total)
	}
}

// submitAll submits messages one by one, without waiting for their answers.
func submitAll(t *testing.T, topic *node.Topic, bodies []string) (answers []chan result) {
	t.Helper()
	for _, b := range bodies {
		done, err := submit(topic, time.Time{}, b)
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, done)
	}
	return answers
}

// restartAllBut restarts all nodes but one, in turn, so that this one may lead.
func restartAllBut(tc *testCluster, not *testNode, topics []string) {
	tc.t.Helper()
	for _, m := range tc.nodes {
		if m == not {
			continue
		}
		tc.stop(m)
		tc.start(m)
		tc.eventually("all are in sync", func() bool {
			return !slices.ContainsFunc(topics, func(name string) bool {
				r := m.row(name, 0)
				return r == nil || len(r.State.ISR) < 3
			})
		})
	}
}

// checkNoGaps checks that ms are consecutive messages, at least one, that end with last.
func checkNoGaps(t *testing.T, name string, got map[node.ID]string, last node.ID) {
	t.Helper()
	if len(got) == 0 {
		t.Errorf("%s: nothing is left", name)
	}
	for id := last; id > last+1-node.ID(len(got)); id-- {
		if _, ok := got[id]; !ok {
			t.Errorf("%s: %s is missing between messages that are there", name, id)
		}
	}
}

// How long a member of the ISR may lag changes at the leader while it leads.
func TestChangedLagHolds(t *testing.T) {
	t.Parallel()
	options := func(o *node.Options) { o.Cluster.Replication.LagMaxNs = int64(time.Hour) }
	tc := newTestCluster(t, 3, options)
	tc.create("t", 1)
	leader := tc.leader("t", 0)
	publish(t, tc.topic(leader, "t"), "all three have it")
	away := tc.others(leader)[0]
	tc.network.disconnectPair(leader.name, away.name, true)
	o := tc.options(leader)
	o.Cluster = &node.ClusterOptions{Replication: replicate.Config{LagMaxNs: int64(300 * time.Millisecond)}}
	if err := leader.e.Change(o); err != nil {
		t.Fatal(err)
	}
	publish(t, tc.topic(leader, "t"), "two have it")
	tc.network.disconnectPair(leader.name, away.name, false)
	tc.awaitInSync("t")
	tc.awaitEqualCopies("t", 0)
}
