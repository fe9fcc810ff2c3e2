package engine_test

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

// testNetwork is the network between the nodes of a testCluster: in front of each node's listener stands a port that
// passes frames on, loses or repeats them as the test says, and dies with its node.
type testNetwork struct {
	t testing.TB

	mu    sync.Mutex
	rule  func(from, to string, kind netproto.Type) int
	cut   map[[2]string]bool
	dead  map[string]bool
	ports map[string]*port
	lines map[*line]bool
	seen  map[netproto.Type]int // frames that were passed on
	keeps []*keeping
	all   sync.WaitGroup
}

func newTestNetwork(t testing.TB) *testNetwork {
	return &testNetwork{
		t: t, cut: map[[2]string]bool{}, dead: map[string]bool{},
		ports: map[string]*port{}, lines: map[*line]bool{}, seen: map[netproto.Type]int{},
	}
}

// port is where the other nodes dial one.
type port struct {
	w    *testNetwork
	name string
	ln   net.Listener
	to   string
}

// line is one connection through a port.
type line struct {
	near, far net.Conn // of who dialed, of who was dialed
	from, to  string
}

func (l *line) close() {
	_ = l.near.Close()
	_ = l.far.Close()
}

// open makes the port of a node that listens at an address, and returns the port's.
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

// serve passes a connection's frames on. The first one says who dialed.
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

// dialer is the node that a Hello names; see netproto's FORMAT.md.
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
			aside = append(aside, frame...) // what follows passes it
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

// copies is how often a frame arrives.
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

// rules sets how often each frame between nodes arrives; nil: once. Frames of the connection itself are never touched.
func (w *testNetwork) rules(f func(from, to string, kind netproto.Type) int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rule = f
}

// isolate silences a node in both directions.
func (w *testNetwork) isolate(name string, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other := range w.ports {
		if other != name {
			w.cut[[2]string{name, other}], w.cut[[2]string{other, name}] = on, on
		}
	}
}

// silence keeps what a node sends from all others.
func (w *testNetwork) silence(name string, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other := range w.ports {
		if other != name {
			w.cut[[2]string{name, other}] = on
		}
	}
}

// disconnectPair silences two nodes for each other.
func (w *testNetwork) disconnectPair(one, other string, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[[2]string{one, other}], w.cut[[2]string{other, one}] = on, on
}

// dropConnections breaks the connections of a node; it may connect again at once.
func (w *testNetwork) dropConnections(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.lines {
		if l.from == name || l.to == name {
			l.close()
		}
	}
}

// closePort closes a node's port as its listener will be; connections stay.
func (w *testNetwork) closePort(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.ports[name].ln.Close()
}

// kill does what the kernel does with a process's sockets: its address refuses, its connections are closed, and it
// makes none any more.
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

// hold keeps what a node sends to another from the first frame of a kind on, in order, until release. A connection that
// ends meanwhile ends for the receiver only behind what is kept: so a process looks that stands still with frames in
// its sockets. held is closed when the first frame is kept.
func (w *testNetwork) hold(from, to string, kind netproto.Type) (held <-chan struct{}, release func()) {
	return w.holdAs(from, to, kind, false)
}

// holdAside is hold for the frames of the kind alone: the others pass them, and the connection lives on.
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

// keeping is one call of hold.
type keeping struct {
	from, to string
	kind     netproto.Type
	aside    bool
	began    sync.Once
	held     chan struct{}
	free     chan struct{}
	over     chan struct{} // the connection that brought the frame has ended
	ended    sync.Once
}

// keep waits while what comes now has to be kept, or says that it has to be put aside.
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

// isFree says that nothing is kept aside any more.
func (w *testNetwork) isFree(from, to string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.keeps, func(k *keeping) bool { return k.from == from && k.to == to && !k.isFree() })
}

// outlast lets the receiver of what is kept have it before the other direction's end closes the connection.
func (w *testNetwork) outlast(from, to string) {
	w.mu.Lock()
	keeps := slices.Clone(w.keeps)
	w.mu.Unlock()
	for _, k := range keeps {
		select {
		case <-k.held:
		default:
			continue // nothing was kept
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

// part ends the connections between two nodes for one of them; the other gets what is kept first.
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
