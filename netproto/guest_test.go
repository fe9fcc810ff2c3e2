package netproto

import (
	"errors"
	"hash/crc32"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// hosting is a connection with a raw peer. Its handler calls Rest after every burst, and checks the payloads.
type hosting struct {
	*sink
	t     *testing.T
	raw   net.Conn
	c     *Conn
	got   chan handled
	count atomic.Int64                        // frames so far
	after atomic.Pointer[func(c *Conn) error] // what the handler does at its end
}

// handled is a frame that the handler got, and whether a guest had read it.
type handled struct {
	request uint64
	bytes   int // of the payload
	guest   bool
}

// never makes the reader wait for guests until it is called.
func never(o *Options) { o.guestTick = time.Hour }

func newHosting(t *testing.T, edits ...edit) *hosting {
	h := &hosting{t: t, got: make(chan handled, 1000)}
	h.sink = newSink(h.handle)
	h.does(func(c *Conn) error { c.Rest(); return nil })
	h.raw, h.c = rawPeer(t, testOptions("a", h.sink, edits...))
	return h
}

func (h *hosting) does(f func(c *Conn) error) { h.after.Store(&f) }

func (h *hosting) handle(c *Conn, frames []Received) error {
	for i := range frames {
		f := &frames[i]
		if slices.ContainsFunc(f.Payload, func(b byte) bool { return b != byte(f.Request) }) {
			h.t.Errorf("the payload of request %d is not intact", f.Request)
		}
		h.count.Add(1)
		h.got <- handled{f.Request, len(f.Payload), c.guests.state.Load() >= guestReads}
	}
	return (*h.after.Load())(c)
}

// frameOf returns a frame whose payload has n bytes, all of which are the request's number.
func frameOf(typ Type, request uint64, n int) []byte {
	p := make([]byte, HeaderBytes+n)
	for i := range n {
		p[HeaderBytes+i] = byte(request)
	}
	head := Header{
		Type: typ, Request: request, PayloadBytes: uint32(n), PayloadCRC: crc32.Checksum(p[HeaderBytes:], castagnoli),
	}
	head.Marshal(p)
	return p
}

// write sends bytes as the peer, and waits until they are read.
func (h *hosting) write(p []byte) {
	h.t.Helper()
	before := h.c.Stats().ReadBytes
	if _, err := h.raw.Write(p); err != nil {
		h.t.Fatal(err)
	}
	until(h.t, "the bytes are read", func() bool { return h.c.Stats().ReadBytes == before+uint64(len(p)) })
}

// wants waits for the next frame that the handler gets.
func (h *hosting) wants(want handled) {
	h.t.Helper()
	select {
	case got := <-h.got:
		if got != want {
			h.t.Fatalf("%+v was handled, want %+v", got, want)
		}
	case <-time.After(patience):
		h.t.Fatalf("%+v was not handled", want)
	}
}

func (h *hosting) state(want uint32) func() bool {
	return func() bool { return h.c.guests.state.Load() == want }
}

// rests makes the reader rest; only for connections whose reader waits for ever, and always rests.
func (h *hosting) rests() {
	h.t.Helper()
	h.write(frameOf(TypePutAck, 0, 1))
	h.wants(handled{0, 1, false})
	until(h.t, "the reader rests", h.state(readerRests))
}

// restsAtLast makes the reader rest where it may read on or begin to read again. A frame may be left that is not read.
func (h *hosting) restsAtLast() {
	h.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		before := h.count.Load()
		if _, err := h.raw.Write(frameOf(TypePutAck, 0, 1)); err != nil {
			h.t.Fatal(err)
		}
		until(h.t, "the frame is handled", func() bool { return h.count.Load() > before || h.state(readerRests)() })
		for soon := time.Now().Add(guestTick / 10); time.Now().Before(soon); runtime.Gosched() {
			if h.state(readerRests)() {
				return
			}
		}
	}
	h.t.Fatal("the reader does not rest")
}

// guest lets a guest read, which waits for count frames. left waits until it has left.
func (h *hosting) guest(count int64) (left func()) {
	h.t.Helper()
	ended, before, want := make(chan bool, 1), h.c.Stats().Guests, h.count.Load()+count
	go func() { ended <- h.c.ReadHere(func() bool { return h.count.Load() >= want }) }()
	until(h.t, "a guest reads", func() bool { return h.c.Stats().Guests > before })
	return func() {
		h.t.Helper()
		select {
		case ok := <-ended:
			if !ok {
				h.t.Error("ReadHere returned false")
			}
		case <-time.After(patience):
			h.t.Fatal("the guest reads on")
		}
	}
}

// Guests read one after the other, whole frames and frames that come in parts, several at a time, and answer pings.
// Whoever is not the only one is sent away. After Recall the reader goes on.
func TestGuestsRead(t *testing.T) {
	h := newHosting(t, never)
	h.rests()
	for _, cut := range []int{0, 1, HeaderBytes, HeaderBytes + 1, HeaderBytes + 999} {
		left := h.guest(3)
		if h.c.ReadHere(func() bool { return false }) {
			t.Fatal("there are two guests")
		}
		h.write(slices.Concat(frameOf(TypePutAck, 1, 10), frameOf(TypePutAck, 2, 0)))
		h.write(frameOf(TypePing, 0, 0))
		h.pong()
		p := frameOf(TypePutAck, 3, 1000)
		if h.write(p[:cut]); cut > 0 {
			h.wants(handled{1, 10, true})
			h.wants(handled{2, 0, true})
		}
		h.write(p[cut:])
		if cut == 0 {
			h.wants(handled{1, 10, true})
			h.wants(handled{2, 0, true})
		}
		h.wants(handled{3, 1000, true})
		left()
	}
	h.c.Recall()
	h.write(frameOf(TypePutAck, 4, 10))
	h.wants(handled{4, 10, false})
}

// pong waits until the peer gets a Pong.
func (h *hosting) pong() {
	h.t.Helper()
	h.peerGets(TypePong)
}

// peerGets waits until the peer gets a frame of a type.
func (h *hosting) peerGets(typ Type) {
	h.t.Helper()
	_ = h.raw.SetReadDeadline(time.Now().Add(patience))
	for {
		head, _, err := readFrame(h.raw)
		if err != nil {
			h.t.Fatalf("instead of a %v the peer got %v", typ, err)
		}
		if head.Type == typ {
			return
		}
	}
}

// What a guest may meet while it reads. It always leaves; nothing is lost or handled twice, and the connection goes on,
// or ends as it does without guests.
func TestGuestLeaves(t *testing.T) {
	late := errors.New("the handler does not like it")
	for _, v := range []struct {
		name string
		act  func(h *hosting)
		end  error // of the connection; nil: it goes on
		says bool  // the peer hears a Goodbye
	}{
		{"recalled", func(h *hosting) { h.c.Recall() }, nil, false},
		{"recalled within a header", func(h *hosting) {
			p := frameOf(TypePutAck, 5, 100)
			h.write(p[:HeaderBytes-1])
			h.c.Recall()
			until(h.t, "the reader reads", h.state(readerReads))
			h.write(p[HeaderBytes-1:])
			h.wants(handled{5, 100, false})
		}, nil, false},
		{"recalled within a payload", func(h *hosting) {
			p := frameOf(TypePutAck, 5, 100)
			h.write(p[:HeaderBytes+50])
			h.c.Recall()
			until(h.t, "the reader reads", h.state(readerReads))
			h.write(p[HeaderBytes+50:])
			h.wants(handled{5, 100, false})
		}, nil, false},
		{"a frame for which the buffer is too small", func(h *hosting) {
			h.does(func(*Conn) error { return nil })
			h.write(frameOf(TypePutAck, 5, 3*RecvBufBytes))
			h.wants(handled{5, 3 * RecvBufBytes, false})
		}, nil, false},
		{"the handler keeps the buffer", func(h *hosting) {
			h.does(func(c *Conn) error {
				c.in.buf.Retain()
				h.t.Cleanup(c.in.buf.Release)
				return nil
			})
			h.write(frameOf(TypePutAck, 5, RecvBufBytes-minReadBytes))
			h.wants(handled{5, RecvBufBytes - minReadBytes, true})
		}, nil, false},
		{"a Goodbye", func(h *hosting) { h.write(frameOf(TypeGoodbye, 0, 0)) }, ErrGoodbye, true},
		{"a frame that is not intact", func(h *hosting) {
			p := frameOf(TypePutAck, 5, 100)
			p[HeaderBytes]++
			h.write(p)
		}, ErrCorrupt, true},
		{"the handler's error", func(h *hosting) {
			h.does(func(*Conn) error { return late })
			h.write(frameOf(TypePutAck, 5, 10))
		}, late, true},
		{"the peer goes", func(h *hosting) { h.raw.Close() }, ErrPeerGone, false},
		{"this side aborts", func(h *hosting) { h.c.Abort(late) }, late, false},
		{"this side closes", func(h *hosting) { go h.c.Close() }, ErrClosed, true},
	} {
		t.Run(v.name, func(t *testing.T) {
			h := newHosting(t, never, func(o *Options) {
				o.CloseTimeout, o.SilenceTimeout = time.Minute, time.Minute
			})
			h.rests()
			left := h.guest(100)
			v.act(h)
			left()
			if v.says {
				h.peerGets(TypeGoodbye)
				h.raw.Close()
			}
			if v.end != nil {
				mustBe(t, h.wait(t), v.end)
				<-h.c.Done()
			} else {
				until(t, "the reader reads", h.state(readerReads))
				h.write(frameOf(TypePutAck, 9, 9))
				h.wants(handled{9, 9, false})
				if n := h.c.Stats().SentFrames; n > 5 {
					t.Errorf("the peer got %d pings", n)
				}
			}
			if h.c.ReadHere(func() bool { return false }) {
				t.Error("there is a guest beside the reader, or after the end")
			}
		})
	}
	noGoroutines(t)
}

// The reader waits for guests no longer than a tick, and for a guest that reads no longer than two.
func TestGuestTick(t *testing.T) {
	h := newHosting(t)
	for range 5 {
		h.restsAtLast()
		until(t, "the reader reads", h.state(readerReads))
	}
	for read := false; !read; {
		h.restsAtLast()
		read = h.c.ReadHere(func() bool { return false }) // it returns although nothing comes and nobody calls Recall
	}
	h.does(func(*Conn) error { return nil }) // it rests no more
	before := h.count.Load()
	h.write(frameOf(TypePutAck, 6, 10))
	until(t, "the frame is handled", func() bool { return h.count.Load() > before })
	until(t, "the reader reads", h.state(readerReads))
}

// A Recall between Rest and the rest is not missed; one before Rest does not count.
func TestRecallAfterRest(t *testing.T) {
	h := newHosting(t, never)
	h.does(func(c *Conn) error { c.Rest(); c.Recall(); return nil })
	for range 10 {
		h.write(frameOf(TypePutAck, 1, 10))
		h.wants(handled{1, 10, false})
	}
	h = newHosting(t, never)
	h.does(func(c *Conn) error { c.Recall(); c.Rest(); return nil })
	h.write(frameOf(TypePutAck, 1, 10))
	until(t, "the reader rests", h.state(readerRests))
}

// After Recall has sent a guest away, the reader does not rest for guestPause. It does not rest either when answers
// come rarely.
func TestReaderDoesNotRest(t *testing.T) {
	h := newHosting(t, never)
	h.rests()
	left := h.guest(1)
	began := time.Now()
	h.c.Recall()
	left()
	until(t, "the reader reads", h.state(readerReads))
	h.restsAtLast()
	if took := time.Since(began); took < guestPause/2 {
		t.Errorf("the reader rests again after %v", took)
	}

	h = newHosting(t, func(o *Options) { o.guestTick = time.Nanosecond })
	for range 10 {
		h.write(frameOf(TypePutAck, 1, 10))
		h.wants(handled{1, 10, false})
	}
	if h.c.in.timer != nil {
		t.Error("the reader rests although the next guest would be late")
	}
}

// A peer that falls silent while guests read is noticed.
func TestSilentPeerOfGuests(t *testing.T) {
	h := newHosting(t, func(o *Options) {
		o.PingEvery, o.SilenceTimeout = 100*time.Millisecond, time.Second
	})
	h.restsAtLast()
	for ended := false; !ended; {
		h.c.ReadHere(func() bool { return false })
		select {
		case <-h.c.Done():
			ended = true
		case <-time.After(time.Millisecond):
		}
	}
	mustBe(t, h.wait(t), ErrPeerSilent)
}

// Guests, callers of Recall, and a peer that sends whenever it likes: every frame is handled once, in its order.
func TestGuestsRandom(t *testing.T) {
	const frames = 20_000
	var next atomic.Uint64
	var guests atomic.Int64
	got := newSink(func(c *Conn, all []Received) error {
		for i := range all {
			if n := next.Add(1); all[i].Request != n {
				t.Errorf("request %d came as number %d", all[i].Request, n)
			}
		}
		if c.guests.state.Load() >= guestReads {
			guests.Add(1)
		}
		c.Rest()
		return nil
	})
	a, b := handshake(t, testOptions("a", newSink(nil)), testOptions("b", got))
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for next.Load() < frames {
				before := next.Load()
				if !b.ReadHere(func() bool { return next.Load() > before }) {
					time.Sleep(10 * time.Microsecond)
				}
			}
		})
	}
	all.Go(func() {
		for next.Load() < frames {
			time.Sleep(guestPause + 2*guestTick) // the reader may rest in between
			b.Recall()
		}
	})
	for n := range uint64(frames) {
		if err := a.Send(t.Context(), &Frame{Type: TypePutAck, Request: n + 1, Head: make([]byte, n%100)}); err != nil {
			t.Fatal(err)
		}
		if n%50 == 0 {
			until(t, "the frames arrive", func() bool { return next.Load() == n+1 })
		}
	}
	all.Wait()
	if guests.Load() == 0 {
		t.Error("no guest has read anything")
	}
}
