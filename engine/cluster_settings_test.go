package engine_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"penstock/engine"
	"penstock/segment"
)

// Settings that are changed through any node reach all of them, are there after a restart, and hold for whoever leads:
// a quota refuses what other nodes forward, the next leader goes on with it, and what is confirmed makes room.
//
// B87, B4
func TestClusterTopicSettings(t *testing.T) {
	t.Parallel()
	const quota = 20
	tr := newTrio(t, 3)
	tr.create("t", 1)
	leader := tr.leader("t", 0)
	other := tr.others(leader)[0]
	tr.channel("t", "c")
	if s := tr.topic(other, "t").Settings(); s.Version != 0 || s.MinISR != 2 {
		t.Errorf("a new topic has %+v", s)
	}
	want := configure(t, tr.topic(other, "t"), func(s *engine.TopicSettings) { s.QuotaCount = quota })
	everywhere := func(want engine.TopicSettings) {
		t.Helper()
		for _, m := range tr.up() {
			tr.eventually("the settings are known", func() bool { return tr.topic(m, "t").Settings() == want })
		}
	}
	everywhere(want)
	if _, err := tr.topic(leader, "t").Configure(t.Context(), engine.TopicSettings{}); !errors.Is(err, engine.ErrVersion) {
		t.Errorf("the version of before: %v", err)
	}
	if _, err := tr.topic(leader, "t").Configure(t.Context(), engine.TopicSettings{
		Version: 1, MinISR: 4,
	}); !errors.Is(err, engine.ErrTopicSettings) {
		t.Errorf("min_isr 4 of 3: %v", err)
	}

	fill := func() (n int) {
		t.Helper()
		for ; ; n++ {
			_, err := tr.topic(tr.others(tr.leader("t", 0))[0], "t").Publish(context.Background(), []byte("x"))
			if errors.Is(err, engine.ErrQuota) {
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
	tr.equal("t", 0)
	tr.kill(leader)
	if n := fill(); n != 0 {
		t.Errorf("the next leader stored %d more", n)
	}
	consumer := sit(t, tr.channel("t", "c"), 10)
	consumer.take(5)
	tr.eventually("what is confirmed makes room", func() bool {
		_, err := tr.topic(other, "t").Publish(context.Background(), []byte("x"))
		return err == nil
	})
	consumer.Close()

	want = configure(t, tr.topic(tr.others(leader)[0], "t"), func(s *engine.TopicSettings) {
		s.QuotaCount, s.RetentionBytes = 0, -1
	})
	tr.start(leader)
	everywhere(want)
	publish(t, tr.topic(leader, "t"), numbered("y", 2*quota, 0)...)
}

// A larger min_isr is demanded of every partition, so that nothing is stored while a replica is missing; a smaller one
// lets writes go on at once, with the replica still away.
//
// B2, B87
func TestClusterMinISR(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3, func(o *engine.Options) {
		o.Cluster.Replication.LagMaxNs = int64(time.Second)
		o.PublishTimeout = 2 * time.Second
	})
	tr.create("t", 2)
	minISR := func(want int) {
		t.Helper()
		for _, m := range tr.up() {
			tr.eventually("min_isr reaches the partitions", func() bool {
				return m.row("t", 0).State.MinISR == want && m.row("t", 1).State.MinISR == want
			})
		}
	}
	configure(t, tr.topic(tr.nodes[0], "t"), func(s *engine.TopicSettings) { s.MinISR = 3 })
	minISR(3)
	publish(t, tr.topic(tr.nodes[1], "t"), "all three have it")
	away := tr.others(tr.leader("t", 0))[0]
	tr.kill(away)
	here := tr.topic(tr.up()[0], "t")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tr.eventually("a write is refused while a replica is away", func() bool {
		_, err := here.Publish(ctx, []byte("x"))
		return errors.Is(err, engine.ErrNoQuorum)
	})
	configure(t, here, func(s *engine.TopicSettings) { s.MinISR = 0 })
	minISR(2)
	tr.leader("t", 0)
	tr.leader("t", 1)
	for range 4 { // both partitions
		tr.eventually("writes go on", func() bool {
			_, err := here.Publish(ctx, []byte("two have it"))
			return err == nil
		})
	}
	tr.start(away)
	tr.whole("t")
	tr.equal("t", 0)
	tr.equal("t", 1)
}

// A single node's settings go with it into a cluster, and a node that starts knows them before it has heard of the
// cluster's.
//
// B79, B87
func TestClusterKeepsASingleNodesSettings(t *testing.T) {
	t.Parallel()
	tr := prepareTrio(t, 3)
	first := tr.nodes[0]
	alone, err := engine.Open(t.Context(), tr.options(first))
	if err != nil {
		t.Fatal(err)
	}
	want := configure(t, topicOf(t, alone, "t"), func(s *engine.TopicSettings) { s.QuotaCount, s.MinISR = 2, 1 })
	want.MinISR = 0 // one node said nothing of a cluster's replicas
	publish(t, topicOf(t, alone, "t"), "a", "b")
	if err := alone.Close(); err != nil {
		t.Fatal(err)
	}
	first.disk = first.disk.Kill(1)
	tr.startAll()
	for _, m := range tr.nodes {
		topic := tr.topic(m, "t")
		tr.eventually("the settings are known", func() bool { return topic.Settings() == want })
		if _, err := topic.Publish(t.Context(), []byte("c")); !errors.Is(err, engine.ErrQuota) {
			t.Errorf("through %s: %v", m.name, err)
		}
	}
	want = configure(t, tr.topic(tr.nodes[1], "t"), func(s *engine.TopicSettings) {
		s.QuotaCount, s.RetentionCount = 0, -1
	})
	tr.eventually("the first node knows them", func() bool { return tr.topic(first, "t").Settings() == want })
	tr.kill(first)
	tr.start(first)
	if got := tr.topic(first, "t").Settings(); got != want {
		t.Errorf("after a start it has %+v", got)
	}
}

// retentionLimits are topics by what bounds them, each to far less than their test publishes.
var retentionLimits = map[string]func(*engine.TopicSettings){
	"bytes":      func(s *engine.TopicSettings) { s.RetentionBytes = 200 << 10 },
	"count":      func(s *engine.TopicSettings) { s.RetentionCount = 130 },
	"age":        func(s *engine.TopicSettings) { s.RetentionAgeMs = 50 },
	"drop-bytes": func(s *engine.TopicSettings) { s.QuotaBytes, s.QuotaMode = 200<<10, engine.QuotaDropOldest },
	"drop-count": func(s *engine.TopicSettings) { s.QuotaCount, s.QuotaMode = 130, engine.QuotaDropOldest },
}

// retentionTrio has a topic for each of the limits, one without a limit, and a channel of each.
func retentionTrio(t *testing.T, names []string) *trio {
	t.Helper()
	tr := newTrio(t, 3, func(o *engine.Options) {
		o.RetentionCount = 1
		o.Cluster.Replication.LagMaxNs = int64(time.Second)
	})
	tr.create("keeps", 1)
	configure(t, tr.topic(tr.nodes[0], "keeps"), func(s *engine.TopicSettings) { s.RetentionCount = -1 })
	tr.channel("keeps", "c")
	for i, name := range names {
		tr.create(name, 1)
		tr.channel(name, "c")
		configure(t, tr.topic(tr.nodes[i%3], name), func(s *engine.TopicSettings) {
			s.RetentionCount = -1
			retentionLimits[name](s)
		})
	}
	return tr
}

// A topic's retention and a quota that drops the oldest let segments go on every replica, unconfirmed or not; a
// consumer gets an unbroken end of the log from whoever leads. A replica that was away while everything that it had
// went gets what is left, and may lead then.
//
// B39, B67, B87
func TestClusterTopicRetention(t *testing.T) {
	t.Parallel()
	const body = 1500
	names := slices.Sorted(maps.Keys(retentionLimits))
	tr := retentionTrio(t, names)
	total := 0
	// fill publishes until every replica's log begins behind where.
	fill := func(where map[string]segment.Offset) {
		t.Helper()
		tr.eventually("every replica trims", func() bool {
			for i, name := range append(names, "keeps") {
				publish(t, tr.topic(tr.up()[i%len(tr.up())], name), numbered("m", 25, body)...)
			}
			total += 25
			for _, m := range tr.up() {
				for _, name := range names {
					c, err := engine.CopyOf(m.e, name, 0)
					if err != nil || c.Start <= where[name] {
						return false
					}
				}
			}
			return true
		})
	}
	fill(nil)
	away := tr.others(tr.leader("age", 0))[0]
	ends := map[string]segment.Offset{}
	for _, name := range names {
		ends[name] = tr.equal(name, 0).End
	}
	tr.kill(away)
	for _, name := range names {
		tr.leader(name, 0)
	}
	fill(ends)
	tr.start(away)
	for _, name := range names {
		tr.whole(name)
		tr.equal(name, 0)
	}
	for _, m := range tr.nodes {
		c, err := engine.CopyOf(m.e, "keeps", 0)
		if err != nil || c.Start != 0 {
			t.Errorf("%s lets bytes of a topic without a limit go: it begins at %d, %v", m.name, c.Start, err)
		}
	}
	restartAllBut(tr, away, names)
	for _, name := range names {
		tr.leader(name, 0)
		publish(t, tr.topic(tr.nodes[0], name), "last")
		got := readAll(t, tr.channel(name, "c"))
		if len(got) >= total {
			t.Errorf("%s: %d of %d messages are left", name, len(got), total)
		}
		unbroken(t, name, got, engine.ID(total))
	}
	tr.leader("keeps", 0)
	if n := len(readAll(t, tr.channel("keeps", "c"))); n != total {
		t.Errorf("the topic without a limit has %d of %d messages", n, total)
	}
}

// restartAllBut restarts the nodes but one in turn, so that it may lead then.
func restartAllBut(tr *trio, not *member, topics []string) {
	tr.t.Helper()
	for _, m := range tr.nodes {
		if m == not {
			continue
		}
		tr.stop(m)
		tr.start(m)
		tr.eventually("all are in sync", func() bool {
			return !slices.ContainsFunc(topics, func(name string) bool {
				r := m.row(name, 0)
				return r == nil || len(r.State.ISR) < 3
			})
		})
	}
}

// unbroken wants messages up to last, at least one, with none missing between.
func unbroken(t *testing.T, name string, got map[engine.ID]string, last engine.ID) {
	t.Helper()
	if len(got) == 0 {
		t.Errorf("%s: nothing is left", name)
	}
	for id := last; id > last+1-engine.ID(len(got)); id-- {
		if _, ok := got[id]; !ok {
			t.Errorf("%s: %s is missing between messages that are there", name, id)
		}
	}
}
