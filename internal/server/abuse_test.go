package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
)

// B97
func TestOversizeIsRefusedBeforeItsBytesCome(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	for _, x := range []struct{ in, want string }{
		{"PUB t\n" + u32(1<<20+1), "E_BAD_MESSAGE PUB message too big 1048577 > 1048576"},
		{"PUB t\n" + u32(-1<<31), "E_BAD_MESSAGE PUB invalid message body size -2147483648"},
		{"MPUB t\n" + u32(5<<20) + u32(1<<30), "E_BAD_BODY MPUB invalid message count 1073741824"},
		{"MPUB t\n" + u32(5<<20) + u32(1<<20-1) + u32(0), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"},
		{"IDENTIFY\n" + u32(1<<31-1), "E_BAD_BODY IDENTIFY body too big 2147483647 > 5242880"},
	} {
		c := n.dial(t)
		c.send(pub("before", "x") + x.in)
		c.ok()
		c.fatal(x.want)
	}
	c := n.dial(t)
	c.send(pub("before", "x") + strings.Repeat("x", MaxLineBytes+1))
	c.ok()
	c.closed()
	if s := n.e.Stats("t", ""); len(s) != 0 {
		t.Errorf("a refused publish made the topic: %+v", s)
	}
}

// Garbage ends only the connection on which it arrives, and never the server.
func TestGarbage(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	rnd := rand.New(rand.NewPCG(7, 7))
	var wg sync.WaitGroup
	for i := range 200 {
		c := n.dialRaw(t)
		junk := make([]byte, rnd.IntN(3000))
		for j := range junk {
			junk[j] = byte(rnd.UintN(256))
		}
		switch i % 4 {
		case 1:
			junk = append([]byte(magic), junk...)
		case 2:
			junk = append([]byte(magic+"PUB t\n"), junk...)
		case 3:
			junk = append([]byte(magic+"SUB t c\nFIN "), junk...)
		}
		wg.Go(func() {
			_, _ = c.nc.Write(junk) // the server may close the connection before it has read everything
			_ = c.nc.CloseWrite()
			_ = c.nc.SetReadDeadline(time.Now().Add(patience))
			if _, err := io.Copy(io.Discard, c.nc); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%.40q: the connection stays open", junk)
			}
		})
	}
	wg.Wait()
	c := n.dial(t)
	c.send(pub("alive", "x"))
	c.ok()
}

// A command must be complete within MaxCommandTime, however steadily its bytes trickle in. Complete commands may come
// as slowly as the client likes.
func TestSlowDrip(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Options{nsqSettings: nsqSettings{MaxCommandTime: 500 * time.Millisecond}})
	drip, slow, late := n.dial(t), n.dial(t), n.dialRaw(t)
	start := time.Now()
	drip.send("PUB t\n" + u32(1000))
	for { // until the server closes
		slow.send("NOP\n")
		if _, err := drip.nc.Write([]byte("x")); err != nil {
			break
		}
		if time.Since(start) > patience {
			t.Fatal("the dripping connection stays open")
		}
		_ = drip.nc.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // sets the pace of the trickle
		if _, err := drip.nc.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	if d := time.Since(start); d < 400*time.Millisecond {
		t.Errorf("closed after %v already", d)
	}
	late.closed() // a connection that never sent the magic
	slow.send(pub("t", "x"))
	slow.ok()
}

// B99
func TestConsumerThatNeverReads(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Options{nsqSettings: nsqSettings{WriteTimeout: time.Second}})
	stuck := n.dial(t)
	stuck.nc.SetReadBuffer(4096)
	stuck.sub("t", "stuck")
	stuck.send("RDY 2500\n")
	good := n.dial(t)
	good.sub("t", "good")
	good.send("RDY 2500\n")
	const count, size = 2000, 20000 // 40 MB
	go func() {
		p, err := n.e.Topic(context.Background(), "t")
		if err != nil {
			t.Error(err)
			return
		}
		body := bytes.Repeat([]byte("m"), size)
		for range count {
			if _, err := p.Publish(context.Background(), body); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	var server *conn
	n.nsq.each(func(c *conn) {
		if c.remote == stuck.nc.LocalAddr().String() {
			server = c
		}
	})
	most := 0
	for range count {
		good.send("FIN " + good.message().id + "\n")
		server.out.mu.Lock()
		most = max(most, server.out.unsent)
		server.out.mu.Unlock()
	}
	if bound := 256<<10 + size + 100; most > bound {
		t.Errorf("%d bytes waited for the client that does not read, want at most %d", most, bound)
	}
	if code, _ := n.do(t, "GET", "/stats?format=json", ""); code != 200 {
		t.Errorf("/stats: %d", code)
	}
	eventually(t, "the stuck client to be closed", func() bool {
		for _, ch := range n.topicNow(t, "t").Channels {
			if ch.Name == "stuck" {
				return len(ch.Consumers) == 0 && ch.InFlightCount == 0
			}
		}
		return false
	})
	// The messages that were in flight to the client are delivered to the next one.
	heir := n.dial(t)
	heir.sub("t", "stuck")
	heir.send("RDY 1\n")
	if m := heir.message(); len(m.body) != size || m.attempts != 2 {
		t.Errorf("attempt %d, %d bytes", m.attempts, len(m.body))
	}
}

// Deliveries to a slow client stop at the bound. It gets every message as it goes on reading.
func TestSlowConsumerLosesNothing(t *testing.T) {
	n := startNode(t, node.Options{}, Options{nsqSettings: nsqSettings{MaxConnOutputBytes: 20000}})
	c := n.dial(t)
	c.nc.SetReadBuffer(64 << 10)
	c.sub("t", "c")
	c.send("RDY 2500\n")
	topic, err := n.e.Topic(context.Background(), "t")
	if err != nil {
		t.Fatal(err)
	}
	const count = 2000
	var bodies [][]byte
	for i := range count {
		bodies = append(bodies, fmt.Appendf(nil, "%d%s", i, strings.Repeat(".", 1000)))
	}
	if _, err := topic.PublishBatch(context.Background(), bodies); err != nil {
		t.Fatal(err)
	}
	for i := range count {
		m := c.message()
		if m.body != string(bodies[i]) || m.attempts != 1 {
			t.Fatalf("message %d: %.20q, attempt %d", i, m.body, m.attempts)
		}
		if i%2 == 0 {
			c.send("FIN " + m.id + "\n")
		}
	}
}

// Commands of a producer that does not read its answers are not read, so that the answers cannot fill the memory. Other
// clients are not affected.
func TestProducerThatNeverReads(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Options{nsqSettings: nsqSettings{WriteTimeout: 2 * time.Second, MaxConnOutputBytes: 4096}})
	c := n.dial(t)
	c.nc.SetReadBuffer(4096)
	c.nc.SetWriteDeadline(time.Now().Add(patience))
	in := []byte(strings.Repeat(pub("t", "x"), 5000))
	good := n.dial(t)
	written := 0
	for {
		k, err := c.nc.Write(in)
		if written += k; err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("the server neither reads nor closes")
			}
			break // closed after WriteTimeout
		}
		good.send(pub("u", "x"))
		good.ok()
	}
	good.send(pub("u", "x"))
	good.ok()
	t.Logf("%d bytes of PUBs were taken from it", written)
}

func TestInFlightLimits(t *testing.T) {
	n := startNode(t, node.Options{}, Options{nsqSettings: nsqSettings{MaxConnInFlightBytes: 5000, MaxConnInFlightCount: 10}})
	c := n.dial(t)
	const count = 3000
	go c.nc.Write([]byte(strings.Repeat(pub("t", strings.Repeat("x", 300)), count)))
	for range count {
		c.ok()
	}
	server := n.onlyConn(t)
	server.answers.mu.Lock()
	defer server.answers.mu.Unlock()
	if a := &server.answers; a.count != 0 || a.bytes != 0 || a.head != nil || a.tail != nil || a.first.Load() != nil {
		t.Errorf("all is answered, but count %d, bytes %d, head %p", a.count, a.bytes, a.head)
	}
}

func TestMaxConnections(t *testing.T) {
	n := startNode(t, node.Options{}, Options{nsqSettings: nsqSettings{MaxConnections: 3}})
	var clients []*client
	for range 3 {
		c := n.dial(t)
		c.send(pub("t", "x"))
		c.ok()
		clients = append(clients, c)
	}
	n.dialRaw(t).closed()
	clients[0].nc.Close()
	eventually(t, "a place to become free", func() bool {
		n.nsq.mu.Lock()
		defer n.nsq.mu.Unlock()
		return len(n.nsq.conns) == 2
	})
	c := n.dial(t)
	c.send(pub("t", "x"))
	c.ok()
}

// Idle connections cost a goroutine and no buffers. When they end, nothing of them remains.
func TestIdleConnectionsHoldNoBuffers(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	var clients []*client
	for range 50 {
		c := n.dial(t)
		c.sub("t", "c")
		clients = append(clients, c)
	}
	n.nsq.each(func(c *conn) {
		eventually(t, "the output to be empty", func() bool {
			c.out.mu.Lock()
			defer c.out.mu.Unlock()
			return c.out.next.k == nil
		})
	})
	for _, c := range clients {
		c.nc.Close()
	}
	eventually(t, "the connections to go", func() bool { n.nsq.mu.Lock(); defer n.nsq.mu.Unlock(); return len(n.nsq.conns) == 0 })
	if got := n.topicNow(t, "t").Channels[0].Consumers; len(got) != 0 {
		t.Errorf("%d consumers left", len(got))
	}
}
