package node_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/fold"
	"penstock/tests/support/faultaio"
)

// noDeadLetterTopic makes channel c of topic "t" give its first message up while no dead-letter topic can be made.
func noDeadLetterTopic(t *testing.T) (disk *faultaio.Disk, e *node.Engine, ch *node.Channel, s *testClient) {
	t.Helper()
	disk = newDisk()
	e = openOnDisk(t, disk)
	ch = channelOf(t, topicOf(t, e, "t"), "c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts = 1 })
	for _, name := range []string{"topics/*", "topics/*/topic.json*"} {
		disk.Inject(faultaio.Rule{Kind: faultaio.KindMkdir, Name: name, Err: syscall.EIO, Count: -1})
	}
	id := publish(t, ch.Topic(), "dead")
	s = subscribe(t, ch, 10)
	failMessages(t, s, id...)
	eventually(t, "it waits", func() bool { return channelStats(t, ch).OutboxCount == 1 })
	return disk, e, ch, s
}

// A dead letter whose segment retention by size has removed leaves the outbox, although no dead-letter topic can be
// made: it is not counted as one that waits.
func TestGoneDeadLetterLeavesTheOutbox(t *testing.T) {
	t.Parallel()
	_, _, ch, s := noDeadLetterTopic(t)
	configure(t, ch.Topic(), func(s *meta.TopicSettings) { s.RetentionBytes = 32 << 10 })
	finishMany(t, ch, s)
	eventually(t, "it counts no more", func() bool { return channelStats(t, ch).OutboxCount == 0 })
}

// finishMany publishes some segments of messages, and finishes them.
func finishMany(t *testing.T, ch *node.Channel, s *testClient) {
	t.Helper()
	for i := range 30 {
		publish(t, ch.Topic(), numbered(fmt.Sprint("m", i, "-"), 20, 4000)...)
		s.take(20)
	}
}

// Dead letters that cannot be moved keep no segment: they are carried, like other messages that wait. When they can be
// moved, they come to their topic whole.
func TestStuckOutboxKeepsNoSegment(t *testing.T) {
	t.Parallel()
	disk, e, ch, s := noDeadLetterTopic(t)
	finishMany(t, ch, s)
	eventually(t, "retention removes what is finished", func() bool {
		publish(t, ch.Topic(), "more") // the newest segment stays
		s.take(1)
		return storedBytes(e) < 512<<10
	})
	if st := channelStats(t, ch); st.OutboxCount != 1 {
		t.Errorf("%+v", st)
	}
	disk.ClearRules()
	dead := deadLetters(t, ch.Topic(), "t.DLQ", 1)
	if string(dead[0].Body) != "dead" || valueOf(&dead[0], channel.OriginChannelHeader) != "c" {
		t.Errorf("%+v", dead)
	}
	eventually(t, "it has left the outbox", func() bool { return channelStats(t, ch).OutboxCount == 0 })
}

// A message that is never finished, without a limit of attempts, keeps no segment, either: it is carried, and comes
// again and again.
func TestPoisonMessageKeepsNoSegment(t *testing.T) {
	t.Parallel()
	e := openOnDisk(t, newDisk())
	ch := channelOf(t, topicOf(t, e, "t"), "c")
	s := subscribe(t, ch, 10, node.ConsumerOptions{MsgTimeout: 20 * time.Millisecond})
	poison, times := publish(t, ch.Topic(), "poison")[0], 0
	finish := func() {
		for m, ok := s.poll(time.Millisecond); ok; m, ok = s.poll(0) {
			if m.id == poison {
				times++
			} else if s.Finish(m.id) == nil { // otherwise it has timed out, and comes again
				s.Pump()
			}
		}
	}
	for range 30 {
		publish(t, ch.Topic(), numbered("m", 20, 4000)...)
		finish()
	}
	eventually(t, "retention removes what is finished", func() bool {
		publish(t, ch.Topic(), "more") // the newest segment stays
		finish()
		return storedBytes(e) < 512<<10
	})
	before := times
	eventually(t, "it comes again", func() bool { finish(); return times > before })
}
