package peer

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/netproto"
	"penstock/replicate"
)

// patience is how long a test waits for a condition; a test only waits that long if it fails.
const patience = 20 * time.Second

var testCluster = uuid.MustParse("c1000000-0000-4000-8000-000000000001")

func storeOf(id replicate.NodeID) uuid.UUID { return uuid.UUID{0: 0x57, 15: byte(id)} }

// recorder is a Handler that records its calls, and complains if they come in an order that is not allowed.
type recorder struct {
	t      testing.TB
	frames func(from replicate.NodeID, burst []netproto.Received) // may be nil

	mu     sync.Mutex
	change chan struct{} // closed and replaced at every change
	events []string
	up     map[replicate.NodeID]uuid.UUID
	got    map[replicate.NodeID][]uint64 // Request of each frame
}

func newRecorder(t testing.TB) *recorder {
	return &recorder{
		t: t, change: make(chan struct{}), up: make(map[replicate.NodeID]uuid.UUID), got: make(map[replicate.NodeID][]uint64),
	}
}

func (r *recorder) changed() {
	close(r.change)
	r.change = make(chan struct{})
}

func (r *recorder) Frames(from replicate.NodeID, boot uuid.UUID, burst []netproto.Received) {
	r.mu.Lock()
	if r.up[from] != boot || boot == uuid.Nil {
		r.t.Errorf("frames of node %d, process %v, where %v is up", from, boot, r.up[from])
	}
	for i := range burst {
		r.got[from] = append(r.got[from], burst[i].Request)
	}
	r.changed()
	r.mu.Unlock()
	if r.frames != nil {
		r.frames(from, burst)
	}
}

func (r *recorder) Up(node replicate.NodeID, boot uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.up[node] != uuid.Nil {
		r.t.Errorf("node %d is up twice", node)
	}
	r.up[node] = boot
	r.events = append(r.events, fmt.Sprintf("up %d %d", node, boot[15]))
	r.changed()
}

func (r *recorder) Down(node replicate.NodeID, boot uuid.UUID, refused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.up[node] != boot {
		r.t.Errorf("node %d, process %v, is down where %v was up", node, boot, r.up[node])
	}
	delete(r.up, node)
	r.events = append(r.events, fmt.Sprintf("down %d %d %v", node, boot[15], refused))
	r.changed()
}

// wait waits until ok returns true. It calls ok with the lock held.
func (r *recorder) wait(what string, ok func() bool) {
	r.t.Helper()
	late := time.After(patience)
	for {
		r.mu.Lock()
		done, change := ok(), r.change
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-change:
		case <-late:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.t.Fatalf("did not happen: %s; events: %s", what, strings.Join(r.events, ", "))
		}
	}
}

// expect waits for exactly these events, in this order, since the last call.
func (r *recorder) expect(want ...string) {
	r.t.Helper()
	r.wait(strings.Join(want, ", "), func() bool { return len(r.events) >= len(want) })
	r.mu.Lock()
	defer r.mu.Unlock()
	if got := strings.Join(r.events, ", "); got != strings.Join(want, ", ") {
		r.t.Fatalf("%s; want %s", got, strings.Join(want, ", "))
	}
	r.events = nil
}

// seen returns the events since the last call of seen or expect.
func (r *recorder) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// logs is the log of a Net.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), s)
}

// process is a node's process in a test, with a boot of its own.
type process struct {
	*Net
	*recorder
	logs *logs
	node *Node
}

var (
	bootMu   sync.Mutex
	lastBoot byte
)

func nextBoot() uuid.UUID {
	bootMu.Lock()
	defer bootMu.Unlock()
	lastBoot++
	return uuid.UUID{0: 0xB0, 15: lastBoot}
}

func listen(t testing.TB, address string) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// start starts node id on address, or on any free address if that is "".
func start(t testing.TB, id replicate.NodeID, address string, edits ...func(*Options)) *process {
	t.Helper()
	if address == "" {
		address = "127.0.0.1:0"
	}
	p := &process{recorder: newRecorder(t), logs: new(logs)}
	o := Options{
		Self:    Node{ID: id, Name: fmt.Sprintf("n%d", id), Store: storeOf(id), Boot: nextBoot()},
		Cluster: testCluster, Listener: listen(t, address), Handler: p.recorder,
		Logger: slog.New(slog.NewTextHandler(p.logs, nil)),
	}
	for _, e := range edits {
		e(&o)
	}
	node := o.Self
	node.Address = o.Listener.Addr().String()
	p.node = &node
	n, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	p.Net = n
	t.Cleanup(n.Close)
	return p
}

// boot is the last byte of the process's boot, as it appears in events.
func (p *process) boot() int { return int(p.node.Boot[15]) }

// tableOf makes the table for SetNodes.
func tableOf(nodes ...*Node) map[replicate.NodeID]*Node {
	m := make(map[replicate.NodeID]*Node)
	for _, n := range nodes {
		m[n.ID] = n
	}
	return m
}

// meet puts all processes into each other's table.
func meet(all ...*process) {
	m := make(map[replicate.NodeID]*Node)
	for _, p := range all {
		m[p.node.ID] = p.node
	}
	// Nodes dial those with higher ids, which must know them by then.
	slices.SortFunc(all, func(a, b *process) int { return cmp.Compare(b.node.ID, a.node.ID) })
	for _, p := range all {
		p.SetNodes(m)
	}
}

// ups waits until the two are connected, on both sides.
func connected(t testing.TB, a, b *process) {
	t.Helper()
	a.expect(fmt.Sprintf("up %d %d", b.node.ID, b.boot()))
	b.expect(fmt.Sprintf("up %d %d", a.node.ID, a.boot()))
	if !a.Connected(b.node.ID) || !b.Connected(a.node.ID) {
		t.Fatal("up and not connected")
	}
}

// kill ends a process as the kernel does after kill -9: the sockets are closed, and nobody says Goodbye.
func (p *process) kill() {
	_ = p.o.Listener.Close()
	p.SetNodes(nil)
	p.Close()
}

// until polls for a condition whose change nothing announces.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("did not happen: " + what)
		}
	}
}

// noGoroutines fails if goroutines of this package or of its connections are left.
func noGoroutines(t testing.TB) {
	t.Helper()
	buf := make([]byte, 1<<20)
	until(t, "all goroutines ended", func() bool {
		all := string(buf[:runtime.Stack(buf, true)])
		return !strings.Contains(all, "netproto.(*Conn)") && !strings.Contains(all, "peer.(*link)") &&
			!strings.Contains(all, "peer.(*Net).accept") && !strings.Contains(all, "peer.(*Net).take")
	})
}

func (p *process) ups(of replicate.NodeID) uint64 {
	for _, s := range p.Stats().Nodes {
		if s.ID == of {
			return s.Ups
		}
	}
	return 0
}
