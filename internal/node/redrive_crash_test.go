package node_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/fold"
	"penstock/tests/support/faultaio"
)

const redriveCount = 5

// redriveBegin durably makes dead letters m0 ... of channel c, and none of channel other, which has finished all
// messages.
func redriveBegin(t *testing.T, e *node.Engine) *node.Channel {
	t.Helper()
	topic := topicOf(t, e, "t")
	ch, other := channelOf(t, topic, "c"), channelOf(t, topic, "other")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts = 1 })
	ids := publish(t, topic, numbered("m", redriveCount, 0)...)
	s := subscribe(t, ch, redriveCount)
	failMessages(t, s, ids...)
	s.Close()
	readAll(t, other)
	deadLetters(t, topic, "t.DLQ", redriveCount)
	eventually(t, "the outbox is empty", func() bool { return channelStats(t, ch).OutboxCount == 0 })
	logConfirms(t, ch)
	logConfirms(t, other)
	return ch
}

// inStore returns the dead letters that were not sent back yet.
func inStore(t *testing.T, topic *node.Topic) map[string]bool {
	t.Helper()
	dlq, ok := node.EngineOf(topic).Catalog().LookupTopic("t.DLQ")
	if !ok {
		t.Fatal("the dead-letter topic is gone")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	store, err := dlq.Channel(ctx, "redrive")
	if err != nil {
		t.Fatal(err)
	}
	got, err := store.Peek(ctx, node.PeekOptions{Partition: -1, Count: channel.MaxListCount})
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]bool{}
	for _, b := range peeked(got) {
		bodies[b] = true
	}
	return bodies
}

// redriveCheck is the life after the power cut. moved is the number that Redrive returned before.
func redriveCheck(t *testing.T, disk *faultaio.Disk, what string, moved int) {
	t.Helper()
	e, err := node.Open(ctxBg, smallOptions(disk))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer e.Close()
	topic, _ := e.Catalog().LookupTopic("t")
	ch, _ := topic.LookupChannel("c")
	other, _ := topic.LookupChannel("other")
	stored, came := inStore(t, topic), map[string]bool{}
	for _, body := range values(readAll(t, ch)) {
		came[body] = true
	}
	for _, body := range numbered("m", redriveCount, 0) {
		if !stored[body] && !came[body] {
			t.Errorf("%s: %s is neither in the dead-letter topic nor sent back", what, body)
		}
	}
	if len(stored) > redriveCount-moved || len(came) < moved {
		t.Errorf("%s: %d were sent back; %d are still in the dead-letter topic, %d came", what, moved, len(stored), len(came))
	}
	if n, err := ch.Redrive(ctxBg, 100); n != len(stored) || err != nil {
		t.Errorf("%s: the rest: %d, %v; %d were left", what, n, err, len(stored))
	}
	rest := map[string]bool{}
	for _, body := range values(readAll(t, ch)) {
		rest[body] = true
	}
	if !maps.Equal(rest, stored) {
		t.Errorf("%s: of the rest came %v, want %v", what, rest, stored)
	}
	if left := inStore(t, topic); len(left) != 0 {
		t.Errorf("%s: still in the dead-letter topic: %v", what, left)
	}
	if got := readAll(t, other); len(got) != 0 {
		t.Errorf("%s: the other channel got %v", what, values(got))
	}
}

// The power may be cut at any moment while dead letters are sent back. Each of them is still in the dead-letter topic,
// or in the channel's topic again, or in both; and those that Redrive counted are in the channel's topic.
//
// B43, B64.
func TestRedrivePowerCut(t *testing.T) {
	t.Parallel()
	for cut := 1; ; cut++ {
		disk := faultaio.New(faultaio.Options{Seed: uint64(cut)})
		e, err := node.Open(ctxBg, smallOptions(disk))
		if err != nil {
			t.Fatal(err)
		}
		ch := redriveBegin(t, e)
		disk.CrashAt(disk.Ops() + cut)
		moved := 0
		for more := true; more; {
			n, err := ch.Redrive(ctxBg, 2)
			moved += n
			more = n > 0 && err == nil
			if err != nil {
				moved -= n // with an error, its number may be uncertain
			}
		}
		through := !disk.Crashed()
		if through && moved != redriveCount {
			t.Errorf("%d were sent back", moved)
		}
		disk.CrashAt(disk.Ops())
		_ = e.Close()
		redriveCheck(t, disk.Crash(uint64(cut)), fmt.Sprint("power cut ", cut), moved)
		redriveCheck(t, disk.Kill(uint64(cut)), fmt.Sprint("kill ", cut), moved)
		if through {
			t.Logf("%d operations", cut)
			return
		}
		if t.Failed() || cut > 500 {
			t.Fatalf("cut %d", cut)
		}
	}
}
