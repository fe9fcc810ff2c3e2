package netproto

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Many goroutines send frames of all sizes, borrowed and copied, checked and self-checked. The frames of each goroutine
// arrive whole and in order, and every owner is released once.
func TestManySenders(t *testing.T) {
	const senders, each = 8, 300
	var owners sync.WaitGroup
	in := &inOrder{next: make([]uint64, senders)}
	got := newSink(in.frames)
	sender := newSink(nil)
	a, b := handshake(t, testOptions("a", sender, func(o *Options) { o.MaxQueueBytes, o.MaxQueueFrameCount = 1<<20, 64 }),
		testOptions("b", got))
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(s)))
			for i := range each {
				f := bodyFrame(rnd, uint32(s), uint64(i))
				o := lend(t, &owners)
				f.Owner = o
				if err := a.Send(t.Context(), f); err != nil {
					t.Errorf("sender %d, frame %d: %v", s, i, err)
					o.Release()
					return
				}
			}
		})
	}
	all.Wait()
	a.Close()
	if err := got.wait(t); !errors.Is(err, ErrGoodbye) {
		t.Fatal(err)
	}
	mustBe(t, sender.wait(t), ErrClosed)
	waitAll(t, &owners)
	for _, f := range in.kept { // also after the end
		if err := checkBody(&f); err != nil {
			t.Error(err)
		}
		f.Buf.Release()
	}
	if in.total != senders*each {
		t.Errorf("%d frames arrived of %d", in.total, senders*each)
	}
	if held := b.Stats().HeldBytes; held != 0 {
		t.Errorf("%d bytes of receive buffers were not given back", held)
	}
	if s := a.Stats(); s.QueuedFrames != 0 || s.QueuedBytes != 0 {
		t.Errorf("left in the queue: %+v", s)
	}
}

// inOrder checks the frames of many senders, some of them long after its call.
type inOrder struct {
	next  []uint64 // next request by sender
	total int
	kept  []Received
}

func (in *inOrder) frames(_ *Conn, frames []Received) error {
	for _, f := range frames {
		if f.Request != in.next[f.Stream] {
			return fmt.Errorf("sender %d: frame %d where %d must come", f.Stream, f.Request, in.next[f.Stream])
		}
		in.next[f.Stream]++
		in.total++
		if f.Request%16 == 0 {
			f.Buf.Retain()
			in.kept = append(in.kept, f)
			continue
		}
		if err := checkBody(&f); err != nil {
			return err
		}
	}
	for ; len(in.kept) > 20; in.kept = in.kept[1:] {
		if err := checkBody(&in.kept[0]); err != nil {
			return err
		}
		in.kept[0].Buf.Release()
	}
	return nil
}

// bodyFrame has a body of up to 300 KB in up to three parts, and the body's checksum in the head.
func bodyFrame(rnd *rand.Rand, stream uint32, request uint64) *Frame {
	f := &Frame{Type: TypePutMessagesOnReplica, Stream: stream, Request: request}
	crc := uint32(0)
	for range rnd.IntN(4) {
		p := make([]byte, rnd.IntN(1<<rnd.IntN(18)))
		for i := range p {
			p[i] = byte(rnd.Uint32())
		}
		crc = crc32.Update(crc, castagnoli, p)
		f.Body = append(f.Body, p)
	}
	f.Head = binary.LittleEndian.AppendUint64(nil, uint64(crc))
	if rnd.IntN(2) == 0 {
		f.Flags = FlagSelfChecked
	}
	return f
}

func checkBody(f *Received) error {
	if got := crc32.Checksum(f.Payload[8:], castagnoli); uint64(got) != binary.LittleEndian.Uint64(f.Payload) {
		return fmt.Errorf("frame %d of sender %d: %d bytes are not what was sent", f.Request, f.Stream, len(f.Payload))
	}
	return nil
}

// A peer that does not read fills the queue, but not the memory. Frames that Send took arrive once the peer reads
// again.
func TestBackpressure(t *testing.T) {
	gate, arrived := make(chan struct{}), 0
	got := newSink(func(_ *Conn, frames []Received) error {
		<-gate
		arrived += len(frames)
		return nil
	})
	a, _ := handshake(t, testOptions("a", newSink(nil), func(o *Options) { o.MaxQueueBytes = 1 << 20 }),
		testOptions("b", got))
	body := make([]byte, 8<<10)
	f := &Frame{Type: TypeForwardPut, Body: [][]byte{body}}
	taken := 0
	for err := error(nil); ; taken++ {
		if err = a.TrySend(f); err != nil {
			// The kernel may just be taking frames out of the queue: the queue stays full once the peer's window is
			// shut.
			mustBe(t, err, ErrQueueFull)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err = a.Send(ctx, f)
			cancel()
			if err != nil {
				mustBe(t, err, ErrQueueFull)
				mustBe(t, err, context.DeadlineExceeded)
				break
			}
		}
		if s := a.Stats(); s.QueuedBytes > 1<<20 {
			t.Fatalf("%d bytes in the queue", s.QueuedBytes)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	mustBe(t, a.AwaitRoom(ctx), context.DeadlineExceeded)
	late, room := make(chan error), make(chan error)
	go func() { late <- a.Send(context.Background(), f) }()
	go func() { room <- a.AwaitRoom(context.Background()) }()
	close(gate)
	if err := errors.Join(<-late, <-room); err != nil {
		t.Fatal(err)
	}
	a.Close()
	mustBe(t, got.wait(t), ErrGoodbye)
	if arrived != taken+1 {
		t.Errorf("%d frames arrived, %d were taken", arrived, taken+1)
	}
	if a.Stats().QueueFull == 0 {
		t.Error("the statistics do not show that the queue was full")
	}
	if err := a.AwaitRoom(t.Context()); err != nil { // it returns at once, because the connection ended
		t.Fatal(err)
	}
}

// A handler that keeps every payload stops the reader, but not the node: held bytes stay bounded, pings keep the
// connection alive, and it goes on when the handler releases the payloads.
func TestHeldBytes(t *testing.T) {
	const frames, limit = 64, 1 << 20
	var mu sync.Mutex
	var kept []*RecvBuf
	arrived := atomic.Int32{}
	got := newSink(func(_ *Conn, frames []Received) error {
		mu.Lock()
		defer mu.Unlock()
		for _, f := range frames {
			f.Buf.Retain()
			kept = append(kept, f.Buf)
			arrived.Add(1)
		}
		return nil
	})
	lively := func(o *Options) { o.PingEvery, o.SilenceTimeout = 20*time.Millisecond, 5*time.Second }
	small := func(o *Options) { o.MaxHeldBytes, o.Hello.MaxFrameBytes = limit, 512<<10 }
	a, b := handshake(t, testOptions("a", newSink(nil), lively), testOptions("b", got, lively, small))
	f := &Frame{Type: TypeFetchReply, Body: [][]byte{make([]byte, 200<<10)}}
	for range frames {
		if err := a.Send(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the reader waits", func() bool { return b.Stats().HeldFull > 0 })
	stuck, sent := arrived.Load(), b.Stats().SentFrames
	until(t, "pings while it waits", func() bool { return b.Stats().SentFrames > sent+3 })
	if n := arrived.Load(); n != stuck || n >= frames {
		t.Errorf("%d frames arrived while the reader waited, %d before", n, stuck)
	}
	for arrived.Load() < frames {
		// The reader's own buffer may be shared with the handler, hence one more.
		if held := b.Stats().HeldBytes; held > limit+int64(recvSize(512<<10))+RecvBufBytes {
			t.Fatalf("%d bytes are held", held)
		}
		mu.Lock()
		for _, p := range kept {
			p.Release()
		}
		kept = nil
		mu.Unlock()
	}
	until(t, "a late release", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, p := range kept {
			p.Release()
		}
		kept = nil
		return a.Stats().QueuedFrames == 0
	})
	if err := b.Err(); err != nil {
		t.Error(err)
	}
}

// Abort during many sends: every owner whose frame was taken is released once, no owner of a refused frame is released,
// and no goroutine is left.
func TestAbortReleasesOnce(t *testing.T) {
	for _, end := range []string{"abort", "close", "peer resets"} {
		t.Run(end, func(t *testing.T) {
			s := newSink(nil)
			raw, c := rawPeer(t, testOptions("a", s, func(o *Options) {
				o.MaxQueueBytes, o.CloseTimeout = 4<<20, 50*time.Millisecond
			}))
			var owners, senders sync.WaitGroup
			body := make([]byte, 64<<10)
			started := make(chan struct{}, 4)
			for range 4 {
				senders.Go(func() {
					for i := 0; ; i++ {
						o := lend(t, &owners)
						err := c.Send(context.Background(), &Frame{
							Type: TypeForwardPut, Body: [][]byte{body[:len(body)>>(i%8)]}, Owner: o,
						})
						if i == 20 {
							started <- struct{}{}
						}
						if err != nil {
							if n := o.refs.Load(); n != 1 {
								t.Errorf("the owner of a refused frame has %d references", n)
							}
							o.Release()
							return
						}
					}
				})
			}
			<-started
			switch end { // the peer never reads, so the writer is in the middle of a write
			case "abort":
				c.Abort(nil)
			case "close":
				c.Close()
			default:
				_ = raw.(*net.TCPConn).SetLinger(0)
				raw.Close()
			}
			err := s.wait(t)
			senders.Wait()
			waitAll(t, &owners)
			if end == "peer resets" {
				mustBe(t, err, ErrPeerGone)
			} else {
				mustBe(t, err, ErrClosed)
			}
			c.Close() // again: nothing happens
			c.Abort(nil)
			<-c.Done()
			if n := s.closed.Load(); n != 1 {
				t.Errorf("Closed was called %d times", n)
			}
			noGoroutines(t)
		})
	}
}

// Frames taken before Close arrive, and so does what the peer sent before its Goodbye. Both sides know that the
// connection ended in order.
func TestCloseInOrder(t *testing.T) {
	const n = 2000
	requests, answers := atomic.Int32{}, atomic.Int32{}
	left := newSink(func(_ *Conn, frames []Received) error { answers.Add(int32(len(frames))); return nil })
	right := newSink(func(c *Conn, frames []Received) error {
		for range frames {
			requests.Add(1)
			if err := c.TrySend(&Frame{Type: TypeForwardAck}); err != nil {
				return err
			}
		}
		return nil
	})
	a, b := handshake(t, testOptions("a", left), testOptions("b", right))
	for range n {
		if err := a.Send(t.Context(), &Frame{Type: TypeForwardPut, Head: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	a.Close()
	mustBe(t, left.wait(t), ErrClosed)
	err := right.wait(t)
	mustBe(t, err, ErrGoodbye)
	var goodbye *GoodbyeError
	if !errors.As(err, &goodbye) || goodbye.Status != StatusClosed || goodbye.Text != "closed" {
		t.Errorf("%#v", err)
	}
	if requests.Load() != n || answers.Load() != n {
		t.Errorf("%d requests and %d answers of %d", requests.Load(), answers.Load(), n)
	}
	mustBe(t, a.TrySend(&Frame{Type: TypeForwardPut}), ErrClosed)
	mustBe(t, b.TrySend(&Frame{Type: TypeForwardPut}), ErrGoodbye)
	noGoroutines(t)
}

// A half-open peer is pinged, then given up. Two idle connections keep each other alive.
func TestSilence(t *testing.T) {
	short := func(o *Options) { o.PingEvery, o.SilenceTimeout = 10*time.Millisecond, 500*time.Millisecond }
	s := newSink(nil)
	raw, c := rawPeer(t, testOptions("a", s, short))
	mustBe(t, s.wait(t), ErrPeerSilent)
	<-c.Done()
	sent, _ := io.ReadAll(raw)
	pings := 0
	for len(sent) >= HeaderBytes {
		h, err := ParseHeader(sent)
		if err != nil {
			t.Fatal(err)
		}
		if h.Type != TypePing {
			t.Errorf("a %v to a silent peer", h.Type)
		}
		pings++
		sent = sent[HeaderBytes:]
	}
	if pings < 2 {
		t.Errorf("%d pings before it was given up", pings)
	}

	lasting := func(o *Options) { o.PingEvery, o.SilenceTimeout = 10*time.Millisecond, 10*time.Second }
	a, b := handshake(t, testOptions("a", newSink(nil), lasting), testOptions("b", newSink(nil), lasting))
	until(t, "pings and pongs", func() bool { return a.Stats().SentFrames > 10 && b.Stats().SentFrames > 10 })
	if a.Err() != nil || b.Err() != nil {
		t.Error(a.Err(), b.Err())
	}
}

// Bytes of a peer that breaks the protocol never reach the handler. The connection ends with a typed error and a
// Goodbye that says why.
func TestBadPeers(t *testing.T) {
	huge := rawFrame(Header{Type: TypeForwardPut}, nil)
	binary.LittleEndian.PutUint32(huge[offPayloadBytes:], 1<<20)
	reseal(huge)
	damaged := rawFrame(Header{Type: TypeForwardPut}, []byte("payload"))
	damaged[HeaderBytes] ^= 1
	head := rawFrame(Header{Type: TypePutMessagesOnReplica, Flags: FlagSelfChecked, HeadBytes: 8}, []byte("12345678rest"))
	head[HeaderBytes+7] ^= 1
	hello := testHello("raw")
	for _, c := range []struct {
		name   string
		bytes  []byte
		want   error
		status Status
	}{
		{"not a frame", []byte("GET / HTTP/1.1\r\nHost: a.b.c.d.e.f.g\r\n"), ErrCorrupt, StatusCorrupt},
		{"payload damaged", damaged, ErrCorrupt, StatusCorrupt},
		{"head damaged", head, ErrCorrupt, StatusCorrupt},
		{"longer than agreed", huge, ErrTooBig, StatusTooBig},
		{"a second hello", rawFrame(Header{Type: TypeHello}, hello.AppendTo(nil)), ErrInvalid, StatusRejected},
	} {
		t.Run(c.name, func(t *testing.T) {
			good := atomic.Int32{}
			s := newSink(func(_ *Conn, frames []Received) error { good.Add(int32(len(frames))); return nil })
			raw, conn := rawPeer(t, testOptions("a", s, func(o *Options) {
				o.Hello.MaxFrameBytes, o.CloseTimeout = 64<<10, time.Minute
			}))
			before := rawFrame(Header{Type: TypeForwardPut}, []byte("good"))
			if _, err := raw.Write(append(bytes.Clone(before), c.bytes...)); err != nil {
				t.Fatal(err)
			}
			var fixed [HeaderBytes]byte
			if _, err := io.ReadFull(raw, fixed[:]); err != nil {
				t.Fatal(err)
			}
			h, err := ParseHeader(fixed[:])
			if err != nil || h.Type != TypeGoodbye || h.Status != c.status {
				t.Errorf("answered by %+v, %v", h, err)
			}
			_, _ = io.Copy(io.Discard, raw)
			raw.Close()
			mustBe(t, s.wait(t), c.want)
			if held := conn.Stats().HeldBytes; held != 0 {
				t.Errorf("%d bytes are still held", held)
			}
			if good.Load() != 1 {
				t.Errorf("%d frames reached the handler, 1 was good", good.Load())
			}
		})
	}
}

// A frame that arrives drop by drop ends the connection although the peer is never silent.
func TestSlowDrip(t *testing.T) {
	s := newSink(nil)
	raw, _ := rawPeer(t, testOptions("a", s, func(o *Options) {
		o.FrameTimeout, o.CloseTimeout = 40*time.Millisecond, 20*time.Millisecond
	}))
	frame := rawFrame(Header{Type: TypeForwardPut}, make([]byte, 60<<10))
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for _, b := range frame {
		<-tick.C
		if _, err := raw.Write([]byte{b}); err != nil {
			break
		}
		if s.closed.Load() > 0 {
			break
		}
	}
	mustBe(t, s.wait(t), ErrPeerSlow)
}

// A peer that pings and never reads cannot fill the queue: only the newest ping is answered.
func TestPingFlood(t *testing.T) {
	raw, c := rawPeer(t, testOptions("a", newSink(nil)))
	pings := bytes.Repeat(controlBytes(TypePing, StatusOK, 1, ""), 1000)
	for range 20 {
		if _, err := raw.Write(pings); err != nil {
			t.Fatal(err)
		}
	}
	last := controlBytes(TypePing, StatusOK, 99, "")
	if _, err := raw.Write(last); err != nil {
		t.Fatal(err)
	}
	until(t, "all pings were read", func() bool { return c.Stats().ReadBytes == uint64(20*len(pings)+len(last)) })
	var fixed [HeaderBytes]byte
	for n := 1; ; n++ {
		if _, err := io.ReadFull(raw, fixed[:]); err != nil {
			t.Fatal(err)
		}
		h, err := ParseHeader(fixed[:])
		if err != nil || h.Type != TypePong {
			t.Fatal(h, err)
		}
		if h.Request == 99 {
			if n > 20001 {
				t.Errorf("%d pongs", n)
			}
			break
		}
	}
}

// An error of the handler ends the connection, and the peer gets its text, even while the peer is sending more.
func TestHandlerError(t *testing.T) {
	mine := errors.New("type 77 is not known here")
	left, right := newSink(nil), newSink(func(*Conn, []Received) error { return mine })
	a, _ := handshake(t, testOptions("a", left), testOptions("b", right))
	err := error(nil)
	for err == nil {
		err = a.Send(t.Context(), &Frame{Type: 77, Body: [][]byte{make([]byte, 64<<10)}})
	}
	mustBe(t, err, ErrGoodbye)
	mustBe(t, right.wait(t), mine)
	err = left.wait(t)
	var goodbye *GoodbyeError
	if !errors.As(err, &goodbye) || goodbye.Status != StatusInternal || goodbye.Text != mine.Error() {
		t.Error(err)
	}
}

// The sender refuses a frame above the peer's limit. The connection goes on, and the owner is not released.
func TestTooBigToSend(t *testing.T) {
	arrived := make(chan int, 1)
	right := newSink(func(_ *Conn, frames []Received) error { arrived <- len(frames[0].Payload); return nil })
	a, _ := handshake(t, testOptions("a", newSink(nil)), testOptions("b", right, func(o *Options) {
		o.Hello.MaxFrameBytes = 32 << 10
	}))
	var owners sync.WaitGroup
	o := lend(t, &owners)
	body := make([]byte, 32<<10)
	mustBe(t, a.TrySend(&Frame{Type: TypeForwardPut, Body: [][]byte{body}, Owner: o}), ErrTooBig)
	if o.refs.Load() != 1 {
		t.Error("the owner of a refused frame was released")
	}
	if err := a.TrySend(&Frame{Type: TypeForwardPut, Body: [][]byte{body[HeaderBytes:]}, Owner: o}); err != nil {
		t.Fatal(err)
	}
	if n := <-arrived; n != len(body)-HeaderBytes {
		t.Errorf("%d bytes arrived", n)
	}
	waitAll(t, &owners)
	defer func() {
		if recover() == nil {
			t.Error("sending a Ping by hand is a programmer's error")
		}
	}()
	_ = a.TrySend(&Frame{Type: TypePing})
}

// Both sides close at the same moment, with frames in flight in both directions. Each ends in order, whichever was
// first.
func TestCloseBoth(t *testing.T) {
	for range 50 {
		left, right := newSink(nil), newSink(nil)
		a, b := handshake(t, testOptions("a", left), testOptions("b", right))
		var both sync.WaitGroup
		var owners sync.WaitGroup
		for _, c := range []*Conn{a, b} {
			both.Go(func() {
				for range 20 {
					o := lend(t, &owners)
					if err := c.TrySend(&Frame{Type: TypeForwardPut, Body: [][]byte{make([]byte, 32<<10)}, Owner: o}); err != nil {
						o.Release()
					}
				}
				c.Close()
			})
		}
		both.Wait()
		for _, s := range []*sink{left, right} {
			if err := s.wait(t); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrGoodbye) {
				t.Fatal(err)
			}
		}
		waitAll(t, &owners)
	}
	noGoroutines(t)
}
