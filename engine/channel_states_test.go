package engine_test

import "testing"

// A channel that becomes full while none of its consumers waits is in health, although nobody asks for its counts.
func TestHealthKnowsFullChannelByItself(t *testing.T) {
	o := inDir(t.TempDir())
	o.MaxRanges = 4
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	s := subscribe(t, ch, 8)
	s.mu.Lock()
	s.limit = 0
	s.mu.Unlock()
	publish(t, topic, numbered("m", 8, 0)...)
	for i := range 8 {
		if m := s.next(); i%2 == 1 {
			s.finish(m)
		}
	}
	if err := s.Ready(0); err != nil {
		t.Fatal(err)
	}
	publish(t, topic, "more")
	healthSays(t, e, "channel c of topic t is full in 1 partition: ")
	if n := e.Storage().FullChannels; n != 1 {
		t.Errorf("%d full channels", n)
	}
}

// A channel whose messages retention has removed before they were finished is in health, although nobody asks for its
// counts, and so is one that skips: both say how many messages it was. So are a channel and a topic that are
// paused.
func TestHealthKnowsLostAndSkippedMessages(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	trimUnread(t, e, topic)
	healthSays(t, e, "channel c of topic t is dropping messages: retention or a quota removed ")
	st := channelStats(t, ch)
	if n := e.Storage().DroppingChannels; n != 1 || !st.Dropping || st.DroppedCount == 0 {
		t.Errorf("%d channels drop, %+v", n, st)
	}

	skips := channelOf(t, topicOf(t, e, "other"), "s")
	publish(t, skips.Topic(), "waits", "too")
	if err := skips.Skip(ctxBg, true); err != nil {
		t.Fatal(err)
	}
	publish(t, skips.Topic(), "a", "b", "c")
	healthSays(t, e, "channel s of topic other is skipping: it discards all that is published instead of delivering it, "+
		"5 messages so far")
	if st := channelStats(t, skips); !st.Skipping || st.SkippedCount != 5 || st.DroppedCount != 0 || st.Depth != 0 {
		t.Errorf("%+v", st)
	}
	if n := e.Storage().SkippingChannels; n != 1 {
		t.Errorf("%d channels skip", n)
	}
	if err := skips.Skip(ctxBg, false); err != nil {
		t.Fatal(err)
	}
	if st := channelStats(t, skips); st.Skipping || e.Storage().SkippingChannels != 0 {
		t.Errorf("after the end of it: %+v", st)
	}
	if err := skips.Pause(ctxBg); err != nil {
		t.Fatal(err)
	}
	healthSays(t, e, "channel s of topic other is paused: ")
	if n := e.Storage().PausedChannels; n != 1 {
		t.Errorf("%d channels are paused", n)
	}
	if err := skips.Topic().Pause(ctxBg); err != nil {
		t.Fatal(err)
	}
	healthSays(t, e, "topic other is paused: ")
	if n := e.Storage().PausedTopics; n != 1 {
		t.Errorf("%d topics are paused", n)
	}
}
