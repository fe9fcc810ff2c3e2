package node_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/fold"
)

// If an ordered channel passes over a message, the next leader decides alike, or the decision is committed before a
// later message is delivered. The cases are a sample of the channel, a filter whose recent change is not committed, and
// a consumer that wants only a sample. Otherwise the next leader would deliver the earlier message late.
//
// B57, B68.
func TestClusterOrderedPassedOver(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		before fold.ChannelSettings
		change func(*fold.ChannelSettings) // without a quorum
		rate   int                         // of the consumer at the old leader
	}{
		{"a sample of the channel", fold.ChannelSettings{Order: fold.OrderPartition, SampleRate: 10}, nil, 0},
		{"a sample of the channel, by keys", fold.ChannelSettings{Order: fold.OrderKey, SampleRate: 10}, nil, 0},
		{"a new filter", fold.ChannelSettings{Order: fold.OrderPartition}, func(s *fold.ChannelSettings) {
			s.Filter = fold.Filter{Rules: []fold.Rule{{Header: "wanted", Match: fold.MatchExists}}}
		}, 0},
		{"a new sample", fold.ChannelSettings{Order: fold.OrderPartition}, func(s *fold.ChannelSettings) {
			s.SampleRate = 10
		}, 0},
		{"a sample of a consumer", fold.ChannelSettings{Order: fold.OrderPartition}, nil, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tc := newTestCluster(t, 3)
			tc.create("t", 1)
			const channels = 8 // chance decides in each which messages are in its sample
			var names []string
			for i := range channels {
				names = append(names, fmt.Sprint("c", i))
				configureChannel(t, tc.channel("t", names[i]), func(s *fold.ChannelSettings) {
					version := s.Version
					*s = c.before
					s.Version = version
				})
			}
			l := tc.leader("t", 0)
			publishWanted(t, tc.topic(l, "t"))
			tc.awaitEqualCopies("t", 0)
			tc.network.isolate(l.name, true)
			last := map[string]int{}
			for _, name := range names {
				ch := tc.channelAt(l, "t", name)
				if c.change != nil {
					s := ch.Settings()
					c.change(&s)
					if _, err := ch.Configure(within(t, 20*time.Millisecond), s); err == nil {
						t.Fatal("settings were changed without a quorum")
					}
				}
				last[name] = firstOf(t, ch, 50*time.Millisecond, c.rate)
			}
			tc.kill(l)
			tc.network.isolate(l.name, false)
			next := tc.leader("t", 0)
			for _, name := range names {
				if n := firstOf(t, tc.channelAt(next, "t", name), patience, 0); n < last[name] {
					t.Errorf("channel %s delivered m%d, and m%d at the leader before", name, n, last[name])
				}
			}
		})
	}
}

// publishWanted stores m0 to m199; those from m150 on have a header.
func publishWanted(t *testing.T, topic *node.Topic) {
	t.Helper()
	for i := range 200 {
		m := node.Outgoing{Body: fmt.Appendf(nil, "m%d", i)}
		if i >= 150 {
			m.Headers = []node.Header{{Key: []byte("wanted"), Value: []byte("yes")}}
		}
		if _, err := topic.PublishMessages(t.Context(), []node.Outgoing{m}); err != nil {
			t.Fatal(err)
		}
	}
}

// firstOf returns the number of the first message that a channel delivers within d, or -1.
func firstOf(t *testing.T, c *node.Channel, d time.Duration, rate int) int {
	t.Helper()
	s := subscribe(t, c, 1, node.ConsumerOptions{SampleRate: rate})
	m, ok := s.poll(d)
	if !ok {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimPrefix(m.body, "m"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
