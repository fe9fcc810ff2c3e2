package node_test

import (
	"context"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/fold"
)

// A dead-letter topic that others publish to, too, is not kept for ever by the channel that keeps the dead letters: it
// keeps nothing else. After a redrive retention removes the log, without a further one.
func TestDeadLetterTopicInUseIsFreed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := openWith(t, inDir(dir))
	ch := channelOf(t, topicOf(t, e, "t"), "c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts, s.DeadLetter = 1, "busy" })
	busy := topicOf(t, e, "busy")
	channelOf(t, busy, "reader")
	makeDead(t, ch, "busy", 3, "a", "b", "c")
	publish(t, busy, numbered("x", 100, 2000)...)
	store, ok := busy.LookupChannel("redrive")
	if !ok {
		t.Fatal("no channel keeps the dead letters")
	}
	eventually(t, "only the dead letters are kept", func() bool { return channelStats(t, store).Depth == 3 })
	if n, err := ch.Redrive(ctxBg, 2); n != 2 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n := len(inStoreOf(t, busy)); n != 1 {
		t.Errorf("%d dead letters are left", n)
	}
	if n, err := ch.Redrive(ctxBg, 10); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	must(t, e.Close())
	e = openWith(t, inDir(dir))
	busy, ch = topicOf(t, e, "busy"), channelOf(t, topicOf(t, e, "t"), "c")
	reader := channelOf(t, busy, "reader")
	store = channelOf(t, busy, "redrive")
	publish(t, busy, numbered("y", 400, 2000)...) // after the last redrive
	if got := readAll(t, reader); len(got) != 503 {
		t.Errorf("the other channel got %d messages", len(got))
	}
	eventually(t, "retention frees the log", func() bool {
		ms, err := busy.Peek(ctxBg, 0, 0, 1)
		return err == nil && channelStats(t, store).Depth == 0 && (len(ms) == 0 || ms[0].ID > 300)
	})
	if got := readAll(t, ch); len(got) != 3 {
		t.Errorf("%d dead letters came back", len(got))
	}
}

// inStoreOf returns the dead letters in a topic that were not sent back yet.
func inStoreOf(t *testing.T, dead *node.Topic) []node.PeekedMessage {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	store, err := dead.Channel(ctx, "redrive")
	if err != nil {
		t.Fatal(err)
	}
	got, err := store.Peek(ctx, node.PeekOptions{Partition: -1, Count: channel.MaxListCount})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// A channel that somebody else has named so and configured keeps what it gets.
func TestRedriveChannelOfOthersKeepsAll(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	own := channelOf(t, topicOf(t, e, "own"), "redrive")
	configureChannel(t, own, func(s *fold.ChannelSettings) { s.RatePerSecond = 1000 })
	ch := channelOf(t, topicOf(t, e, "t"), "c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts, s.DeadLetter = 1, "own" })
	publish(t, own.Topic(), "x", "y")
	makeDead(t, ch, "own", 3, "a")
	node.SweepStores(e)
	if n := channelStats(t, own).Depth; n != 3 {
		t.Errorf("%d messages are kept, want 3", n)
	}
}

// The leader of a dead-letter topic dies: the next one keeps the dead letters, and nothing else.
func TestClusterDeadLetterTopicInUseIsFreed(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	tc.create("busy", 1)
	c := tc.channel("t", "c")
	configureChannel(t, c, func(s *fold.ChannelSettings) { s.MaxAttempts, s.DeadLetter = 1, "busy" })
	l := tc.leader("t", 0)
	ids := publish(t, tc.topic(l, "t"), "a", "b")
	s := subscribe(t, tc.channelAt(l, "t", "c"), 2)
	failMessages(t, s, ids...)
	s.Close()
	deadLetters(t, tc.topic(l, "t"), "busy", 2)
	tc.awaitInSync("busy")
	dead := tc.leader("busy", 0)
	publish(t, tc.topic(dead, "busy"), numbered("x", 50, 0)...)
	tc.crash(dead)
	depth := func(want int64) func() bool {
		return func() bool {
			now := tc.leader("busy", 0)
			node.SweepStores(now.e)
			store, ok := tc.topic(now, "busy").LookupChannel("redrive")
			return ok && channelStats(t, store).Depth == want
		}
	}
	tc.eventually("the next leader keeps only the dead letters", depth(2))
	from := tc.leader("busy", 0)
	ch, err := tc.topic(from, "t").Channel(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	moved := 0
	tc.eventually("they are sent back", func() bool {
		n, err := ch.Redrive(ctxBg, 10)
		moved += n
		return err == nil && moved >= 2
	})
	publish(t, tc.topic(tc.leader("busy", 0), "busy"), numbered("y", 50, 0)...)
	tc.eventually("nothing is kept", depth(0))
}
