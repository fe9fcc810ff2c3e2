package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

func (c *Client) consumer(t testing.TB, topic, channel string, o ConsumerOptions) *Consumer {
	t.Helper()
	k, err := c.Consumer(within(t), topic, channel, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close(within(t)) })
	return k
}

// next1 returns the next delivery.
func (c *Consumer) next1(t testing.TB) *Delivery {
	t.Helper()
	d, err := c.Next(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return &d
}

// nothing checks that no delivery comes for a moment.
func (c *Consumer) nothing(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if d, err := c.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, %v", d.ID, err)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

// keyed produces n messages with different keys, so that every partition gets some.
func keyed(t testing.TB, c *Client, n int) {
	t.Helper()
	p := c.producer(t, "orders", ProducerOptions{})
	for i := range n {
		p.Produce(within(t), &Message{Key: fmt.Append(nil, i), Body: fmt.Append(nil, i)}, nil)
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
}

// once checks that the channel has n messages, each finished once.
func (c *testCluster) once(t testing.TB, channel string, n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	finished := c.channels[channel].finished
	for id, times := range finished {
		if times != 1 {
			t.Errorf("message %v was finished %d times", id, times)
		}
	}
	if len(finished) != n {
		t.Errorf("%d of %d messages are finished", len(finished), n)
	}
}

// A consumer gets each message of all leaders once, with all that it was published with, and finishes them in all ways.
func TestConsumer(t *testing.T) {
	cluster := newTestCluster(t, 3)
	cluster.create("orders", 4)
	var mu sync.Mutex
	hooked := 0
	client := cluster.dial(t, func(o *Options) {
		o.Hooks.Delivered = func(topic, channel string, d Delivery) {
			mu.Lock()
			defer mu.Unlock()
			if hooked++; topic != "orders" || channel != "billing" || len(d.Headers) != 1 {
				t.Errorf("%s, %s, %+v", topic, channel, d.Message)
			}
		}
	})
	p := client.producer(t, "orders", ProducerOptions{MaxBatchBytes: 4096})
	before := time.Now()
	const n = 5000
	for i := range n {
		p.Produce(within(t), &Message{
			Key: fmt.Append(nil, "k", i), Body: fmt.Append(nil, "b", i),
			Headers: []Header{{Key: []byte("h"), Value: []byte("v")}},
		}, nil)
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	c := client.consumer(t, "orders", "billing", ConsumerOptions{MaxInFlight: 100})
	seen := map[string]bool{}
	see := func(d *Delivery) {
		body := string(d.Body)
		if seen[body] || string(d.Key) != "k"+body[1:] || string(d.Headers[0].Value) != "v" || d.Attempts != 1 ||
			d.Time.Before(before.Add(-time.Second)) || d.Time.After(time.Now()) {
			t.Fatalf("%+v", d)
		}
		seen[body] = true
	}
	for len(seen) < n {
		switch {
		case len(seen)%3 == 0:
			d := c.next1(t)
			see(d)
			if err := d.Finish(); err != nil {
				t.Fatal(err)
			}
		default:
			all, err := c.Batch(within(t), 70)
			if err != nil || len(all) == 0 || len(all) > 70 {
				t.Fatalf("%d deliveries, %v", len(all), err)
			}
			for i := range all {
				see(&all[i])
			}
			if err := all[len(all)-1].FinishThrough(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Sync(within(t)); err != nil {
		t.Fatal(err)
	}
	cluster.once(t, "billing", n)
	if mu.Lock(); hooked != n {
		t.Errorf("the hook heard of %d messages", hooked)
	}
	mu.Unlock()
	c.nothing(t)
	if err := c.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next(within(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	cluster.mu.Lock()
	defer cluster.mu.Unlock()
	if left := cluster.subs(); len(left) > 0 {
		t.Errorf("%d subscriptions are left", len(left))
	}
}

// FinishThrough finishes what was returned before, at every leader, and nothing that came later.
func TestFinishThrough(t *testing.T) {
	cluster := newTestCluster(t, 3)
	cluster.create("orders", 3)
	client := cluster.dial(t)
	keyed(t, client, 300)
	c := client.consumer(t, "orders", "ch", ConsumerOptions{MaxInFlight: 900})
	var all []*Delivery
	for range 300 {
		all = append(all, c.next1(t))
	}
	if err := all[50].Requeue(0); err != nil {
		t.Fatal(err)
	}
	if err := all[199].FinishThrough(); err != nil {
		t.Fatal(err)
	}
	if err := c.Sync(within(t)); err != nil {
		t.Fatal(err)
	}
	again := c.next1(t)
	if again.ID != all[50].ID || again.Attempts != 2 {
		t.Errorf("%v, attempt %d", again.ID, again.Attempts)
	}
	cluster.mu.Lock()
	for i, d := range all {
		if want := i < 200 && i != 50; cluster.channels["ch"].finished[d.ID] > 0 != want {
			t.Errorf("delivery %d is finished: %t", i, !want)
		}
	}
	cluster.mu.Unlock()
	for _, d := range []*Delivery{all[0], all[50], all[199], new(Delivery)} {
		if err := d.FinishThrough(); !errors.Is(err, ErrNotInFlight) {
			t.Errorf("again: %v", err)
		}
	}
	if err := again.FinishThrough(); err != nil { // the newest one
		t.Error(err)
	}
	if err := c.Sync(within(t)); err != nil {
		t.Fatal(err)
	}
	cluster.once(t, "ch", 300)
}

// What is done with a delivery that is over does nothing, and says so: at once if the client can know it, else in Sync.
func TestConsumerTooLate(t *testing.T) {
	cluster := newTestCluster(t, 1)
	cluster.create("orders", 1)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{})
	number(t, p, 0, 3)
	c := client.consumer(t, "orders", "ch", ConsumerOptions{})
	a, b, d := c.next1(t), c.next1(t), c.next1(t)
	for _, f := range []func() error{a.Finish, a.Touch, a.FinishThrough, func() error { return a.Requeue(0) }} {
		want := error(nil)
		if a.sub.ledger.live(0, a.index) == nil {
			want = ErrNotInFlight
		}
		if err := f(); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if err := c.Sync(within(t)); err != nil { // so that nothing is on its way
		t.Error(err)
	}
	cluster.change(func() {
		sub := cluster.subs()[0]
		sub.expire(sub.of(b.ID))
	})
	if err := b.Finish(); err != nil { // the client cannot know it yet
		t.Error(err)
	}
	err := c.Sync(within(t))
	if !errors.Is(err, ErrNotInFlight) || errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), b.ID.String()) {
		t.Errorf("%v", err)
	}
	if err := c.Sync(within(t)); err != nil {
		t.Errorf("the second time: %v", err)
	}
	cluster.mu.Lock()
	cluster.deliverAll()
	cluster.mu.Unlock()
	again := c.next1(t)
	if again.ID != b.ID || again.Attempts != 2 {
		t.Errorf("%v, attempt %d", again.ID, again.Attempts)
	}
	cluster.change(func() {
		sub := cluster.subs()[0]
		sub.expire(sub.of(d.ID))
	})
	if err := d.Touch(); err != nil {
		t.Error(err)
	}
	eventually(t, "a Touch that came too late ends the delivery", func() bool {
		return errors.Is(d.Touch(), ErrNotInFlight)
	})
	if err := d.Finish(); !errors.Is(err, ErrNotInFlight) {
		t.Errorf("%v", err)
	}
}

// A delivery whose time is over is not returned, and cannot be finished.
func TestConsumerTimeout(t *testing.T) {
	cluster := newTestCluster(t, 1)
	cluster.create("orders", 1)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{})
	number(t, p, 0, 2)
	c := client.consumer(t, "orders", "ch", ConsumerOptions{Timeout: 20 * time.Millisecond})
	d := c.next1(t)
	cluster.mu.Lock()
	sub := cluster.subs()[0]
	cluster.mu.Unlock()
	eventually(t, "the deliveries are over", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return d.sub.ledger.live(c.clock(), d.index) == nil && c.clock()-c.parcels[c.next].arrived >= 20*time.Millisecond
	})
	if err := d.Finish(); !errors.Is(err, ErrNotInFlight) {
		t.Errorf("%v", err)
	}
	cluster.change(func() {
		for len(sub.flight) > 0 {
			sub.expire(0)
		}
		cluster.channels["ch"].timeout = time.Minute
		cluster.deliverAll()
	})
	for range 2 {
		if d := c.next1(t); d.Attempts < 2 {
			t.Errorf("an old delivery of %v was returned", d.ID)
		}
	}
}

// What was in flight at a leader that is lost comes again from the new one, and what its deliveries are told does
// nothing.
func TestConsumerFailover(t *testing.T) {
	cluster := newTestCluster(t, 3)
	topic := cluster.create("orders", 3)
	client := cluster.dial(t)
	keyed(t, client, 300)
	c := client.consumer(t, "orders", "ch", ConsumerOptions{MaxInFlight: 30}) // ten a node
	old := map[ID]*Delivery{}
	for range 30 {
		d := c.next1(t)
		old[d.ID] = d
	}
	cluster.halt(1)
	cluster.change(func() { topic.parts[1].leader = 2 })
	finished := 0
	for range 10 {
		d := c.next1(t)
		if before := old[d.ID]; before == nil || d.Attempts != 2 || d.ID.Partition() != 1 {
			t.Fatalf("%v, attempt %d", d.ID, d.Attempts)
		} else if err := before.Finish(); !errors.Is(err, ErrNotInFlight) {
			t.Errorf("%v", err)
		}
		if err := d.Finish(); err != nil {
			t.Error(err)
		}
		finished++
	}
	for _, d := range old {
		if d.Finish() == nil {
			finished++
		}
	}
	if finished != 30 {
		t.Errorf("%d of 30 messages were finished", finished)
	}
	if err := c.Sync(within(t)); err != nil { // nothing was unconfirmed at the lost node
		t.Error(err)
	}
	// The node comes back, and leads again: the leader of now steps down.
	cluster.start(1)
	cluster.change(func() { topic.parts[1].leader = 1 })
	eventually(t, "it is subscribed at three nodes", func() bool {
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		return len(cluster.subs()) == 3
	})
	for n := 30; n < 300; n++ {
		if err := c.next1(t).Finish(); err != nil {
			t.Error(err)
		}
	}
	if err := c.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	cluster.once(t, "ch", 300)
}

// A consumer of one partition goes where its leader of before says that the new one is, also while nobody tells it who
// leads.
func TestConsumerIsSentOn(t *testing.T) {
	cluster := newTestCluster(t, 2)
	topic := cluster.create("orders", 1)
	client := cluster.dial(t)
	keyed(t, client, 1)
	only := 0
	c := client.consumer(t, "orders", "ch", ConsumerOptions{Partition: &only})
	before := c.next1(t)
	first := topic.parts[0].leader
	cluster.mu.Lock()
	sub := cluster.subs()[0]
	topic.parts[0].leader, cluster.mute = 1-first, true
	sub.node.unsubscribe(sub.node.conns[sub.conn], sub)
	out := wire.Outcome{Text: "moved", Address: cluster.nodes[1-first].address}
	sub.node.send(sub.conn, wire.TypeSubscribeEnd, sub.request, netproto.StatusNotLeader, wire.Append(nil, &out))
	cluster.mu.Unlock()
	if d := c.next1(t); d.ID != before.ID || d.Attempts != 2 {
		t.Errorf("%v, attempt %d", d.ID, d.Attempts)
	} else if err := d.Finish(); err != nil {
		t.Error(err)
	}
	if err := c.Close(within(t)); err != nil {
		t.Error(err)
	}
}

// Deliveries of a lost connection that Next did not return yet are not returned any more: they come again.
func TestConsumerDropsWhatIsOver(t *testing.T) {
	cluster := newTestCluster(t, 1)
	cluster.create("orders", 1)
	client := cluster.dial(t)
	number(t, client.producer(t, "orders", ProducerOptions{}), 0, 20)
	c := client.consumer(t, "orders", "ch", ConsumerOptions{MaxInFlight: 10})
	var lost *subscription
	eventually(t, "ten deliveries wait", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.waiting(10) == 10 {
			lost = c.parcels[c.next].sub
		}
		return lost != nil
	})
	cluster.cut(0)
	eventually(t, "the subscription is over", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return lost.over
	})
	came := map[uint64]bool{}
	for range 20 { // those of the lost connection first or last: its end and the new subscription are on their way at once
		d := c.next1(t)
		n := uint64(d.ID.MsgID())
		if want := 2 - int(n/10); d.Attempts != want || came[n] {
			t.Errorf("message %v comes with attempt %d, again %v", d.ID, d.Attempts, came[n])
		}
		came[n] = true
		if err := d.Finish(); err != nil {
			t.Error(err)
		}
	}
}

// A node that steps down or refuses for now is tried again; one that refuses for good is an error of Next, until it
// does not any more.
func TestConsumerRefused(t *testing.T) {
	for _, tc := range []struct {
		status netproto.Status
		want   error
	}{
		{netproto.StatusNotLeader, nil},
		{netproto.StatusFull, nil},
		{netproto.StatusUnproven, ErrUnauthorized},
		{netproto.StatusRejected, ErrRefused},
	} {
		cluster := newTestCluster(t, 1)
		cluster.create("orders", 1)
		client := cluster.dial(t)
		number(t, client.producer(t, "orders", ProducerOptions{}), 0, 1)
		cluster.change(func() { cluster.refuseSubscribe = tc.status })
		c := client.consumer(t, "orders", "ch", ConsumerOptions{})
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		if tc.want != nil {
			ctx = within(t)
		}
		_, err := c.Next(ctx)
		if want := tc.want; want == nil && !errors.Is(err, context.DeadlineExceeded) || want != nil && !errors.Is(err, want) {
			t.Errorf("%v: %v", tc.status, err)
		}
		if tc.want != nil && (strings.Contains(err.Error(), "stored") || !strings.Contains(err.Error(), "by the test")) {
			t.Errorf("%v: the text is not about a consumer: %v", tc.status, err)
		}
		cancel()
		eventually(t, "Next says what the node answered", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			_, err := c.Next(ctx)
			return strings.Contains(err.Error(), "refused by the test")
		})
		cluster.change(func() { cluster.refuseSubscribe = 0 })
		eventually(t, "a delivery", func() bool {
			_, err := c.Next(within(t))
			return err == nil
		})
	}
}

// A topic that is deleted ends Next, also one that waits.
func TestConsumerOfDeletedTopic(t *testing.T) {
	cluster := newTestCluster(t, 1)
	cluster.create("orders", 1)
	client := cluster.dial(t)
	c := client.consumer(t, "orders", "ch", ConsumerOptions{})
	failed := make(chan error)
	for range 3 {
		go func() {
			_, err := c.Next(within(t))
			failed <- err
		}()
	}
	c.nothing(t)
	cluster.change(func() { delete(cluster.topics, "orders") })
	for range 3 {
		if err := <-failed; !errors.Is(err, ErrNoTopic) {
			t.Errorf("%v", err)
		}
	}
	if _, err := client.Consumer(within(t), "orders", "ch", ConsumerOptions{}); !errors.Is(err, ErrNoTopic) {
		t.Errorf("%v", err)
	}
}
