package node_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/health"
)

// Dead-letter topics that lead back to the topic are refused when they are set.
//
// B64.
func TestDeadLetterCycleIsRefused(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	a, b := channelOf(t, topicOf(t, e, "a"), "c"), channelOf(t, topicOf(t, e, "b"), "c")
	last := channelOf(t, topicOf(t, e, "c"), "c")
	into := func(to string) func(*fold.ChannelSettings) {
		return func(s *fold.ChannelSettings) { s.MaxAttempts, s.DeadLetter = 1, to }
	}
	configureChannel(t, a, into("b"))
	configureChannel(t, b, into("c"))
	_, err := last.Configure(ctxBg, fold.ChannelSettings{MaxAttempts: 1, DeadLetter: "a"})
	if !errors.Is(err, errs.ErrSettings) || !strings.Contains(err.Error(), "c to a to b to c") {
		t.Fatalf("a cycle of three topics: %v", err)
	}
	configureChannel(t, b, func(s *fold.ChannelSettings) { s.MaxAttempts = 0 })
	configureChannel(t, last, into("a"))
}

// A message goes through a bounded number of dead-letter topics, so a cycle that two changes at once closed ends. What
// must not go on is kept.
//
// B64.
func TestDeadLetterHops(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	name := func(i int) string { return fmt.Sprint("t", i) }
	var chs []*node.Channel
	for i := range delivery.MaxDeadHops + 1 {
		chs = append(chs, channelOf(t, topicOf(t, e, name(i)), "c"))
	}
	for i, ch := range chs {
		configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts, s.DeadLetter = 1, name(i+1) })
		s := subscribe(t, ch, 1)
		defer s.Close()
		if i == 0 {
			publish(t, ch.Topic(), "m")
		}
		m := s.next()
		if err := s.Requeue(m.id, 0); err != nil {
			t.Fatal(err)
		}
		s.Pump()
		if i < delivery.MaxDeadHops {
			dead := deadLetters(t, ch.Topic(), name(i+1), 1)
			if got := valueOf(&dead[0], channel.HopsHeader); got != fmt.Sprint(i+1) {
				t.Errorf("in %s after %s dead-letter topics", name(i+1), got)
			}
			continue
		}
		eventually(t, "it waits", func() bool { return channelStats(t, ch).OutboxCount == 1 })
		s.expectNothing("it is dead")
		eventually(t, "it is aside", func() bool { return channelStats(t, ch).AsideCount == 1 })
		if st := channelStats(t, ch); st.OutboxCount != 1 || st.DeadLettered != 0 || st.AsideWhy == "" {
			t.Errorf("after %d dead-letter topics it goes on: %+v", i, st)
		}
	}
}

// Dead letters that cannot be published are set aside with their reason, and the others are moved.
//
// B64.
func TestDeadLettersAside(t *testing.T) {
	o := inDir(t.TempDir())
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	channelOf(t, topic, "c")
	big := strings.Repeat("x", 2000)
	const bad, good = 100, 200 // more than are moved at once
	ids := publish(t, topic, append(slices.Repeat([]string{big}, bad), numbered("m", good, 0)...)...)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	o.MaxMessageBytes = 1000
	e = openWith(t, o)
	topic, _ = e.Catalog().LookupTopic("t")
	ch, _ := topic.LookupChannel("c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts = 1 })
	s := subscribe(t, ch, len(ids))
	defer s.Close()
	failMessages(t, s, ids...)
	deadLetters(t, topic, "t.DLQ", good)
	eventually(t, "the others are moved", func() bool { return channelStats(t, ch).DeadLettered == good })
	eventually(t, "the rest is aside", func() bool { return channelStats(t, ch).AsideCount == bad })
	why := health.Text(errs.ErrMessageTooBig) // without the name of a package
	if st := channelStats(t, ch); st.OutboxCount != bad || !strings.HasPrefix(st.AsideWhy, why) {
		t.Errorf("%+v", st)
	}
	healthSays(t, e, "channel c of topic t has 100 dead letters aside: ")
	healthSays(t, e, why)
	if n := e.Storage().AsideChannels; n != 1 {
		t.Errorf("%d channels with dead letters aside", n)
	}
	if err := topic.DeleteChannel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if v := e.Verdict(); strings.Contains(v.Health, "dead letter") {
		t.Errorf("after the channel's end: %s", v.Health)
	}
}

// Settings under which dead letters that wait could never be moved are refused.
func TestSettingsKeepATopicForDeadLetters(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	ch := channelOf(t, topicOf(t, e, strings.Repeat("t", fold.MaxTopicNameBytes-1)), "c")
	s := configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts, s.DeadLetter = 1, "dead" })
	s.MaxAttempts, s.DeadLetter = 0, ""
	if _, err := ch.Configure(ctxBg, s); !errors.Is(err, errs.ErrSettings) {
		t.Errorf("without a topic for dead letters: %v", err)
	}
	s.DeadLetter = ch.Topic().Name()
	if _, err := ch.Configure(ctxBg, s); !errors.Is(err, errs.ErrSettings) {
		t.Errorf("the topic itself for dead letters that wait: %v", err)
	}
	s.DeadLetter = "dead"
	if _, err := ch.Configure(ctxBg, s); err != nil {
		t.Error(err)
	}
}
