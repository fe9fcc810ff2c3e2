package nsq

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
	"penstock/internal/server/nsq/command"
	"penstock/internal/server/stats"
	"penstock/tests/support/nsqtest"
)

// B97
func TestOversizeIsRefusedBeforeItsBytesCome(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	for _, x := range []struct{ in, want string }{
		{"PUB t\n" + nsqtest.U32(1<<20+1), "E_BAD_MESSAGE PUB message too big 1048577 > 1048576"},
		{"PUB t\n" + nsqtest.U32(-1<<31), "E_BAD_MESSAGE PUB invalid message body size -2147483648"},
		{"MPUB t\n" + nsqtest.U32(5<<20) + nsqtest.U32(1<<30), "E_BAD_BODY MPUB invalid message count 1073741824"},
		{
			"MPUB t\n" + nsqtest.U32(5<<20) + nsqtest.U32(1<<20-1) + nsqtest.U32(0),
			"E_BAD_MESSAGE MPUB invalid message(0) body size 0",
		},
		{"IDENTIFY\n" + nsqtest.U32(1<<31-1), "E_BAD_BODY IDENTIFY body too big 2147483647 > 5242880"},
	} {
		c := n.dial(t)
		c.Send(nsqtest.Pub("before", "x") + x.in)
		c.OK()
		c.Fatal(x.want)
	}
	c := n.dial(t)
	c.Send(nsqtest.Pub("before", "x") + strings.Repeat("x", command.MaxLineBytes+1))
	c.OK()
	c.Closed()
	if s := n.e.Stats("t", ""); len(s) != 0 {
		t.Errorf("a refused publish made the topic: %+v", s)
	}
}

// Garbage ends only the connection on which it arrives, and never the server.
func TestGarbage(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
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
			_, _ = c.Conn.Write(junk) // the server may close the connection before it has read everything
			_ = c.Conn.CloseWrite()
			_ = c.Conn.SetReadDeadline(time.Now().Add(nsqtest.Patience))
			if _, err := io.Copy(io.Discard, c.Conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%.40q: the connection stays open", junk)
			}
		})
	}
	wg.Wait()
	c := n.dial(t)
	c.Send(nsqtest.Pub("alive", "x"))
	c.OK()
}

// A command must be complete within MaxCommandTime, however steadily its bytes trickle in. Complete commands may come
// as slowly as the client likes.
func TestSlowDrip(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Settings{MaxCommandTime: 500 * time.Millisecond})
	drip, slow, late := n.dial(t), n.dial(t), n.dialRaw(t)
	start := time.Now()
	drip.Send("PUB t\n" + nsqtest.U32(1000))
	for { // until the server closes
		slow.Send("NOP\n")
		if _, err := drip.Conn.Write([]byte("x")); err != nil {
			break
		}
		if time.Since(start) > nsqtest.Patience {
			t.Fatal("the dripping connection stays open")
		}
		_ = drip.Conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // sets the pace of the trickle
		if _, err := drip.Conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	if d := time.Since(start); d < 400*time.Millisecond {
		t.Errorf("closed after %v already", d)
	}
	late.Closed() // a connection that never sent the magic
	slow.Send(nsqtest.Pub("t", "x"))
	slow.OK()
}

// B99
func TestConsumerThatNeverReads(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Settings{WriteTimeout: time.Second})
	stuck := n.dial(t)
	stuck.Conn.SetReadBuffer(4096)
	stuck.Sub("t", "stuck")
	stuck.Send("RDY 2500\n")
	good := n.dial(t)
	good.Sub("t", "good")
	good.Send("RDY 2500\n")
	const count, size = 2000, 20000 // 40 MB
	go func() {
		p, err := n.e.Topic(context.Background(), "t")
		if err != nil {
			t.Error(err)
			return
		}
		body := bytes.Repeat([]byte("m"), size)
		for range count {
			if _, err := p.PublishMessage(context.Background(), node.Outgoing{Body: body}); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	var server *conn
	n.each(func(c *conn) {
		if c.remote == stuck.Conn.LocalAddr().String() {
			server = c
		}
	})
	most := 0
	for range count {
		good.Send("FIN " + good.Message().ID + "\n")
		server.out.mu.Lock()
		most = max(most, server.out.unsent)
		server.out.mu.Unlock()
	}
	if bound := 256<<10 + size + 100; most > bound {
		t.Errorf("%d bytes waited for the client that does not read, want at most %d", most, bound)
	}
	for _, ch := range n.topicNow(t, "t").Channels { // no statistics wait for a client
		if out := stats.ChannelOf(&ch, true, time.Now()); len(out.Clients) > 1 {
			t.Errorf("channel %s has %d clients", ch.Name, len(out.Clients))
		}
	}
	nsqtest.Eventually(t, "the stuck client to be closed", func() bool {
		for _, ch := range n.topicNow(t, "t").Channels {
			if ch.Name == "stuck" {
				return len(ch.Consumers) == 0 && ch.InFlightCount == 0
			}
		}
		return false
	})
	// The messages that were in flight to the client are delivered to the next one.
	heir := n.dial(t)
	heir.Sub("t", "stuck")
	heir.Send("RDY 1\n")
	if m := heir.Message(); len(m.Body) != size || m.Attempts != 2 {
		t.Errorf("attempt %d, %d bytes", m.Attempts, len(m.Body))
	}
}

// Deliveries to a slow client stop at the bound. It gets every message as it goes on reading.
func TestSlowConsumerLosesNothing(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{MaxConnOutputBytes: 20000})
	c := n.dial(t)
	c.Conn.SetReadBuffer(64 << 10)
	c.Sub("t", "c")
	c.Send("RDY 2500\n")
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
		m := c.Message()
		if m.Body != string(bodies[i]) || m.Attempts != 1 {
			t.Fatalf("message %d: %.20q, attempt %d", i, m.Body, m.Attempts)
		}
		if i%2 == 0 {
			c.Send("FIN " + m.ID + "\n")
		}
	}
}

// Commands of a producer that does not read its answers are not read, so that the answers cannot fill the memory. Other
// clients are not affected.
func TestProducerThatNeverReads(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Settings{WriteTimeout: 2 * time.Second, MaxConnOutputBytes: 4096})
	c := n.dial(t)
	c.Conn.SetReadBuffer(4096)
	c.Conn.SetWriteDeadline(time.Now().Add(nsqtest.Patience))
	in := []byte(strings.Repeat(nsqtest.Pub("t", "x"), 5000))
	good := n.dial(t)
	written := 0
	for {
		k, err := c.Conn.Write(in)
		if written += k; err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("the server neither reads nor closes")
			}
			break // closed after WriteTimeout
		}
		good.Send(nsqtest.Pub("u", "x"))
		good.OK()
	}
	good.Send(nsqtest.Pub("u", "x"))
	good.OK()
	t.Logf("%d bytes of PUBs were taken from it", written)
}

func TestInFlightLimits(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{MaxConnInFlightBytes: 5000, MaxConnInFlightCount: 10})
	c := n.dial(t)
	const count = 3000
	go c.Conn.Write([]byte(strings.Repeat(nsqtest.Pub("t", strings.Repeat("x", 300)), count)))
	for range count {
		c.OK()
	}
	server := n.onlyConn(t)
	server.answers.mu.Lock()
	defer server.answers.mu.Unlock()
	if a := &server.answers; a.count != 0 || a.bytes != 0 || a.head != nil || a.tail != nil || a.first.Load() != nil {
		t.Errorf("all is answered, but count %d, bytes %d, head %p", a.count, a.bytes, a.head)
	}
}

func TestMaxConnections(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{MaxConnections: 3})
	var clients []*nsqtest.Client
	for range 3 {
		c := n.dial(t)
		c.Send(nsqtest.Pub("t", "x"))
		c.OK()
		clients = append(clients, c)
	}
	n.dialRaw(t).Closed()
	clients[0].Conn.Close()
	nsqtest.Eventually(t, "a place to become free", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.conns) == 2
	})
	c := n.dial(t)
	c.Send(nsqtest.Pub("t", "x"))
	c.OK()
}

// Idle connections cost a goroutine and no buffers. When they end, nothing of them remains.
func TestIdleConnectionsHoldNoBuffers(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	var clients []*nsqtest.Client
	for range 50 {
		c := n.dial(t)
		c.Sub("t", "c")
		clients = append(clients, c)
	}
	n.each(func(c *conn) {
		nsqtest.Eventually(t, "the output to be empty", func() bool {
			c.out.mu.Lock()
			defer c.out.mu.Unlock()
			return c.out.next.k == nil
		})
	})
	for _, c := range clients {
		c.Conn.Close()
	}
	nsqtest.Eventually(t, "the connections to go", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.conns) == 0
	})
	if got := n.topicNow(t, "t").Channels[0].Consumers; len(got) != 0 {
		t.Errorf("%d consumers left", len(got))
	}
}
