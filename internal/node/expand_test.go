package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
)

// refusedSettings are changes that a topic with two partitions and settings of version 1 must refuse.
var refusedSettings = map[string]meta.TopicSettings{
	"fewer partitions":    {Version: 1, Partitions: 1},
	"partitions below 0":  {Version: 1, Partitions: -1},
	"too many partitions": {Version: 1, Partitions: node.MaxPartitions + 1},
	"another durability":  {Version: 1, Durability: "none"},
}

func refuseSettings(t *testing.T, topic *node.Topic) {
	t.Helper()
	before := topic.Settings()
	for name, s := range refusedSettings {
		if _, err := topic.ConfigureAs(t.Context(), "", s); !errors.Is(err, meta.ErrSettings) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now := topic.Settings(); now != before {
		t.Errorf("refused changes leave %+v, not %+v", now, before)
	}
}

// A single node has no other node to ask for the channels of a topic whose partitions look as if they lacked them. Such
// a topic has settings, several partitions, and no channel yet.
func TestFirstChannelAfterSettings(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic, err := e.CreateTopic(t.Context(), "t", 3)
	if err != nil {
		t.Fatal(err)
	}
	configure(t, topic, func(s *meta.TopicSettings) { s.QuotaCount = 1000 })
	c := channelOf(t, topic, "c")
	publish(t, topic, numbered("m", 9, 0)...)
	if got := readAll(t, c); len(got) != 9 {
		t.Errorf("%d messages came", len(got))
	}
}

// The number of partitions is one of the topic's settings. It can be raised, takes effect at once, and survives
// restarts. Every channel gets every message of the new partitions, with its settings and its pause; ephemeral channels
// too. Fewer partitions are refused, and so is any durability but the only one.
//
// B87
func TestPartitionsAsASetting(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	if s := topic.Settings(); s != (meta.TopicSettings{Partitions: 1, Durability: meta.DurabilitySynced}) {
		t.Errorf("a new topic has %+v", s)
	}
	a, b := channelOf(t, topic, "a"), channelOf(t, topic, "b")
	x := channelOf(t, topic, "x#ephemeral")
	if _, err := b.Configure(t.Context(), fold.ChannelSettings{MaxAttempts: 7}); err != nil {
		t.Fatal(err)
	}
	if err := b.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	publish(t, topic, numbered("before", 3, 0)...)
	s := configure(t, topic, func(s *meta.TopicSettings) {
		s.Partitions, s.QuotaCount, s.Durability = 4, 1000, meta.DurabilitySynced
	})
	if s.Partitions != 4 || s.Version != 1 || s.QuotaCount != 1000 || topic.Partitions() != 4 || topic.Settings() != s {
		t.Fatalf("afterwards it has %+v and %d partitions", s, topic.Partitions())
	}
	refuseSettings(t, topic)
	publish(t, topic, numbered("after", 40, 0)...)
	for c, want := range map[*node.Channel]int{a: 43, x: 43} {
		if got := readAll(t, c); len(got) != want || parts(got) != 4 {
			t.Errorf("channel %s has %d messages of %d partitions", c.Name(), len(got), parts(got))
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk.Kill(1))
	topic, _ = e.Catalog().LookupTopic("t")
	if topic.Settings() != s {
		t.Fatalf("after a restart it has %+v", topic.Settings())
	}
	b, _ = topic.LookupChannel("b")
	if st := channelStats(t, b); !st.Paused || st.Depth != 43 || b.Settings().MaxAttempts != 7 {
		t.Errorf("channel b: %+v, %+v", st, b.Settings())
	}
	if err := b.Unpause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, b); len(got) != 43 || parts(got) != 4 {
		t.Errorf("channel b has %d messages of %d partitions", len(got), parts(got))
	}
	a, _ = topic.LookupChannel("a")
	if got := readAll(t, a); len(got) != 0 {
		t.Errorf("channel a had confirmed them, and gets %v", got)
	}
	if err := topic.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	configure(t, topic, func(s *meta.TopicSettings) { s.Partitions = 6 })
	publish(t, topic, numbered("held", 30, 0)...)
	if st := channelStats(t, a); st.Depth != 0 {
		t.Errorf("a paused topic hands over %d messages of its new partitions", st.Depth)
	}
	if err := topic.Unpause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, a); len(got) != 30 || parts(got) != 6 {
		t.Errorf("then channel a has %d messages of %d partitions", len(got), parts(got))
	}
}

// parts returns how many partitions the messages belong to.
func parts(got map[node.ID]string) int {
	of := map[uint32]bool{}
	for id := range got {
		of[id.Partition()] = true
	}
	return len(of)
}

// Wherever a crash happens while a topic gets partitions, afterwards it has the old number or the new one, and the new
// one if the caller was answered OK. Nothing is lost, every channel gets what is published then in every partition, and
// after another restart all confirmations still hold.
//
// B87, B43
func TestPartitionsCrash(t *testing.T) {
	t.Parallel()
	const points = 24
	told := 0
	for after := range points {
		disk := newDisk()
		e := openOnDisk(t, disk)
		topic := topicOf(t, e, "t")
		channelOf(t, topic, "a")
		channelOf(t, topic, "b")
		publish(t, topic, "kept")
		disk.CrashAt(disk.Ops() + after)
		_, err := topic.ConfigureAs(t.Context(), "", meta.TopicSettings{Partitions: 4})
		if err == nil {
			told++
		}
		_ = e.Close() // the disk is gone, most often
		disk = disk.Crash(uint64(after))
		e = openOnDisk(t, disk)
		topic, _ = e.Catalog().LookupTopic("t")
		s := topic.Settings()
		if s.Partitions == 1 && (err == nil || s.Version != 0) || s.Partitions == 4 && s.Version != 1 ||
			s.Partitions != 1 && s.Partitions != 4 {
			t.Fatalf("a crash after %d operations leaves %+v, told %v", after, s, err)
		}
		publish(t, topic, numbered("m", 12, 0)...)
		for _, name := range []string{"a", "b"} {
			c, _ := topic.LookupChannel(name)
			if got := readAll(t, c); len(got) != 13 || parts(got) != s.Partitions {
				t.Errorf("after a crash at %d channel %s has %d messages of %d partitions", after, name, len(got), parts(got))
			}
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		e = openOnDisk(t, disk.Kill(1))
		topic, _ = e.Catalog().LookupTopic("t")
		for _, name := range []string{"a", "b"} {
			c, _ := topic.LookupChannel(name)
			if got := readAll(t, c); len(got) != 0 {
				t.Errorf("after a crash at %d channel %s forgot that it confirmed %v", after, name, got)
			}
		}
		if s.Partitions == 1 {
			configure(t, topic, func(s *meta.TopicSettings) { s.Partitions = 4 })
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if told == 0 || told == points {
		t.Errorf("%d of %d changes were told done: the crashes do not fall into the change", told, points)
	}
}

// In a cluster, the topic can be expanded through any node, and the version decides between two changes. Every channel
// gets every message of the new partitions, although it had no consumer and some of the leaders had no partition of the
// topic before.
//
// B87, B79
func TestClusterPartitionsAsASetting(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	leader := tc.leader("t", 0)
	other := tc.others(leader)[0]
	for _, name := range []string{"a", "b"} {
		tc.channel("t", name)
	}
	b := tc.channel("t", "b")
	if _, err := b.Configure(t.Context(), fold.ChannelSettings{MaxAttempts: 7}); err != nil {
		t.Fatal(err)
	}
	if err := b.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := configure(t, tc.topic(other, "t"), func(s *meta.TopicSettings) { s.Partitions, s.QuotaCount = 6, 1000 })
	if want.Partitions != 6 || want.MinISR != 0 || want.Version != 1 || want.Durability != meta.DurabilitySynced {
		t.Fatalf("afterwards it has %+v", want)
	}
	h := newAckLog()
	for i := range 60 { // at once, when the new partitions have just got their leaders
		if err := h.publish(context.Background(), tc.topic(tc.nodes[i%3], "t"), fmt.Sprint("m", i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range tc.nodes {
		topic := tc.topic(m, "t")
		tc.eventually("the settings are known", func() bool { return topic.Settings() == want })
		refuseSettings(t, topic)
		if _, err := topic.ConfigureAs(t.Context(), "", meta.TopicSettings{Partitions: 8}); !errors.Is(err, errs.ErrVersion) {
			t.Errorf("the version of before: %v", err)
		}
	}
	tc.awaitInSync("t")
	leaders := map[*testNode]bool{}
	for n := range 6 {
		m := tc.leader("t", n)
		leaders[m] = true
		tc.eventually("the leaders have both channels", func() bool {
			return slices.Equal(namesOf(tc.topic(m, "t")), []string{"a", "b"})
		})
	}
	if len(leaders) != 3 {
		t.Fatalf("%d nodes lead", len(leaders))
	}
	for _, m := range tc.nodes {
		c, _ := tc.topic(m, "t").LookupChannel("b")
		tc.eventually("the channel is paused everywhere", func() bool {
			return channelStats(t, c).Paused && c.Settings().MaxAttempts == 7
		})
	}
	if err := b.Unpause(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		got := map[node.ID]string{}
		for _, m := range tc.nodes {
			c, _ := tc.topic(m, "t").LookupChannel(name)
			maps.Copy(got, readAll(t, c))
		}
		if len(got) != 60 || parts(got) != 6 {
			t.Errorf("channel %s has %d messages of %d partitions", name, len(got), parts(got))
		}
	}
	expandAgain(tc, other, want)
}

// expandAgain adds a partition through the other API, which changes the version that a change of the settings must
// name.
func expandAgain(tc *testCluster, other *testNode, want meta.TopicSettings) {
	t := tc.t
	t.Helper()
	if err := other.store.ExpandTopic(t.Context(), other.e.Snapshot().Names["t"].ID, 7); err != nil {
		t.Fatal(err)
	}
	want.Partitions, want.Version = 7, 2
	for _, m := range tc.nodes {
		tc.eventually("the settings are known", func() bool { return tc.topic(m, "t").Settings() == want })
	}
	if _, err := other.store.ConfigureTopic(t.Context(), other.e.Snapshot().Names["t"].ID, meta.TopicSettings{
		Version: 1, Partitions: 6,
	}); !errors.Is(err, meta.ErrConflict) {
		t.Errorf("the version of before: %v", err)
	}
}

func namesOf(topic *node.Topic) (names []string) {
	for _, c := range topic.Channels() {
		names = append(names, c.Name())
	}
	return names
}
