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
	"penstock/internal/node/errs"
)

var ctxBg = context.Background()

// B44: each channel gets each message at least once. FIN confirms a message; an unfinished message comes again with one
// attempt more.
func TestEveryChannelGetsEveryMessage(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	a, b := channelOf(t, topic, "a"), channelOf(t, topic, "b")
	publish(t, topic, "one", "two")
	sa := subscribe(t, a, 10, node.ConsumerOptions{MsgTimeout: time.Second})
	first := sa.next()
	sa.finish(sa.next())
	again := sa.next()
	if again.id != first.id || again.attempts != 2 || again.body != "one" {
		t.Errorf("after the timeout came %+v, want %s with attempts 2", again, first.id)
	}
	sa.finish(again)
	sa.expectNothing("both are finished")
	if got := subscribe(t, b, 10).take(2); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("the other channel got %q", got)
	}
	if st := channelStats(t, a); st.TimeoutCount != 1 || st.MessageCount != 2 {
		t.Errorf("statistics: %+v", st)
	}
}

// B45: messages that were finished out of order stay finished over a restart; unfinished messages come again.
func TestFinishOutOfOrder(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	ids := publish(t, topic, numbered("m", 10, 0)...)
	s := subscribe(t, ch, 10)
	for i := range 10 {
		if m := s.next(); i%3 != 0 {
			s.finish(m)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk.Kill(1))
	topic, _ = e.Catalog().LookupTopic("t")
	ch, _ = topic.LookupChannel("c")
	got := readAll(t, ch)
	for i, id := range ids {
		if _, came := got[id]; came != (i%3 == 0) {
			t.Errorf("message %d came again: %v", i, came)
		}
	}
}

// B46: a channel that has reached MaxRanges reads no new messages until another one is confirmed. Meanwhile it
// redelivers.
func TestConfirmWindow(t *testing.T) {
	o := inDir(t.TempDir())
	var log logged
	o.MaxRanges, o.Logger = 4, log.logger()
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	publish(t, topic, numbered("m", 40, 0)...)
	s := subscribe(t, ch, 100, node.ConsumerOptions{MsgTimeout: 10 * time.Second})
	s.mu.Lock()
	s.limit = 0
	s.mu.Unlock()
	var held []delivered
	for i := 0; ; i++ {
		m, ok := s.poll(time.Second)
		if !ok {
			break
		}
		if i%2 == 0 {
			held = append(held, m)
			continue
		}
		if err := s.Finish(m.id); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, topic, numbered("more", 100, 0)...)
	if err := s.Requeue(held[0].id, 0); err != nil {
		t.Fatal(err)
	}
	s.Pump()
	if m := s.next(); m.id != held[0].id {
		t.Errorf("came %s, want the requeued %s", m.id, held[0].id)
	}
	s.expectNothing("the window is full")
	if n := strings.Count(log.String(), "delivers no new messages"); n != 1 {
		t.Errorf("the log says %d times that the window is full", n)
	}
	healthSays(t, e, "channel c of topic t is full in 1 partition: ")
	if st := channelStats(t, ch); st.FullPartitions != 1 || e.Storage().FullChannels != 1 {
		t.Errorf("%+v, and %d full channels", st, e.Storage().FullChannels)
	}
	s.finish(held...)
	total := 40
	for range 100 {
		m := s.next()
		s.finish(m)
		total++
	}
	if total != 140 {
		t.Errorf("%d messages", total)
	}
	eventually(t, "it is not full any more", func() bool { return e.Storage().FullChannels == 0 })
	if st, health := channelStats(t, ch), e.Verdict().Health; st.FullPartitions != 0 || strings.Contains(health, "full") {
		t.Errorf("%+v, %s", st, health)
	}
}

// healthSays fails unless the node's health says the words, and is healthy.
func healthSays(t *testing.T, e *node.Engine, words string) {
	t.Helper()
	if v := e.Verdict(); !v.Healthy || !strings.Contains(v.Health, words) {
		t.Errorf("health does not say %q: %s", words, v.Health)
	}
}

// B46: messages that time out again and again do not keep other messages away, even if there are more of them than the
// consumer may have in flight.
func TestTimeoutsDoNotBlock(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	publish(t, topic, numbered("stuck", 5, 0)...)
	publish(t, topic, numbered("fine", 20, 0)...)
	s := subscribe(t, ch, 5, node.ConsumerOptions{MsgTimeout: 15 * time.Millisecond})
	fine := 0
	for deadline := time.Now().Add(patience); fine < 20; {
		m, ok := s.poll(time.Until(deadline))
		if !ok {
			t.Fatalf("%d of 20 messages came past those that time out", fine)
		}
		if m.body[:4] == "fine" && s.Finish(m.id) == nil {
			fine++
			s.Pump()
		}
	}
}

// B47: a FIN, REQ or TOUCH of another consumer's message, of an unknown one, or twice, changes nothing.
func TestForeignFinish(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	publish(t, topic, "m")
	a := subscribe(t, ch, 1)
	m := a.next()
	b := subscribe(t, ch, 1)
	calls := map[string]func(s *testClient, id node.ID) error{
		"finish":  func(s *testClient, id node.ID) error { return s.Finish(id) },
		"requeue": func(s *testClient, id node.ID) error { return s.Requeue(id, time.Second) },
		"touch":   func(s *testClient, id node.ID) error { return s.Touch(id) },
	}
	for name, call := range calls {
		if err := call(b, m.id); !errors.Is(err, errs.ErrNotOwner) {
			t.Errorf("%s of another's message: %v, want ErrNotOwner", name, err)
		}
		for _, id := range []node.ID{m.id + 1, 1 << 60, ^node.ID(0)} {
			if err := call(a, id); !errors.Is(err, errs.ErrNotInFlight) {
				t.Errorf("%s of %s: %v, want ErrNotInFlight", name, id, err)
			}
		}
	}
	if st := channelStats(t, ch); st.InFlightCount != 1 || st.DeferredCount != 0 {
		t.Errorf("state changed: %+v", st)
	}
	a.finish(m)
	for name, call := range calls {
		if err := call(a, m.id); !errors.Is(err, errs.ErrNotInFlight) {
			t.Errorf("%s after the finish: %v, want ErrNotInFlight", name, err)
		}
	}
}

// B48: TOUCH keeps a message, but not beyond MaxMsgTimeout of its delivery.
func TestTouch(t *testing.T) {
	o := inDir(t.TempDir())
	o.MaxMsgTimeout = 400 * time.Millisecond
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	publish(t, topic, "m")
	const timeout = 150 * time.Millisecond
	s := subscribe(t, ch, 1, node.ConsumerOptions{MsgTimeout: timeout})
	for began := time.Now(); ; publish(t, topic, "m") {
		first := s.next()
		// Times since the delivery: the last two TOUCHes that were taken began, and the last one ended.
		var before, touched, ended time.Duration
		again, came := s.poll(40 * time.Millisecond)
		for ; !came; again, came = s.poll(40 * time.Millisecond) {
			now := time.Since(first.at)
			if s.Touch(first.id) == nil {
				before, touched, ended = touched, now, time.Since(first.at)
			}
			if now > patience {
				t.Fatal("touching keeps it for ever")
			}
		}
		lasted := again.at.Sub(first.at)
		if lasted <= ended { // that was a TOUCH of the next delivery
			touched = before
		}
		least := min(touched+timeout, o.MaxMsgTimeout)
		if again.attempts != first.attempts+1 || lasted < least-10*time.Millisecond {
			t.Fatalf("came again after %v (attempts %d), although touched after %v; MaxMsgTimeout is %v",
				lasted, again.attempts, touched, o.MaxMsgTimeout)
		}
		if least == o.MaxMsgTimeout {
			return
		}
		if time.Since(began) > patience { // a busy machine touches it late at times
			t.Fatal("no message was touched until MaxMsgTimeout")
		}
		for s.Finish(again.id) != nil { // it has timed out once more
			s.Pump()
			again = s.next()
		}
		s.Pump()
	}
}

// B49: after REQ 0 the message comes soon, after REQ t not before t. A requeue beyond MaxDeferred is refused, and its
// message stays in flight.
func TestRequeue(t *testing.T) {
	o := inDir(t.TempDir())
	o.MaxDeferred = 2
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	publish(t, topic, numbered("m", 4, 0)...)
	s := subscribe(t, ch, 4)
	ms := []delivered{s.next(), s.next(), s.next(), s.next()}
	start := time.Now()
	if err := s.Requeue(ms[0].id, 0); err != nil {
		t.Fatal(err)
	}
	s.Pump()
	if m := s.next(); m.id != ms[0].id || m.attempts != 2 {
		t.Errorf("REQ 0: came %s attempts %d", m.id, m.attempts)
	}
	const delay = 500 * time.Millisecond
	for _, m := range ms[1:3] {
		if err := s.Requeue(m.id, delay); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Requeue(ms[3].id, delay); err == nil {
		t.Error("a third delayed message was taken, MaxDeferred is 2")
	}
	if st := channelStats(t, ch); st.DeferredCount != 2 || st.InFlightCount != 2 || st.RequeueCount != 3 {
		t.Errorf("statistics: %+v", st)
	}
	for range 2 {
		m := s.next()
		if late := m.at.Sub(start); late < delay {
			t.Errorf("%s came after %v, not before %v", m.id, late, delay)
		}
	}
}

// B52: Empty drops unread, in-flight and deferred messages, and they do not come after a restart either. Late FINs
// fail; new messages come.
func TestEmptyChannel(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	other := channelOf(t, topic, "other")
	publish(t, topic, numbered("m", 10, 0)...)
	const emptied = 500 * time.Millisecond // Empty returns before anything is due
	if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("deferred"), Delay: emptied}); err != nil {
		t.Fatal(err)
	}
	s := subscribe(t, ch, 3)
	inFlight, requeued := s.next(), s.next()
	if err := s.Requeue(requeued.id, emptied); err != nil {
		t.Fatal(err)
	}
	if err := ch.Empty(ctxBg); err != nil {
		t.Fatal(err)
	}
	if err := s.Finish(inFlight.id); !errors.Is(err, errs.ErrNotInFlight) {
		t.Errorf("a FIN after Empty: %v", err)
	}
	if st := channelStats(t, ch); st.Depth != 0 || st.InFlightCount != 0 || st.DeferredCount != 0 {
		t.Errorf("after Empty: %+v", st)
	}
	for {
		if m, ok := s.poll(2 * emptied); !ok {
			break
		} else if m.attempts > 1 || m.body == "deferred" {
			t.Errorf("%q came after Empty", m.body)
		}
	}
	publish(t, topic, "new")
	if m := s.next(); m.body != "new" {
		t.Errorf("after Empty came %q", m.body)
	}
	e2 := openOnDisk(t, disk.Crash(1))
	topic2, _ := e2.Catalog().LookupTopic("t")
	c2, _ := topic2.LookupChannel("c")
	if got := readAll(t, c2); len(got) != 1 {
		t.Errorf("after a power cut the emptied channel has %v", got)
	}
	if got := readAll(t, other); len(got) != 12 {
		t.Errorf("the other channel has %d messages, want 12", len(got))
	}
}

// B53, B54: a pause stops deliveries, and its end resumes them without loss. Skip discards the messages that are
// published meanwhile, and no others.
func TestPauseAndSkip(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	s := subscribe(t, ch, 10)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(ch.Pause(ctxBg))
	publish(t, topic, "a", "b")
	s.expectNothing("the channel is paused")
	if st := channelStats(t, ch); !st.Paused || st.Depth != 2 {
		t.Errorf("paused: %+v", st)
	}
	must(ch.Unpause(ctxBg))
	if got := s.take(2); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("after the pause: %q", got)
	}
	must(ch.Skip(ctxBg, true))
	publish(t, topic, "skipped")
	s.expectNothing("the channel skips")
	must(ch.Skip(ctxBg, false))
	publish(t, topic, "c")
	if got := s.take(1); got[0] != "c" {
		t.Errorf("after the skip: %q", got)
	}
	// A pause of the topic keeps messages back from all channels.
	must(topic.Pause(ctxBg))
	publish(t, topic, "held")
	s.expectNothing("the topic is paused")
	if st := e.Stats("t", "")[0]; !st.Paused || st.Depth != 1 {
		t.Errorf("paused topic: depth %d, paused %v", st.Depth, st.Paused)
	}
	late := channelOf(t, topic, "late")
	must(topic.Unpause(ctxBg))
	if got := s.take(1); got[0] != "held" {
		t.Errorf("after the topic's pause: %q", got)
	}
	if got := subscribe(t, late, 10).take(1); got[0] != "held" {
		t.Errorf("a channel made during the pause: %q", got)
	}
	must(topic.Pause(ctxBg))
	publish(t, topic, "dropped")
	must(topic.Empty(ctxBg))
	must(topic.Unpause(ctxBg))
	publish(t, topic, "d")
	if got := s.take(1); got[0] != "d" {
		t.Errorf("after the topic was emptied: %q", got)
	}
}

// B27, B56, B66: after resets backward and forward, by id and by time, with messages in flight and while segments roll,
// the right sequence of messages comes, with at most those that were in flight once more. The depth is right, too.
func TestReset(t *testing.T) {
	t.Parallel()
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	keep := channelOf(t, topic, "keep") // so that retention takes nothing
	var ids []node.ID
	ids = append(ids, publish(t, topic, numbered("old", 300, 700)...)...)
	time.Sleep(3 * time.Millisecond) // the clock must move between the two halves
	middle, old := time.Now(), time.Unix(1, 0)
	ids = append(ids, publish(t, topic, numbered("new", 300, 700)...)...)
	s := subscribe(t, ch, 3)
	held := []delivered{s.next(), s.next(), s.next()}
	cases := []struct {
		name  string
		reset func() error
		first int
	}{
		{"forward by id", func() error { return ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekID, ID: ids[450]}) }, 450},
		{"backward by id", func() error { return ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekID, ID: ids[17]}) }, 17},
		{"by time", func() error { return ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekTime, Time: middle}) }, 300},
		{"before the beginning", func() error { return ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekTime, Time: old}) }, 0},
		{"to the last", func() error { return ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekID, ID: ids[599]}) }, 599},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			s.t = t
			s.mu.Lock()
			s.got = nil
			s.mu.Unlock()
			if err := tc.reset(); err != nil {
				t.Fatal(err)
			}
			for _, m := range held {
				if err := s.Finish(m.id); err == nil && m.id < ids[tc.first] {
					t.Errorf("a late FIN of %s was taken", m.id)
				}
			}
			n := min(5, len(ids)-tc.first)
			for i := range n {
				m := s.next()
				if m.id != ids[tc.first+i] {
					t.Fatalf("message %d after the reset is %s, want %s", i, m.id, ids[tc.first+i])
				}
				s.finish(m)
			}
			st := channelStats(t, ch)
			if left := int(st.Depth) + st.InFlightCount; left != len(ids)-tc.first-n {
				t.Errorf("depth %d and %d in flight, want %d in all", st.Depth, st.InFlightCount, len(ids)-tc.first-n)
			}
			held = held[:0]
			for m, ok := s.poll(50 * time.Millisecond); ok; m, ok = s.poll(50 * time.Millisecond) {
				held = append(held, m)
			}
		})
	}
	s.t = t
	resetBeyond(t, topic, ch, s, ids[599])
	if got := readAll(t, keep); len(got) != 601 {
		t.Errorf("the other channel has %d messages, want 601", len(got))
	}
}

// resetBeyond resets to an id and a time behind the end: the channel continues at the end.
func resetBeyond(t *testing.T, topic *node.Topic, ch *node.Channel, s *testClient, last node.ID) {
	t.Helper()
	if err := ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekID, ID: last + 1000}); err != nil {
		t.Errorf("a reset beyond the end must clamp: %v", err)
	}
	if err := ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekID, ID: node.ID(7) << 48}); !errors.Is(err, errs.ErrNoPartition) {
		t.Errorf("a reset in a partition that the topic does not have: %v", err)
	}
	if err := ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekTime, Time: time.Now().Add(time.Hour)}); err != nil {
		t.Errorf("a reset into the future must clamp: %v", err)
	}
	s.mu.Lock()
	s.got = nil
	s.mu.Unlock()
	publish(t, topic, "last")
	if m := s.next(); m.body != "last" {
		t.Errorf("after a reset to the end came %.20q", m.body)
	}
}

// B63: the consumers of a channel and the messages in flight to a consumer are bounded; RDY 0 stops deliveries.
func TestConsumerBounds(t *testing.T) {
	o := inDir(t.TempDir())
	o.MaxConsumers = 2
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	publish(t, topic, numbered("m", 20, 0)...)
	a, b := subscribe(t, ch, 3), subscribe(t, ch, 0)
	if _, err := ch.Attach(node.ConsumerOptions{}, a); !errors.Is(err, errs.ErrTooManyClients) ||
		!strings.Contains(err.Error(), "is 3, and at most 2 is allowed: see the node's setting max-consumers") {
		t.Errorf("a third consumer: %v", err)
	}
	ms := []delivered{a.next(), a.next(), a.next()}
	a.expectNothing("three are in flight")
	b.expectNothing("RDY is 0")
	if err := a.Ready(-1); err == nil {
		t.Error("RDY -1 was taken")
	}
	if err := a.Ready(0); err != nil {
		t.Fatal(err)
	}
	a.finish(ms...)
	a.expectNothing("RDY is 0")
	if err := b.Ready(1); err != nil {
		t.Fatal(err)
	}
	b.Pump()
	m := b.next()
	b.Consumer.Close() // its messages in flight go to the others at once
	if err := a.Ready(1); err != nil {
		t.Fatal(err)
	}
	a.Pump()
	if again := a.next(); again.id != m.id || again.attempts != 2 {
		t.Errorf("after the other left came %s attempts %d, want %s attempts 2", again.id, again.attempts, m.id)
	}
	if _, err := ch.Attach(node.ConsumerOptions{}, a); err != nil {
		t.Errorf("after one left there is room: %v", err)
	}
}

// B65: without automatic creation, topics and channels that were not created are refused.
func TestAutoCreateOff(t *testing.T) {
	o := inDir(t.TempDir())
	o.DisableAutoCreate = true
	e := openWith(t, o)
	if _, err := e.Topic(ctxBg, "t"); !errors.Is(err, errs.ErrAutoCreateOff) {
		t.Errorf("topic: %v", err)
	}
	topic, err := e.CreateTopic(ctxBg, "t", 3)
	if err != nil || topic.Partitions() != 3 {
		t.Fatal(err)
	}
	if again, err := e.Topic(ctxBg, "t"); err != nil || again != topic {
		t.Errorf("a topic that was made: %v", err)
	}
	if _, err := topic.Channel(ctxBg, "c"); !errors.Is(err, errs.ErrAutoCreateOff) {
		t.Errorf("channel: %v", err)
	}
	if _, err := topic.CreateChannel(ctxBg, "c"); err != nil {
		t.Fatal(err)
	}
	if _, err := topic.Channel(ctxBg, "c"); err != nil {
		t.Errorf("a channel that was made: %v", err)
	}
}

// B41: a topic that is deleted and created again under the same name has nothing of the old topic, even if the power is
// cut right after the deletion or right after the creation.
func TestDeleteAndRecreate(t *testing.T) {
	for _, cut := range []string{"none", "after the deletion", "after the creation"} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s/%d", cut, seed), func(t *testing.T) {
				disk := newDisk()
				e := openOnDisk(t, disk)
				topic := topicOf(t, e, "t")
				ch := channelOf(t, topic, "c")
				keep := topicOf(t, e, "keep")
				publish(t, topic, numbered("old", 100+int(seed)*100, 900)...)
				publish(t, keep, "kept")
				s := subscribe(t, ch, 1)
				old := s.next()
				if err := e.DeleteTopic(ctxBg, "t"); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the consumer hears of it", func() bool {
					s.mu.Lock()
					defer s.mu.Unlock()
					return errors.Is(s.ended, errs.ErrDeleted)
				})
				if err := s.Finish(old.id); !errors.Is(err, errs.ErrNotInFlight) {
					t.Errorf("FIN after the deletion: %v", err)
				}
				if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("m")}); !errors.Is(err, errs.ErrDeleted) {
					t.Errorf("publish to a deleted topic: %v", err)
				}
				if err := e.DeleteTopic(ctxBg, "t"); !errors.Is(err, errs.ErrNoTopic) {
					t.Errorf("a second deletion: %v", err)
				}
				if cut == "after the deletion" {
					e = openOnDisk(t, disk.Crash(seed))
					if _, ok := e.Catalog().LookupTopic("t"); ok {
						t.Fatal("the deleted topic is back")
					}
				}
				topic = topicOf(t, e, "t")
				if len(topic.Channels()) != 0 {
					t.Error("the new topic has channels")
				}
				ids := publish(t, topic, "new")
				if ids[0] != 0 {
					t.Errorf("the new topic's first id is %s", ids[0])
				}
				if cut == "after the creation" {
					e = openOnDisk(t, disk.Crash(seed))
					topic, _ = e.Catalog().LookupTopic("t")
				}
				if got := readAll(t, channelOf(t, topic, "c")); len(got) != 1 || got[0] != "new" {
					t.Errorf("the new topic has %v", got)
				}
				keep, _ = e.Catalog().LookupTopic("keep")
				if got := readAll(t, channelOf(t, keep, "c")); len(got) != 1 {
					t.Errorf("another topic has %v", got)
				}
			})
		}
	}
}
