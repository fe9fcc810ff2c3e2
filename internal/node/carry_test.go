package node_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/fold"
)

// publishFlood publishes and finishes n messages of 8 KiB in a channel.
func publishFlood(t *testing.T, topic *node.Topic, s *testClient, n int) {
	t.Helper()
	floodAround(t, topic, s, n, 0, 0)
}

// floodAround publishes n large messages and finishes what comes, but one message that waits. On a slow machine that
// one is due before the test expects it: it waits for the delay again. The result is its attempts if it came.
func floodAround(
	t *testing.T, topic *node.Topic, s *testClient, n int, waits node.ID, delay time.Duration,
) (attempts uint16) {
	t.Helper()
	body := bytes.Repeat([]byte("x"), 8<<10)
	for range n {
		if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: body}); err != nil {
			t.Fatal(err)
		}
		m := s.next()
		for ; delay > 0 && m.id == waits; m = s.next() {
			attempts = m.attempts
			if err := s.Requeue(waits, delay); err != nil {
				t.Fatal(err)
			}
			s.Pump()
		}
		s.finish(m)
	}
	return attempts
}

func storedBytes(e *node.Engine) int64 {
	for _, s := range e.Stats("t", "") {
		return s.StoredBytes
	}
	return 0
}

// Deferred messages do not keep all later messages in the log: they are carried to the end of the log. They come when
// they are due, once, with their attempts and headers.
//
// B50, B51.
func TestDeferredAreCarried(t *testing.T) {
	t.Parallel()
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	began := time.Now()
	const delay = 6 * time.Second
	later, err := topic.PublishMessage(ctxBg, node.Outgoing{
		Body: []byte("later"), Delay: delay, Headers: headers("kind", "x"),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := subscribe(t, ch, 1)
	publish(t, topic, "again")
	again := s.next()
	if err := s.Requeue(again.id, delay); err != nil {
		t.Fatal(err)
	}
	s.Pump()
	publishFlood(t, topic, s, 200)
	// The log had 1.6 MB. Without the two deferred messages, all of it could be removed but the last segments.
	shrunk := func() bool { return storedBytes(e) < 800<<10 }
	for end := time.Now().Add(patience); !shrunk(); {
		publishFlood(t, topic, s, 2)
		if time.Now().After(end) {
			t.Fatalf("%d bytes are kept for two messages that wait", storedBytes(e))
		}
	}
	if took := time.Since(began); took > delay-time.Second {
		t.Logf("the machine is too slow for what follows: %v", took)
		return
	}
	e = openOnDisk(t, disk.Crash(4))
	topic, _ = e.Catalog().LookupTopic("t")
	ch, _ = topic.LookupChannel("c")
	s = subscribe(t, ch, 10)
	came := map[node.ID]delivered{}
	for len(came) < 2 {
		m := s.next()
		if m.id == later || m.id == again.id {
			came[m.id] = m
		}
		s.finish(m)
	}
	if m := came[later]; m.body != "later" || m.attempts != 1 || m.at.Sub(began) < delay {
		t.Errorf("later: %+v after %v", m, m.at.Sub(began))
	}
	if m := came[again.id]; m.body != "again" || m.attempts != 2 || m.at.Sub(began) < delay {
		t.Errorf("again: %+v after %v", m, m.at.Sub(began))
	}
	s.expectNothing("each came once")
}

// The carried message of a dead letter is found where it was carried to.
//
// B64.
func TestCarriedDeadLetter(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	publish(t, topic, "bad")
	s := subscribe(t, ch, 1)
	bad := s.next()
	if err := s.Requeue(bad.id, 4*time.Second); err != nil {
		t.Fatal(err)
	}
	s.Pump()
	attempts := bad.attempts
	flood := func(n int) {
		t.Helper()
		if again := floodAround(t, topic, s, n, bad.id, 4*time.Second); again > 0 {
			attempts = again
		}
	}
	flood(100)
	for end := time.Now().Add(patience); storedBytes(e) > 500<<10; {
		flood(2)
		if time.Now().After(end) {
			t.Fatalf("%d bytes are kept", storedBytes(e))
		}
	}
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts = attempts + 1 })
	for dead := false; !dead; {
		m := s.next()
		if dead = m.id == bad.id; dead {
			if err := s.Requeue(m.id, 0); err != nil {
				t.Fatal(err)
			}
			s.Pump()
			continue
		}
		s.finish(m)
	}
	if got := deadLetters(t, topic, "t.DLQ", 1); fmt.Sprint(peeked(got)) != "[bad]" {
		t.Errorf("%v", peeked(got))
	}
}
