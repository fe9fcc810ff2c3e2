package netproto

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	waiting "penstock/tests/support/patience"
)

// patience is how long a test waits for something that must happen. Nothing takes that long unless the test fails.
var patience = waiting.Or(2 * time.Minute)

// tcpPair is two ends of a real connection over loopback.
func tcpPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if b, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// sink is a handler whose functions a test chooses.
type sink struct {
	frames func(c *Conn, frames []Received) error
	reason chan error
	closed atomic.Int32
}

func newSink(frames func(c *Conn, frames []Received) error) *sink {
	return &sink{frames: frames, reason: make(chan error, 4)}
}

func (s *sink) Frames(c *Conn, frames []Received) error {
	if s.frames == nil {
		return nil
	}
	return s.frames(c, frames)
}

func (s *sink) Closed(_ *Conn, err error) {
	s.closed.Add(1)
	s.reason <- err
}

// wait returns the reason why the connection ended.
func (s *sink) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-s.reason:
		return err
	case <-time.After(patience):
		t.Fatal("the connection did not end")
		return nil
	}
}

type edit func(*Options)

// testOptions has no deadlines that a busy machine misses: a test sets those that it is about.
func testOptions(node string, s *sink, edits ...edit) Options {
	o := Options{
		Hello: testHello(node), Handler: s,
		HandshakeTimeout: patience, SilenceTimeout: patience, FrameTimeout: patience, WriteTimeout: patience,
	}
	for _, e := range edits {
		e(&o)
	}
	return o
}

// noPings is for tests that count what is written.
func noPings(o *Options) { o.PingEvery = time.Hour }

// handshake connects the two ends of a TCP connection.
func handshake(t testing.TB, left, right Options) (a, b *Conn) {
	t.Helper()
	an, bn := tcpPair(t)
	return handshakeOver(t, an, bn, left, right)
}

// handshakeOver connects two ends.
func handshakeOver(t testing.TB, an, bn net.Conn, left, right Options) (a, b *Conn) {
	t.Helper()
	accepted := make(chan error, 1)
	go func() {
		var err error
		b, err = Accept(context.Background(), bn, right)
		accepted <- err
	}()
	a, err := Connect(context.Background(), an, left)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Abort(nil)
		b.Abort(nil)
		<-a.Done()
		<-b.Done()
	})
	return a, b
}

// rawPeer accepts on one end with options. After a good handshake it leaves the other end to the test.
func rawPeer(t testing.TB, o Options) (raw net.Conn, c *Conn) {
	t.Helper()
	raw, bn := tcpPair(t)
	accepted := make(chan error, 1)
	go func() {
		var err error
		c, err = Accept(context.Background(), bn, o)
		accepted <- err
	}()
	hello := testHello("raw")
	if err := writeFrame(raw, TypeHello, StatusOK, hello.AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	if _, status, _, err := readHello(raw, TypeHelloAck); err != nil || status != StatusOK {
		t.Fatal(status, err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Abort(nil); <-c.Done() })
	return raw, c
}

// owner counts what was lent and what was released, and reports a second release.
type owner struct {
	t    testing.TB
	refs atomic.Int32
	all  *sync.WaitGroup
}

func (o *owner) Release() {
	if n := o.refs.Add(-1); n != 0 {
		o.t.Errorf("an owner has %d references after a release", n)
	}
	o.all.Done()
}

func lend(t testing.TB, all *sync.WaitGroup) *owner {
	o := &owner{t: t, all: all}
	o.refs.Store(1)
	all.Add(1)
	return o
}

func waitAll(t testing.TB, all *sync.WaitGroup) {
	t.Helper()
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("not every owner was released")
	}
}

// until polls for something that another goroutine brings about without announcing it.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("did not happen: " + what)
		}
	}
}

// noGoroutines fails if goroutines of this package's connections are left.
func noGoroutines(t testing.TB) {
	t.Helper()
	buf := make([]byte, 1<<20)
	until(t, "all goroutines of connections ended", func() bool {
		all := string(buf[:runtime.Stack(buf, true)])
		return !strings.Contains(all, "netproto.(*Conn).read(") && !strings.Contains(all, "netproto.(*Conn).write(")
	})
}

func mustBe(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%v, want %v", err, want)
	}
}
