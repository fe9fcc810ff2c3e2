package node_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"penstock/netproto"
)

// testNetwork is the network between the nodes of a testCluster. A port in front of each node's listener passes frames
// on, loses or repeats them as the test says, and ends with its node. Nodes are named as in testNode.name.
type testNetwork struct {
	t testing.TB

	mu    sync.Mutex // guards the fields below it, except all
	rule  func(from, to string, kind netproto.Type) int
	cut   map[[2]string]bool // from and to of nodes whose frames are lost
	dead  map[string]bool    // nodes whose process has ended
	ports map[string]*port   // by node
	lines map[*line]bool
	seen  map[netproto.Type]int // frames that were passed on
	keeps []*keeping
	all   sync.WaitGroup // the network's goroutines
}

func newTestNetwork(t testing.TB) *testNetwork {
	return &testNetwork{
		t: t, cut: map[[2]string]bool{}, dead: map[string]bool{},
		ports: map[string]*port{}, lines: map[*line]bool{}, seen: map[netproto.Type]int{},
	}
}

// port is the address at which the other nodes dial a node.
type port struct {
	w    *testNetwork
	name string // of the node
	ln   net.Listener
	to   string // address of the node's own listener
}

// line is one connection through a port: near to the node that dialed (from), far to the node that was dialed (to).
type line struct {
	near, far net.Conn
	from, to  string
}

func (l *line) close() {
	_ = l.near.Close()
	_ = l.far.Close()
}

// open makes a new port for a node that listens at the address to, and returns the address of the port.
func (w *testNetwork) open(name, to string) (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	p := &port{w: w, name: name, ln: ln, to: to}
	w.mu.Lock()
	if old := w.ports[name]; old != nil {
		_ = old.ln.Close()
	}
	w.ports[name] = p
	delete(w.dead, name)
	w.mu.Unlock()
	w.all.Go(p.accept)
	return ln.Addr().String(), nil
}

func (p *port) accept() {
	for {
		near, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.w.all.Go(func() { p.serve(near) })
	}
}

// serve passes the frames of a connection on, in both directions. The first frame says which node dialed.
func (p *port) serve(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer far.Close()
	l := &line{near: near, far: far, to: p.name}
	p.w.mu.Lock()
	p.w.lines[l] = true
	p.w.mu.Unlock()
	defer func() {
		p.w.mu.Lock()
		delete(p.w.lines, l)
		p.w.mu.Unlock()
	}()
	kind, hello, err := readFrame(near, nil)
	if err != nil || kind != netproto.TypeHello {
		return
	}
	hello = bytes.Clone(hello)
	p.w.mu.Lock()
	l.from = dialer(hello[netproto.HeaderBytes:])
	dead := p.w.dead[l.from] || p.w.dead[l.to]
	silent := p.w.cut[[2]string{l.from, l.to}]
	p.w.mu.Unlock()
	if dead {
		return
	}
	if !silent {
		if _, err := far.Write(hello); err != nil {
			return
		}
	}
	var back sync.WaitGroup
	back.Go(func() { p.w.pump(far, near, l.to, l.from); l.close() })
	p.w.pump(near, far, l.from, l.to)
	l.close()
	back.Wait()
}

// dialer returns the name of the node that sent a Hello; see netproto's FORMAT.md.
func dialer(hello []byte) string { return string(hello[88 : 88+int(hello[79])]) }

func readFrame(r io.Reader, buf []byte) (netproto.Type, []byte, error) {
	buf = append(buf[:0], make([]byte, netproto.HeaderBytes)...)
	if _, err := io.ReadFull(r, buf); err != nil {
		return 0, nil, err
	}
	n := int(binary.LittleEndian.Uint32(buf[12:]))
	buf = append(buf, make([]byte, n)...)
	_, err := io.ReadFull(r, buf[netproto.HeaderBytes:])
	return netproto.Type(buf[3]), buf, err
}

// pump passes the frames of one direction on, until the connection ends.
func (w *testNetwork) pump(src, dst net.Conn, from, to string) {
	defer w.outlast(from, to)
	var buf, aside []byte
	for {
		kind, frame, err := readFrame(src, buf)
		if err != nil {
			return
		}
		buf = frame
		if w.keep(from, to, kind) {
			aside = append(aside, frame...) // later frames overtake this one
			continue
		}
		if len(aside) > 0 && w.isFree(from, to) {
			frame = append(aside, frame...)
			aside = nil
		}
		for range w.copies(from, to, kind) {
			if _, err := dst.Write(frame); err != nil {
				return
			}
		}
	}
}

// copies returns how often a frame is passed on.
func (w *testNetwork) copies(from, to string, kind netproto.Type) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut[[2]string{from, to}] {
		return 0
	}
	n := 1
	if w.rule != nil && kind >= netproto.TypePutMessagesOnReplica {
		n = w.rule(from, to, kind)
	}
	w.seen[kind] += n
	return n
}

// rules sets the function that says how often a frame is passed on (0: it is lost); nil: once. It does not apply to
// frames of the connection itself, such as pings.
func (w *testNetwork) rules(f func(from, to string, kind netproto.Type) int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rule = f
}

// isolate loses all frames to and from a node while on.
func (w *testNetwork) isolate(name string, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other := range w.ports {
		if other != name {
			w.cut[[2]string{name, other}], w.cut[[2]string{other, name}] = on, on
		}
	}
}

// mute loses the frames of the replicas to and from a node, until rules(nil). Pings pass, so the connections stay, and
// the others notice when the process of the node ends.
func (w *testNetwork) mute(name string) {
	w.rules(func(from, to string, _ netproto.Type) int {
		if from == name || to == name {
			return 0
		}
		return 1
	})
}

// disconnectPair loses all frames between two nodes while on.
func (w *testNetwork) disconnectPair(one, other string, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[[2]string{one, other}], w.cut[[2]string{other, one}] = on, on
}

// dropConnections closes the connections of a node. The node may connect again at once.
func (w *testNetwork) dropConnections(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.lines {
		if l.from == name || l.to == name {
			l.close()
		}
	}
}

// closePort closes a node's port, just before the node closes its listener. Connections stay.
func (w *testNetwork) closePort(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.ports[name].ln.Close()
}

// kill does what the kernel does with the sockets of a process that ends: its address refuses connections, its
// connections are closed, and it makes no new ones.
func (w *testNetwork) kill(name string) {
	w.mu.Lock()
	w.dead[name] = true
	w.mu.Unlock()
	w.closePort(name)
	w.dropConnections(name)
}

func (w *testNetwork) close() {
	w.mu.Lock()
	for _, p := range w.ports {
		_ = p.ln.Close()
	}
	for l := range w.lines {
		l.close()
	}
	w.mu.Unlock()
	w.all.Wait()
}

// hold keeps back the frames from one node to another, from the first frame of a kind on, until release is called; then
// they go on in their order. If the connection ends meanwhile, the receiver learns that only behind the kept frames: it
// sees what it would see of a process that stands still with frames in its sockets. held is closed when the first frame
// is kept back.
func (w *testNetwork) hold(from, to string, kind netproto.Type) (held <-chan struct{}, release func()) {
	return w.holdAs(from, to, kind, false)
}

// holdAside is hold for the frames of this kind only: frames of other kinds overtake them, and the connection goes on.
func (w *testNetwork) holdAside(from, to string, kind netproto.Type) (held <-chan struct{}, release func()) {
	return w.holdAs(from, to, kind, true)
}

func (w *testNetwork) holdAs(from, to string, kind netproto.Type, aside bool) (held <-chan struct{}, release func()) {
	k := &keeping{
		from: from, to: to, kind: kind, aside: aside,
		held: make(chan struct{}), free: make(chan struct{}), over: make(chan struct{}),
	}
	w.mu.Lock()
	w.keeps = append(w.keeps, k)
	w.mu.Unlock()
	release = sync.OnceFunc(func() { close(k.free) })
	return k.held, release
}

// keeping is one call of hold or holdAside.
type keeping struct {
	from, to string
	kind     netproto.Type
	aside    bool
	began    sync.Once
	held     chan struct{} // closed: a frame is kept back
	free     chan struct{} // closed: release was called
	over     chan struct{} // closed: the direction of the kept frames has ended
	ended    sync.Once
}

// keep decides about a frame that has arrived. For hold it returns when the frame may go on; for holdAside it says
// whether to put the frame aside.
func (w *testNetwork) keep(from, to string, kind netproto.Type) (aside bool) {
	w.mu.Lock()
	keeps := slices.Clone(w.keeps)
	w.mu.Unlock()
	for _, k := range keeps {
		if k.from == from && k.to == to && k.kind == kind {
			k.began.Do(func() { close(k.held) })
			if k.aside {
				aside = aside || !k.isFree()
				continue
			}
			<-k.free
		}
	}
	return aside
}

func (k *keeping) isFree() bool {
	select {
	case <-k.free:
		return true
	default:
		return false
	}
}

// isFree says that no frames between the two nodes have to be kept any more.
func (w *testNetwork) isFree(from, to string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.keeps, func(k *keeping) bool { return k.from == from && k.to == to && !k.isFree() })
}

// outlast is called when one direction of a connection has ended. If frames of the other direction are kept back, it
// waits until these have been passed on, so that closing the connection does not lose them.
func (w *testNetwork) outlast(from, to string) {
	w.mu.Lock()
	keeps := slices.Clone(w.keeps)
	w.mu.Unlock()
	for _, k := range keeps {
		select {
		case <-k.held:
		default:
			continue // no frame was kept back
		}
		if k.aside {
			continue
		}
		switch {
		case k.from == from && k.to == to:
			k.ended.Do(func() { close(k.over) })
		case k.from == to && k.to == from:
			<-k.over
		}
	}
}

// part closes the connections between two nodes on the side of gone. The other node sees their end only behind the
// frames that are kept back.
func (w *testNetwork) part(gone, other string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.lines {
		switch {
		case l.from == gone && l.to == other:
			_ = l.near.Close()
		case l.to == gone && l.from == other:
			_ = l.far.Close()
		}
	}
}
