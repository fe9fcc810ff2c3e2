//go:build unix

package netproto

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// requests is a handler that passes on the requests' numbers.
func requests() (*sink, chan uint64) {
	got := make(chan uint64, 1<<16)
	return newSink(func(_ *Conn, frames []Received) error {
		for i := range frames {
			got <- frames[i].Request
		}
		return nil
	}), got
}

func expectRequests(t *testing.T, got chan uint64, want ...uint64) {
	t.Helper()
	for _, w := range want {
		select {
		case r := <-got:
			if r != w {
				t.Fatalf("request %d came, want %d", r, w)
			}
		case <-time.After(patience):
			t.Fatalf("request %d did not come", w)
		}
	}
}

func queue(t *testing.T, c *Conn, requests ...uint64) {
	t.Helper()
	for _, r := range requests {
		if err := c.Queue(&Frame{Type: TypePutAck, Request: r, Head: make([]byte, 16)}); err != nil {
			t.Fatal(err)
		}
	}
}

// lendOut waits until the writer sleeps, queues frames and lends them.
func lendOut(t *testing.T, c *Conn, requests ...uint64) []byte {
	t.Helper()
	idle(t, c)
	queue(t, c, requests...)
	if s := c.Stats(); s.QueuedFrames != len(requests) {
		t.Fatalf("%+v", s)
	}
	_, data := c.Lend()
	if len(data) != len(requests)*(HeaderBytes+16) {
		t.Fatalf("%d bytes are lent", len(data))
	}
	return data
}

// Frames that are queued leave together: by Flush, as what Lend returns, or with the next frame that is sent.
func TestQueuedFramesLeaveTogether(t *testing.T) {
	right, got := requests()
	a, _ := handshake(t, testOptions("a", newSink(nil)), testOptions("b", right))
	for what, leave := range map[string]func(){
		"Flush": a.Flush,
		"Lend": func() {
			fd, data := a.Lend()
			n, err := syscall.Write(fd, data)
			a.GiveBack(n, err)
		},
		"TrySend": func() {
			if err := a.TrySend(&Frame{Type: TypePutAck, Request: 4, Lone: true}); err != nil {
				t.Error(err)
			}
		},
	} {
		idle(t, a)
		before := a.Stats()
		queue(t, a, 1, 2, 3)
		if s := a.Stats(); s.Writes != before.Writes || s.QueuedFrames != 3 {
			t.Fatalf("%s: before: %+v", what, s)
		}
		leave()
		if s := a.Stats(); s.Writes != before.Writes+1 || s.QueuedFrames != 0 || s.QueuedBytes != 0 {
			t.Fatalf("%s: %+v", what, s)
		}
		expectRequests(t, got, 1, 2, 3)
		if what == "TrySend" {
			expectRequests(t, got, 4)
		}
	}
	if _, data := a.Lend(); data != nil {
		t.Errorf("%d bytes of nothing are lent", len(data))
	}
	a.Flush() // of nothing
}

// The writer writes what the socket has not taken of lent bytes, before anything that was sent meanwhile.
func TestLendLeavesRestToWriter(t *testing.T) {
	for _, n := range []int{0, 7, HeaderBytes + 16, 2 * (HeaderBytes + 16)} {
		right, got := requests()
		a, _ := handshake(t, testOptions("a", newSink(nil)), testOptions("b", right))
		data := lendOut(t, a, 1, 2)
		if err := a.TrySend(&Frame{Type: TypePutAck, Request: 3, Lone: true}); err != nil {
			t.Fatal(err)
		}
		queue(t, a, 4)
		if _, more := a.Lend(); more != nil {
			t.Fatal("lent twice")
		}
		if _, err := a.nc.Write(data[:n]); err != nil {
			t.Fatal(err)
		}
		a.GiveBack(n, nil)
		expectRequests(t, got, 1, 2, 3, 4)
	}
}

// The socket of a connection that ends stays open as long as somebody may write to its number: otherwise a new
// connection could get the number, and these bytes.
func TestLentSocketStaysOpen(t *testing.T) {
	h := newSink(nil)
	a, _ := handshake(t, testOptions("a", h), testOptions("b", newSink(nil)))
	data := lendOut(t, a, 1)
	a.Abort(nil)
	tcp := a.nc.(*net.TCPConn)
	if err := tcp.SetNoDelay(true); err != nil {
		t.Errorf("the socket is closed under the one who writes: %v", err) // the connection ends only after GiveBack
	}
	a.GiveBack(len(data), nil)
	if err := tcp.SetNoDelay(true); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("the socket is open after the last write: %v", err)
	}
	mustBe(t, h.wait(t), ErrClosed)
}

// A socket that fails ends its connection.
func TestLendFailure(t *testing.T) {
	h := newSink(nil)
	a, _ := handshake(t, testOptions("a", h), testOptions("b", newSink(nil)))
	lendOut(t, a, 1)
	a.GiveBack(0, syscall.EPIPE)
	mustBe(t, h.wait(t), ErrPeerGone)
}

// Nothing is lent if the bytes are not those of the socket, or the frames are long: the writer writes them.
func TestLendLeavesFramesToWriter(t *testing.T) {
	t.Run("TLS", func(t *testing.T) {
		right, got := requests()
		a, _ := handshakeTLS(t, testOptions("a", newSink(nil)), testOptions("b", right))
		queue(t, a, 1, 2)
		if _, data := a.Lend(); data != nil {
			t.Fatalf("%d bytes are lent", len(data))
		}
		expectRequests(t, got, 1, 2)
		queue(t, a, 3)
		a.Flush()
		expectRequests(t, got, 3)
	})
	t.Run("long", func(t *testing.T) {
		right, got := requests()
		a, _ := handshake(t, testOptions("a", newSink(nil)), testOptions("b", right))
		idle(t, a)
		if err := a.Queue(&Frame{Type: TypePutAck, Request: 1, Head: make([]byte, maxSpotBytes)}); err != nil {
			t.Fatal(err)
		}
		if _, data := a.Lend(); data != nil {
			t.Fatalf("%d bytes are lent", len(data))
		}
		expectRequests(t, got, 1)
	})
}

// A queue has its limits for Queue, too.
func TestQueueIsBounded(t *testing.T) {
	a, _ := handshake(t, testOptions("a", newSink(nil), func(o *Options) { o.MaxQueueFrameCount = 3 }),
		testOptions("b", newSink(nil)))
	idle(t, a)
	queue(t, a, 1, 2, 3)
	mustBe(t, a.Queue(&Frame{Type: TypePutAck}), ErrQueueFull)
	a.Flush()
	queue(t, a, 4)
	a.Abort(nil)
	mustBe(t, a.Queue(&Frame{Type: TypePutAck}), ErrClosed)
}

// Somebody lends while others send, queue and flush, the writer works, and the connection may end at any moment: each
// sender's frames arrive in order, and every owner is released once.
func TestLendBesideSenders(t *testing.T) {
	const senders = 3
	for round := range 20 {
		var last [senders]uint64
		right := newSink(gapless(t, last[:]))
		a, b := handshake(t, testOptions("a", newSink(nil)), testOptions("b", right))
		owner, taken := &countedOwner{}, atomic.Int64{}
		var wg, lender sync.WaitGroup
		for s := range uint32(senders) {
			wg.Go(func() {
				big := make([]byte, MinBorrowBytes)
				for n := uint64(1); n < 400; n++ {
					f := Frame{Type: TypePutAck, Stream: s, Head: binary.LittleEndian.AppendUint64(nil, n), Owner: owner}
					send := a.Queue
					switch {
					case n%7 == uint64(s):
						f.Body = [][]byte{big}
					case n%5 == uint64(s):
						f.Lone, send = true, a.TrySend
					}
					if send(&f) != nil {
						return // the connection has ended, in the rounds that end it
					}
					if taken.Add(1); n%11 == uint64(s) {
						a.Flush()
					}
				}
			})
		}
		end := make(chan struct{})
		lender.Go(func() {
			for ended := false; ; {
				fd, data := a.Lend()
				switch {
				case data != nil:
					n, err := syscall.Write(fd, data[:min(len(data), 1+round*100)])
					if err == syscall.EAGAIN {
						err = nil
					}
					a.GiveBack(max(n, 0), err)
				case ended:
					return
				}
				select {
				case <-end:
					ended = true
				default:
				}
			}
		})
		if round%2 == 1 {
			until(t, "frames are on their way", func() bool { return taken.Load() > int64(round*10) })
			a.Abort(nil)
		}
		wg.Wait()
		close(end)
		lender.Wait()
		if round%2 == 0 {
			a.Close()
			<-b.Done()
			for s, n := range last {
				if n != 399 {
					t.Errorf("sender %d: %d frames arrived", s, n)
				}
			}
		}
		<-a.Done()
		if r := owner.released.Load(); r != taken.Load() {
			t.Fatalf("round %d: %d frames taken, %d owners released", round, taken.Load(), r)
		}
	}
}
