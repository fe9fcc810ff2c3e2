package node_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/health"
)

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
		"5 messages since "+health.Since(channelStats(t, skips).SkippingSince))
	if since := channelStats(t, skips).SkippingSince; e.Now().Sub(since) > time.Minute || since.After(e.Now()) {
		t.Errorf("it skips since %v", since)
	}
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

// A leader that finds a channel skipping, after a restart or another leader, does not know since when, and how many
// messages went before: it says that it is the least. Once the channel is made to skip anew, both are known again.
func TestSkippingBeforeIsSaid(t *testing.T) {
	o := inDir(t.TempDir())
	e := openWith(t, o)
	ch := channelOf(t, topicOf(t, e, "t"), "s")
	if err := ch.Skip(ctxBg, true); err != nil {
		t.Fatal(err)
	}
	publish(t, ch.Topic(), "a", "b")
	healthSays(t, e, "instead of delivering it, 2 messages since ")
	if st := e.Storage(); st.SkippedMessages != 2 || st.SkippingSince == "" || st.SkippedBefore {
		t.Errorf("%d messages since %q, before: %v", st.SkippedMessages, st.SkippingSince, st.SkippedBefore)
	}
	e.Close()

	e = openWith(t, o)
	ch = channelOf(t, topicOf(t, e, "t"), "s")
	publish(t, ch.Topic(), "c")
	since := health.Since(channelStats(t, ch).SkippingSince)
	healthSays(t, e, "at least 1 message since "+since+" or earlier")
	st := e.Storage()
	if st.SkippedMessages != 1 || st.SkippingSince != since || !st.SkippedBefore {
		t.Errorf("%d messages since %q, before: %v", st.SkippedMessages, st.SkippingSince, st.SkippedBefore)
	}
	says := "; altogether at least 1 message since " + since + " or earlier"
	if f := st.Faults(); len(f) != 1 || !strings.HasSuffix(f[0].Words, says) {
		t.Errorf("the faults do not say it: %v", f)
	}
	for _, on := range []bool{false, true} {
		if err := ch.Skip(ctxBg, on); err != nil {
			t.Fatal(err)
		}
	}
	healthSays(t, e, "instead of delivering it, 0 messages since ")
}

// A topic that refuses a message because of its quota is in health, and no longer when the quota is gone.
func TestOverQuotaIsAState(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	channelOf(t, topic, "c")
	publish(t, topic, "fits")
	configure(t, topic, func(s *meta.TopicSettings) { s.QuotaCount, s.QuotaMode = 1, meta.QuotaReject })
	if e.Storage().OverQuotaTopics != 0 {
		t.Error("the topic is over its quota before a message was refused")
	}
	if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("more")}); !errors.Is(err, errs.ErrQuota) {
		t.Fatal(err)
	}
	healthSays(t, e, "topic t is over its quota in 1 partition: what is published there is refused")
	if n := e.Storage().OverQuotaTopics; n != 1 || !e.Stats("t", "")[0].OverQuota {
		t.Errorf("%d topics are over their quota", n)
	}
	configure(t, topic, func(s *meta.TopicSettings) { s.QuotaCount = 0 })
	if n := e.Storage().OverQuotaTopics; n != 0 {
		t.Errorf("without a quota, %d topics are over it", n)
	}
}
