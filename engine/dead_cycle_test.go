package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"penstock/engine"
	"penstock/engine/core"
)

// Dead-letter topics that lead back to the topic are refused when they are set.
//
// B64.
func TestDeadLetterCycleIsRefused(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	a, b := channelOf(t, topicOf(t, e, "a"), "c"), channelOf(t, topicOf(t, e, "b"), "c")
	last := channelOf(t, topicOf(t, e, "c"), "c")
	into := func(to string) func(*engine.ChannelSettings) {
		return func(s *engine.ChannelSettings) { s.MaxAttempts, s.DeadLetter = 1, to }
	}
	configureChannel(t, a, into("b"))
	configureChannel(t, b, into("c"))
	_, err := last.Configure(ctxBg, engine.ChannelSettings{MaxAttempts: 1, DeadLetter: "a"})
	if !errors.Is(err, engine.ErrSettings) || !strings.Contains(err.Error(), "c to a to b to c") {
		t.Fatalf("a cycle of three topics: %v", err)
	}
	configureChannel(t, b, func(s *engine.ChannelSettings) { s.MaxAttempts = 0 })
	configureChannel(t, last, into("a"))
}

// A message goes through a bounded number of dead-letter topics, so a cycle that two changes at once closed ends. What
// must not go on is kept.
//
// B64.
func TestDeadLetterHops(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	name := func(i int) string { return fmt.Sprint("t", i) }
	var chs []*engine.Channel
	for i := range core.MaxDeadHops + 1 {
		chs = append(chs, channelOf(t, topicOf(t, e, name(i)), "c"))
	}
	for i, ch := range chs {
		configureChannel(t, ch, func(s *engine.ChannelSettings) { s.MaxAttempts, s.DeadLetter = 1, name(i+1) })
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
		if i < core.MaxDeadHops {
			dead := deadLetters(t, ch.Topic(), name(i+1), 1)
			if got := valueOf(&dead[0], engine.HopsHeader); got != fmt.Sprint(i+1) {
				t.Errorf("in %s after %s dead-letter topics", name(i+1), got)
			}
			continue
		}
		eventually(t, "it waits", func() bool { return channelStats(t, ch).OutboxCount == 1 })
		s.expectNothing("it is dead")
		if st := channelStats(t, ch); st.OutboxCount != 1 || st.DeadLettered != 0 {
			t.Errorf("after %d dead-letter topics it goes on: %+v", i, st)
		}
	}
}
