package netproto

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A peer that does not read blocks the writer for WriteTimeout at most, and senders that wait for room are all woken.
func TestPeerDoesNotRead(t *testing.T) {
	s := newSink(nil)
	_, c := rawPeer(t, testOptions("a", s, func(o *Options) {
		o.WriteTimeout, o.MaxQueueBytes = 50*time.Millisecond, 1<<20
	}))
	var owners sync.WaitGroup
	body := make([]byte, 256<<10)
	var err error
	for err == nil {
		o := lend(t, &owners)
		if err = c.Send(context.Background(), &Frame{Type: TypeForwardPut, Body: [][]byte{body}, Owner: o}); err != nil {
			o.Release()
		}
	}
	mustBe(t, err, ErrPeerSlow)
	mustBe(t, s.wait(t), ErrPeerSlow)
	waitAll(t, &owners)
}

// Frames above the pooled sizes and above MaxQueueBytes get through, one at a time, and their memory is released.
func TestLongFrames(t *testing.T) {
	arrived := make(chan int, 8)
	right := newSink(func(_ *Conn, frames []Received) error {
		for _, f := range frames {
			arrived <- len(f.Payload)
		}
		return nil
	})
	a, b := handshake(t, testOptions("a", newSink(nil), func(o *Options) { o.MaxQueueBytes = 1 << 20 }),
		testOptions("b", right))
	body := make([]byte, DefaultMaxFrameBytes-HeaderBytes)
	for _, size := range []int{len(body), 5 << 20, 100, 4 << 20, 130 << 10} {
		if err := a.Send(t.Context(), &Frame{Type: TypeFetchReply, Body: [][]byte{body[:size]}}); err != nil {
			t.Fatal(err)
		}
		select {
		case n := <-arrived:
			if n != size {
				t.Errorf("%d bytes arrived of %d", n, size)
			}
		case err := <-right.reason:
			t.Fatalf("the connection ended: %v", err)
		}
	}
	until(t, "an idle connection holds one ordinary buffer", func() bool { return b.Stats().HeldBytes == RecvBufBytes })
	mustBe(t, a.TrySend(&Frame{Type: TypeFetchReply, Head: []byte{1}, Body: [][]byte{body}}), ErrTooBig)
	mustBe(t, a.TrySend(&Frame{Type: TypeFetchReply, Body: [][]byte{make([]byte, MaxFrameBytes)}}), ErrTooBig)
	mustBe(t, a.Send(t.Context(), &Frame{Type: TypeFetchReply, Body: [][]byte{make([]byte, MaxFrameBytes)}}), ErrTooBig)
}

// Either side can end a connection whose handler holds everything, and the held payloads stay intact until they are
// released.
func TestEndWhileHeld(t *testing.T) {
	for name, end := range map[string]func(a, b *Conn){
		"abort":            func(_, b *Conn) { b.Abort(nil) },
		"close":            func(_, b *Conn) { b.Close() },
		"the peer is gone": func(a, _ *Conn) { a.Abort(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var kept []Received
			right := newSink(func(_ *Conn, frames []Received) error {
				mu.Lock()
				defer mu.Unlock()
				for _, f := range frames {
					f.Buf.Retain()
					kept = append(kept, f)
				}
				return nil
			})
			lively := func(o *Options) {
				o.PingEvery, o.CloseTimeout, o.MaxHeldBytes = 10*time.Millisecond, 30*time.Millisecond, 1
			}
			small := func(o *Options) { o.Hello.MaxFrameBytes = 128 << 10 }
			a, b := handshake(t, testOptions("a", newSink(nil), lively), testOptions("b", right, lively, small))
			f := &Frame{Type: TypeFetchReply, Body: [][]byte{[]byte(strings.Repeat("x", 100<<10))}}
			for range 20 {
				if err := a.Send(t.Context(), f); err != nil {
					t.Fatal(err)
				}
			}
			until(t, "the reader waits", func() bool { return b.Stats().HeldFull > 0 })
			end(a, b)
			if err := right.wait(t); err == nil {
				t.Error("no reason")
			}
			<-b.Done()
			for _, f := range kept {
				if strings.Trim(string(f.Payload), "x") != "" {
					t.Error("a payload that is held was overwritten")
				}
				f.Buf.Release()
			}
			if held := b.Stats().HeldBytes; held != 0 {
				t.Errorf("%d bytes are still held", held)
			}
		})
	}
	noGoroutines(t)
}

// failing is a listener that fails a few times before it works, and fails for good when told to.
type failing struct {
	net.Listener
	left atomic.Int32
	dead atomic.Bool
}

func (f *failing) Accept() (net.Conn, error) {
	if f.left.Add(-1) >= 0 {
		return nil, errors.New("accept: too many open files")
	}
	nc, err := f.Listener.Accept()
	if f.dead.Load() {
		return nil, net.ErrClosed
	}
	return nc, err
}

// Serve tries a listener again that has no file descriptors. If somebody else closes the listener, Serve returns an
// error, and nothing is left behind.
func TestServeListenerFails(t *testing.T) {
	real, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := &failing{Listener: real}
	ln.left.Store(3)
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(context.Background(), ln, testOptions("server", newSink(nil)), func() int { return 4 }, nil)
	}()
	nc, err := net.Dial("tcp", real.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s := newSink(nil)
	if _, err := Connect(t.Context(), nc, testOptions("n", s)); err != nil {
		t.Fatal(err)
	}
	ln.dead.Store(true)
	real.Close()
	mustBe(t, <-ended, net.ErrClosed)
	mustBe(t, s.wait(t), ErrGoodbye)
	noGoroutines(t)
}

// Programming errors panic at once.
func TestMisuse(t *testing.T) {
	c, _ := handshake(t, testOptions("a", newSink(nil)), testOptions("b", newSink(nil)))
	buf := newRecvBuf(c, 1)
	buf.Release()
	for name, do := range map[string]func(){
		"type 0":   func() { _ = c.TrySend(&Frame{}) },
		"a hello":  func() { _ = c.TrySend(&Frame{Type: TypeHello}) },
		"odd head": func() { _ = c.TrySend(&Frame{Type: TypePutAck, Flags: FlagSelfChecked, Head: []byte("odd")}) },
		"long head": func() {
			_ = c.TrySend(&Frame{Type: TypePutAck, Flags: FlagSelfChecked, Head: make([]byte, MaxHeadBytes+8)})
		},
		"unknown flag": func() { _ = c.TrySend(&Frame{Type: TypePutAck, Flags: 0x80}) },
		"no handler":   func() { _, _ = Connect(t.Context(), nil, Options{Hello: testHello("a")}) },
		"bad hello":    func() { _, _ = Connect(t.Context(), nil, Options{Handler: newSink(nil)}) },
		"negative limit": func() {
			_, _ = Connect(t.Context(), nil, testOptions("a", newSink(nil), func(o *Options) { o.MaxQueueBytes = -1 }))
		},
		"released twice":    func() { buf.Release() },
		"retained too late": func() { (&RecvBuf{}).Retain() },
	} {
		func() {
			defer func() {
				if text, ok := recover().(string); !ok || !strings.HasPrefix(text, "BUG: netproto: ") {
					t.Errorf("%s: panic %q", name, text)
				}
			}()
			do()
		}()
	}
	if err := c.Err(); err != nil {
		t.Error(err)
	}
}

// Errors contain the status and the peer's text.
func TestErrorTexts(t *testing.T) {
	for want, err := range map[string]error{
		"netproto: the peer said goodbye: Closed: bye":          &GoodbyeError{Status: StatusClosed, Text: "bye"},
		"netproto: the connection was refused: TooBig: smaller": &RefusedError{Status: StatusTooBig, Text: "smaller"},
	} {
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
	for _, c := range []struct {
		err  error
		want Status
	}{
		{ErrCorrupt, StatusCorrupt},
		{ErrInvalid, StatusRejected},
		{ErrTooBig, StatusTooBig},
		{ErrVersion, StatusVersionMismatch},
		{ErrWrongCluster, StatusWrongCluster},
		{ErrPeerSilent, StatusClosed},
		{&RefusedError{Status: StatusFull}, StatusFull},
		{errors.New("disk"), StatusInternal},
	} {
		if got := statusOf(c.err); got != c.want {
			t.Errorf("%v: the peer is told %v, want %v", c.err, got, c.want)
		}
	}
}

// The time that a handler takes does not count as silence of the peer.
func TestSlowHandler(t *testing.T) {
	called := make(chan struct{}, 1)
	right := newSink(func(*Conn, []Received) error {
		<-time.After(1200 * time.Millisecond) // longer than SilenceTimeout
		called <- struct{}{}
		return nil
	})
	a, b := handshake(t, testOptions("a", newSink(nil)), testOptions("b", right, func(o *Options) {
		o.PingEvery, o.SilenceTimeout = 20*time.Millisecond, time.Second
	}))
	if err := a.TrySend(&Frame{Type: TypePutAck}); err != nil {
		t.Fatal(err)
	}
	<-called
	sent := b.Stats().SentFrames
	until(t, "it asks whether the peer is there", func() bool { return b.Stats().SentFrames > sent+3 })
	if err := b.Err(); err != nil {
		t.Error(err)
	}
}
