package client

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"
)

// The nodes send no more than the limits, and go on as deliveries are finished.
func TestConsumerLimits(t *testing.T) {
	cluster := newTestCluster(t, 2)
	cluster.create("orders", 2)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{MaxBatchBytes: 1024})
	number(t, p, 0, 1000)
	for name, o := range map[string]ConsumerOptions{
		"messages": {MaxInFlight: 10}, "bytes": {MaxInFlight: 1000, MaxInFlightBytes: 400},
		"one": {MaxInFlight: 1}, "one byte": {MaxInFlightBytes: 1},
	} {
		c := client.consumer(t, "orders", name, o)
		for n := range 1000 {
			d := c.next1(t)
			cluster.mu.Lock()
			messages := 0
			for _, sub := range cluster.subs() {
				if sub.ask.Channel == name {
					messages += len(sub.flight)
				}
			}
			cluster.mu.Unlock()
			most := max(o.MaxInFlight, 2)
			if o.MaxInFlightBytes > 0 { // a message has 27 to 29 bytes
				most = o.MaxInFlightBytes/27 + 4
			}
			if messages > most {
				t.Fatalf("%s: %d messages are in flight at message %d", name, messages, n)
			}
			if err := d.Finish(); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Close(within(t)); err != nil {
			t.Fatal(err)
		}
		cluster.once(t, name, 1000)
	}
}

// Many goroutines share a consumer.
func TestConsumerShared(t *testing.T) {
	cluster := newTestCluster(t, 2)
	cluster.create("orders", 3)
	client := cluster.dial(t)
	const n = 3000
	c := client.consumer(t, "orders", "ch", ConsumerOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				d, err := c.Next(ctx)
				if err != nil {
					return
				}
				if i%50 == 0 {
					err = d.Requeue(time.Millisecond)
				} else if err = d.Touch(); err == nil {
					err = d.Finish()
				}
				if err != nil {
					t.Error(err)
				}
				if i%20 == 0 {
					if err := c.Sync(within(t)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	number(t, client.producer(t, "orders", ProducerOptions{MaxBatchBytes: 1024}), 0, n)
	eventually(t, "all are finished", func() bool {
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		return len(cluster.channels["ch"].finished) == n
	})
	cancel()
	wg.Wait()
	if err := c.Close(within(t)); err != nil {
		t.Error(err)
	}
	cluster.once(t, "ch", n)
}

// What makes no sense is refused before anything is sent.
func TestConsumerUsage(t *testing.T) {
	cluster := newTestCluster(t, 1)
	cluster.create("orders", 2)
	client := cluster.dial(t)
	second, third, negative := 1, 2, -1
	for want, o := range map[string]ConsumerOptions{
		"MaxInFlight is -1":      {MaxInFlight: -1},
		"MaxInFlightBytes is -5": {MaxInFlightBytes: -5},
		"Timeout is -1s":         {Timeout: -time.Second},
		"SampleRate is 101":      {SampleRate: 101},
		"Partition is -1":        {Partition: &negative},
		"has 2 partitions":       {Partition: &third},
		"Tag has 256 bytes":      {Tag: strings.Repeat("x", 256)},
	} {
		if _, err := client.Consumer(within(t), "orders", "ch", o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for _, name := range []string{"", strings.Repeat("x", 256)} {
		if _, err := client.Consumer(within(t), "orders", name, ConsumerOptions{}); err == nil {
			t.Errorf("channel %q", name)
		}
		if _, err := client.Consumer(within(t), name, "ch", ConsumerOptions{}); err == nil {
			t.Errorf("topic %q", name)
		}
	}
	c := client.consumer(t, "orders", "ch", ConsumerOptions{
		Partition: &second, From: FromNewest(), Tag: "eu", SampleRate: 25, Timeout: 1500 * time.Microsecond,
	})
	c.nothing(t)
	cluster.mu.Lock()
	defer cluster.mu.Unlock()
	ask := cluster.subs()[0].ask
	if ask.Partition != 1 || cluster.channels["ch"].from != 3 || ask.Tag != "eu" || ask.SampleRate != 25 ||
		ask.TimeoutMs != 2 {
		t.Errorf("%+v", ask)
	}
}
