package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/tests/support/faultaio"
)

// failMessages requeues the messages of a channel until none comes any more.
func failMessages(t *testing.T, s *testClient, ids ...node.ID) {
	t.Helper()
	for left := true; left; {
		m, ok := s.poll(500 * time.Millisecond)
		if left = ok; ok && slices.Contains(ids, m.id) {
			if err := s.Requeue(m.id, 0); err != nil {
				t.Fatal(err)
			}
			s.Pump()
		}
	}
}

// deadLetters waits until a dead-letter topic has n messages, and returns them.
func deadLetters(t *testing.T, topic *node.Topic, name string, n int) (got []node.PeekedMessage) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s has %d messages", name, n), func() bool {
		dlq, ok := node.EngineOf(topic).Catalog().LookupTopic(name)
		if !ok {
			return false
		}
		var err error
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		got, err = dlq.Peek(ctx, -1, 0, channel.MaxListCount)
		if err != nil && !errors.Is(err, errs.ErrNoLeader) && ctx.Err() == nil {
			t.Fatal(err)
		}
		return len(got) >= n
	})
	return got
}

func valueOf(m *node.PeekedMessage, name string) string {
	for _, h := range m.Headers {
		if string(h.Key) == name {
			return string(h.Value)
		}
	}
	return ""
}

// After its last attempt, a message is in the dead-letter topic, with its headers and its origin, and not in the
// channel. From there it can be sent back to the channel, and to no other channel.
//
// B64.
func TestDeadLetters(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ch, other := channelOf(t, topic, "c"), channelOf(t, topic, "other")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts = 3 })
	bad := publishWith(t, topic, "bad", "kind", "x")
	slow := publish(t, topic, "slow", "good")[0]
	s := subscribe(t, ch, 10, node.ConsumerOptions{MsgTimeout: 500 * time.Millisecond})
	attempts := map[string]int{}
	for attempts["bad"] < 3 || attempts["slow"] < 3 || attempts["good"] < 1 {
		m := s.next()
		attempts[m.body]++
		switch m.body {
		case "bad":
			if err := s.Requeue(m.id, 0); err != nil {
				t.Fatal(err)
			}
			s.Pump()
		case "good":
			s.finish(m)
		}
	}
	got := deadLetters(t, topic, "t.DLQ", 2)
	s.expectNothing("it is dead")
	for i := range got {
		m := &got[i]
		id := map[string]node.ID{"bad": bad, "slow": slow}[string(m.Body)]
		if valueOf(m, channel.OriginTopicHeader) != "t" || valueOf(m, channel.OriginChannelHeader) != "c" ||
			valueOf(m, channel.OriginIDHeader) != id.String() || valueOf(m, channel.AttemptsHeader) != "3" {
			t.Errorf("%s: %+v", m.Body, m)
		}
		if string(m.Body) == "bad" && valueOf(m, "kind") != "x" {
			t.Errorf("its own header is gone: %+v", m)
		}
	}
	eventually(t, "the outbox is empty", func() bool {
		st := channelStats(t, ch)
		return st.OutboxCount == 0 && st.DeadLettered == 2
	})
	if all := readAll(t, other); len(all) != 3 {
		t.Errorf("the other channel got %v", all)
	}
	if n, err := ch.Redrive(ctxBg, 100); n != 2 || err != nil {
		t.Fatalf("redrive: %d, %v", n, err)
	}
	if n, err := ch.Redrive(ctxBg, 100); n != 0 || err != nil {
		t.Errorf("redrive again: %d, %v", n, err)
	}
	again := s.take(2)
	slices.Sort(again)
	if fmt.Sprint(again) != "[bad slow]" {
		t.Errorf("sent back: %v", again)
	}
	if more := readAll(t, other); len(more) != 0 {
		t.Errorf("the other channel got what was sent back to the first: %v", more)
	}
	// The dead-letter topic remembers which messages were sent back, and all of that survives a power cut.
	e = openOnDisk(t, disk.Crash(5))
	topic, _ = e.Catalog().LookupTopic("t")
	for _, name := range []string{"c", "other"} {
		ch, _ = topic.LookupChannel(name)
		if all := readAll(t, ch); len(all) > 2 {
			t.Errorf("after a power cut %s got %v", name, all)
		}
	}
	if n, err := ch.Redrive(ctxBg, 100); n != 0 || err != nil {
		t.Errorf("redrive after a power cut: %d, %v", n, err)
	}
}

// If two channels have the same dead-letter topic, each gets its own messages back.
func TestRedriveShared(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	for _, name := range []string{"a", "b"} {
		ch := channelOf(t, topic, name)
		configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts, s.DeadLetter = 1, "dead" })
	}
	ids := publish(t, topic, numbered("m", 150, 0)...)
	for _, name := range []string{"a", "b"} {
		ch, _ := topic.LookupChannel(name)
		s := subscribe(t, ch, 200)
		failMessages(t, s, ids...)
		s.Close()
	}
	deadLetters(t, topic, "dead", 300)
	for _, name := range []string{"b", "a"} {
		ch, _ := topic.LookupChannel(name)
		if n, err := ch.Redrive(ctxBg, 90); n != 90 || err != nil {
			t.Fatalf("%s: %d, %v", name, n, err)
		}
		if n, err := ch.Redrive(ctxBg, 1000); n != 60 || err != nil {
			t.Fatalf("%s: the rest: %d, %v", name, n, err)
		}
		if got := readAll(t, ch); len(got) != 150 {
			t.Errorf("%s got %d back", name, len(got))
		}
	}
}

// If the limit is lowered below the attempts that waiting messages have had already, they become dead letters when
// their turn comes.
//
// B64.
func TestMaxAttemptsLowered(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	id := publish(t, topic, "m")[0]
	s := subscribe(t, ch, 1)
	for range 4 {
		if err := s.Requeue(s.next().id, 0); err != nil {
			t.Fatal(err)
		}
		s.Pump()
	}
	if err := s.Requeue(s.next().id, 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts = 2 })
	got := deadLetters(t, topic, "t.DLQ", 1)
	if valueOf(&got[0], channel.OriginIDHeader) != id.String() || valueOf(&got[0], channel.AttemptsHeader) != "5" {
		t.Errorf("%+v", got[0])
	}
	s.expectNothing("it is dead")
}

// deadRun is one life of a channel whose messages m0, m2 and m4 fail for ever. It ends with the disk, or when all
// messages are finished or dead.
func deadRun(t *testing.T, e *node.Engine, disk *faultaio.Disk) (acked, finished map[string]bool) {
	t.Helper()
	acked, finished = map[string]bool{}, map[string]bool{}
	topic, _ := e.Catalog().LookupTopic("t")
	ch, _ := topic.LookupChannel("c")
	for i := range 6 {
		body := fmt.Sprint("m", i)
		if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte(body)}); err != nil {
			return acked, finished
		}
		acked[body] = true
	}
	s := &testClient{t: t, came: make(chan struct{}, 1)}
	k, err := ch.Attach(node.ConsumerOptions{}, s)
	if err != nil {
		return acked, finished
	}
	s.Consumer = k
	if err := k.Ready(3); err != nil {
		t.Fatal(err)
	}
	k.Pump()
	for deadline := time.Now().Add(patience); !disk.Crashed(); {
		m, ok := s.poll(time.Millisecond)
		switch {
		case !ok:
			if st := channelStats(t, ch); st.DeadLettered == 3 && st.Depth == 0 && st.InFlightCount == 0 && st.OutboxCount == 0 {
				return acked, finished
			}
			if time.Now().After(deadline) {
				t.Fatalf("it does not end: %+v", channelStats(t, ch))
			}
			continue
		case strings.Contains("m0 m2 m4", m.body):
			err = s.Requeue(m.id, 0)
		default:
			if err = s.Finish(m.id); err == nil {
				finished[m.body] = true
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		s.Pump()
	}
	return acked, finished
}

// inNeither notes in dead which messages the dead-letter topic has, and returns those that are not there, did not come,
// and were not finished.
func inNeither(
	t *testing.T, e *node.Engine, acked, finished map[string]bool, came map[node.ID]string, dead map[string]bool,
) (lost []string) {
	t.Helper()
	if dlq, ok := e.Catalog().LookupTopic("t.DLQ"); ok {
		got, err := dlq.Peek(ctxBg, 0, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range peeked(got) {
			dead[b] = true
		}
	}
	for body := range acked {
		if !slices.Contains(values(came), body) && !dead[body] && !finished[body] {
			lost = append(lost, body)
		}
	}
	return lost
}

// The power may be cut at any moment. Afterwards a message still belongs to the channel, or it is, or will be, in the
// dead-letter topic: never both, never neither.
//
// B64.
func TestDeadLetterPowerCut(t *testing.T) {
	t.Parallel()
	for cut := 1; ; cut++ {
		disk := faultaio.New(faultaio.Options{Seed: uint64(cut)})
		e, err := node.Open(ctxBg, smallOptions(disk))
		if err != nil {
			t.Fatal(err)
		}
		topic := topicOf(t, e, "t")
		configureChannel(t, channelOf(t, topic, "c"), func(s *fold.ChannelSettings) { s.MaxAttempts = 2 })
		disk.CrashAt(disk.Ops() + cut)
		acked, finished := deadRun(t, e, disk)
		through := !disk.Crashed()
		disk.CrashAt(disk.Ops())
		e.Close()
		disk = disk.Crash(uint64(cut))
		if e, err = node.Open(ctxBg, smallOptions(disk)); err != nil {
			t.Fatal(err)
		}
		topic, _ = e.Catalog().LookupTopic("t")
		ch, _ := topic.LookupChannel("c")
		eventually(t, "the outbox is worked off", func() bool { return channelStats(t, ch).OutboxCount == 0 })
		came := readAll(t, ch)
		dead := map[string]bool{}
		// What the reader let die is nowhere while it is on its way to the log, and then in the outbox.
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			lost := inNeither(t, e, acked, finished, came, dead)
			if len(lost) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("cut %d: %q are nowhere: %+v", cut, lost, channelStats(t, ch))
			}
		}
		for body := range acked {
			if slices.Contains(values(came), body) && dead[body] {
				t.Errorf("cut %d: %s is dead and comes again", cut, body)
			}
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if through {
			t.Logf("%d operations", cut)
			return
		}
		if t.Failed() || cut > 2000 {
			t.Fatalf("cut %d", cut)
		}
	}
}
