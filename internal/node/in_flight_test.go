package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
)

// However many leaders a channel has, it has at most max_in_flight messages in flight, and all of them if consumers ask
// for as many; also after the topic has grown.
//
// B62.
func TestClusterMaxInFlight(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	c := tc.channel("t", "c")
	const limit, n = 8, 100 // 3, 3 and 2 for three partitions, 2 each for four
	configureChannel(t, c, func(s *fold.ChannelSettings) { s.MaxInFlight = limit })
	for round, partitions := range []int{3, 4} {
		configure(t, c.Topic(), func(s *meta.TopicSettings) { s.Partitions = partitions })
		for _, m := range tc.nodes {
			tc.eventually(m.name+" has the partitions", func() bool {
				return tc.topic(m, "t").Partitions() == partitions
			})
		}
		leaders := map[*testNode]bool{}
		for p := range partitions {
			leaders[tc.leader("t", p)] = true
		}
		publish(t, c.Topic(), numbered(fmt.Sprint(round, "-"), n, 0)...)
		var seats []*testClient
		for l := range leaders {
			seats = append(seats, subscribe(t, tc.channelAt(l, "t", "c"), 100))
		}
		inFlight := func() (sum int) {
			for l := range leaders {
				sum += channelStats(t, tc.channelAt(l, "t", "c")).InFlightCount
			}
			return sum
		}
		tc.eventually("as many as the limit are in flight", func() bool { return inFlight() >= limit })
		got := map[string]bool{}
		for began := time.Now(); len(got) < n; {
			var held []delivered
			for _, s := range seats {
				for m, ok := s.poll(20 * time.Millisecond); ok; m, ok = s.poll(0) {
					held = append(held, m)
				}
			}
			if k := inFlight(); len(held) > limit || k > limit {
				t.Fatalf("%d partitions: %d came and %d are in flight, the limit is %d", partitions, len(held), k, limit)
			}
			for _, m := range held {
				got[m.body] = true
				finishAtOne(t, seats, m)
			}
			if time.Since(began) > patience {
				t.Fatalf("%d messages came", len(got))
			}
		}
		for _, s := range seats {
			s.Close()
		}
	}
}

// finishAtOne finishes a message at the consumer that has it.
func finishAtOne(t *testing.T, seats []*testClient, m delivered) {
	t.Helper()
	for _, s := range seats {
		if s.Finish(m.id) == nil {
			s.Pump()
			return
		}
	}
	t.Fatalf("no consumer can finish %s", m.body)
}

// In a cluster, each partition has a share of max_in_flight. A limit that leaves partitions without a share is refused,
// and so are partitions that would get none.
//
// B62.
func TestClusterMaxInFlightBelowPartitions(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	c := tc.channel("t", "c")
	tc.channel("t", "unlimited")
	_, err := c.Configure(t.Context(), fold.ChannelSettings{MaxInFlight: 2})
	if !errors.Is(err, errs.ErrSettings) || !strings.Contains(err.Error(), "max_in_flight is 2, but topic t has 3") {
		t.Errorf("2 for 3 partitions: %v", err)
	}
	configureChannel(t, c, func(s *fold.ChannelSettings) { s.MaxInFlight = 4 })
	before := c.Topic().Settings()
	more := before
	more.Partitions = 5
	_, err = c.Topic().ConfigureAs(t.Context(), "", more)
	if !errors.Is(err, meta.ErrSettings) || !strings.Contains(err.Error(), "max_in_flight of its channel c is 4") {
		t.Errorf("5 partitions for 4: %v", err)
	}
	if now := c.Topic().Settings(); now != before {
		t.Errorf("refused partitions leave %+v", now)
	}
	configureChannel(t, c, func(s *fold.ChannelSettings) { s.MaxInFlight = 0 })
	if _, err = c.Topic().ConfigureAs(t.Context(), "", more); err != nil {
		t.Errorf("5 partitions without a limit: %v", err)
	}
}

// A single node leads all partitions, so any limit holds there, and none is refused.
//
// B62.
func TestMaxInFlightOfASingleNode(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic, err := e.CreateTopic(t.Context(), "t", 3)
	if err != nil {
		t.Fatal(err)
	}
	c := channelOf(t, topic, "c")
	configureChannel(t, c, func(s *fold.ChannelSettings) { s.MaxInFlight = 1 })
	configure(t, topic, func(s *meta.TopicSettings) { s.Partitions = 5 })
	publish(t, topic, numbered("m", 20, 0)...)
	s := subscribe(t, c, 100)
	defer s.Close()
	for range 20 {
		m := s.next()
		if n := channelStats(t, c).InFlightCount; n != 1 {
			t.Fatalf("%d in flight", n)
		}
		s.finish(m)
	}
}
