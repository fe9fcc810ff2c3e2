package netproto

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Each side learns from a typed error why it may not talk to the other.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name        string
		left, right edit
		want        error // on both sides
		status      Status
	}{
		{"wrong cluster", func(o *Options) { o.Hello.Cluster[3] = 7 }, nil, ErrWrongCluster, StatusWrongCluster},
		{
			"client of another cluster", func(o *Options) { o.Hello.Role, o.Hello.Cluster[3] = RoleClient, 7 }, nil,
			ErrWrongCluster, StatusWrongCluster,
		},
		{
			"versions", nil, func(o *Options) { o.Hello.MinVersion, o.Hello.MaxVersion = 2, 3 }, ErrVersion,
			StatusVersionMismatch,
		},
		{"features", nil, func(o *Options) { o.Hello.Features, o.Hello.Required = 1, 1 }, ErrVersion, StatusVersionMismatch},
		{
			"not admitted", nil, func(o *Options) { o.Admit = func(*Hello) error { return errors.New("n9 is drained") } },
			ErrRefused, StatusRejected,
		},
		{"not admitted, with status", nil, func(o *Options) {
			o.Admit = func(*Hello) error { return &RefusedError{Status: StatusClosed, Text: "shutting down"} }
		}, ErrRefused, StatusClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			left, right := testOptions("n9", newSink(nil)), testOptions("n2", newSink(nil))
			if c.left != nil {
				c.left(&left)
			}
			if c.right != nil {
				c.right(&right)
			}
			an, bn := tcpPair(t)
			accepted := make(chan error, 1)
			go func() {
				_, err := Accept(context.Background(), bn, right)
				accepted <- err
			}()
			_, err := Connect(context.Background(), an, left)
			var refused *RefusedError
			if !errors.As(err, &refused) || refused.Status != c.status || refused.Text == "" {
				t.Errorf("the one that connected: %v", err)
			}
			if p := &refused.Peer; p.NodeID != "" || p.Cluster != (ID{}) || p.Store != (ID{}) || p.Boot != (ID{}) ||
				strings.Contains(refused.Text, testCluster.String()) {
				t.Errorf("a refusal gives away who refuses: %+v, %q", p, refused.Text) // O9
			}
			mustBe(t, err, c.want)
			mustBe(t, err, ErrRefused)
			mustBe(t, <-accepted, c.want)
			if _, err := bn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a refused connection is still open: %v", err)
			}
		})
	}
	noGoroutines(t)
}

// The side that connects checks, too: it may have reached another node than intended. The other side hears why.
func TestConnectAdmits(t *testing.T) {
	wrong := errors.New("this is not n3")
	an, bn := tcpPair(t)
	s := newSink(nil)
	go func() { _, _ = Accept(context.Background(), bn, testOptions("n2", s)) }()
	_, err := Connect(t.Context(), an, testOptions("n1", newSink(nil), func(o *Options) {
		o.Admit = func(peer *Hello) error {
			if peer.NodeID != "n3" {
				return &RefusedError{Status: StatusRejected, Text: wrong.Error()}
			}
			return nil
		}
	}))
	mustBe(t, err, ErrRefused)
	if got := s.wait(t); !errors.Is(got, ErrGoodbye) || !strings.Contains(got.Error(), wrong.Error()) {
		t.Errorf("the other side was told %v", got)
	}
}

func TestHandshakeAgrees(t *testing.T) {
	a, b := handshake(t,
		testOptions("n1", newSink(nil), func(o *Options) { o.Hello.MaxVersion, o.Hello.Features = 4, 6 }),
		testOptions("n2", newSink(nil), func(o *Options) {
			o.Hello.MaxVersion, o.Hello.Features, o.Hello.Required = 3, 3, 2
		}))
	common := a.Peer().Features & b.Peer().Features
	if chosen := a.Peer().Chosen; chosen != 3 || common != 2 {
		t.Errorf("version %d, features %#x", chosen, common)
	}
	if a.Peer().NodeID != "n2" || b.Peer().NodeID != "n1" || b.Peer().Boot != testBoot || b.Peer().WindowBytes != 1<<20 {
		t.Errorf("peers %+v and %+v", a.Peer(), b.Peer())
	}
	client, node := handshake(t,
		Options{Hello: Hello{Role: RoleClient, MinVersion: 1, MaxVersion: 1}, Handler: newSink(nil)},
		testOptions("n2", newSink(nil)))
	if node.Peer().Role != RoleClient || client.Peer().Cluster != testCluster {
		t.Errorf("%+v, %+v", node.Peer(), client.Peer())
	}
}

// Before its Hello a peer gets neither memory nor time.
func TestHandshakeBadPeers(t *testing.T) {
	huge := rawFrame(Header{Type: TypeHello}, nil)
	binary.LittleEndian.PutUint32(huge[offPayloadBytes:], MaxFrameBytes-HeaderBytes)
	reseal(huge)
	hello := testHello("raw")
	good := rawFrame(Header{Type: TypeHello}, hello.AppendTo(nil))
	for _, c := range []struct {
		name  string
		write func(net.Conn)
		want  error
	}{
		{"silent", func(net.Conn) {}, ErrPeerSlow},
		{"drip", func(nc net.Conn) {
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for _, b := range good {
				<-tick.C
				if _, err := nc.Write([]byte{b}); err != nil {
					return
				}
			}
		}, ErrPeerSlow},
		{"gone", func(nc net.Conn) { nc.Close() }, ErrPeerGone},
		{"gone in the middle", func(nc net.Conn) { _, _ = nc.Write(good[:50]); nc.Close() }, ErrPeerGone},
		{
			"HTTP", func(nc net.Conn) { _, _ = io.WriteString(nc, "GET / HTTP/1.1\r\nHost: node1.example.org\r\n\r\n") },
			ErrCorrupt,
		},
		{"64 MiB hello", func(nc net.Conn) { _, _ = nc.Write(huge) }, ErrTooBig},
		{
			"put before hello", func(nc net.Conn) { _, _ = nc.Write(rawFrame(Header{Type: TypeForwardPut}, []byte("x"))) },
			ErrInvalid,
		},
		{"empty hello", func(nc net.Conn) { _, _ = nc.Write(rawFrame(Header{Type: TypeHello}, nil)) }, ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			an, bn := tcpPair(t)
			go c.write(an)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Accept(t.Context(), bn, testOptions("n1", newSink(nil), func(o *Options) {
				if c.want == ErrPeerSlow {
					o.HandshakeTimeout = 50 * time.Millisecond
				}
			}))
			runtime.ReadMemStats(&after)
			mustBe(t, err, c.want)
			if n := after.TotalAlloc - before.TotalAlloc; n > RecvBufBytes {
				t.Errorf("%d bytes were allocated for it", n)
			}
		})
	}
}

func TestHandshakeContext(t *testing.T) {
	an, _ := tcpPair(t)
	why := errors.New("the node shuts down")
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(5*time.Millisecond, func() { cancel(why) })
	_, err := Connect(ctx, an, testOptions("n1", newSink(nil), func(o *Options) { o.HandshakeTimeout = time.Minute }))
	mustBe(t, err, why)
}

// endsAfterWrite is a connection whose first Write ends a context.
type endsAfterWrite struct {
	net.Conn
	cancel context.CancelFunc
}

func (c *endsAfterWrite) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.cancel()
	time.Sleep(time.Millisecond) // the deadline set by the context's end may come before or after this: both must work
	return n, err
}

// A node that shuts down just after it admitted a peer says goodbye: the peer must not see a broken connection.
func TestHandshakeContextEndsAfterAnswer(t *testing.T) {
	an, bn := tcpPair(t)
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	go func() {
		_, err := Accept(ctx, &endsAfterWrite{Conn: bn, cancel: cancel}, testOptions("server", newSink(nil)))
		failed <- err
	}()
	s := newSink(nil)
	if _, err := Connect(t.Context(), an, testOptions("n", s)); err != nil {
		t.Fatal(err)
	}
	mustBe(t, <-failed, context.Canceled)
	mustBe(t, s.wait(t), ErrGoodbye)
}

// Connections that say nothing keep nobody out, also if new ones come faster than a client says Hello: the oldest of
// their address goes, and is told that the port is busy.
func TestServeSilentConnections(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var crowded atomic.Int64
	ended := make(chan error, 1)
	o := testOptions("server", newSink(nil))
	o.MaxHandshakeCount, o.HandshakeTimeout = 4, time.Minute
	go func() {
		ended <- Serve(ctx, ln, o, func() int { return 1000 }, func(_ net.Addr, err error) {
			if errors.Is(err, ErrTooManyHandshakes) {
				crowded.Add(1)
			}
		})
	}()
	dial := func(ip string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
		nc, err := d.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		return nc
	}
	first := dial("127.0.0.1")
	for range 9 {
		dial("127.0.0.1")
	}
	until(t, "the oldest had to go", func() bool { return crowded.Load() == 6 })
	busy := testOptions("n", newSink(nil))
	if _, err := Connect(context.Background(), first, busy); !IsBusy(err) {
		t.Errorf("the oldest was told: %v", err)
	}
	honest := dial("127.0.0.2")
	until(t, "one more had to go", func() bool { return crowded.Load() == 7 })
	for range 20 {
		dial("127.0.0.1")
	}
	until(t, "others had to go", func() bool { return crowded.Load() == 27 })
	s := newSink(nil)
	c, err := Connect(context.Background(), honest, testOptions("n", s))
	if err != nil {
		t.Fatalf("a client of another address: %v", err)
	}
	c.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	noGoroutines(t)
}

// Serve refuses connections above its limit, and leaves nothing behind when it ends.
func TestServe(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended, failed := make(chan error, 1), make(chan error, 1<<16)
	go func() {
		ended <- Serve(ctx, ln, testOptions("server", newSink(nil)), func() int { return 2 },
			func(_ net.Addr, err error) { failed <- err })
	}()
	connect := func(edits ...edit) (*Conn, *sink, error) {
		nc, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s := newSink(nil)
		c, err := Connect(context.Background(), nc, testOptions("n", s, edits...))
		return c, s, err
	}
	one, _, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = connect(func(o *Options) { o.Hello.Cluster[0] = 0 })
	mustBe(t, err, ErrWrongCluster)
	mustBe(t, <-failed, ErrWrongCluster)
	var two *sink
	until(t, "the place of the refused one is free", func() bool {
		_, two, err = connect()
		return err == nil
	})
	// The answer to the third connection may be lost in the reset that closing an unread socket causes.
	if _, _, err = connect(); !errors.Is(err, ErrRefused) && !errors.Is(err, ErrPeerGone) {
		t.Errorf("a third connection of two: %v", err)
	}
	one.Close()
	until(t, "its place is free", func() bool {
		var c *Conn
		if c, _, err = connect(); err == nil {
			c.Close()
		}
		return err == nil
	})
	cancel()
	mustBe(t, two.wait(t), ErrGoodbye)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	noGoroutines(t)
}
