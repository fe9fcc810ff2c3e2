package netproto

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Frames that are queued during a write leave with one write.
func TestCoalescing(t *testing.T) {
	an, bn := net.Pipe() // a write ends only when it was read, so the test decides which write is under way
	left := newSink(nil)
	connected := make(chan *Conn, 1)
	go func() {
		c, err := Connect(context.Background(), an, testOptions("a", left, noPings))
		if err != nil {
			t.Error(err)
		}
		connected <- c
	}()
	if _, _, _, err := readHello(bn, TypeHello); err != nil {
		t.Fatal(err)
	}
	hello := testHello("b")
	hello.Chosen = 1
	if err := writeFrame(bn, TypeHelloAck, StatusOK, hello.AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	a := <-connected
	first := make([]byte, 1)
	send := func(f *Frame) {
		if err := a.TrySend(f); err != nil {
			t.Fatal(err)
		}
	}
	send(&Frame{Type: TypePutAck})
	if _, err := bn.Read(first); err != nil { // the writer is now in its first write
		t.Fatal(err)
	}
	const frames = 1000
	big := make([]byte, MinBorrowBytes)
	for i := range frames {
		if i == frames/2 {
			send(&Frame{Type: TypeForwardPut, Body: [][]byte{big}})
			continue
		}
		send(&Frame{Type: TypePutAck, Head: make([]byte, 100)})
	}
	if s := a.Stats(); s.Writes != 0 || s.QueuedFrames != frames+1 {
		t.Fatalf("before the peer reads: %+v", s)
	}
	want := HeaderBytes - 1 + frames*HeaderBytes + (frames-1)*100 + len(big)
	for got, p := 0, make([]byte, 1<<20); got < want; {
		n, err := bn.Read(p)
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
	until(t, "the queue is empty", func() bool { return a.Stats().QueuedFrames == 0 })
	if s := a.Stats(); s.Writes != 2 || s.SentFrames != frames+1 || framesPerWrite(&s) < 500 {
		t.Errorf("%+v, %.1f frames per write", s, framesPerWrite(&s))
	}
	bn.Close()
	mustBe(t, left.wait(t), ErrPeerGone)
	<-a.Done()
}

// counting is a handler that costs almost nothing.
type counting struct {
	frames atomic.Int64
	want   atomic.Int64
	there  chan struct{}
}

func (h *counting) Frames(_ *Conn, frames []Received) error {
	if n := h.frames.Add(int64(len(frames))); n == h.want.Load() {
		h.there <- struct{}{}
	}
	return nil
}

func (h *counting) Closed(*Conn, error) {}

// pass sends n frames and waits until they have arrived.
func (h *counting) pass(tb testing.TB, c *Conn, f *Frame, n int) {
	h.want.Store(h.frames.Load() + int64(n))
	for range n {
		if err := c.Send(context.Background(), f); err != nil {
			tb.Fatal(err)
		}
	}
	<-h.there
}

// BenchmarkFrames carries frames of 100 bytes over loopback. "coalesced" is Send; "one write each" is what sending
// would cost without the queue.
func BenchmarkFrames(b *testing.B) {
	for _, size := range []int{100, 1 << 10, 64 << 10} {
		name := map[int]string{100: "100B", 1 << 10: "1KiB", 64 << 10: "64KiB"}[size]
		f := &Frame{Type: TypePutMessagesOnReplica, Flags: FlagSelfChecked, Body: [][]byte{make([]byte, size)}}
		b.Run(name+"/coalesced", func(b *testing.B) {
			h := &counting{there: make(chan struct{}, 1)}
			a, _ := handshake(b, testOptions("a", newSink(nil)), Options{Hello: testHello("b"), Handler: h})
			b.ReportAllocs()
			b.SetBytes(int64(HeaderBytes + size))
			b.ResetTimer()
			h.pass(b, a, f, b.N)
			b.StopTimer()
			s := a.Stats()
			b.ReportMetric(framesPerWrite(&s), "frames/write")
		})
		b.Run(name+"/one write each", func(b *testing.B) {
			h := &counting{there: make(chan struct{}, 1)}
			raw, _ := rawPeer(b, Options{Hello: testHello("b"), Handler: h})
			frame := rawFrame(Header{Type: TypePutMessagesOnReplica}, make([]byte, size))
			h.want.Store(int64(b.N))
			b.ReportAllocs()
			b.SetBytes(int64(HeaderBytes + size))
			b.ResetTimer()
			for range b.N {
				if _, err := raw.Write(frame); err != nil {
					b.Fatal(err)
				}
			}
			<-h.there
		})
	}
}

// BenchmarkRoundTrip sends one request at a time on an idle connection: it measures the goroutines on the way.
func BenchmarkRoundTrip(b *testing.B) {
	back := &counting{there: make(chan struct{}, 1)}
	echo := newSink(func(c *Conn, frames []Received) error {
		return c.TrySend(&Frame{Type: TypePutAck, Request: frames[len(frames)-1].Request})
	})
	a, _ := handshake(b, Options{Hello: testHello("a"), Handler: back}, testOptions("b", echo))
	f := &Frame{Type: TypeForwardPut, Head: make([]byte, 100)}
	b.ReportAllocs()
	for b.Loop() {
		back.pass(b, a, f, 1)
	}
}

// BenchmarkSenders has many goroutines send at once.
func BenchmarkSenders(b *testing.B) {
	h := &counting{there: make(chan struct{}, 1)}
	a, _ := handshake(b, testOptions("a", newSink(nil)), Options{Hello: testHello("b"), Handler: h})
	const senders = 8
	each := b.N/senders + 1
	h.want.Store(int64(each * senders))
	b.ReportAllocs()
	b.ResetTimer()
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			f := &Frame{Type: TypeForwardPut, Head: make([]byte, 100)}
			for range each {
				if err := a.Send(context.Background(), f); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	<-h.there
	b.ReportMetric(float64(each*senders)/b.Elapsed().Seconds(), "frames/s")
}

func framesPerWrite(s *Stats) float64 { return float64(s.SentFrames) / float64(max(s.Writes, 1)) }
