package peer

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/netproto"
	"penstock/replicate"
)

// proxy passes bytes on until it is cut. Then it keeps its connections and passes nothing, like a network whose cable
// was pulled.
type proxy struct {
	ln    net.Listener
	to    string
	cut   atomic.Bool
	conns atomic.Int32

	mu   sync.Mutex
	open []net.Conn
}

func newProxy(t testing.TB, to string) *proxy {
	p := &proxy{ln: listen(t, "127.0.0.1:0"), to: to}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			left, err := p.ln.Accept()
			if err != nil {
				return
			}
			p.conns.Add(1)
			right, err := net.Dial("tcp", p.to)
			if err != nil {
				_ = left.Close()
				continue
			}
			p.mu.Lock()
			p.open = append(p.open, left, right)
			p.mu.Unlock()
			all.Go(func() { p.pass(left, right) })
			all.Go(func() { p.pass(right, left) })
		}
	})
	t.Cleanup(func() {
		_ = p.ln.Close()
		p.mu.Lock()
		for _, c := range p.open {
			_ = c.Close()
		}
		p.mu.Unlock()
		all.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.ln.Addr().String() }

func (p *proxy) pass(from, to net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if p.cut.Load() {
			if err != nil {
				return
			}
			continue
		}
		if n > 0 {
			_, _ = to.Write(buf[:n])
		}
		if err != nil {
			_ = from.Close()
			_ = to.Close()
			return
		}
	}
}

func quick(o *Options) {
	o.Conn.PingEvery, o.Conn.SilenceTimeout, o.Conn.HandshakeTimeout = 50*time.Millisecond, time.Second, time.Second
}

// A network that is cut is not taken for a dead process on either side. When the network works again, so does the
// connection.
func TestSilence(t *testing.T) {
	a, b := start(t, 1, "", quick), start(t, 2, "", quick)
	wire := newProxy(t, b.node.Address)
	far := *b.node
	far.Address = wire.address()
	a.SetNodes(tableOf(&far))
	b.SetNodes(tableOf(a.node))
	connected(t, a, b)
	wire.cut.Store(true)
	a.expect(fmt.Sprintf("down 2 %d false", b.boot()))
	b.expect(fmt.Sprintf("down 1 %d false", a.boot()))
	if n := a.Stats().Probes + b.Stats().Probes; n != 0 {
		t.Errorf("%d probes of a node that is merely silent", n)
	}
	wire.cut.Store(false)
	connected(t, a, b)
}

// A connection that breaks while both processes run is not taken for a dead process: the address answers.
func TestBrokenConnection(t *testing.T) {
	a, b := start(t, 1, ""), start(t, 2, "")
	wire := newProxy(t, b.node.Address)
	far := *b.node
	far.Address = wire.address()
	a.SetNodes(tableOf(&far))
	b.SetNodes(tableOf(a.node))
	connected(t, a, b)
	wire.mu.Lock()
	for _, c := range wire.open {
		_ = c.Close()
	}
	wire.mu.Unlock()
	a.expect(fmt.Sprintf("down 2 %d false", b.boot()), fmt.Sprintf("up 2 %d", b.boot()))
	b.expect(fmt.Sprintf("down 1 %d false", a.boot()), fmt.Sprintf("up 1 %d", a.boot()))
	if b.Stats().Probes == 0 {
		t.Error("the accepting side did not look whether the process is there")
	}
}

// child is the input and output of a process of TestProcess.
type child struct {
	ID      replicate.NodeID
	Parent  Node
	Address string
	Boot    uuid.UUID
}

const childVariable = "TEST_PEER_TEST_CHILD"

func TestMain(m *testing.M) {
	if told := os.Getenv(childVariable); told != "" {
		runChild(told)
		return
	}
	os.Exit(m.Run())
}

type quiet struct{}

func (quiet) Frames(replicate.NodeID, uuid.UUID, []netproto.Received) {}
func (quiet) Up(replicate.NodeID, uuid.UUID)                          {}
func (quiet) Down(replicate.NodeID, uuid.UUID, bool)                  {}

// runChild runs a node that is connected to its parent until it is killed.
func runChild(told string) {
	var c child
	if err := json.Unmarshal([]byte(told), &c); err != nil {
		panic(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	c.Address, c.Boot = ln.Addr().String(), uuid.New()
	n, err := Listen(Options{
		Self:    Node{ID: c.ID, Name: fmt.Sprintf("n%d", c.ID), Store: storeOf(c.ID), Boot: c.Boot},
		Cluster: testCluster, Listener: ln, Handler: quiet{}, Conn: netproto.Options{
			PingEvery: 50 * time.Millisecond, SilenceTimeout: time.Second,
		},
	})
	if err != nil {
		panic(err)
	}
	n.SetNodes(tableOf(&c.Parent))
	_ = json.NewEncoder(os.Stdout).Encode(c)
	_, _ = io.Copy(io.Discard, os.Stdin) // a parent that ends takes its children along
	os.Exit(1)
}

func startChild(t *testing.T, id replicate.NodeID, parent *process) (*exec.Cmd, child) {
	t.Helper()
	told, err := json.Marshal(child{ID: id, Parent: *parent.node})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(told))
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var c child
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return cmd, c
}

// Real processes, both dialed and dialing. A process that is stopped is silent, and resumes when it is continued. A
// process that is killed is known to be gone at once. On a machine whose processors are busy, the end of a process may
// take longer than ProbeSpan; then its closed connection is taken for a network failure, which is safe. So the test
// demands that one of several processes is known to be gone.
func TestProcess(t *testing.T) {
	for _, id := range []replicate.NodeID{1, 3} {
		t.Run(fmt.Sprint(id), func(t *testing.T) {
			t.Parallel()
			p := start(t, 2, "", quick)
			cmd, c := connectChild(t, id, p)
			if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			p.expect(downOf(&c) + " false")
			if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			// While a dialed process is stopped, its kernel may accept connections; they end in the handshake.
			p.expect(upOf(&c))
			for range 50 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				p.wait(downOf(&c), func() bool { return len(p.events) == 1 && strings.HasPrefix(p.events[0], downOf(&c)+" ") })
				if p.seen()[0] == downOf(&c)+" true" {
					return
				}
				cmd, c = connectChild(t, id, p)
			}
			t.Error("none of 50 processes that were killed was known to be gone")
		})
	}
}

func upOf(c *child) string   { return fmt.Sprintf("up %d %d", c.ID, c.Boot[15]) }
func downOf(c *child) string { return fmt.Sprintf("down %d %d", c.ID, c.Boot[15]) }

// connectChild starts a process of the node id and waits until p is connected to it.
func connectChild(t *testing.T, id replicate.NodeID, p *process) (*exec.Cmd, child) {
	t.Helper()
	cmd, c := startChild(t, id, p)
	p.SetNodes(tableOf(&Node{
		ID: id, Name: fmt.Sprintf("n%d", id), Store: storeOf(id), Boot: c.Boot, Address: c.Address,
	}))
	p.expect(upOf(&c))
	return cmd, c
}

// Whatever happens at the same time, the handlers see only orders that are allowed (their recorder checks that), and
// nothing is left after Close.
func TestStorm(t *testing.T) {
	const count = 4
	var ps []*process
	for id := range replicate.NodeID(count) {
		ps = append(ps, start(t, id+1, "", quick))
	}
	everybody := make(map[replicate.NodeID]*Node)
	for _, p := range ps {
		everybody[p.node.ID] = p.node
	}
	var all sync.WaitGroup
	stop := make(chan struct{})
	for _, p := range ps {
		for _, act := range []func(rnd *rand.Rand){
			func(rnd *rand.Rand) { // the table changes
				m := make(map[replicate.NodeID]*Node)
				for id, n := range everybody {
					if rnd.IntN(10) > 0 {
						c := *n
						if rnd.IntN(4) == 0 {
							c.Boot = uuid.New()
						}
						m[id] = &c
					}
				}
				p.SetNodes(m)
			},
			func(rnd *rand.Rand) { p.Disconnect(1+replicate.NodeID(rnd.IntN(count)), nil) },
			func(rnd *rand.Rand) {
				for range 100 {
					_ = p.TrySend(1+replicate.NodeID(rnd.IntN(count)), &netproto.Frame{
						Type: netproto.TypePutAck, Head: make([]byte, rnd.IntN(1000)),
					})
				}
			},
			func(*rand.Rand) { p.Stats() },
		} {
			all.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(p.node.ID), 1))
				ticker := time.NewTicker(5 * time.Millisecond)
				defer ticker.Stop()
				for {
					select {
					case <-ticker.C:
						act(rnd)
					case <-stop:
						return
					}
				}
			})
		}
	}
	time.AfterFunc(2*time.Second, func() { close(stop) })
	all.Wait()
	meet(ps...)
	for _, p := range ps {
		p.wait("all are connected in the end", func() bool { return len(p.up) == count-1 })
	}
	for _, p := range ps {
		all.Go(p.Close)
	}
	all.Wait()
	for _, p := range ps {
		if len(p.up) != 0 {
			t.Errorf("node %d still has %d up after Close", p.node.ID, len(p.up))
		}
	}
	noGoroutines(t)
}

// Close does not wait for a dial, a handshake or a pause.
func TestCloseWhileConnecting(t *testing.T) {
	mute := listen(t, "127.0.0.1:0") // accepts connections and says nothing
	defer mute.Close()
	a := start(t, 1, "", func(o *Options) { o.Conn.HandshakeTimeout = time.Hour })
	a.SetNodes(tableOf(
		&Node{ID: 2, Name: "n2", Store: storeOf(2), Address: mute.Addr().String()},
		&Node{ID: 3, Name: "n3", Store: storeOf(3), Address: unused(t)},
	))
	nc, err := net.Dial("tcp", a.node.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	until(t, "all are on their way", func() bool { s := a.Stats(); return s.Accepted == 1 && s.Nodes[1].DialFails > 0 })
	a.Close()
	noGoroutines(t)
	a.expect()
}
