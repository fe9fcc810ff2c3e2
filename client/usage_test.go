package client

import (
	"context"
	"errors"
	"math"
	"net"
	"testing"
	"time"
)

// A duration that is longer than the protocol can say is the longest one, not one of any length.
func TestMilliseconds(t *testing.T) {
	const most = math.MaxUint32 * time.Millisecond
	for d, want := range map[time.Duration]uint32{
		0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, most - 1: math.MaxUint32, most: math.MaxUint32,
		most + 1: math.MaxUint32, 100 * 365 * 24 * time.Hour: math.MaxUint32, math.MaxInt64: math.MaxUint32,
	} {
		if got := milliseconds(d); got != want {
			t.Errorf("%v: %d ms, want %d", d, got, want)
		}
	}
}

// A Produce that waits for room while the producer is closed is refused with ErrClosed: Close does not wait for its
// message, so that nobody would know what became of it.
func TestCloseWhileProduceWaitsForRoom(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	cluster.change(func() { topic.parts[0].leader = -1 })
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{MaxBatchBytes: 1024, MaxBufferedBytes: 4096})
	var taken, late outcomes
	m := &Message{Body: make([]byte, 1000)}
	for range 3 {
		p.TryProduce(m, taken.done)
	}
	const waiting = 3
	ended := make(chan struct{}, waiting)
	for range waiting {
		go func() {
			p.Produce(within(t), m, late.done)
			ended <- struct{}{}
		}()
	}
	eventually(t, "a message waits for room", func() bool {
		room := p.room.TryAcquire(1) // there is room for a byte, but not before those who wait
		if room {
			p.room.Release(1)
		}
		return !room
	})
	closed := make(chan error, 1)
	go func() { closed <- p.Close(within(t)) }()
	eventually(t, "the producer closes", p.closed.Load)
	cluster.change(func() { topic.parts[0].leader = 0 })
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	for range waiting {
		<-ended
	}
	for _, err := range taken.errs {
		if err != nil {
			t.Errorf("a message that was taken: %v", err)
		}
	}
	eventually(t, "all are told", func() bool {
		late.mu.Lock()
		defer late.mu.Unlock()
		return len(late.errs) == waiting
	})
	for _, err := range late.errs {
		if !errors.Is(err, ErrClosed) || errors.Is(err, ErrUnknown) {
			t.Errorf("a message that waited for room: %v", err)
		}
	}
	if got := cluster.bodies(topic.parts[0]); len(taken.errs) != 3 || len(got) != 3 {
		t.Errorf("%d messages are stored, %d were told", len(got), len(taken.errs))
	}
}

// A message that no node stores is refused before it takes others of its batch with it.
func TestEmptyMessageIsRefused(t *testing.T) {
	cluster := newTestCluster(t, 1)
	cluster.create("orders", 1)
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{})
	if _, err := p.ProduceSync(context.Background(), &Message{Key: []byte("k")}); !errors.Is(err, ErrRefused) {
		t.Errorf("%v", err)
	}
}

// A message that was not stored because its leader cannot be reached says why that is.
func TestUnreachableLeaderIsExplained(t *testing.T) {
	cluster := newTestCluster(t, 2)
	cluster.create("orders", 2)
	client := cluster.dial(t)
	for partition := range 2 { // one of the nodes is not the one that the client asks for metadata
		cluster.halt(partition)
		p := client.producer(t, "orders", ProducerOptions{
			DeliveryTimeout: time.Second, Partition: func(*Message, int) int { return partition },
		})
		_, err := p.ProduceSync(within(t), &Message{Body: []byte("m")})
		var dial *net.OpError
		if !errors.Is(err, ErrNoLeader) || errors.Is(err, ErrUnknown) || !errors.As(err, &dial) || dial.Op != "dial" {
			t.Errorf("partition %d: %v", partition, err)
		}
		cluster.start(partition)
	}
}
