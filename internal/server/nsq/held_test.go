package nsq

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/message"
	"penstock/tests/support/nsqtest"
)

// untilTold is a clock whose deadline passes when the test says so.
type untilTold struct{ over atomic.Bool }

func (c *untilTold) Over(int64) bool { return c.over.Load() }

// heldConn returns a connection whose client does not read. The first large message without a deadline stays half
// written.
func heldConn(t *testing.T) (*nsqtest.Client, *conn) {
	t.Helper()
	n := startNode(t, node.Options{}, Settings{})
	c := n.dial(t)
	c.Send("NOP\n")
	server := n.onlyConn(t)
	server.out.mu.Lock()
	server.out.bound = 1 << 30
	server.out.mu.Unlock()
	return c, server
}

const heldBodyBytes = 16 << 20 // more than the buffers of two sockets hold

// held delivers one message whose deadline passes by the clock; nil: no deadline.
func held(server *conn, id node.ID, size int, clock message.DeadlineClock) {
	s := (*sink)(server)
	s.Deliver(&node.Delivery{
		ID: id, Attempts: 1, Body: bytes.Repeat([]byte{byte(id)}, size), Until: message.Deadline{Clock: clock},
	})
	s.Flush()
}

// heldIDs reads messages up to the one whose id is last.
func heldIDs(t *testing.T, c *nsqtest.Client, last byte) (ids []byte) {
	t.Helper()
	for {
		k, d, err := c.Frame(nsqtest.Patience)
		if err != nil || k != frameMessage {
			t.Fatalf("frame %d, %v", k, err)
		}
		body := d[messageHeaderBytes:]
		if ids = append(ids, body[0]); body[0] == last {
			return ids
		}
	}
}

// While a client does not read, a waiting message is dropped at its deadline, which is checked just before the message
// would be written. A withdrawn message is dropped at once. The frames around them arrive.
//
// B57.
func TestHeldOutput(t *testing.T) {
	c, server := heldConn(t)
	clock, other := &untilTold{}, &untilTold{}
	for range 16 {
		held(server, 1, heldBodyBytes/16, nil)
	}
	for id := range node.ID(8) {
		held(server, 2+id, 100, clock)
		if id == 3 {
			held(server, 50, 100, other)
			held(server, 51, 100, nil)
			held(server, 52, 100, other)
		}
	}
	s := (*sink)(server)
	if s.Drained() {
		t.Error("nothing is said to wait")
	}
	if !s.Withdraw(4) || !s.Withdraw(52) || !s.Withdraw(99) {
		t.Error("a message that waits could not be withdrawn")
	}
	clock.over.Store(true)
	held(server, 60, 100, nil)
	if ids := slices.Compact(heldIDs(t, c, 60)); !slices.Equal(ids, []byte{1, 50, 51, 60}) {
		t.Errorf("%v arrived", ids)
	}
	eventuallyHeld(t, s.Drained)
	var dropped []node.ID
	for _, d := range s.Dropped(nil) {
		dropped = append(dropped, d.ID)
	}
	if slices.Sort(dropped); !slices.Equal(dropped, []node.ID{2, 3, 4, 5, 6, 7, 8, 9, 52}) {
		t.Errorf("%v are said to be dropped", dropped)
	}
}

func eventuallyHeld(t *testing.T, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(nsqtest.Patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("something waits for ever")
		}
	}
}

// A message that is half written at its deadline ends the connection, and the rest of the message never arrives.
//
// B57.
func TestHeldOutputHalfWritten(t *testing.T) {
	c, server := heldConn(t)
	clock := &untilTold{}
	held(server, 1, heldBodyBytes, clock)
	eventuallyHeld(t, func() bool {
		server.out.mu.Lock()
		defer server.out.mu.Unlock()
		return server.out.slow != nil && server.out.slowAt > 0
	})
	if (*sink)(server).Withdraw(1) {
		t.Error("a message that is half written was withdrawn")
	}
	clock.over.Store(true)
	_ = c.Conn.SetReadDeadline(time.Now().Add(nsqtest.Patience))
	if n, err := io.Copy(io.Discard, c.Conn); errors.Is(err, os.ErrDeadlineExceeded) || n >= heldBodyBytes {
		t.Errorf("%d bytes arrived, %v", n, err)
	}
	eventuallyHeld(t, (*sink)(server).Drained)
}
