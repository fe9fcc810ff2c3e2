package netproto

import (
	"net"
	"testing"
)

// opened is a sink that is told of its connection first.
type opened struct {
	*sink
	conn chan *Conn
}

func (o *opened) Opened(c *Conn) { o.conn <- c }

// Until Trust is called, the peer may send only so many bytes; the frame that exceeds them is not delivered. The
// Handler is that of the connection, and hears of it first.
func TestStrangerBytes(t *testing.T) {
	for _, trusted := range []bool{false, true} {
		got := make(chan int, 16)
		h := &opened{newSink(func(_ *Conn, frames []Received) error {
			for _, f := range frames {
				got <- len(f.Payload)
			}
			return nil
		}), make(chan *Conn, 1)}
		o := testOptions("b", nil, func(o *Options) {
			o.Handler, o.MaxStrangerBytes = nil, 300
			o.HandlerFor = func(nc net.Conn) Handler { return h }
		})
		a, b := handshake(t, testOptions("a", newSink(nil)), o)
		if c := <-h.conn; c != b {
			t.Fatal("another connection")
		}
		send := func(n int) {
			t.Helper()
			if err := a.TrySend(&Frame{Type: TypePutAck, Head: make([]byte, n)}); err != nil {
				t.Fatal(err)
			}
		}
		send(100)
		send(300 - 100 - 2*HeaderBytes)
		for range 2 {
			<-got
		}
		if trusted {
			b.Trust()
		}
		send(1)
		if trusted {
			if n := <-got; n != 1 {
				t.Errorf("%d bytes", n)
			}
			continue
		}
		mustBe(t, h.wait(t), ErrTooBig)
		if len(got) != 0 {
			t.Error("a frame above the limit was delivered")
		}
	}
}
