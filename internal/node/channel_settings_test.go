package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/netproto"
)

// configureChannel changes a channel's settings.
func configureChannel(t testing.TB, c *node.Channel, change func(*fold.ChannelSettings)) fold.ChannelSettings {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := c.ReadSettings(ctx)
	if err != nil {
		t.Fatal(err)
	}
	change(&s)
	s, err = c.Configure(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// publishWith stores a message with headers.
func publishWith(t testing.TB, topic *node.Topic, body string, nameValues ...string) node.ID {
	t.Helper()
	id, err := topic.PublishMessage(context.Background(), node.Outgoing{
		Body: []byte(body), Headers: headers(nameValues...),
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestConfigure(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	if s := ch.Settings(); s.Version != 0 {
		t.Errorf("before: %+v", s)
	}
	first := configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts, s.RatePerSecond = 3, 500 })
	if first.Version != 1 || ch.Settings().MaxAttempts != 3 {
		t.Errorf("after: %+v, %+v", first, ch.Settings())
	}
	stale := first
	stale.Version, stale.MaxAttempts = 0, 9
	if _, err := ch.Configure(ctxBg, stale); !errors.Is(err, errs.ErrVersion) {
		t.Errorf("a change of old settings: %v", err)
	}
	for name, bad := range map[string]fold.ChannelSettings{
		"sample rate": {Version: 1, SampleRate: 100},
		"pattern": {Version: 1, Filter: fold.Filter{Rules: []fold.Rule{
			{Header: "h", Match: fold.MatchRegexp, Pattern: "("},
		}}},
		"another key than places":    {Version: 1, Order: fold.OrderKey, KeyHeader: "customer"},
		"the topic's own dead":       {Version: 1, MaxAttempts: 2, DeadLetter: "t"},
		"a topic that cannot be":     {Version: 1, MaxAttempts: 2, DeadLetter: "a b"},
		"an ephemeral topic of dead": {Version: 1, MaxAttempts: 2, DeadLetter: "a#ephemeral"},
	} {
		if _, err := ch.Configure(ctxBg, bad); !errors.Is(err, errs.ErrSettings) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ephemeral := channelOf(t, topic, "x#ephemeral")
	if _, err := ephemeral.Configure(ctxBg, fold.ChannelSettings{}); !errors.Is(err, errs.ErrSettings) {
		t.Errorf("an ephemeral channel: %v", err)
	}
	second := configureChannel(t, ch, func(s *fold.ChannelSettings) { s.Order = fold.OrderKey })
	if second.Version != 2 || second.RatePerSecond != 500 {
		t.Errorf("the second change: %+v", second)
	}
	e = openOnDisk(t, disk.Crash(1))
	topic, _ = e.Catalog().LookupTopic("t")
	ch, _ = topic.LookupChannel("c")
	if s := ch.Settings(); s.Version != 2 || s.Order != fold.OrderKey || s.MaxAttempts != 3 {
		t.Errorf("after a power cut: %+v", s)
	}
}

// If several callers change the same settings at the same time, one wins and the others get ErrVersion. Every leader
// has the winner's settings, and so have the next leaders.
func TestClusterConfigure(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	const partitions = 4
	tc.create("t", partitions)
	tc.channel("t", "c")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var handles []*node.Channel
	for _, m := range tc.nodes {
		c, err := tc.topic(m, "t").Channel(ctx, "c")
		if err != nil {
			t.Fatal(err)
		}
		handles = append(handles, c)
	}
	for round := range 5 {
		var wg sync.WaitGroup
		won := make([]bool, len(handles))
		for i, c := range handles {
			wg.Go(func() {
				_, err := c.Configure(ctx, fold.ChannelSettings{Version: uint64(round), RatePerSecond: uint32(100*round + i + 1)})
				switch {
				case err == nil:
					won[i] = true
				case !errors.Is(err, errs.ErrVersion):
					t.Errorf("round %d, node %d: %v", round, i, err)
				}
			})
		}
		wg.Wait()
		winner := slices.Index(won, true)
		if winner < 0 || slices.Contains(won[winner+1:], true) {
			t.Fatalf("round %d: %v won", round, won)
		}
		for p := range partitions {
			s := tc.channelAt(tc.leader("t", p), "t", "c").Settings()
			if s.Version != uint64(round+1) || s.RatePerSecond != uint32(100*round+winner+1) {
				t.Errorf("round %d: the leader of partition %d has %+v", round, p, s)
			}
		}
	}
	want := handles[0].Settings()
	tc.kill(tc.leader("t", 0))
	for p := range partitions {
		l := tc.leader("t", p)
		tc.eventually(fmt.Sprintf("the new leader of partition %d has the settings", p), func() bool {
			return tc.channelAt(l, "t", "c").Settings().RatePerSecond == want.RatePerSecond
		})
	}
}

// A change that only the leader of partition 0 got reaches the other leaders, also when the first attempt to tell them
// is lost. Otherwise these leaders would go on with the old settings until the next change of a leadership.
func TestClusterSettingsReachEveryLeader(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { o.PublishTimeout = time.Second })
	tc.create("t", 2)
	tc.channel("t", "c")
	first, second := tc.leader("t", 0), tc.leader("t", 1)
	if first == second {
		t.Fatal("one node leads both partitions")
	}
	var lost atomic.Int32 // requests of the first leader to the second: the change itself, and the first comparison
	tc.network.rules(func(from, to string, kind netproto.Type) int {
		if from == first.name && to == second.name && kind == netproto.TypeForwardOp && lost.Load() < 2 {
			lost.Add(1)
			return 0
		}
		return 1
	})
	defer tc.network.rules(nil)
	_, err := tc.channelAt(first, "t", "c").Configure(t.Context(), fold.ChannelSettings{MaxAttempts: 7})
	if !errors.Is(err, errs.ErrNoLeader) {
		t.Fatalf("the change was to reach one leader only: %v", err)
	}
	tc.eventually("the other leader has the settings", func() bool {
		return tc.channelAt(second, "t", "c").Settings().MaxAttempts == 7
	})
	if n := lost.Load(); n != 2 {
		t.Errorf("%d requests were lost, want the change and the first comparison", n)
	}
}

// A change was stored in partition 1 and lost in partition 0, and a caller who knew only the version before made
// another one. Then the logs have different settings under one version. The leaders notice it and end with those of
// partition 0, under a new version.
func TestClusterSettingsDifferUnderOneVersion(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 2)
	tc.channel("t", "c")
	first, second := tc.leader("t", 0), tc.leader("t", 1)
	if first == second {
		t.Fatal("one node leads both partitions")
	}
	c := tc.channelAt(first, "t", "c")
	if err := node.ConfigureOnly(t.Context(), c, 1, fold.ChannelSettings{Version: 1, MaxAttempts: 5}); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Configure(t.Context(), fold.ChannelSettings{MaxAttempts: 7}); err != nil || s.Version != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	if s := tc.channelAt(second, "t", "c").Settings(); s.Version != 1 || s.MaxAttempts != 5 {
		t.Fatalf("the logs do not differ: %+v", s)
	}
	for _, n := range []*testNode{first, second} {
		tc.eventually("all leaders have the settings of partition 0", func() bool {
			s := tc.channelAt(n, "t", "c").Settings()
			return s.MaxAttempts == 7 && s.Version == 2
		})
	}
}

// Two changes that were not answered OK are stored in partition 1 and lost in partition 0. A caller who knows only the
// version before them makes another change and gets an OK. The comparison that follows prefers the highest version, so
// the settings of the changes without an OK come back, on every leader: see Channel.Configure.
func TestClusterSettingsOfUnansweredChangesComeBack(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 2)
	tc.channel("t", "c")
	first, second := tc.leader("t", 0), tc.leader("t", 1)
	c := tc.channelAt(first, "t", "c")
	if first == second {
		t.Fatal("one node leads both partitions")
	}
	if err := node.ConfigureOnly(t.Context(), c, 1, fold.ChannelSettings{Version: 2, MaxAttempts: 5}); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Configure(t.Context(), fold.ChannelSettings{MaxAttempts: 7}); err != nil || s.Version != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, n := range []*testNode{first, second} {
		tc.eventually("all leaders have the settings with the highest version", func() bool {
			s := tc.channelAt(n, "t", "c").Settings()
			return s.MaxAttempts == 5 && s.Version == 2
		})
	}
}

// Filters by header: messages that a channel does not want count as confirmed, deferred ones too, and other channels
// get them.
//
// B60, B62.
func TestFilter(t *testing.T) {
	t.Parallel()
	publishAll := func(topic *node.Topic) {
		for _, kind := range []string{"order", "order-eu", "refund", "x/y", ""} {
			if kind == "" {
				publishWith(t, topic, "none")
			} else {
				publishWith(t, topic, kind, "kind", kind, "n", "1")
			}
		}
	}
	rule := func(m fold.Match, pattern string) fold.Rule {
		return fold.Rule{Header: "kind", Match: m, Pattern: pattern}
	}
	for _, c := range []struct {
		name string
		f    fold.Filter
		want string
	}{
		{"exact", fold.Filter{Rules: []fold.Rule{rule(fold.MatchExact, "order")}}, "order"},
		{"prefix", fold.Filter{Rules: []fold.Rule{rule(fold.MatchPrefix, "order")}}, "order order-eu"},
		{"glob", fold.Filter{Rules: []fold.Rule{rule(fold.MatchGlob, "*e?u*")}}, "refund"},
		{"regexp", fold.Filter{Rules: []fold.Rule{rule(fold.MatchRegexp, "^re|u$")}}, "order-eu refund"},
		{"exists", fold.Filter{Rules: []fold.Rule{rule(fold.MatchExists, "")}}, "order order-eu refund x/y"},
		{"inverse", fold.Filter{Invert: true, Rules: []fold.Rule{rule(fold.MatchPrefix, "order")}}, "refund x/y none"},
		{"any of", fold.Filter{Rules: []fold.Rule{
			rule(fold.MatchExact, "order"), rule(fold.MatchExact, "refund"),
		}}, "order refund"},
		{"all of", fold.Filter{All: true, Rules: []fold.Rule{
			rule(fold.MatchPrefix, "o"), rule(fold.MatchRegexp, "eu"),
		}}, "order-eu"},
		{"everything", fold.Filter{}, "order order-eu refund x/y none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := openWith(t, inDir(t.TempDir()))
			topic := topicOf(t, e, "t")
			ch, other := channelOf(t, topic, "c"), channelOf(t, topic, "other")
			configureChannel(t, ch, func(s *fold.ChannelSettings) { s.Filter = c.f })
			publishAll(topic)
			if _, err := topic.PublishMessage(ctxBg, node.Outgoing{
				Body: []byte("later"), Headers: headers("kind", "later"), Delay: 20 * time.Millisecond,
			}); err != nil {
				t.Fatal(err)
			}
			s := subscribe(t, ch, 10)
			want := strings.Fields(c.want)
			count := len(want)
			if c.f.Invert || len(c.f.Rules) == 0 || c.name == "exists" {
				count++ // the deferred one, which comes when it is due
			}
			got := slices.DeleteFunc(s.take(count), func(body string) bool { return body == "later" })
			if !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			eventually(t, "all is confirmed", func() bool {
				st := channelStats(t, ch)
				return st.Depth == 0 && st.InFlightCount == 0 && st.DeferredCount == 0
			})
			s.expectNothing("the rest is not wanted")
			if got := subscribe(t, other, 10).take(6); len(got) != 6 {
				t.Errorf("the other channel got %v", got)
			}
		})
	}
}

// A rate and a sample apply to one channel only.
//
// B62.
func TestRateAndSample(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	slow, some, all := channelOf(t, topic, "slow"), channelOf(t, topic, "some"), channelOf(t, topic, "all")
	const rate, n = 100, 400
	configureChannel(t, slow, func(s *fold.ChannelSettings) { s.RatePerSecond = rate })
	configureChannel(t, some, func(s *fold.ChannelSettings) { s.SampleRate = 25 })
	publish(t, topic, numbered("m", n, 0)...)
	began := time.Now()
	s := subscribe(t, slow, 1000)
	if got := readAll(t, all); len(got) != n {
		t.Errorf("the third channel got %d messages", len(got))
	}
	if got := len(readAll(t, some)); got < n/8 || got > n/2 {
		t.Errorf("%d of %d are no sample of 25 %%", got, n)
	}
	s.take(rate)
	s.take(rate / 2)
	if took := time.Since(began); took < 450*time.Millisecond {
		t.Errorf("%d messages in %v, at %d a second with at most one second's worth at once", rate*3/2, took, rate)
	}
	configureChannel(t, slow, func(s *fold.ChannelSettings) { s.RatePerSecond = 0 })
	s.take(n - rate*3/2)
}

// Pending and deferred messages can be listed without changing them.
func TestLists(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	ids := publish(t, topic, numbered("m", 6, 0)...)
	began := time.Now()
	for _, d := range []time.Duration{3 * time.Hour, time.Hour, 2 * time.Hour} {
		if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte(d.String()), Delay: d}); err == nil {
			continue
		} else {
			t.Fatal(err)
		}
	}
	s := subscribe(t, ch, 4, node.ConsumerOptions{Label: "the client"})
	for range 4 {
		s.next()
	}
	got, err := ch.Pending(ctxBg, 3)
	if err != nil || len(got) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, m := range got {
		if m.ID != ids[i] || m.Client != "the client" || m.Attempts != 1 ||
			m.Since.Before(began.Add(-time.Second)) || time.Until(m.Since) > time.Second {
			t.Errorf("in flight, %d: %+v", i, m)
		}
	}
	waiting, err := ch.DeferredMessages(ctxBg, 0)
	if err != nil || len(waiting) != 3 {
		t.Fatalf("%+v, %v", waiting, err)
	}
	for i, m := range waiting {
		if d := m.Due.Sub(began).Round(time.Hour); d != time.Duration(i+1)*time.Hour || m.Attempts != 0 {
			t.Errorf("deferred, %d: %+v", i, m)
		}
	}
}

func TestClusterLists(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	tc.channel("t", "c")
	topic := tc.topic(tc.nodes[0], "t")
	publish(t, topic, numbered("m", 9, 0)...)
	if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("later"), Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	for p := range 3 {
		l := tc.leader("t", p)
		subscribe(t, tc.channelAt(l, "t", "c"), 2, node.ConsumerOptions{Label: fmt.Sprint("client ", p)})
	}
	c, err := tc.topic(tc.nodes[2], "t").Channel(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	tc.eventually("all that is handed out is listed", func() bool {
		got, err := c.Pending(t.Context(), 100)
		return err == nil && len(got) == 6 && strings.HasPrefix(got[0].Client, "client ")
	})
	waiting, err := c.DeferredMessages(t.Context(), 100)
	if err != nil || len(waiting) != 1 {
		t.Errorf("deferred: %+v, %v", waiting, err)
	}
}

// Tagged messages wait for consumers of their tag while one is subscribed; otherwise they go to consumers without a
// tag. Consumers with a tag get no other messages, and no message is lost when they come and go.
//
// B59.
func TestTags(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	all := subscribe(t, ch, 0)
	red := subscribe(t, ch, 100, node.ConsumerOptions{Tag: "red"})
	for i := range 12 {
		publishWith(t, topic, fmt.Sprint([]string{"red", "blue", "none"}[i%3], i),
			[]string{"tag", "tag", "other"}[i%3], []string{"red", "blue", "red"}[i%3])
	}
	if err := all.Ready(100); err != nil {
		t.Fatal(err)
	}
	all.Pump()
	for _, body := range red.take(4) {
		if !strings.HasPrefix(body, "red") {
			t.Errorf("the consumer of red got %s", body)
		}
	}
	for _, body := range all.take(8) {
		if strings.HasPrefix(body, "red") {
			t.Errorf("the consumer without a tag got %s", body)
		}
	}
	if err := red.Ready(0); err != nil {
		t.Fatal(err)
	}
	publishWith(t, topic, "red again", "tag", "red")
	all.Pump()
	all.expectNothing("a consumer of the tag is there, without RDY")
	red.Close()
	if got := all.take(1); got[0] != "red again" {
		t.Errorf("%v", got)
	}
	red = subscribe(t, ch, 0, node.ConsumerOptions{Tag: "red"})
	publishWith(t, topic, "red at last", "tag", "red")
	all.expectNothing("a new consumer of the tag is there")
	red.StopDelivery()
	if got := all.take(1); got[0] != "red at last" {
		t.Errorf("%v", got)
	}
}

// A rate holds for the whole channel, however its partitions are spread over the nodes. A filter holds at the next
// leaders, too.
//
// B60, B62.
func TestClusterFilterAndRate(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	const partitions, rate = 3, 150
	tc.create("t", partitions)
	c := tc.channel("t", "c")
	configureChannel(t, c, func(s *fold.ChannelSettings) {
		s.RatePerSecond = rate
		s.Filter = fold.Filter{Rules: []fold.Rule{{Header: "kind", Match: fold.MatchExact, Pattern: "x"}}}
	})
	topic := tc.topic(tc.nodes[0], "t")
	for i := range 450 {
		publishWith(t, topic, fmt.Sprint("m", i), "kind", []string{"x", "y", "z"}[i/3%3])
	}
	began := time.Now()
	got := map[string]bool{}
	seats := map[string]*testClient{}
	for len(got) < 150 {
		for p := range partitions {
			l := tc.leader("t", p)
			if seats[l.name] == nil {
				seats[l.name] = subscribe(t, tc.channelAt(l, "t", "c"), 100)
			}
		}
		for _, s := range seats {
			for m, ok := s.poll(time.Millisecond); ok; m, ok = s.poll(0) {
				got[m.body] = true
				s.finish(m)
			}
		}
		if time.Since(began) > patience {
			t.Fatalf("%d messages", len(got))
		}
	}
	if took := time.Since(began); took < 900*time.Millisecond {
		t.Errorf("150 messages in %v, at %d a second", took, rate)
	}
	for _, s := range seats {
		s.Close()
	}
	tc.kill(tc.leader("t", 0))
	publishWith(t, tc.topic(tc.running()[0], "t"), "unwanted", "kind", "y")
	id := publishWith(t, tc.topic(tc.running()[0], "t"), "wanted", "kind", "x")
	s := subscribe(t, tc.channelAt(tc.leader("t", int(id.Partition())), "t", "c"), 10)
	for m := s.next(); m.id != id; m = s.next() {
		if !got[m.body] {
			t.Errorf("%s came", m.body)
		}
		s.finish(m)
	}
}
