package node_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// A new channel starts where it is asked to, also after a crash. A channel that exists stays where it is, and the
// channels beside it notice nothing.
func TestCreateChannelFrom(t *testing.T) {
	for name, c := range map[string]struct {
		from func(ids []node.ID, middle time.Time) node.SeekTo
		next int // the first message of the channel
	}{
		"beginning": {func([]node.ID, time.Time) node.SeekTo { return node.SeekTo{Kind: node.SeekBeginning} }, 0},
		"end":       {func([]node.ID, time.Time) node.SeekTo { return node.SeekTo{Kind: node.SeekEnd} }, 100},
		"id": {func(ids []node.ID, _ time.Time) node.SeekTo {
			return node.SeekTo{Kind: node.SeekID, ID: ids[80]}
		}, 80},
		"id to come": {func(ids []node.ID, _ time.Time) node.SeekTo {
			return node.SeekTo{Kind: node.SeekID, ID: ids[99] + 50}
		}, 100},
		"time": {func(_ []node.ID, m time.Time) node.SeekTo {
			return node.SeekTo{Kind: node.SeekTime, Time: m}
		}, 60},
		"time to come": {func(_ []node.ID, m time.Time) node.SeekTo {
			return node.SeekTo{Kind: node.SeekTime, Time: m.Add(time.Hour)}
		}, 100},
	} {
		for _, first := range []bool{false, true} { // without a channel, all messages wait for the first one
			t.Run(fmt.Sprint(name, " first ", first), func(t *testing.T) {
				t.Parallel()
				disk := newDisk()
				e := openOnDisk(t, disk)
				topic := topicOf(t, e, "t")
				if !first {
					keeper := channelOf(t, topic, "keeper")
					defer func() {
						if d := channelStats(t, keeper).Depth; d != 101 {
							t.Errorf("another channel has %d messages", d)
						}
					}()
				}
				ids, middle := fillForSeek(t, topic)
				ch, err := topic.CreateChannelFrom(t.Context(), "c", c.from(ids, middle))
				if err != nil {
					t.Fatal(err)
				}
				publish(t, topic, "m100")
				if d := channelStats(t, ch).Depth; d != int64(101-c.next) {
					t.Errorf("the depth is %d, want %d", d, 101-c.next)
				}
				crashed := openOnDisk(t, disk.Crash(1))
				again, _ := crashed.Catalog().LookupTopic("t")
				ch, _ = again.LookupChannel("c")
				s := subscribe(t, ch, 10)
				want := numbered("m", 101, 0)[c.next:]
				if got := s.take(len(want)); !slices.Equal(got, want) {
					t.Errorf("%v came, want %v", got, want)
				}
				if again, err := again.CreateChannelFrom(t.Context(), "c", node.SeekTo{
					Kind: node.SeekBeginning,
				}); err != nil || again != ch {
					t.Errorf("once more: %v", err)
				}
				s.expectNothing("the channel existed")
			})
		}
	}
}

// A start that is none is refused, and no channel is made.
func TestCreateChannelFromRefused(t *testing.T) {
	topic := topicOf(t, openOnDisk(t, newDisk()), "t")
	for name, c := range map[string]struct {
		channel string
		from    node.SeekTo
		want    error
	}{
		"a count":              {"c", node.SeekTo{Kind: node.SeekCount, Count: 1}, errs.ErrSeek},
		"nothing":              {"c", node.SeekTo{}, errs.ErrSeek},
		"no such partition":    {"c", node.SeekTo{Kind: node.SeekID, ID: 1 << 48}, errs.ErrNoPartition},
		"an ephemeral one":     {"c#ephemeral", node.SeekTo{Kind: node.SeekBeginning}, errs.ErrSeek},
		"no name of a channel": {"c c", node.SeekTo{Kind: node.SeekBeginning}, errs.ErrChannelName},
	} {
		if _, err := topic.CreateChannelFrom(t.Context(), c.channel, c.from); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(topic.Channels()); n != 0 {
		t.Errorf("%d channels were made", n)
	}
}

// In a cluster a channel starts at its place in every partition, whichever node was asked.
func TestClusterCreateChannelFrom(t *testing.T) {
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	tc.channel("t", "keeper")
	for i := range 30 {
		tc.publishIn("t", i%3, fmt.Sprint("m", i))
	}
	depth := func(m *testNode, name string, want int) {
		t.Helper()
		all, err := tc.channelAt(m, "t", name).Peek(t.Context(), node.PeekOptions{Partition: -1, Count: 100})
		if err != nil || len(all) != want {
			t.Errorf("channel %s has %d messages, want %d: %v", name, len(all), want, err)
		}
	}
	for i, m := range tc.nodes {
		for kind, want := range map[node.SeekKind]int{node.SeekBeginning: 30, node.SeekEnd: 0, node.SeekID: 4} {
			name := fmt.Sprint(kind, i)
			from := node.SeekTo{Kind: kind, ID: node.ID(uint64(i)<<48 | 6)}
			if _, err := tc.topic(m, "t").CreateChannelFrom(t.Context(), name, from); err != nil {
				t.Fatal(err)
			}
			depth(m, name, want)
		}
	}
}
