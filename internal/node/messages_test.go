package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
)

// openMessages opens the channel's messages, and closes them at the end of the test.
func openMessages(t testing.TB, c *node.Channel, o node.ConsumeOptions) *node.Messages {
	t.Helper()
	s, err := c.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// take takes the next message, and fails the test if none comes.
func take(t testing.TB, s *node.Messages) *node.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m := new(node.Message)
	if err := s.Next(ctx, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// expectNone fails the test if a message comes.
func expectNone(t testing.TB, s *node.Messages) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	var m node.Message
	if err := s.Next(ctx, &m); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%q came, %v", m.Body, err)
	}
}

// A program takes messages one by one, holds as many as MaxInFlight, and finishes, requeues and touches them in any
// order.
func TestMessages(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	s := openMessages(t, c, node.ConsumeOptions{MaxInFlight: 3, MsgTimeout: time.Minute})
	publish(t, topic, numbered("m", 5, 0)...)
	var held []*node.Message
	for range 3 {
		held = append(held, take(t, s))
	}
	expectNone(t, s)
	if err := held[1].Touch(); err != nil {
		t.Error(err)
	}
	if err := held[2].Requeue(0); err != nil {
		t.Error(err)
	}
	again := take(t, s)
	if again.ID != held[2].ID || again.Attempts != 2 || string(again.Body) != string(held[2].Body) {
		t.Errorf("after the requeue %v %q, attempt %d", again.ID, again.Body, again.Attempts)
	}
	for _, m := range []*node.Message{held[1], again, held[0]} {
		if err := m.Finish(); err != nil {
			t.Error(err)
		}
	}
	none := new(node.Message)
	for _, call := range []func() error{held[1].Finish, held[1].Touch, none.Finish, none.Touch} {
		if err := call(); !errors.Is(err, errs.ErrNotInFlight) {
			t.Errorf("a message that is not in flight: %v", err)
		}
	}
	for range 2 {
		if err := take(t, s).Finish(); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "everything is confirmed", func() bool {
		st := channelStats(t, c)
		return st.Depth == 0 && st.InFlightCount == 0
	})
	if st := channelStats(t, c); len(st.Consumers) != 1 || fmt.Sprint(st.Consumers[0].Label) != "embedded" {
		t.Errorf("statistics show %+v", st.Consumers)
	}
}

// What Open refuses, and what Next says when it ends, also while it waits.
func TestMessagesEnd(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	five := uint32(5)
	for _, o := range []node.ConsumeOptions{
		{SampleRate: 100}, {SampleRate: -1}, {MsgTimeout: -1}, {MsgTimeout: time.Millisecond - 1}, {Partition: &five},
	} {
		if _, err := c.Open(t.Context(), o); !errors.Is(err, errs.ErrOptions) && !errors.Is(err, errs.ErrNoPartition) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	waits := func(s *node.Messages) chan error {
		ended := make(chan error, 3)
		for range 3 {
			go func() { ended <- s.Next(context.Background(), new(node.Message)) }()
		}
		return ended
	}
	expect := func(ended chan error, want error) {
		t.Helper()
		for range 3 {
			select {
			case err := <-ended:
				if !errors.Is(err, want) {
					t.Errorf("Next returned %v, want %v", err, want)
				}
			case <-time.After(patience):
				t.Fatal("Next still waits")
			}
		}
	}
	s := openMessages(t, c, node.ConsumeOptions{})
	publish(t, topic, "m")
	kept := take(t, s)
	ended := waits(s)
	s.Close()
	s.Close()
	expect(ended, errs.ErrClosed)
	if err := kept.Finish(); !errors.Is(err, errs.ErrNotInFlight) || string(kept.Body) != "m" {
		t.Errorf("a message of closed Messages: %v %q", err, kept.Body)
	}
	s = openMessages(t, c, node.ConsumeOptions{})
	if m := take(t, s); m.ID != kept.ID || m.Attempts != 2 {
		t.Errorf("the next consumer gets %v, attempt %d", m.ID, m.Attempts)
	}
	ended = waits(s)
	if err := topic.DeleteChannel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	expect(ended, errs.ErrDeleted)
	if _, err := c.Open(t.Context(), node.ConsumeOptions{}); !errors.Is(err, errs.ErrDeleted) {
		t.Errorf("a deleted channel: %v", err)
	}
	ended = waits(openMessages(t, channelOf(t, topic, "d"), node.ConsumeOptions{}))
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	expect(ended, errs.ErrClosed)
}

// A consumer gets only the messages of its tag and its partition, and a share of a sampled channel.
func TestMessagesChosen(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic, err := e.CreateTopic(t.Context(), "t", 4)
	if err != nil {
		t.Fatal(err)
	}
	c := channelOf(t, topic, "c")
	key := []byte("k")
	n := uint32(topic.PartitionFor(key))
	other := (n + 1) % 4
	one := openMessages(t, c, node.ConsumeOptions{Partition: &n})
	none := openMessages(t, c, node.ConsumeOptions{Partition: &other})
	tagged := openMessages(t, c, node.ConsumeOptions{Tag: "eu"})
	for _, m := range []node.Outgoing{
		{Key: key, Body: []byte("in its partition")},
		{Key: key, Body: []byte("tagged"), Headers: headers(channel.TagHeader, "eu")},
	} {
		if _, err := topic.PublishMessage(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []struct {
		s    *node.Messages
		want string
	}{{one, "in its partition"}, {tagged, "tagged"}} {
		m := take(t, s.s)
		if string(m.Body) != s.want {
			t.Errorf("%q came, want %q", m.Body, s.want)
		}
		if err := m.Finish(); err != nil {
			t.Error(err)
		}
		expectNone(t, s.s)
	}
	expectNone(t, none)

	topic = topicOf(t, e, "sampled")
	c = channelOf(t, topic, "c")
	s := openMessages(t, c, node.ConsumeOptions{SampleRate: 50})
	publish(t, topic, numbered("m", 1000, 0)...)
	came := 0
	eventually(t, "all are confirmed", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		var m node.Message
		for s.Next(ctx, &m) == nil {
			came++
			if err := m.Finish(); err != nil {
				t.Error(err)
			}
		}
		return channelStats(t, c).Depth == 0
	})
	if came < 300 || came > 700 {
		t.Errorf("%d of 1000 messages came, half are wanted", came)
	}
}

// Slow handlers: messages that wait in memory for longer than their timeout are not handed over twice, because the
// timeout begins anew when a message is taken.
func TestMessagesWaitInMemory(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	const n, timeout = 12, 400 * time.Millisecond
	s := openMessages(t, c, node.ConsumeOptions{MaxInFlight: 4, MsgTimeout: timeout})
	publish(t, topic, numbered("m", n, 0)...)
	for done := map[node.ID]bool{}; len(done) < n; {
		m := take(t, s)
		time.Sleep(timeout / 4) // the work; four such messages take as long as the timeout
		if err := m.Finish(); err != nil {
			t.Logf("%v, attempt %d: %v", m.ID, m.Attempts, err)
			continue
		}
		if done[m.ID] {
			t.Errorf("%v was finished twice", m.ID)
		}
		done[m.ID] = true
	}
	eventually(t, "everything is confirmed", func() bool {
		st := channelStats(t, c)
		return st.Depth == 0 && st.InFlightCount == 0
	})
}

// In the steady state a message costs no allocation on its way through Next, with headers as without, nor through
// Consume.
func TestConsumingDoesNotAllocate(t *testing.T) {
	if slower > 1 {
		t.Skip("the race detector empties pools")
	}
	const n, maxPerMessage = 1000, 0.01
	e := openWith(t, node.Options{
		DataPath: fastDir(t), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), RetentionInterval: time.Hour,
	})
	ctx := t.Context()
	batch := make([]node.Outgoing, n)
	for i := range batch {
		batch[i] = node.Outgoing{Body: []byte(strings.Repeat("x", 100)), Headers: headers("a", "1", "b", "2")}
	}
	publishRun := func(topic *node.Topic) {
		if _, err := topic.PublishMessages(ctx, batch); err != nil {
			t.Fatal(err)
		}
	}
	measure := func(what string, run func()) {
		for range 20 {
			run() // pools and slices grow to their size
		}
		per := testing.AllocsPerRun(100, run) / n
		t.Logf("%s: %.4f allocations per message", what, per)
		if per > maxPerMessage {
			t.Errorf("%s: %.4f allocations per message, at most %v", what, per, maxPerMessage)
		}
	}
	topic := topicOf(t, e, "pull")
	s := openMessages(t, channelOf(t, topic, "c"), node.ConsumeOptions{MaxInFlight: 256})
	var m node.Message
	measure("Next", func() {
		publishRun(topic)
		for range n {
			if err := s.Next(ctx, &m); err != nil {
				t.Fatal(err)
			}
			if err := m.Finish(); err != nil {
				t.Fatal(err)
			}
		}
	})
	topic = topicOf(t, e, "consume")
	c := channelOf(t, topic, "c")
	here, cancel := context.WithCancel(ctx)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer cancel()
	handled, all := 0, make(chan struct{}, 1)
	ended.Go(func() {
		err := c.Consume(here, node.ConsumeOptions{}, func(context.Context, *node.Message) error {
			if handled++; handled%n == 0 {
				all <- struct{}{}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	measure("Consume", func() {
		publishRun(topic)
		<-all
	})
}
