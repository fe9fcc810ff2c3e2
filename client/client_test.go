package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/batch"
	"penstock/netproto"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func testOptions() Options {
	return Options{
		Logger:   slog.New(slog.NewTextHandler(io.Discard, nil)),
		MinDelay: 2 * time.Millisecond, MaxDelay: 50 * time.Millisecond,
	}
}

func (c *testCluster) dial(t testing.TB, change ...func(*Options)) *Client {
	t.Helper()
	o := testOptions()
	for _, f := range change {
		f(&o)
	}
	var seeds []string
	for _, n := range c.nodes {
		seeds = append(seeds, n.address)
	}
	client, err := Dial(within(t), seeds, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func (c *Client) producer(t testing.TB, topic string, o ProducerOptions) *Producer {
	t.Helper()
	p, err := c.Producer(within(t), topic, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// outcomes collects what done functions get.
type outcomes struct {
	mu   sync.Mutex
	ids  []ID
	errs []error
}

func (o *outcomes) done(_ *Message, id ID, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ids, o.errs = append(o.ids, id), append(o.errs, err)
}

// produceAll produces n messages, flushes, and checks that all are stored, in order, once.
func produceAll(t *testing.T, cluster *testCluster, p *Producer, part *testPart, n int) {
	t.Helper()
	var o outcomes
	var want []string
	for i := range n {
		body := fmt.Sprintf("message %d", i)
		want = append(want, body)
		p.Produce(within(t), &Message{Body: []byte(body)}, o.done)
	}
	if err := p.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	for i, err := range o.errs {
		if err != nil || o.ids[i].MsgID() != batch.MsgID(i) {
			t.Fatalf("message %d: %v, %v", i, o.ids[i], err)
		}
	}
	if got := cluster.bodies(part); !slices.Equal(got, want) {
		t.Fatalf("%d messages are stored, %d were produced, or their order is wrong", len(got), len(want))
	}
}

// Messages are stored in batches, get their ids in order, and the hooks hear of batches and connections.
func TestProduce(t *testing.T) {
	for _, c := range []Compression{CompressNone, CompressS2, CompressZstd} {
		cluster := newTestCluster(t, 1)
		topic := cluster.create("orders", 1)
		var mu sync.Mutex
		var batches, messages, connected int
		client := cluster.dial(t, func(o *Options) {
			o.Hooks.Produced = func(b ProducedBatch) {
				mu.Lock()
				defer mu.Unlock()
				batches++
				messages += b.Count
				if b.Err != nil || b.Topic != "orders" || b.Bytes == 0 || b.Duplicate {
					t.Errorf("%+v", b)
				}
			}
			o.Hooks.Connected = func(string) { mu.Lock(); connected++; mu.Unlock() }
		})
		p := client.producer(t, "orders", ProducerOptions{Compression: c, MaxBatchBytes: 4096})
		produceAll(t, cluster, p, topic.parts[0], 5000)
		if last, ok := p.LastSequence(0); !ok || last != 4999 {
			t.Errorf("the last sequence is %d, %v", last, ok)
		}
		mu.Lock()
		if messages != 5000 || batches < 5000*10/4096 || batches > 2500 || connected != 1 {
			t.Errorf("%d messages in %d batches, %d connections", messages, batches, connected)
		}
		mu.Unlock()
		if err := p.Close(within(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := p.ProduceSync(within(t), &Message{Body: []byte("m")}); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// A topic that does not exist is created for a producer, and not for a reader.
func TestTopicIsCreated(t *testing.T) {
	cluster := newTestCluster(t, 1)
	client := cluster.dial(t)
	if _, err := client.Reader(within(t), "new", 0, FromOldest()); !errors.Is(err, ErrNoTopic) {
		t.Errorf("a reader: %v", err)
	}
	p := client.producer(t, "new", ProducerOptions{})
	if id, err := p.ProduceSync(within(t), &Message{Body: []byte("x")}); err != nil || id != 0 {
		t.Errorf("%v, %v", id, err)
	}
	if _, err := client.Reader(within(t), "new", 1, FromOldest()); !errors.Is(err, ErrNoTopic) {
		t.Errorf("a reader of a partition that is not there: %v", err)
	}
}

// Whatever goes wrong on the way, each message is stored once and in order.
func TestEachMessageOnce(t *testing.T) {
	for name, fault := range map[string]func(i int) (status netproto.Status, store, cut bool){
		"connections end before the answer": func(i int) (netproto.Status, bool, bool) {
			return netproto.StatusOK, true, i%11 == 2
		},
		"connections end before the batch is stored": func(i int) (netproto.Status, bool, bool) {
			return netproto.StatusOK, i%11 != 2, i%11 == 2
		},
		"unknown, and stored": func(i int) (netproto.Status, bool, bool) {
			if i%11 == 2 {
				return netproto.StatusUnknown, true, false
			}
			return netproto.StatusOK, true, false
		},
		"no room": func(i int) (netproto.Status, bool, bool) {
			if i%11 == 2 {
				return netproto.StatusFull, false, false
			}
			return netproto.StatusOK, true, false
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newTestCluster(t, 1)
			topic := cluster.create("orders", 1)
			faults := 0
			cluster.fault = func(*testNode, *batch.Header) (netproto.Status, bool, bool) {
				faults++
				return fault(faults)
			}
			p := cluster.dial(t).producer(t, "orders", ProducerOptions{MaxBatchBytes: 1024})
			produceAll(t, cluster, p, topic.parts[0], 3000)
			if faults < 10 {
				t.Errorf("only %d batches were sent", faults)
			}
		})
	}
}

// When leadership moves, or a node ends, the producer goes on at the new leader.
func TestFailover(t *testing.T) {
	cluster := newTestCluster(t, 3)
	topic := cluster.create("orders", 1)
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{MaxBatchBytes: 1024})
	batches := 0
	cluster.fault = func(n *testNode, _ *batch.Header) (netproto.Status, bool, bool) {
		if batches++; batches%10 == 0 {
			topic.parts[0].leader = (n.index + 1) % 3
			if batches%20 == 0 { // sometimes the clients hear of it, sometimes they must ask
				cluster.pushLocked()
			} else {
				cluster.revision++
			}
			return netproto.StatusNotLeader, batches%3 == 0, batches%30 == 0
		}
		return netproto.StatusOK, true, false
	}
	produceAll(t, cluster, p, topic.parts[0], 3000)
	if batches < 40 {
		t.Errorf("leadership moved only %d times", batches/10)
	}
	cluster.mu.Lock()
	cluster.fault = nil
	at := topic.parts[0].leader
	cluster.mu.Unlock()
	cluster.halt(at)
	cluster.change(func() { topic.parts[0].leader = (at + 1) % 3 })
	if _, err := p.ProduceSync(within(t), &Message{Body: []byte("after")}); err != nil {
		t.Error(err)
	}
	cluster.start(at)
}

// A producer with a name goes on where an earlier program ended, and ends that program's producer.
func TestNamedProducer(t *testing.T) {
	cluster := newTestCluster(t, 1)
	cluster.create("orders", 2)
	client := cluster.dial(t)
	to1 := func(*Message, int) int { return 1 }
	old := client.producer(t, "orders", ProducerOptions{Name: "import", Partition: to1})
	if _, ok := old.LastSequence(1); ok {
		t.Error("a new producer has a last sequence")
	}
	for range 3 {
		if _, err := old.ProduceSync(within(t), &Message{Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	young := client.producer(t, "orders", ProducerOptions{Name: "import", Partition: to1})
	if last, ok := young.LastSequence(1); !ok || last != 2 {
		t.Errorf("the last sequence is %d, %v", last, ok)
	}
	if _, ok := young.LastSequence(0); ok {
		t.Error("partition 0 has a last sequence")
	}
	m := &Message{Body: []byte("m")}
	if _, err := old.ProduceSync(within(t), m); !errors.Is(err, ErrFenced) || errors.Is(err, ErrUnknown) {
		t.Errorf("the old producer: %v", err)
	}
	if _, err := old.ProduceSync(within(t), &Message{Body: []byte("m")}); !errors.Is(err, ErrFenced) {
		t.Errorf("the old producer, again: %v", err)
	}
	if id, err := young.ProduceSync(within(t), &Message{Body: []byte("m")}); err != nil || id != batch.MakeID(1, 3) {
		t.Errorf("the new producer: %v, %v", id, err)
	}
}

// A message that no node will store ends with an error that says so, and later messages are stored.
func TestRefusals(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{MaxBufferedBytes: 1 << 20})
	for _, c := range []struct {
		status netproto.Status
		want   error
	}{
		{netproto.StatusTooBig, ErrTooLarge},
		{netproto.StatusUnproven, ErrUnauthorized},
		{netproto.StatusRejected, ErrRefused},
		{netproto.StatusGap, ErrSequence},
	} {
		cluster.mu.Lock()
		cluster.fault = func(*testNode, *batch.Header) (netproto.Status, bool, bool) {
			cluster.fault = nil
			return c.status, false, false
		}
		cluster.mu.Unlock()
		if _, err := p.ProduceSync(within(t), &Message{Body: []byte("bad")}); !errors.Is(err, c.want) ||
			errors.Is(err, ErrUnknown) {
			t.Errorf("%v: %v", c.status, err)
		}
		if _, err := p.ProduceSync(within(t), &Message{Body: []byte("good")}); err != nil {
			t.Errorf("behind %v: %v", c.status, err)
		}
	}
	if got := cluster.bodies(topic.parts[0]); slices.Contains(got, "bad") || len(got) != 4 {
		t.Errorf("stored: %q", got)
	}
	for name, m := range map[string]*Message{
		"reserved": {Headers: []Header{{Key: []byte("penstock-x")}}},
		"no name":  {Headers: []Header{{}}},
		"long":     {Headers: []Header{{Key: make([]byte, MaxHeaderNameBytes+1)}}},
		"many":     {Key: []byte("k"), Headers: slices.Repeat([]Header{{Key: []byte("a")}}, MaxHeaderCount)},
	} {
		if _, err := p.ProduceSync(within(t), m); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := p.ProduceSync(within(t), &Message{Body: make([]byte, 2<<20)})
	if !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "at most 1048576 are allowed") {
		t.Errorf("2 MiB: %v", err)
	}
}

// A message that is too large for the node is refused, and no other, whatever batches they are in.
func TestTooLargeForTheNode(t *testing.T) {
	for _, compression := range []Compression{CompressNone, CompressZstd} {
		cluster := newTestCluster(t, 1)
		topic := cluster.create("orders", 1)
		cluster.change(func() { topic.parts[0].leader, cluster.maxBody = -1, 100 })
		p := cluster.dial(t).producer(t, "orders", ProducerOptions{MaxBatchBytes: 4096, Compression: compression})
		var o outcomes
		var want []string
		for i := range 1000 {
			body := fmt.Append(nil, i)
			if i%97 == 3 {
				body = append(body, make([]byte, 100)...)
			} else {
				want = append(want, string(body))
			}
			p.Produce(within(t), &Message{Key: []byte("k"), Body: body}, o.done)
		}
		cluster.change(func() { topic.parts[0].leader = 0 })
		if err := p.Close(within(t)); err != nil {
			t.Fatal(err)
		}
		for i, err := range o.errs {
			if large := i%97 == 3; large != errors.Is(err, ErrTooLarge) || large == (err == nil) {
				t.Errorf("message %d: %v", i, err)
			}
		}
		if got := cluster.bodies(topic.parts[0]); !slices.Equal(got, want) || cluster.opens != 1 {
			t.Errorf("%d messages are stored, want %d; the producer was opened %d times", len(got), len(want), cluster.opens)
		}
		if room := p.o.MaxBufferedBytes; !p.room.TryAcquire(int64(room)) {
			t.Error("not all room was given back")
		}
	}
}

// One batch among several on their way is refused for ever: the others get its numbers, and are stored in order.
func TestRefusedAmongOthers(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{MaxBatchBytes: 1024})
	seen := map[uint32]bool{}
	cluster.change(func() {
		cluster.fault = func(_ *testNode, h *batch.Header) (netproto.Status, bool, bool) {
			if seen[h.BaseSequence] = true; len(seen) == 4 {
				cluster.fault = nil
				return netproto.StatusRejected, false, false
			}
			return netproto.StatusOK, true, false
		}
	})
	var o outcomes
	var want []string
	for i := range 1000 {
		p.Produce(within(t), &Message{Body: fmt.Append(nil, i)}, o.done)
	}
	if err := p.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	for i, err := range o.errs {
		switch {
		case err == nil:
			want = append(want, fmt.Sprint(i))
		case !errors.Is(err, ErrRefused):
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if len(want) == 1000 || len(want) < 500 {
		t.Errorf("%d messages are stored", len(want))
	}
	if got := cluster.bodies(topic.parts[0]); !slices.Equal(got, want) {
		t.Errorf("%d messages are stored, %d were told, or the order is wrong", len(got), len(want))
	}
	if cluster.opens != 1 {
		t.Errorf("the producer was opened %d times", cluster.opens)
	}
}

// Without a leader nothing is stored, and the application hears that in time; an answer that does not come leaves the
// outcome open, and the message is not stored twice.
func TestDeliveryTimeout(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	cluster.change(func() { topic.parts[0].leader = -1 })
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{DeliveryTimeout: 500 * time.Millisecond})
	if _, err := p.ProduceSync(within(t), &Message{Body: []byte("lost")}); !errors.Is(err, ErrNoLeader) ||
		errors.Is(err, ErrUnknown) {
		t.Errorf("no leader: %v", err)
	}
	p = client.producer(t, "orders", ProducerOptions{DeliveryTimeout: 2 * time.Second}) // to hear of a leader, and to send
	cluster.change(func() {
		topic.parts[0].leader = 0
		cluster.fault = func(*testNode, *batch.Header) (netproto.Status, bool, bool) {
			return netproto.StatusUnknown, true, false
		}
	})
	if _, err := p.ProduceSync(within(t), &Message{Body: []byte("maybe")}); !errors.Is(err, ErrUnknown) {
		t.Errorf("no answer: %v", err)
	}
	cluster.change(func() { cluster.fault = nil })
	if id, err := p.ProduceSync(within(t), &Message{Body: []byte("next")}); err != nil || id != 1 {
		t.Errorf("the next one: %v, %v", id, err)
	}
	if got := cluster.bodies(topic.parts[0]); !slices.Equal(got, []string{"maybe", "next"}) {
		t.Errorf("stored: %q", got)
	}
}

// A producer that stops at the first failure stores nothing behind it.
func TestStopAtFailure(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	client := cluster.dial(t)
	if n, err := client.Partitions(within(t), "orders"); n != 1 || err != nil {
		t.Errorf("%d partitions, %v", n, err)
	}
	p := client.producer(t, "orders", ProducerOptions{Name: "import", StopAtFailure: true})
	cluster.change(func() {
		cluster.fault = func(_ *testNode, h *batch.Header) (netproto.Status, bool, bool) {
			if h.BaseSequence == 1 {
				return netproto.StatusRejected, false, false
			}
			return netproto.StatusOK, true, false
		}
	})
	for i, want := range []error{nil, ErrRefused, ErrStopped, ErrStopped} {
		if _, err := p.ProduceSync(within(t), &Message{Body: fmt.Append(nil, i)}); !errors.Is(err, want) {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if got := cluster.bodies(topic.parts[0]); len(got) != 1 {
		t.Errorf("stored: %q", got)
	}
}

// Room is bounded: TryProduce says so, Produce waits until its context ends.
func TestBuffered(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	cluster.change(func() { topic.parts[0].leader = -1 })
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{MaxBatchBytes: 1024, MaxBufferedBytes: 4096})
	var o outcomes
	m := &Message{Body: make([]byte, 1000)}
	for range 4 {
		p.TryProduce(m, o.done)
	}
	if len(o.errs) != 1 || !errors.Is(o.errs[0], ErrBuffered) {
		t.Fatalf("%v", o.errs)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p.Produce(ctx, m, o.done)
	if len(o.errs) != 2 || !errors.Is(o.errs[1], ErrBuffered) || !errors.Is(o.errs[1], context.Canceled) {
		t.Fatalf("%v", o.errs)
	}
	cluster.change(func() { topic.parts[0].leader = 0 })
	p.Produce(within(t), m, o.done)
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	for _, err := range o.errs[2:] {
		if err != nil {
			t.Error(err)
		}
	}
	if got := cluster.bodies(topic.parts[0]); len(got) != 4 || len(o.errs) != 6 {
		t.Errorf("%d messages are stored, %d told", len(got), len(o.errs))
	}
}

// Keys choose the partition, as nodes do it; messages without a key go only where there is a leader.
func TestPartitions(t *testing.T) {
	cluster := newTestCluster(t, 2)
	topic := cluster.create("orders", 4)
	cluster.change(func() { topic.parts[2].leader = -1 })
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{MaxBatchBytes: 1024})
	if n := p.Partitions(); n != 4 {
		t.Fatalf("%d partitions", n)
	}
	key := []byte("customer 7")
	for range 3 {
		id, err := p.ProduceSync(within(t), &Message{Key: key, Body: []byte("m")})
		if err != nil || int(id.Partition()) != PartitionOf(key, 4) {
			t.Errorf("%v, %v", id, err)
		}
	}
	var o outcomes
	for range 1000 {
		p.Produce(within(t), &Message{Body: make([]byte, 100)}, o.done)
	}
	if err := p.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	count := make([]int, 4)
	for i, err := range o.errs {
		if err != nil {
			t.Fatal(err)
		}
		count[o.ids[i].Partition()]++
	}
	if count[2] != 0 || count[0] < 100 || count[1] < 100 || count[3] < 100 {
		t.Errorf("messages by partition: %v", count)
	}
	q := p.client.producer(t, "orders", ProducerOptions{Partition: func(*Message, int) int { return 4 }})
	if _, err := q.ProduceSync(within(t), &Message{Body: []byte("m")}); !errors.Is(err, ErrRefused) {
		t.Errorf("partition 4 of 4: %v", err)
	}
}

// When a topic is deleted, its producers end; a topic of the same name is another one.
func TestTopicIsDeleted(t *testing.T) {
	cluster := newTestCluster(t, 1)
	cluster.create("orders", 1)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{})
	if _, err := p.ProduceSync(within(t), &Message{Body: []byte("m")}); err != nil {
		t.Fatal(err)
	}
	cluster.change(func() { delete(cluster.topics, "orders") })
	for {
		if _, err := p.ProduceSync(within(t), &Message{Body: []byte("m")}); errors.Is(err, ErrNoTopic) {
			break
		}
	}
	q := client.producer(t, "orders", ProducerOptions{})
	if id, err := q.ProduceSync(within(t), &Message{Body: []byte("m")}); err != nil || id != 0 {
		t.Errorf("%v, %v", id, err)
	}
}

// When a token loses its permission, producers end with an error that says so, and not that there is no such topic.
func TestTopicIsHidden(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{})
	if _, err := p.ProduceSync(within(t), &Message{Body: []byte("m")}); err != nil {
		t.Fatal(err)
	}
	cluster.change(func() { topic.hidden = true })
	var err error
	for err == nil {
		_, err = p.ProduceSync(within(t), &Message{Body: []byte("m")})
	}
	if !errors.Is(err, ErrUnauthorized) || errors.Is(err, ErrNoTopic) {
		t.Errorf("%v", err)
	}
	// From now on there is no partition to choose.
	if _, err := p.ProduceSync(within(t), &Message{Body: []byte("m")}); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("later: %v", err)
	}
}

// Closing the client tells every message, at once.
func TestCloseTellsAll(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	cluster.change(func() { topic.parts[0].leader = -1 })
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{})
	var o outcomes
	for range 100 {
		p.Produce(within(t), &Message{Body: make([]byte, 100)}, o.done)
	}
	client.Close()
	if len(o.errs) != 100 {
		t.Fatalf("%d messages were told", len(o.errs))
	}
	for _, err := range o.errs {
		if !errors.Is(err, ErrClosed) || errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
	}
	if _, err := client.Producer(within(t), "orders", ProducerOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("a producer of a closed client: %v", err)
	}
}
