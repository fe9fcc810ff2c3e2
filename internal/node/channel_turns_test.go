package node_test

import (
	"fmt"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/fold"
)

// publishLater stores a message that is delivered after a delay.
func publishLater(t testing.TB, topic *node.Topic, body string, d time.Duration, nameValues ...string) {
	t.Helper()
	m := node.Outgoing{Body: []byte(body), Headers: headers(nameValues...), Delay: d}
	if _, err := topic.PublishMessage(ctxBg, m); err != nil {
		t.Fatal(err)
	}
}

// onlyRed makes a channel want the messages with the header color=red.
func onlyRed(s *fold.ChannelSettings) {
	s.Filter = fold.Filter{Rules: []fold.Rule{{Header: "color", Match: fold.MatchExact, Pattern: "red"}}}
}

// What Redrive publishes again reaches the channel, whatever its filter, its sample and its consumer's sample leave
// out.
//
// B60, B62, B64.
func TestRedrivePassesFilterAndSamples(t *testing.T) {
	const n = 40
	topic := topicOf(t, openOnDisk(t, newDisk()), "t")
	ch := channelOf(t, topic, "c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts = 1 })
	s := subscribe(t, ch, n)
	for i := range n {
		publishWith(t, topic, fmt.Sprint(i), "color", "blue")
	}
	for range n {
		if err := s.Requeue(s.next().id, 0); err != nil {
			t.Fatal(err)
		}
	}
	s.Pump()
	deadLetters(t, topic, "t.DLQ", n)
	s.Close()
	configureChannel(t, ch, func(s *fold.ChannelSettings) {
		s.MaxAttempts, s.SampleRate = 0, 10
		onlyRed(s)
	})
	s = subscribe(t, ch, n, node.ConsumerOptions{SampleRate: 10})
	if moved, err := ch.Redrive(ctxBg, n); moved != n || err != nil {
		t.Fatalf("redrive: %d, %v", moved, err)
	}
	s.take(n)
}

// A filter holds for messages that come again, too, and what it leaves out uses up neither the rate nor the limit of
// messages in flight.
//
// B60, B62.
func TestFilterJudgesWhatComesAgain(t *testing.T) {
	topic := topicOf(t, openOnDisk(t, newDisk()), "t")
	ch := channelOf(t, topic, "c")
	const n = 20
	for range n {
		publishWith(t, topic, "blue", "color", "blue")
	}
	s := subscribe(t, ch, n)
	var had []delivered
	for range n {
		had = append(had, s.next())
	}
	configureChannel(t, ch, func(s *fold.ChannelSettings) {
		s.RatePerSecond, s.MaxInFlight = 1, 1
		onlyRed(s)
	})
	for _, m := range had {
		if err := s.Requeue(m.id, 0); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	publishWith(t, topic, "red", "color", "red")
	s.Pump()
	if m := s.next(); m.body != "red" {
		t.Errorf("a message that the filter does not want comes again: %+v", m)
	}
	if d := time.Since(begun); d > n*time.Second/2 {
		t.Errorf("messages that nobody got have used up the rate for %v", d)
	}
	if n := channelStats(t, ch).Depth; n != 0 {
		t.Errorf("%d messages wait", n)
	}
}

// The samples of a channel and of a client leave out messages that come due like those that come at once.
//
// B62.
func TestSampleOfDelayedMessages(t *testing.T) {
	topic := topicOf(t, openOnDisk(t, newDisk()), "t")
	ch := channelOf(t, topic, "c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.SampleRate = 20 })
	const n = 100
	for i := range n {
		publishLater(t, topic, fmt.Sprint(i), time.Millisecond)
	}
	eventually(t, "all are due", func() bool { return channelStats(t, ch).DeferredCount == 0 })
	if got := len(readAll(t, ch)); got == 0 || got > n/2 {
		t.Errorf("a sample of 20%% of %d delayed messages has %d", n, got)
	}
}

// The partitions of a topic take turns, also when the consumer takes one message at a time.
func TestPartitionsTakeTurns(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic, err := e.CreateTopic(ctxBg, "t", 3)
	if err != nil {
		t.Fatal(err)
	}
	ch := channelOf(t, topic, "c")
	for i := range 90 {
		publish(t, topic, fmt.Sprint(i))
	}
	s := subscribe(t, ch, 1)
	var of [3]int
	for range 30 {
		m := s.next()
		of[m.id.Partition()]++
		s.finish(m)
		s.Pump()
	}
	for p, n := range of {
		if n < 9 {
			t.Errorf("30 messages of %v: partition %d waits", of, p)
		}
	}
}

// Messages that come due, messages that come again, and new ones take turns.
//
// B46.
func TestSourcesTakeTurns(t *testing.T) {
	topic := topicOf(t, openOnDisk(t, newDisk()), "t")
	ch := channelOf(t, topic, "c")
	const n = 30
	for range n {
		publish(t, topic, "again")
	}
	s := subscribe(t, ch, n)
	for range n {
		s.next()
	}
	for range n {
		publishLater(t, topic, "due", time.Millisecond)
		publish(t, topic, "new")
	}
	if err := s.Ready(0); err != nil {
		t.Fatal(err)
	}
	s.Close() // what it has comes again
	eventually(t, "all are due", func() bool { return channelStats(t, ch).DeferredCount == 0 })
	s = subscribe(t, ch, 1)
	of := map[string]int{}
	for range n {
		m := s.next()
		of[m.body]++
		s.finish(m)
		s.Pump()
	}
	for _, kind := range []string{"again", "due", "new"} {
		if of[kind] < n/3-1 {
			t.Errorf("%d messages are %v: what is %s waits", n, of, kind)
		}
	}
}

// With a limit of attempts, a message that fails ends in the dead-letter topic although its node restarts in between:
// the attempts of what comes again are in the log. It makes no difference whether the message is requeued, times out,
// or its consumer goes.
//
// B64.
func TestAttemptsSurviveRestarts(t *testing.T) {
	for name, fail := range map[string]func(*testClient, delivered) error{
		"requeued":   func(s *testClient, m delivered) error { return s.Requeue(m.id, 0) },
		"timed out":  func(*testClient, delivered) error { return nil },
		"given back": func(s *testClient, _ delivered) error { s.Close(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			disk := newDisk()
			e := openOnDisk(t, disk)
			ch := channelOf(t, topicOf(t, e, "t"), "c")
			configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts = 3 })
			publish(t, topicOf(t, e, "t"), "bad")
			for n := range 3 {
				ch = channelOf(t, topicOf(t, e, "t"), "c")
				s := subscribe(t, ch, 1, node.ConsumerOptions{MsgTimeout: 50 * time.Millisecond})
				m := s.next()
				if m.attempts != uint16(n+1) {
					t.Fatalf("after %d restarts it has attempt %d", n, m.attempts)
				}
				if err := s.Ready(0); err != nil {
					t.Fatal(err)
				}
				if err := fail(s, m); err != nil {
					t.Fatal(err)
				}
				eventually(t, "it is not in flight", func() bool { return channelStats(t, ch).InFlightCount == 0 })
				if n < 2 {
					if err := e.Close(); err != nil {
						t.Fatal(err)
					}
					disk = disk.Crash(1)
					e = openOnDisk(t, disk)
				}
			}
			deadLetters(t, topicOf(t, e, "t"), "t.DLQ", 1)
		})
	}
}
