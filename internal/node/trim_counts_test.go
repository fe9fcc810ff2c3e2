package node_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
)

// kept reads all that the log of a topic with one partition has.
func kept(t *testing.T, topic *node.Topic) (n int64) {
	t.Helper()
	r, err := topic.OpenReader(0, node.Start{Kind: node.StartOldest})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ended, end := context.WithCancel(ctxBg)
	end()
	for {
		s, err := r.Next(ended, 1<<20)
		if errors.Is(err, context.Canceled) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		n += int64(len(meant(t, s)))
		s.Release()
	}
}

// trimUnread publishes until the topic's retention has removed messages that nobody has read, and then switches the
// retention off. It returns how many messages were published, and when.
func trimUnread(t *testing.T, e *node.Engine, topic *node.Topic) (total int64, begun time.Time) {
	t.Helper()
	configure(t, topic, func(s *meta.TopicSettings) { s.RetentionBytes = 200 << 10 })
	before := e.Counters().TrimmedBytes.Load()
	begun = e.Now()
	eventually(t, "retention removes what was not read", func() bool {
		publish(t, topic, numbered("m", 50, 1500)...)
		total += 50
		return e.Counters().TrimmedBytes.Load() > before+300<<10
	})
	configure(t, topic, func(s *meta.TopicSettings) { s.RetentionBytes = -1 })
	return total, begun
}

// After retention has removed messages that a channel had not taken, or that no channel could get yet, the depth is
// what a read of the whole log finds, at once and without a consumer; and the age is that of the oldest message there
// is. What was removed is counted.
//
// B66, B67.
func TestDepthAfterTrim(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	for name, prepare := range map[string]func(*testing.T, *node.Topic) []*node.Channel{
		"channels": func(t *testing.T, topic *node.Topic) []*node.Channel {
			return []*node.Channel{channelOf(t, topic, "c"), channelOf(t, topic, "c#ephemeral")}
		},
		"paused-channel": func(t *testing.T, topic *node.Topic) []*node.Channel {
			c := channelOf(t, topic, "c")
			if err := c.Pause(ctxBg); err != nil {
				t.Fatal(err)
			}
			return []*node.Channel{c}
		},
		"no-channel": func(*testing.T, *node.Topic) []*node.Channel { return nil },
		"paused-topic": func(t *testing.T, topic *node.Topic) []*node.Channel {
			channelOf(t, topic, "c")
			if err := topic.Pause(ctxBg); err != nil {
				t.Fatal(err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			topic := topicOf(t, e, name)
			channels := prepare(t, topic)
			total, begun := trimUnread(t, e, topic)
			exist := int64(0)
			eventually(t, "the depth is what exists", func() bool {
				exist = kept(t, topic)
				depth := e.Stats(topic.Name(), "")[0].Depth
				for _, c := range channels {
					depth = channelStats(t, c).Depth
				}
				return depth == exist
			})
			if exist == 0 || exist >= total {
				t.Fatalf("%d of %d messages exist", exist, total)
			}
			for _, c := range channels {
				st := channelStats(t, c)
				if oldest := time.Unix(0, st.OldestNs); oldest.Before(begun) || oldest.After(e.Now()) {
					t.Errorf("%s: the oldest message is of %v, and the first was published at %v", c.Name(), oldest, begun)
				}
				if st.Depth != exist || int64(st.DroppedCount) != total-exist {
					t.Errorf("%s: depth %d, %d dropped; %d of %d exist", c.Name(), st.Depth, st.DroppedCount, exist, total)
				}
			}
		})
	}
}

// A message that a client has in flight while retention removes it has an age, and is not counted once the client has
// given it back.
//
// B67.
func TestInFlightAfterTrim(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	s := subscribe(t, c, 1)
	publish(t, topic, "held")
	held := s.next()
	if err := c.Pause(ctxBg); err != nil {
		t.Fatal(err)
	}
	trimUnread(t, e, topic)
	exist := int64(0)
	is := func(inFlight, deferred int) func() bool {
		return func() bool {
			exist = kept(t, topic)
			st := channelStats(t, c)
			return st.Depth == exist && st.InFlightCount == inFlight && st.DeferredCount == deferred
		}
	}
	eventually(t, "the message in flight is beside the depth", is(1, 0))
	if channelStats(t, c).OldestNs == 0 {
		t.Error("a message is in flight, and the age of the oldest is that of none")
	}
	if err := s.Requeue(held.id, time.Hour); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what was given back is gone", is(0, 0))
}

// A topic without a channel counts once in a cluster: its leader does, and no node that led before.
func TestClusterDepthWithoutChannel(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	first := tc.leader("t", 0)
	publish(t, tc.topic(first, "t"), numbered("m", 7, 0)...)
	tc.moveLeadership("t", 0, tc.others(first)[0])
	tc.eventually("the depth is what exists", func() bool {
		depth := int64(0)
		for _, m := range tc.nodes {
			for _, s := range m.e.Stats("t", "") {
				depth += s.Depth
			}
		}
		return depth == 7
	})
}

// Messages with a delay at the front of a topic without a channel are carried to the end of the log. They are there as
// before, and count.
//
// B50, B66.
func TestDepthOfCarried(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ms := make([]node.Outgoing, 20)
	for i := range ms {
		ms[i] = node.Outgoing{Body: make([]byte, 1500), Delay: time.Hour}
	}
	total := int64(0)
	for range 15 {
		if _, err := topic.PublishMessages(ctxBg, ms); err != nil {
			t.Fatal(err)
		}
		total += int64(len(ms))
	}
	other := topicOf(t, e, "other")
	configure(t, other, func(s *meta.TopicSettings) { s.RetentionBytes = 200 << 10 })
	eventually(t, "the first segment is not needed any more", func() bool {
		publish(t, other, numbered("m", 50, 1500)...)
		publish(t, topic, "plain")
		total++
		c, err := node.CopyOf(e, "t", 0)
		return err == nil && c.Start > 0
	})
	if depth := e.Stats("t", "")[0].Depth; depth != total {
		t.Errorf("the depth is %d, and %d messages exist", depth, total)
	}
	if n := int64(len(readPeeked(t, topic))); n != total {
		t.Errorf("%d messages can be read, and %d exist", n, total)
	}
}

// readPeeked returns the ids of all stored messages of a topic with one partition, carried ones included.
func readPeeked(t *testing.T, topic *node.Topic) (ids []node.ID) {
	t.Helper()
	for from := node.ID(0); ; {
		ms, err := topic.Peek(ctxBg, 0, from, 100)
		if err != nil {
			t.Fatal(err)
		}
		if len(ms) == 0 {
			return ids
		}
		for _, m := range ms {
			ids, from = append(ids, m.ID), m.ID+1
		}
	}
}
