package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"penstock/batch"
	"penstock/netproto"
)

func (c *Client) reader(t testing.TB, topic string, partition int, from From) *Reader {
	t.Helper()
	r, err := c.Reader(within(t), topic, partition, from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// expect reads messages first to end (not included), whose bodies are their numbers.
func (r *Reader) expect(t testing.TB, first, end int) {
	t.Helper()
	for i := first; i < end; i++ {
		m, err := r.Next(within(t))
		if err != nil || m.ID.MsgID() != batch.MsgID(i) || string(m.Body) != fmt.Sprint(i) {
			t.Fatalf("message %d: %v %q, %v", i, m.ID, m.Body, err)
		}
	}
	if at, ok := r.Position(); !ok || at.MsgID() != batch.MsgID(end) {
		t.Fatalf("the position behind message %d is %v, %v", end, at, ok)
	}
}

func number(t testing.TB, p *Producer, first, end int) {
	t.Helper()
	var o outcomes
	for i := first; i < end; i++ {
		p.Produce(within(t), &Message{Body: fmt.Append(nil, i)}, o.done)
	}
	if err := p.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	for _, err := range o.errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A reader returns what is stored from its place on, then waits for more.
func TestReader(t *testing.T) {
	for _, c := range []Compression{CompressNone, CompressS2, CompressZstd} {
		cluster := newTestCluster(t, 1)
		topic := cluster.create("orders", 1)
		client := cluster.dial(t)
		p := client.producer(t, "orders", ProducerOptions{MaxBatchBytes: 1024, Compression: c})
		number(t, p, 0, 2000)
		for name, f := range map[string]struct {
			from  From
			first int
		}{
			"oldest": {FromOldest(), 0}, "id": {FromID(1234), 1234}, "time": {FromTime(time.Unix(0, 0)), 0},
			"an id to come": {FromID(2000), 2000}, "a time to come": {FromTime(time.Now().Add(time.Hour)), 2000},
			"the year 1500": {FromTime(time.Now().AddDate(-525, 0, 0)), 0},
			"the year 2500": {FromTime(time.Now().AddDate(475, 0, 0)), 2000},
		} {
			r := client.reader(t, "orders", 0, f.from)
			if f.first < 2000 {
				r.expect(t, f.first, 2000)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			if _, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: behind the end: %v", name, err)
			}
			cancel()
			if newest, ok := r.Newest(); ok && newest != 2000 {
				t.Errorf("%s: the newest is %v", name, newest)
			}
		}
		r := client.reader(t, "orders", 0, FromOldest())
		r.expect(t, 0, 2000)
		number(t, p, 2000, 2100)
		r.expect(t, 2000, 2100)
		_ = topic
	}
}

// Keys, headers and times come back as they were.
func TestReaderReturnsWhatWasProduced(t *testing.T) {
	cluster := newTestCluster(t, 1)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{})
	before := time.Now().Add(-time.Millisecond)
	want := &Message{
		Key: []byte("k"), Body: []byte("b"), Headers: []Header{{Key: []byte("x"), Value: []byte("1")}, {Key: []byte("y")}},
	}
	for range 2 {
		if _, err := p.ProduceSync(within(t), want); err != nil {
			t.Fatal(err)
		}
	}
	r := client.reader(t, "orders", 0, FromOldest())
	for range 2 {
		m, err := r.Next(within(t))
		if err != nil || string(m.Key) != "k" || string(m.Body) != "b" || len(m.Headers) != 2 ||
			string(m.Headers[0].Value) != "1" || string(m.Headers[1].Key) != "y" ||
			m.Time.Before(before) || m.Time.After(time.Now()) {
			t.Errorf("%+v, %v", m, err)
		}
	}
}

// A reader from the newest message returns only what comes after the leader has heard of it.
func TestReaderFromNewest(t *testing.T) {
	cluster := newTestCluster(t, 1)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{})
	number(t, p, 0, 10)
	r := client.reader(t, "orders", 0, FromNewest())
	for known := false; !known; _, known = r.Position() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		_, _ = r.Next(ctx)
		cancel()
	}
	number(t, p, 10, 20)
	r.expect(t, 10, 20)
}

// Lost connections and new leaders leave nothing out and repeat nothing.
func TestReaderFailover(t *testing.T) {
	cluster := newTestCluster(t, 3)
	topic := cluster.create("orders", 1)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{MaxBatchBytes: 1024})
	number(t, p, 0, 1000)
	r := client.reader(t, "orders", 0, FromOldest())
	r.expect(t, 0, 500)
	cluster.cut(0)
	number(t, p, 1000, 1500)
	r.expect(t, 500, 1200)
	cluster.halt(0)
	cluster.change(func() { topic.parts[0].leader = 1 })
	number(t, p, 1500, 2000)
	r.expect(t, 1200, 2000)
	cluster.start(0)
	cluster.change(func() {
		topic.parts[0].leader = 2
		for c, s := range cluster.nodes[1].conns { // as a leader does that steps down
			for request := range s.readers {
				cluster.nodes[1].refuse(c, 75, request, netproto.StatusNotLeader)
			}
			clear(s.readers)
		}
	})
	number(t, p, 2000, 2500)
	r.expect(t, 2000, 2500)
}

// More than the credit arrives only as it is read.
func TestReaderCredit(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{MaxBatchBytes: 64 << 10})
	var o outcomes
	for range 100 {
		p.Produce(within(t), &Message{Body: make([]byte, 60<<10)}, o.done)
	}
	if err := p.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	r := client.reader(t, "orders", 0, FromOldest())
	for i := range 100 {
		if _, err := r.Next(within(t)); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			cluster.mu.Lock()
			for _, s := range cluster.nodes[0].conns {
				for _, x := range s.readers {
					if x.next > 20 || x.credit > 0 {
						t.Errorf("%d messages were sent for a credit of 1 MiB", x.next)
					}
				}
			}
			cluster.mu.Unlock()
		}
	}
	_ = topic
}

// A chunk that was taken is not held any more by the list of those that wait.
func TestReaderLetsGoOfWhatWasRead(t *testing.T) {
	all := []*chunk{{bytes: make([]byte, 1)}, {bytes: make([]byte, 1)}}
	r := &Reader{stream: &stream{chunks: all}}
	if !r.chunk() || len(r.now.bytes) != 1 || all[0] != nil || all[1] == nil {
		t.Errorf("after the first chunk was taken, the reader holds %v", all)
	}
}

// What retention has removed is named, and the reader goes on behind it.
func TestReaderTrimmed(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{})
	number(t, p, 0, 100)
	cluster.change(func() { topic.parts[0].oldest = 60 })
	r := client.reader(t, "orders", 0, FromID(20))
	var gone *TrimmedError
	if _, err := r.Next(within(t)); !errors.As(err, &gone) || gone.First != 60 {
		t.Fatalf("%v", err)
	}
	r.expect(t, 60, 100)
}

// Batches that arrive damaged are asked for again, and in the end named; what was returned before stays right.
func TestReaderDamaged(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{MaxBatchBytes: 1024})
	number(t, p, 0, 500)
	var sound byte
	flip := func(b byte) {
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		in := topic.parts[0].batches[1]
		sound = in[len(in)-1]
		in[len(in)-1] = b
	}
	flip(0xff)
	was := sound
	r := client.reader(t, "orders", 0, FromOldest())
	for i := 0; ; i++ {
		m, err := r.Next(within(t))
		if errors.Is(err, ErrDamaged) {
			break
		}
		if err != nil || string(m.Body) != fmt.Sprint(i) {
			t.Fatalf("message %d: %q, %v", i, m.Body, err)
		}
	}
	flip(was)
	at, _ := r.Position()
	if at == 0 {
		t.Error("nothing was read before the damage")
	}
	r.expect(t, int(at), 500)
}

// A reader that is closed ends its Next, and the leader hears of it.
func TestReaderClose(t *testing.T) {
	cluster := newTestCluster(t, 1)
	cluster.create("orders", 1)
	client := cluster.dial(t)
	keep := client.producer(t, "orders", ProducerOptions{}) // keeps the connection
	number(t, keep, 0, 1)
	r := client.reader(t, "orders", 0, FromOldest())
	r.expect(t, 0, 1)
	ended := make(chan error)
	go func() {
		_, err := r.Next(within(t))
		ended <- err
	}()
	r.Close()
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	for {
		left := 0
		cluster.mu.Lock()
		for _, s := range cluster.nodes[0].conns {
			left += len(s.readers)
		}
		cluster.mu.Unlock()
		if left == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
}
