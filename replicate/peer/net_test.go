package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/netproto"
	"penstock/replicate"
)

// Three nodes have one connection per pair, and the frames of each sending goroutine arrive in its order.
func TestThree(t *testing.T) {
	a, b, c := start(t, 1, ""), start(t, 2, ""), start(t, 3, "")
	meet(a, b, c)
	all := []*process{a, b, c}
	for _, p := range all {
		p.wait("connected to both", func() bool { return len(p.up) == 2 })
	}
	const perSender, senders = 300, 3
	var sending sync.WaitGroup
	for _, from := range all {
		for _, to := range all {
			if from == to {
				continue
			}
			for s := range uint64(senders) {
				sending.Go(func() {
					for i := range uint64(perSender) {
						f := &netproto.Frame{Type: netproto.TypePutAck, Request: s<<32 | i, Head: make([]byte, i)}
						if i%50 == 0 {
							f.Type, f.Flags, f.Head = netproto.TypePutMessagesOnReplica, netproto.FlagSelfChecked, make([]byte, 64)
							f.Body = [][]byte{make([]byte, 100<<10)}
						}
						until(t, "room", func() bool {
							err := from.TrySend(to.node.ID, f)
							if err != nil && !errors.Is(err, netproto.ErrQueueFull) {
								t.Error(err)
							}
							return err == nil
						})
					}
				})
			}
		}
	}
	sending.Wait()
	for _, to := range all {
		for _, from := range all {
			if from == to {
				continue
			}
			to.wait("every frame arrived", func() bool { return len(to.got[from.node.ID]) == perSender*senders })
			var next [senders]uint64
			to.recorder.mu.Lock()
			got := slices.Clone(to.got[from.node.ID])
			to.recorder.mu.Unlock()
			for _, r := range got {
				if s := r >> 32; r&0xffffffff != next[s] {
					t.Fatalf("frame %d of sender %d arrived where %d was next", r&0xffffffff, s, next[s])
				} else {
					next[s]++
				}
			}
			if n := to.ups(from.node.ID); n != 1 {
				t.Errorf("%d connections between %d and %d", n, to.node.ID, from.node.ID)
			}
		}
	}
	for i, p := range all {
		s := p.Stats()
		if len(s.Nodes) != 2 || s.Nodes[0].ID > s.Nodes[1].ID || int(s.Accepted) != i || s.AcceptFailed != 0 ||
			s.Probes != 0 {
			t.Errorf("node %d: %+v", i+1, s)
		}
		for _, n := range s.Nodes {
			if !n.Connected || n.Name != fmt.Sprintf("n%d", n.ID) || n.Dials != (n.ID > p.node.ID) ||
				n.Conn.ReceivedFrames != perSender*senders || n.Boot[15] == 0 {
				t.Errorf("node %d: %+v", i+1, n)
			}
		}
	}
}

// A killed process is known to be gone at once, to the nodes that it dialed and to those that dialed it. Its successor
// is another process.
func TestKillAndRestart(t *testing.T) {
	for _, victim := range []replicate.NodeID{1, 2, 3} {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			ps := map[replicate.NodeID]*process{1: start(t, 1, ""), 2: start(t, 2, ""), 3: start(t, 3, "")}
			meet(ps[1], ps[2], ps[3])
			for _, p := range ps {
				p.wait("connected to both", func() bool { return len(p.up) == 2 })
				p.recorder.mu.Lock()
				p.events = nil
				p.recorder.mu.Unlock()
			}
			old := ps[victim]
			old.kill()
			for id, p := range ps {
				if id == victim {
					continue
				}
				p.expect(fmt.Sprintf("down %d %d true", victim, old.boot()))
				if p.Connected(victim) || !errors.Is(p.TrySend(victim, &netproto.Frame{Type: netproto.TypePutAck}),
					ErrNotConnected) {
					t.Error("still connected to a dead process")
				}
			}
			// It comes back before the others hear of its new boot.
			next := start(t, victim, old.node.Address)
			ps[victim] = next
			next.SetNodes(tableOf(ps[1].node, ps[2].node, ps[3].node))
			for id, p := range ps {
				if id != victim {
					p.expect(fmt.Sprintf("up %d %d", victim, next.boot()))
				}
			}
			// News of the boot that is already connected changes nothing.
			meet(ps[1], ps[2], ps[3])
			for id, p := range ps {
				if id == victim {
					continue
				}
				if err := p.TrySend(victim, &netproto.Frame{Type: netproto.TypePutAck, Request: 9}); err != nil {
					t.Error(err)
				}
				next.wait("the frame", func() bool { return len(next.got[id]) == 1 })
				p.expect()
				if n := p.ups(victim); n != 2 {
					t.Errorf("%d connections to node %d", n, victim)
				}
			}
		})
	}
}

// A node that closes in order is gone, too: its address refuses by the time the others hear of it.
func TestCloseIsKnown(t *testing.T) {
	a, b, c := start(t, 1, ""), start(t, 2, ""), start(t, 3, "")
	meet(a, b, c)
	for _, p := range []*process{a, b, c} {
		p.wait("connected to both", func() bool { return len(p.up) == 2 })
	}
	b.Close()
	b.wait("down", func() bool { return len(b.up) == 0 }) // its handler was told of each Down before Close returned
	for _, p := range []*process{a, c} {
		p.wait("down", func() bool { return p.events[len(p.events)-1] == fmt.Sprintf("down 2 %d true", b.boot()) })
	}
	b.Close() // again
	b.SetNodes(tableOf(a.node))
	if s := b.Stats(); len(s.Nodes) != 2 || s.Nodes[0].Connected {
		t.Errorf("after Close: %+v", s)
	}
}

// A node that is not in the table is not admitted, and a node that leaves the table is disconnected. Nobody takes that
// for a dead process.
func TestSetNodes(t *testing.T) {
	a, b := start(t, 1, ""), start(t, 2, "")
	a.SetNodes(tableOf(a.node, b.node))
	until(t, "refused", func() bool { return a.Stats().Nodes[0].DialFails >= 2 && b.Stats().AcceptFailed >= 2 })
	if n := a.logs.count("a node cannot be reached"); n != 1 {
		t.Errorf("%d times in the log", n)
	}
	if n := b.logs.count("this node does not know a node"); n == 0 {
		t.Error("the reason is not in the log of the node that refused")
	}
	b.SetNodes(tableOf(a.node, b.node))
	connected(t, a, b)

	t.Run("the accepting side forgets", func(t *testing.T) {
		b.SetNodes(tableOf(b.node))
		b.expect(fmt.Sprintf("down 1 %d false", a.boot()))
		a.expect(fmt.Sprintf("down 2 %d false", b.boot()))
		if s := b.Stats(); len(s.Nodes) != 0 {
			t.Errorf("%+v", s)
		}
		b.SetNodes(tableOf(a.node, b.node))
		connected(t, a, b)
	})
	t.Run("the dialing side forgets", func(t *testing.T) {
		a.SetNodes(tableOf(a.node))
		a.expect(fmt.Sprintf("down 2 %d false", b.boot()))
		b.expect(fmt.Sprintf("down 1 %d false", a.boot()))
		until(t, "retired", func() bool { return len(a.Stats().Nodes) == 0 })
		a.SetNodes(tableOf(a.node, b.node))
		connected(t, a, b)
	})
	t.Run("forgotten and back at once", func(t *testing.T) {
		for range 5 {
			a.SetNodes(tableOf(a.node))
			a.SetNodes(tableOf(a.node, b.node))
		}
		a.wait("connected again", func() bool { return len(a.events) >= 2 && len(a.up) == 1 })
		b.wait("connected again", func() bool { return len(b.events) >= 2 && len(b.up) == 1 })
		until(t, "a connection that stays", func() bool {
			return a.TrySend(2, &netproto.Frame{Type: netproto.TypePutAck, Request: 5}) == nil
		})
		b.wait("a frame", func() bool { return len(b.got[1]) > 0 })
	})
}

// A node that moves is dialed at its new address. A node with a process other than the connected one is dialed again.
func TestAddressAndBootChange(t *testing.T) {
	a, b := start(t, 1, ""), start(t, 2, "")
	meet(a, b)
	connected(t, a, b)
	// The same process can be reached through another port.
	proxy := newProxy(t, b.node.Address)
	moved := *b.node
	moved.Address = proxy.address()
	a.SetNodes(tableOf(a.node, &moved))
	a.expect(fmt.Sprintf("down 2 %d false", b.boot()), fmt.Sprintf("up 2 %d", b.boot()))
	b.expect(fmt.Sprintf("down 1 %d false", a.boot()), fmt.Sprintf("up 1 %d", a.boot()))
	if proxy.conns.Load() == 0 {
		t.Error("it was not dialed at its new address")
	}
	same := moved // news that change nothing do not disconnect
	a.SetNodes(tableOf(a.node, &same))
	a.expect()
	// News of another process: the connection must be to a dead one, whatever it looks like. (In this test that process
	// is alive, so it comes back.)
	other := moved
	other.Boot = nextBoot()
	a.SetNodes(tableOf(a.node, &other))
	a.expect(fmt.Sprintf("down 2 %d false", b.boot()), fmt.Sprintf("up 2 %d", b.boot()))
	b.expect(fmt.Sprintf("down 1 %d false", a.boot()), fmt.Sprintf("up 1 %d", a.boot()))
}

// A peer that does not match the table is refused, on either side, with a reason.
func TestRefused(t *testing.T) {
	stranger := func(edit func(*Options)) *process { return start(t, 1, "", edit) }
	for _, c := range []struct {
		name string
		a    *process
		in   string // the process whose log has the reason
		want string
	}{
		{"another store", stranger(func(o *Options) { o.Self.Store[3] = 9 }), "b", "has another store"},
		{"another cluster", stranger(func(o *Options) { o.Cluster[3] = 9 }), "b", "different clusters"},
		{"another name", stranger(func(o *Options) { o.Self.Name = "n77" }), "b", "does not know a node"},
		{"another version", stranger(func(o *Options) {}), "b", "no common protocol version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "another version" {
				h := &c.a.o.Conn.Hello
				h.MinVersion, h.MaxVersion = ProtocolVersion+1, ProtocolVersion+1
			}
			b := start(t, 2, "")
			b.SetNodes(tableOf(&Node{ID: 1, Name: "n1", Store: storeOf(1), Address: c.a.node.Address}))
			c.a.SetNodes(tableOf(b.node))
			until(t, "refused", func() bool { return c.a.Stats().Nodes[0].DialFails > 0 && b.Stats().AcceptFailed > 0 })
			until(t, "in the log", func() bool { return b.logs.count(c.want) > 0 && c.a.logs.count(c.want) > 0 })
			if c.a.Connected(2) || b.Connected(1) {
				t.Error("connected")
			}
			c.a.Close()
			b.Close()
			b.expect()
			c.a.expect()
		})
	}
	t.Run("the dialed one is somebody else", func(t *testing.T) {
		a, b, c := start(t, 1, ""), start(t, 2, ""), start(t, 3, "")
		wrong := *c.node
		wrong.Address = b.node.Address
		a.SetNodes(tableOf(&wrong))
		b.SetNodes(tableOf(a.node))
		until(t, "refused", func() bool { return a.logs.count("was expected here") > 0 })
	})
	t.Run("who must wait to be dialed", func(t *testing.T) {
		a := start(t, 1, "")
		b := &Node{ID: 2, Name: "n2", Store: storeOf(2), Address: unused(t)}
		a.SetNodes(tableOf(b))
		if _, err := rawConnect(t, a, b, nil); !errors.Is(err, netproto.ErrRefused) ||
			!strings.Contains(err.Error(), "must wait to be dialed") {
			t.Error(err)
		}
	})
	t.Run("a client", func(t *testing.T) {
		a := start(t, 1, "")
		b := &Node{ID: 2, Name: "n2", Store: storeOf(2), Address: unused(t)}
		a.SetNodes(tableOf(b))
		_, err := rawConnect(t, a, b, func(h *netproto.Hello) { h.Role = netproto.RoleClient })
		if !errors.Is(err, netproto.ErrRefused) || !strings.Contains(err.Error(), "port for nodes") {
			t.Error(err)
		}
	})
}

// unused returns an address on which nobody listens.
func unused(t testing.TB) string {
	ln := listen(t, "127.0.0.1:0")
	defer ln.Close()
	return ln.Addr().String()
}

type ignore struct{}

func (ignore) Frames(*netproto.Conn, []netproto.Received) error { return nil }
func (ignore) Closed(*netproto.Conn, error)                     {}

// rawConnect connects to p as node, without a Net.
func rawConnect(t testing.TB, p *process, node *Node, edit func(*netproto.Hello)) (*netproto.Conn, error) {
	t.Helper()
	nc, err := net.Dial("tcp", p.node.Address)
	if err != nil {
		t.Fatal(err)
	}
	h := netproto.Hello{
		Role: netproto.RoleNode, Cluster: netproto.ID(testCluster), Store: netproto.ID(node.Store),
		Boot: netproto.ID(node.Boot), NodeID: node.Name,
		MinVersion: ProtocolVersion, MaxVersion: ProtocolVersion,
	}
	if node.Boot[15] == 0 {
		h.Boot = netproto.ID(nextBoot())
	}
	if edit != nil {
		edit(&h)
	}
	c, err := netproto.Connect(context.Background(), nc, netproto.Options{Hello: h, Handler: ignore{}})
	if err == nil {
		t.Cleanup(func() { c.Abort(nil); <-c.Done() })
	}
	return c, err
}

// A node that connects anew replaces its older connection, even if that looks alive: first Down, then Up.
func TestNewestWins(t *testing.T) {
	b := start(t, 2, "")
	a := &Node{ID: 1, Name: "n1", Store: storeOf(1), Address: unused(t)}
	b.SetNodes(tableOf(a))
	var want []string
	for i := range 8 {
		a.Boot = nextBoot()
		if _, err := rawConnect(t, b, a, nil); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			want = append(want, fmt.Sprintf("down 1 %d false", a.Boot[15]-1))
		}
		want = append(want, fmt.Sprintf("up 1 %d", a.Boot[15]))
	}
	last := want[len(want)-1]
	b.wait(last, func() bool { return len(b.events) > 0 && b.events[len(b.events)-1] == last })
	// Sessions that were replaced before their turn came were never up; the recorder has checked that the others
	// alternate.
}

// Two processes of one node connect shortly after each other, and the older one's handshake ends last: the newer
// connection stays.
func TestOlderConnectionThatBeginsLaterEnds(t *testing.T) {
	b := start(t, 2, "")
	b.SetNodes(tableOf(&Node{ID: 1, Name: "n1", Store: storeOf(1), Address: unused(t)}))
	l := b.table.Load().names["n1"]
	older, newer := b.newSession(l), b.newSession(l)
	older.serial, newer.serial = 1, 2
	newer.begin()
	older.begin()
	if newer.ctx.Err() != nil || !errors.Is(context.Cause(older.ctx), errSuperseded) {
		t.Errorf("the newer one ended with %v, the older one with %v", newer.ctx.Err(), context.Cause(older.ctx))
	}
	older.end()
	if l.newest != newer {
		t.Error("the older one took the newer one's place when it ended")
	}
	newer.end()
}

// Frames of a new connection wait until the old one's Down and the new one's Up have returned.
func TestFramesWaitForUp(t *testing.T) {
	b := start(t, 2, "")
	a := &Node{ID: 1, Name: "n1", Store: storeOf(1), Address: unused(t), Boot: nextBoot()}
	b.SetNodes(tableOf(a))
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b.recorder.frames = func(replicate.NodeID, []netproto.Received) {
		once.Do(func() { close(entered); <-leave })
	}
	first, err := rawConnect(t, b, a, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.TrySend(&netproto.Frame{Type: netproto.TypePutAck, Request: 1}); err != nil {
		t.Fatal(err)
	}
	<-entered // Frames of the first connection is running
	a.Boot = nextBoot()
	second, err := rawConnect(t, b, a, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.TrySend(&netproto.Frame{Type: netproto.TypePutAck, Request: 2}); err != nil {
		t.Fatal(err)
	}
	until(t, "the first connection is given up", func() bool { return !b.Connected(1) })
	b.expect(fmt.Sprintf("up 1 %d", a.Boot[15]-1))
	close(leave)
	b.expect(fmt.Sprintf("down 1 %d false", a.Boot[15]-1), fmt.Sprintf("up 1 %d", a.Boot[15]))
	b.wait("the second frame", func() bool { return len(b.got[1]) == 2 && b.got[1][1] == 2 })
}

// A connection that its user ended comes back, and that is not taken for a dead process.
func TestDisconnect(t *testing.T) {
	a, b := start(t, 1, ""), start(t, 2, "")
	meet(a, b)
	connected(t, a, b)
	a.Disconnect(2, errors.New("its frames are not valid"))
	a.expect(fmt.Sprintf("down 2 %d false", b.boot()), fmt.Sprintf("up 2 %d", b.boot()))
	b.expect(fmt.Sprintf("down 1 %d false", a.boot()), fmt.Sprintf("up 1 %d", a.boot()))
	if a.logs.count("its frames are not valid") != 1 {
		t.Error("the reason is not in the log")
	}
	a.Disconnect(77, nil) // there is no such node
}

// TrySend never waits. Its error says why the frame was not taken, and the caller keeps the frame.
func TestTrySend(t *testing.T) {
	release := make(chan struct{})
	a := start(t, 1, "", func(o *Options) { o.Conn.MaxQueueFrameCount = 8 })
	b := start(t, 2, "", func(o *Options) {
		o.Conn.Hello.MaxFrameBytes = 1 << 20
		o.Conn.SilenceTimeout = time.Minute
	})
	b.recorder.frames = func(replicate.NodeID, []netproto.Received) { <-release }
	defer close(release)
	f := &netproto.Frame{Type: netproto.TypePutAck, Body: [][]byte{make([]byte, 512<<10)}}
	if err := a.TrySend(2, f); !errors.Is(err, ErrNotConnected) {
		t.Errorf("to nobody: %v", err)
	}
	a.SetNodes(tableOf(b.node))
	if err := a.TrySend(2, f); !errors.Is(err, ErrNotConnected) {
		t.Errorf("not let in yet: %v", err)
	}
	b.SetNodes(tableOf(a.node))
	connected(t, a, b)
	if err := a.TrySend(2, &netproto.Frame{
		Type: netproto.TypePutAck, Body: [][]byte{make([]byte, 1<<20)},
	}); !errors.Is(err, netproto.ErrTooBig) {
		t.Errorf("too big: %v", err)
	}
	// The receiver is blocked, so first the socket fills and then the queue.
	until(t, "the queue is full", func() bool {
		err := a.TrySend(2, f)
		if err != nil && !errors.Is(err, netproto.ErrQueueFull) {
			t.Fatal(err)
		}
		return err != nil
	})
}

// Looking up a connection allocates nothing, whether there is one or not.
func TestTrySendAllocations(t *testing.T) {
	a, b := start(t, 1, ""), start(t, 2, "")
	b.recorder.frames = nil
	meet(a, b)
	connected(t, a, b)
	f := &netproto.Frame{Type: netproto.TypePutAck, Head: make([]byte, 64)}
	if n := testing.AllocsPerRun(200, func() {
		if a.TrySend(9, f) == nil || !a.Connected(2) || a.Connected(9) {
			t.Error("sent to nobody")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// flaky is a listener that fails a few times, as if there were no file descriptors left.
type flaky struct {
	net.Listener
	fails atomic.Int32
}

func (l *flaky) Accept() (net.Conn, error) {
	if l.fails.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// A node that has run out of file descriptors for a moment accepts connections again afterwards.
func TestAcceptFails(t *testing.T) {
	a := start(t, 1, "")
	b := start(t, 2, "", func(o *Options) {
		l := &flaky{Listener: o.Listener}
		l.fails.Store(3)
		o.Listener = l
	})
	meet(a, b)
	connected(t, a, b)
	if n, more := b.logs.count("too many open files"), b.Stats().LinesLeftOut; n != 1 || more != 2 {
		t.Errorf("%d times in the log, and %d are counted", n, more)
	}
}

// At most DefaultMaxHandshakeCount connections may say nothing, and they keep nodes out no longer than a handshake may
// take.
func TestSilentConnections(t *testing.T) {
	b := start(t, 2, "", func(o *Options) { o.Conn.HandshakeTimeout = 300 * time.Millisecond })
	var open []net.Conn
	for range DefaultMaxHandshakeCount + 20 {
		nc, err := net.Dial("tcp", b.node.Address)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		open = append(open, nc)
	}
	until(t, "the surplus was closed", func() bool { return b.Stats().AcceptFailed >= 20 })
	a := start(t, 1, "")
	meet(a, b)
	connected(t, a, b)
	until(t, "all were closed", func() bool { return b.Stats().AcceptFailed >= uint64(len(open)) })
}

// Options that cannot work are reported at once.
func TestBadOptions(t *testing.T) {
	good := Options{
		Self: Node{ID: 1, Name: "n1", Store: storeOf(1), Boot: nextBoot()}, Cluster: testCluster,
		Handler: newRecorder(t), Listener: listen(t, "127.0.0.1:0"),
	}
	defer good.Listener.Close()
	for _, name := range []string{"two words", "tab\t", "ä", strings.Repeat("n", netproto.MaxNodeIDBytes+1)} {
		o := good
		o.Self.Name = name
		if _, err := Listen(o); err == nil || !strings.Contains(err.Error(), "cannot be a node's name") {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, edit := range map[string]func(*Options){
		"handler":  func(o *Options) { o.Handler = nil },
		"listener": func(o *Options) { o.Listener = nil },
		"id":       func(o *Options) { o.Self.ID = 0 },
		"name":     func(o *Options) { o.Self.Name = "" },
		"store":    func(o *Options) { clear(o.Self.Store[:]) },
		"boot":     func(o *Options) { clear(o.Self.Boot[:]) },
		"cluster":  func(o *Options) { clear(o.Cluster[:]) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.HasPrefix(text, "BUG: peer: ") {
					t.Errorf("no %s: %q", name, text)
				}
			}()
			o := good
			edit(&o)
			_, _ = Listen(o)
		}()
	}
}
