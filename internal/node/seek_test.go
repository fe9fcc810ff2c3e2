package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// sought is the expected result of a seek in messages m0 to m99. Before the seek, m0 to m49 are confirmed or in flight,
// m40 to m49 in flight.
var sought = []struct {
	name string
	to   func(ids []node.ID, middle time.Time) node.SeekTo
	next int // the message that comes next; 100: none
}{
	{"beginning", func([]node.ID, time.Time) node.SeekTo { return node.SeekTo{Kind: node.SeekBeginning} }, 0},
	{"end", func([]node.ID, time.Time) node.SeekTo { return node.SeekTo{Kind: node.SeekEnd} }, 100},
	{"id backward", func(ids []node.ID, _ time.Time) node.SeekTo {
		return node.SeekTo{Kind: node.SeekID, ID: ids[7]}
	}, 7},
	{"id among what is in flight", func(ids []node.ID, _ time.Time) node.SeekTo {
		return node.SeekTo{Kind: node.SeekID, ID: ids[45]}
	}, 45},
	{"id forward", func(ids []node.ID, _ time.Time) node.SeekTo {
		return node.SeekTo{Kind: node.SeekID, ID: ids[80]}
	}, 80},
	{"id beyond the end", func(ids []node.ID, _ time.Time) node.SeekTo {
		return node.SeekTo{Kind: node.SeekID, ID: ids[99] + 500}
	}, 100},
	{"time", func(_ []node.ID, m time.Time) node.SeekTo { return node.SeekTo{Kind: node.SeekTime, Time: m} }, 60},
	{"time to come", func(_ []node.ID, m time.Time) node.SeekTo {
		return node.SeekTo{Kind: node.SeekTime, Time: m.Add(time.Hour)}
	}, 100},
	{"time that no int64 of ns holds, long ago", func([]node.ID, time.Time) node.SeekTo {
		return node.SeekTo{Kind: node.SeekTime, Time: time.Date(1500, 1, 1, 0, 0, 0, 0, time.UTC)}
	}, 0},
	{"time that no int64 of ns holds, far away", func([]node.ID, time.Time) node.SeekTo {
		return node.SeekTo{Kind: node.SeekTime, Time: time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC)}
	}, 100},
	{"count forward", func([]node.ID, time.Time) node.SeekTo {
		return node.SeekTo{Kind: node.SeekCount, Count: 25}
	}, 65},
	{"count back", func([]node.ID, time.Time) node.SeekTo {
		return node.SeekTo{Kind: node.SeekCount, Count: -10}
	}, 30},
	{"count beyond the end", func([]node.ID, time.Time) node.SeekTo {
		return node.SeekTo{Kind: node.SeekCount, Count: 1 << 62}
	}, 100},
	{"count before the beginning", func([]node.ID, time.Time) node.SeekTo {
		return node.SeekTo{Kind: node.SeekCount, Count: -1 << 62}
	}, 0},
}

// fillForSeek publishes the messages that sought is about; middle is a time between m59 and m60.
func fillForSeek(t *testing.T, topic *node.Topic) (ids []node.ID, middle time.Time) {
	t.Helper()
	all := numbered("m", 100, 0)
	ids = publish(t, topic, all[:60]...)
	time.Sleep(2 * time.Millisecond) // times of batches are compared: the two halves must differ
	middle = time.Now()
	return append(ids, publish(t, topic, all[60:]...)...), middle
}

// A channel goes on exactly where the seek sent it. Messages that were in flight do not belong to their consumer any
// more, and the depth is that of the new place.
//
// B56, B66.
func TestSeek(t *testing.T) {
	for _, c := range sought {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			disk := newDisk()
			e := openOnDisk(t, disk)
			topic := topicOf(t, e, "t")
			ch := channelOf(t, topic, "c")
			channelOf(t, topic, "keeper") // otherwise retention would remove the confirmed messages
			ids, middle := fillForSeek(t, topic)
			s := subscribe(t, ch, 10, node.ConsumerOptions{MsgTimeout: time.Minute})
			if got := s.take(40); got[39] != "m39" {
				t.Fatalf("before: %v", got)
			}
			var held []delivered
			for range 10 {
				held = append(held, s.next())
			}
			if err := s.Ready(0); err != nil {
				t.Fatal(err)
			}
			if err := ch.Seek(ctxBg, c.to(ids, middle)); err != nil {
				t.Fatal(err)
			}
			if st := channelStats(t, ch); st.Depth != int64(100-c.next) || st.InFlightCount != 0 {
				t.Errorf("depth %d, in flight %d; want %d and 0", st.Depth, st.InFlightCount, 100-c.next)
			}
			for _, m := range held {
				if err := s.Finish(m.id); !errors.Is(err, errs.ErrNotInFlight) {
					t.Errorf("a late FIN of %s: %v", m.body, err)
				}
			}
			if err := s.Ready(10); err != nil {
				t.Fatal(err)
			}
			s.Pump()
			want := numbered("m", 100, 0)[c.next:]
			if n := min(len(want), 20); !slices.Equal(s.take(n), want[:n]) {
				t.Errorf("not %v", want[:n])
			}
			if len(want) > 20 {
				return
			}
			s.expectNothing("the end")
			// The place survives a crash.
			e = openOnDisk(t, disk.Kill(1))
			topic, _ = e.Catalog().LookupTopic("t")
			ch, _ = topic.LookupChannel("c")
			if got := readAll(t, ch); len(got) > len(want) {
				t.Errorf("after a crash %d messages came again", len(got))
			}
		})
	}
}

// While messages come and go, a seek back shows a consumer with one message in flight at most one message that does not
// belong to the new sequence.
//
// B56.
func TestSeekWhileDelivering(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	channelOf(t, topic, "keeper")
	ids := publish(t, topic, numbered("m", 300, 0)...)
	s := subscribe(t, ch, 1)
	for round := range 20 {
		for range 5 + round {
			s.finish(s.next())
		}
		target := (round * 37) % 200
		if err := ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekID, ID: ids[target]}); err != nil {
			t.Fatal(err)
		}
		old := 0
		for want := target; want < target+10; {
			m := s.next()
			if m.id != ids[want] {
				if old++; old > 1 {
					t.Fatalf("round %d: %s came, and another old one before; want m%d", round, m.body, want)
				}
				if err := s.Finish(m.id); !errors.Is(err, errs.ErrNotInFlight) {
					t.Fatalf("round %d: the old one could be finished: %v", round, err)
				}
				s.Pump()
				continue
			}
			s.finish(m)
			want++
		}
		s.finish(s.next())
	}
}

func TestSeekRefused(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	publish(t, topic, "m")
	if err := ch.Seek(ctxBg, node.SeekTo{Kind: "nowhere"}); !errors.Is(err, errs.ErrSeek) {
		t.Errorf("an unknown kind: %v", err)
	}
	if err := ch.Seek(ctxBg, node.SeekTo{
		Kind: node.SeekID, ID: node.ID(5) << 48,
	}); !errors.Is(err, errs.ErrNoPartition) {
		t.Errorf("a partition that the topic does not have: %v", err)
	}
}

// Any node of a cluster accepts a seek in all partitions, whichever nodes lead them, and the next leaders know the
// place.
//
// B56, B66, B70.
func TestClusterSeek(t *testing.T) {
	t.Parallel()
	const partitions = 3
	tc := newTestCluster(t, 3)
	tc.create("t", partitions)
	tc.channel("t", "c")
	tc.channel("t", "keeper")
	topic := tc.topic(tc.nodes[0], "t")
	for i := range 60 {
		publish(t, topic, fmt.Sprint("m", i))
	}
	drain := func() (n int) {
		for p := range partitions {
			l := tc.leader("t", p)
			n += len(readAll(t, tc.channelAt(l, "t", "c")))
		}
		return n
	}
	if n := drain(); n != 60 {
		t.Fatalf("%d messages", n)
	}
	// A node that leads no partition of the topic can seek through its Channel, too.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i, m := range tc.nodes {
		c, err := tc.topic(m, "t").Channel(ctx, "c")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Seek(ctx, node.SeekTo{Kind: node.SeekCount, Count: -5}); err != nil {
			t.Fatal(err)
		}
		if n := drain(); n != 5*partitions {
			t.Errorf("node %d: %d messages after 5 back in each partition", i, n)
		}
	}
	c, err := tc.topic(tc.nodes[1], "t").Channel(ctx, "c")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Seek(ctx, node.SeekTo{Kind: node.SeekBeginning}); err != nil {
		t.Fatal(err)
	}
	tc.kill(tc.leader("t", 0))
	if n := drain(); n != 60 {
		t.Errorf("%d messages from the beginning after a failover", n)
	}
}

// Retention has carried messages that wait in a channel out of their old segments. A seek to the oldest message that is
// kept does not forget them: they come when they are due, also after a crash. A seek to the end gives up what waits.
//
// B50, B51, B56.
func TestSeekKeepsCarried(t *testing.T) {
	t.Parallel()
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	s, ids := carriedWorld(t, e, topic, c)
	s.Close()
	waiting := func(c *node.Channel) (all []node.ID) {
		t.Helper()
		list, err := c.DeferredMessages(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			all = append(all, m.ID)
		}
		slices.Sort(all)
		return all
	}
	want := slices.Sorted(slices.Values(ids))
	for range 2 {
		if err := c.Seek(t.Context(), node.SeekTo{Kind: node.SeekBeginning}); err != nil {
			t.Fatal(err)
		}
		if got := waiting(c); !slices.Equal(got, want) {
			t.Errorf("after a seek to the beginning %v wait, want %v", got, want)
		}
	}
	e = openOnDisk(t, disk.Crash(1))
	topic, _ = e.Catalog().LookupTopic("t")
	c, _ = topic.LookupChannel("c")
	if got := waiting(c); !slices.Equal(got, want) {
		t.Errorf("after a crash %v wait, want %v", got, want)
	}
	if err := c.Seek(t.Context(), node.SeekTo{Kind: node.SeekEnd}); err != nil {
		t.Fatal(err)
	}
	if got := waiting(c); len(got) != 0 {
		t.Errorf("after a seek to the end %v wait", got)
	}
}
