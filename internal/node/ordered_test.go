package node_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/netproto"
)

// An ordered channel has one message of a partition in flight, and keeps the order whatever makes a message come again.
// A message that was finished, and whose successor was delivered, never comes again.
//
// B57, B68.
func TestOrdered(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.Order = fold.OrderPartition })
	publish(t, topic, numbered("m", 50, 0)...)
	s := subscribe(t, ch, 10, node.ConsumerOptions{MsgTimeout: time.Second})
	m := s.next()
	for _, again := range []struct {
		how string
		do  func()
	}{
		{"requeue", func() {
			if err := s.Requeue(m.id, 0); err != nil {
				t.Fatal(err)
			}
			s.Pump()
		}},
		{"requeue with a delay", func() {
			if err := s.Requeue(m.id, 30*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			s.Pump()
		}},
		{"timeout", func() {}},
		{"reconnect", func() {
			s.Close()
			s = subscribe(t, ch, 10, node.ConsumerOptions{MsgTimeout: time.Minute})
		}},
	} {
		again.do()
		next := s.next()
		if next.id != m.id || next.attempts != m.attempts+1 {
			t.Fatalf("%s: %s came (attempt %d), want %s again", again.how, next.body, next.attempts, m.body)
		}
		m = next
	}
	s.expectNothing("one is in flight")
	for i := range 20 {
		if m.body != fmt.Sprint("m", i) {
			t.Fatalf("%s came, want m%d", m.body, i)
		}
		s.finish(m)
		m = s.next()
	}
	// m20 is in flight, so the confirmation of m19 is on the disk.
	e = openOnDisk(t, disk.Crash(3))
	topic, _ = e.Catalog().LookupTopic("t")
	ch, _ = topic.LookupChannel("c")
	s = subscribe(t, ch, 10)
	for i := 20; i < 50; i++ {
		if m := s.next(); m.body != fmt.Sprint("m", i) {
			t.Fatalf("after a power cut %s came, want m%d", m.body, i)
		} else {
			s.finish(m)
		}
	}
	s.expectNothing("the end")
	// Without the order, many messages are in flight again.
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.Order = fold.OrderNone })
	publish(t, topic, numbered("n", 10, 0)...)
	for i := range 10 {
		if m := s.next(); m.body != fmt.Sprint("n", i) {
			t.Errorf("%s came, want n%d", m.body, i)
		}
	}
}

// In a key-ordered channel the messages of one key come one at a time and in order, and messages of different keys do
// not wait for each other.
//
// B57.
func TestKeyOrdered(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.Order = fold.OrderKey })
	const keys, per = 40, 25
	for i := range per {
		for k := range keys {
			key := fmt.Sprint("k", k)
			publishWith(t, topic, fmt.Sprint(key, "/", i), "key", key)
		}
	}
	publishWith(t, topic, "free") // without a key: no order
	seats := []*testClient{subscribe(t, ch, 30), subscribe(t, ch, 30)}
	keyedRun(t, seats, keys*per+1, per)
}

// keyedRun finishes total messages key/number, some of them only after failures, and checks the order of each key.
func keyedRun(t *testing.T, seats []*testClient, total, per int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	next := map[string]int{}
	held := map[string]delivered{}
	widest := 0
	for done := 0; done < total; {
		var m delivered
		var s *testClient
		for _, s = range seats {
			var ok bool
			if m, ok = s.poll(time.Millisecond); ok {
				break
			}
		}
		if m.body == "" {
			// No more messages come: those that the test holds now are all that may be in flight.
			if len(held) == 0 {
				continue
			}
			for key, h := range held {
				delete(held, key)
				finishAnywhere(t, seats, h)
				next[key]++
				done++
			}
			continue
		}
		key, number, ok := strings.Cut(m.body, "/")
		if !ok {
			finishAnywhere(t, seats, m)
			done++
			continue
		}
		if h, busy := held[key]; busy {
			t.Fatalf("%s came while %s is in flight", m.body, h.body)
		}
		if number != fmt.Sprint(next[key]) {
			t.Fatalf("%s came, want number %d of its key", m.body, next[key])
		}
		if rng.IntN(10) == 0 {
			if err := s.Requeue(m.id, time.Duration(rng.IntN(3))*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			s.Pump()
			continue
		}
		held[key] = m
		widest = max(widest, len(held))
	}
	if widest < 20 {
		t.Errorf("at most %d keys were in flight at once", widest)
	}
}

func finishAnywhere(t *testing.T, seats []*testClient, m delivered) {
	t.Helper()
	for _, s := range seats {
		err := s.Finish(m.id)
		if err == nil {
			s.Pump()
			return
		}
		if !errors.Is(err, errs.ErrNotOwner) {
			t.Fatalf("finish %s: %v", m.body, err)
		}
	}
	t.Fatalf("%s is nobody's", m.body)
}

// While too few replicas answer, an ordered channel stands still for longer than a publisher would wait. When the
// replicas are back, it goes on by itself. It also goes on if it was configured meanwhile, and the caller was told that
// the outcome is unknown.
//
// B57.
func TestClusterOrderedOutlastsQuorum(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	tc := newTestCluster(t, 3, func(o *node.Options) {
		o.PublishTimeout = timeout
		o.Cluster.Replication.StrandedNs = int64(time.Hour) // the leader stays
	})
	tc.create("t", 1)
	c, late := tc.channel("t", "c"), tc.channel("t", "late")
	configureChannel(t, c, func(s *fold.ChannelSettings) { s.Order = fold.OrderPartition })
	publish(t, tc.topic(tc.leader("t", 0), "t"), numbered("m", 5, 0)...)
	s := subscribe(t, c, 5)
	m := s.next()
	tc.network.rules(func(_, _ string, kind netproto.Type) int {
		if kind == netproto.TypePutAck {
			return 0
		}
		return 1
	})
	s.finish(m)
	if _, err := late.Configure(t.Context(), fold.ChannelSettings{Order: fold.OrderPartition}); err == nil {
		t.Error("settings were committed without a quorum")
	}
	if m, ok := s.poll(3 * timeout); ok {
		t.Errorf("%s came before the one before it was confirmed for good", m.body)
	}
	tc.network.rules(nil)
	for i := 1; i < 5; i++ {
		if m := s.next(); m.body != fmt.Sprint("m", i) {
			t.Errorf("%s came, want m%d", m.body, i)
		} else {
			s.finish(m)
		}
	}
	if got := subscribe(t, late, 5).take(5); fmt.Sprint(got) != "[m0 m1 m2 m3 m4]" {
		t.Errorf("the other channel got %v", got)
	}
}
