package nsq

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"penstock/internal/node"
	"penstock/tests/support/nsqtest"
)

// Clients that are answered together, with one system call, each get all of their answers.
func TestAnswersTogether(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	const clients, rounds = 80, 20 // more clients than one system call can serve
	var wg sync.WaitGroup
	for i := range clients {
		c := n.dial(t)
		wg.Go(func() {
			for round := range rounds {
				_, err := c.Conn.Write([]byte(nsqtest.Pub("together", fmt.Sprintf("%d of %d", round, i))))
				k, d, ferr := c.Frame(nsqtest.Patience)
				if err = errors.Join(err, ferr); err != nil || k != frameResponse || string(d) != "OK" {
					t.Errorf("client %d, message %d: %d %q %v", i, round, k, d, err)
					return
				}
			}
		})
	}
	wg.Wait()
	published := 0
	n.each(func(c *conn) {
		c.targetsMu.Lock()
		published += int(c.targets["together"].published.Load())
		c.targetsMu.Unlock()
	})
	if published != clients*rounds {
		t.Errorf("%d messages count as answered, want %d", published, clients*rounds)
	}
}

// lentOut returns a connection whose output is lent, with one frame in it. The connection's reader may still be about
// to flush after the client's command, and then writes the frame before it can be lent: that frame is read, and another
// one lent.
func lentOut(t *testing.T, n *testNode, frame []byte) (*nsqtest.Client, *conn) {
	t.Helper()
	c := n.dial(t)
	c.Send("NOP\n")
	server := n.onlyConn(t)
	for {
		server.out.append(frame)
		fd, data, left := server.out.lend()
		if string(data) == string(frame) && fd == server.out.fd && !left {
			return c, server
		}
		if data != nil {
			t.Fatalf("%d bytes are lent, want %d", len(data), len(frame))
		}
		c.Expect(frameResponse, string(frame[frameHeaderBytes:]))
	}
}

// A connection that is killed while its descriptor is in use keeps the descriptor open until the end of that use.
// Otherwise a new connection could get the same descriptor number, and the answers of the old one.
func TestLentSocketStaysOpen(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c, server := lentOut(t, n, appendFrame(nil, frameResponse, "late"))
	server.kill()
	if err := server.out.nc.SetNoDelay(true); err != nil {
		t.Fatalf("the socket is closed under the one who writes: %v", err)
	}
	server.out.giveBack(len(server.out.lent.p), nil)
	if err := server.out.nc.SetNoDelay(true); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("the socket is open after the last write: %v", err)
	}
	c.Closed()
	nsqtest.Eventually(t, "the connection's end", func() bool {
		alive := false
		n.each(func(*conn) { alive = true })
		return !alive
	})
}

// Bytes that a socket does not accept are written later, before the frames that were appended in the meantime.
func TestLentRestIsWritten(t *testing.T) {
	for _, c := range []struct {
		name string
		n    int
	}{
		{"a part", 7},
		{"nothing", 0},
		{"all", -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := startNode(t, node.Options{}, Settings{})
			frame := appendFrame(nil, frameResponse, strings.Repeat("a", 100))
			client, server := lentOut(t, n, frame)
			server.out.append(appendFrame(nil, frameResponse, "second"))
			server.out.flush() // does nothing, because the output has an owner
			done := c.n
			if done < 0 {
				done = len(frame)
			}
			if _, err := server.out.nc.Write(frame[:done]); err != nil { // as the flusher did
				t.Fatal(err)
			}
			server.out.giveBack(done, nil)
			client.Expect(frameResponse, strings.Repeat("a", 100))
			client.Expect(frameResponse, "second")
		})
	}
}

// A failing socket ends its own connection and no other.
func TestLentFailure(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	c, server := lentOut(t, n, appendFrame(nil, frameResponse, "lost"))
	server.out.giveBack(0, syscall.EPIPE)
	c.Closed()
	other := n.dial(t)
	other.Send(nsqtest.Pub("t", "m"))
	other.OK()
}
