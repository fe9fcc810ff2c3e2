package node_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
)

func peeked(ms []node.PeekedMessage) (bodies []string) {
	for i := range ms {
		bodies = append(bodies, string(ms[i].Body))
	}
	return bodies
}

// Peek shows the messages that a channel has not confirmed, and changes nothing.
func TestPeek(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	ids := publish(t, topic, numbered("m", 20, 0)...)
	if _, err := topic.PublishMessage(ctxBg, node.Outgoing{
		Body: []byte("later"), Delay: time.Hour, Headers: []node.Header{{Key: []byte("k"), Value: []byte("v")}},
	}); err != nil {
		t.Fatal(err)
	}
	s := subscribe(t, ch, 10)
	var held []delivered
	for range 10 {
		held = append(held, s.next())
	}
	if err := s.Ready(0); err != nil {
		t.Fatal(err)
	}
	for _, m := range held {
		if m.id == ids[1] || m.id == ids[4] || m.id == ids[5] {
			if err := s.Finish(m.id); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := channelStats(t, ch)
	for _, c := range []struct {
		o    node.PeekOptions
		want string
	}{
		{node.PeekOptions{Count: 5}, "m0 m2 m3 m6 m7"},
		{node.PeekOptions{Partition: -1, Count: 3}, "m0 m2 m3"},
		{node.PeekOptions{From: ids[3], Count: 3}, "m3 m6 m7"},
		{node.PeekOptions{From: ids[18], Count: 100}, "m18 m19 later"},
		{node.PeekOptions{From: ids[19] + 50}, ""},
	} {
		got, err := ch.Peek(ctxBg, c.o)
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(peeked(got), " "); text != c.want {
			t.Errorf("%+v: %q, want %q", c.o, text, c.want)
		}
	}
	if got, _ := ch.Peek(ctxBg, node.PeekOptions{}); len(got) != channel.DefaultListCount {
		t.Errorf("%d messages without a count", len(got))
	}
	got, err := ch.Peek(ctxBg, node.PeekOptions{From: ids[19] + 1})
	if err != nil || len(got) != 1 || len(got[0].Headers) != 1 || string(got[0].Headers[0].Value) != "v" ||
		time.Until(got[0].Due) < 59*time.Minute {
		t.Errorf("the deferred one: %+v, %v", got, err)
	}
	if after := channelStats(t, ch); after.Depth != before.Depth || after.InFlightCount != before.InFlightCount {
		t.Errorf("peeking changed the channel: %+v, before %+v", after, before)
	}
	if _, err := ch.Peek(ctxBg, node.PeekOptions{Partition: 3}); !errors.Is(err, errs.ErrNoPartition) {
		t.Errorf("a partition that is not there: %v", err)
	}
	got, err = topic.Peek(ctxBg, 0, ids[4], 2)
	if err != nil || !slices.Equal(peeked(got), []string{"m4", "m5"}) {
		t.Errorf("of the topic, confirmed or not: %v, %v", peeked(got), err)
	}
}

// Answers are bounded: a body that does not fit is cut, and the answer says so.
func TestPeekIsBounded(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	const size = 16 << 10
	for range 400 {
		publish(t, topic, strings.Repeat("x", size))
	}
	got, err := ch.Peek(ctxBg, node.PeekOptions{Count: 400})
	if err != nil || len(got) != 400 {
		t.Fatalf("%d messages, %v", len(got), err)
	}
	total := 0
	for i, m := range got {
		total += len(m.Body)
		if m.BodyBytes != size || m.Truncated != (len(m.Body) < size) {
			t.Errorf("message %d: %d of %d bytes, truncated %v", i, len(m.Body), m.BodyBytes, m.Truncated)
		}
	}
	if total != channel.MaxPeekBytes {
		t.Errorf("%d bytes, want %d", total, channel.MaxPeekBytes)
	}
}

// Any node can be asked about all partitions.
func TestClusterPeek(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	tc.channel("t", "c")
	topic := tc.topic(tc.nodes[0], "t")
	publish(t, topic, numbered("m", 30, 0)...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, m := range tc.nodes {
		c, err := tc.topic(m, "t").Channel(ctx, "c")
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Peek(ctx, node.PeekOptions{Partition: -1, Count: 400})
		if err != nil {
			t.Fatal(err)
		}
		// The messages are in the order of their times, which no single partition knows.
		if !slices.Equal(peeked(got), numbered("m", 30, 0)) {
			t.Errorf("%s: %v", m.name, peeked(got))
		}
		got, err = tc.topic(m, "t").Peek(ctx, 1, 0, 100)
		if err != nil || len(got) != 10 {
			t.Errorf("%s: %d messages of one partition, %v", m.name, len(got), err)
		}
	}
}
