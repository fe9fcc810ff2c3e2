package remote

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/internal/node/platform"
	"penstock/replicate"
	"penstock/segment"
)

// A node that becomes the leader of a partition serves its existing clients by frames to itself. In this test one
// Consumers is both sides of a remote consumer, and the topic, the channel and the engine are fakes.

type testTopic struct{ Topic }

func (testTopic) ID() uuid.UUID                    { return uuid.UUID{1} }
func (testTopic) Name() string                     { return "t" }
func (testTopic) Partitions() int                  { return 2 }
func (testTopic) Leader(uint32) replicate.NodeID   { return 1 }
func (testTopic) Leaders() []replicate.NodeID      { return []replicate.NodeID{1, 0} }
func (testTopic) NewestEpoch(uint32) segment.Epoch { return 3 }
func (testTopic) DropUnused(string)                {}

// testChannel is the engine, and the consumer at its channel. It reports the calls that it gets.
type testChannel struct {
	sink  message.Sink
	err   error
	label string
	calls chan string
}

func (c *testChannel) Attach(_ uuid.UUID, name string, o message.ConsumerOptions, s message.Sink) (Served, error) {
	if c.err != nil {
		return nil, c.err
	}
	c.sink, c.label = s, o.Label.(interface{ String() string }).String()
	if name = "attach " + name; o.Partition != nil {
		name += " " + strconv.Itoa(int(*o.Partition))
	}
	c.calls <- name
	return c, nil
}

func (c *testChannel) Find(segment.Identity) (Topic, Partition) { return nil, nil }

func (c *testChannel) Ready(n int) error {
	c.calls <- "ready " + strconv.Itoa(n)
	return nil
}

func (c *testChannel) FinishSeen(id message.ID, seen uint64) error {
	c.calls <- "finish " + id.String() + " " + strconv.FormatUint(seen, 10)
	return errs.ErrNotInFlight
}

func (c *testChannel) RequeueSeen(id message.ID, delay time.Duration, _ uint64) error {
	c.calls <- "requeue " + id.String() + " " + delay.String()
	return nil
}
func (c *testChannel) TouchSeen(message.ID, uint64) error { return nil }

func (c *testChannel) ReturnDelivery(id message.ID, _ uint64) { c.calls <- "return " + id.String() }
func (c *testChannel) StopDelivery()                          { c.calls <- "stop" }
func (c *testChannel) HasRoom() bool                          { return true }
func (c *testChannel) Hold(int64)                             { c.calls <- "hold" }
func (c *testChannel) Wake()                                  {}
func (c *testChannel) InFlight() int                          { return 0 }
func (c *testChannel) Close()                                 { c.calls <- "close" }
func (c *testChannel) CloseRemote(bool)                       { c.calls <- "close" }

// testClient is a sink that reports the calls that it gets.
type testClient struct{ calls chan string }

func (s *testClient) Deliver(d *message.Delivery) bool {
	s.calls <- string(d.Body)
	return true
}
func (s *testClient) Flush()         {}
func (s *testClient) Closed(e error) { s.calls <- "closed: " + e.Error() }
func (s *testClient) Failed(_ message.FailedCall, id message.ID, err error) {
	s.calls <- "failed " + id.String() + ": " + err.Error()
}

type loop struct {
	*Consumers
	channel *testChannel
	client  *testClient
	lease   *testLease
	t       *testing.T
}

func newLoop(t *testing.T) *loop {
	var wg sync.WaitGroup
	l := &loop{
		channel: &testChannel{calls: make(chan string, 100)}, client: &testClient{calls: make(chan string, 100)},
		lease: &testLease{now: time.Hour}, t: t,
	}
	l.lease.extend(time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	l.Consumers = New(Env{
		Host: platform.NewMachine(), Peers: &platform.Peers{Self: 1, Ctx: ctx, Spawn: func(f func()) { wg.Go(f) }},
		Log: slog.New(slog.DiscardHandler), Lease: l.lease, Above: l.channel, Level: func() int { return HeldLevel },
		Snapshot: func() *meta.Snapshot {
			return &meta.Snapshot{Nodes: map[replicate.NodeID]*meta.Node{1: {Name: "n1"}}}
		},
		MsgTimeout: func() time.Duration { return time.Minute },
	})
	t.Cleanup(func() {
		l.Close()
		cancel()
		wg.Wait()
	})
	return l
}

func (l *loop) subscribe() (*Consumer, error) {
	return l.Subscribe(l.t.Context(), Client{
		Topic: testTopic{}, Channel: "c", Closed: func() error { return nil }, Text: "10.0.0.1:4711",
	}, message.ConsumerOptions{}, l.client)
}

// await waits for calls, in any order.
func (l *loop) await(calls chan string, want ...string) {
	l.t.Helper()
	var got []string
	for range want {
		select {
		case c := <-calls:
			got = append(got, c)
		case <-time.After(20 * time.Second):
			l.t.Fatalf("it hears %q, want %q", got, want)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		l.t.Fatalf("it hears %q, want %q", got, want)
	}
}

// The client's calls reach the channel, and the channel's deliveries and refusals reach the client.
func TestBothSides(t *testing.T) {
	l := newLoop(t)
	k, err := l.subscribe()
	if err != nil {
		t.Fatal(err)
	}
	l.await(l.channel.calls, "attach c", "hold")
	if l.channel.label != "10.0.0.1:4711 at n1" {
		t.Errorf("its label is %q", l.channel.label)
	}
	if err := k.Ready(5); err != nil {
		t.Fatal(err)
	}
	l.await(l.channel.calls, "ready 5")
	plain, held, stale := batch.MakeID(0, 7), batch.MakeID(1, 8), batch.MakeID(1, 9)
	l.channel.sink.Deliver(&message.Delivery{ID: plain, Body: []byte("plain")})
	l.channel.sink.Deliver(&message.Delivery{ID: held, Body: []byte("held"), Serial: 4, Epoch: 3})
	l.channel.sink.Deliver(&message.Delivery{ID: stale, Body: []byte("of an older leader"), Serial: 5, Epoch: 2})
	l.channel.sink.Flush()
	l.await(l.client.calls, "plain", "held")
	l.await(l.channel.calls, "return "+stale.String())
	if n := l.Stats(); n != (Stats{Stale: 1}) {
		t.Errorf("it counts %+v", n)
	}
	for _, err := range []error{k.Finish(plain), k.Requeue(held, time.Second)} {
		if err != nil {
			t.Error(err)
		}
	}
	if err := k.Finish(batch.MakeID(2, 1)); !errors.Is(err, errs.ErrNotInFlight) {
		t.Errorf("a message of a partition that does not exist: %v", err)
	}
	k.Pump()
	l.await(l.channel.calls, "finish "+plain.String()+" 5", "requeue "+held.String()+" 1s")
	l.await(l.client.calls, "failed "+plain.String()+": "+errs.ErrNotInFlight.Error())
	k.StopDelivery()
	k.Close()
	l.await(l.channel.calls, "stop", "ready 0", "close")
}

// If the leader lacks the channel, Subscribe fails. If the channel is deleted later, the client is ended once.
func TestRefusedAndEnded(t *testing.T) {
	l := newLoop(t)
	l.channel.err = errs.ErrNoChannel
	if _, err := l.subscribe(); !errors.Is(err, errs.ErrDeleted) {
		t.Errorf("a channel that is not there: %v", err)
	}
	l.channel.err = nil
	if _, err := l.subscribe(); err != nil {
		t.Fatal(err)
	}
	l.channel.sink.Closed(errs.ErrDeleted)
	l.await(l.client.calls, "closed: "+errs.ErrDeleted.Error())
	if len(l.all()) != 0 {
		t.Errorf("%d clients are left", len(l.all()))
	}
}

// A consumer of one partition asks only that partition's leader, and only from a feature level on at which leaders know
// what it asks for.
func TestOnePartition(t *testing.T) {
	l := newLoop(t)
	one := uint32(1)
	subscribe := func(only *uint32) error {
		_, err := l.Subscribe(t.Context(), Client{
			Topic: testTopic{}, Channel: "c", Closed: func() error { return nil },
		}, message.ConsumerOptions{Partition: only}, l.client)
		return err
	}
	l.n.Level = func() int { return OnlyLevel - 1 }
	if err := subscribe(&one); !errors.Is(err, errs.ErrPartitionLevel) {
		t.Errorf("at an older level: %v", err)
	}
	l.n.Level = func() int { return OnlyLevel }
	if err := subscribe(&one); err != nil { // the partition has no leader now
		t.Error(err)
	}
	if r := l.all()[0]; len(r.legs.All()) != 0 {
		t.Errorf("%d leaders were asked", len(r.legs.All()))
	}
	zero := uint32(0)
	if err := subscribe(&zero); err != nil {
		t.Error(err)
	}
	l.await(l.channel.calls, "attach c 0", "hold")
}
