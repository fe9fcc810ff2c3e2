//go:build linux

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"penstock/batch"
	"penstock/client"
	"penstock/internal/cluster"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/server/native"
	"penstock/tests/support/porttest"
)

// patience is how long a test waits for what must happen.
const patience = 60 * time.Second

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

// realNode is an engine that serves native clients.
type realNode struct {
	t       testing.TB
	name    string
	dir     string
	address string // of the native port, for all lives
	kv      *memory.Map
	edit    []func(*node.Options)
	lives   int
	e       *node.Engine
	s       *native.Server
	served  chan error
}

// startNodes starts one node alone, or several as a cluster. edit changes the options of their engines.
func startNodes(t testing.TB, n int, edit ...func(*node.Options)) []*realNode {
	t.Helper()
	var kv *memory.Map
	if n > 1 {
		kv = memory.New(memory.Options{})
		t.Cleanup(kv.Close)
	}
	var nodes []*realNode
	for i := range n {
		nodes = append(nodes, &realNode{
			t: t, name: fmt.Sprintf("n%d", i+1), dir: t.TempDir(), address: porttest.Address(t), kv: kv, edit: edit,
		})
	}
	var wg sync.WaitGroup
	for _, m := range nodes {
		wg.Go(m.start)
		t.Cleanup(m.stop)
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return nodes
}

func (m *realNode) start() {
	m.lives++
	o := node.Options{DataPath: m.dir, NodeID: m.name, Logger: quiet}
	if m.kv != nil {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			m.t.Error(err)
			return
		}
		store := cluster.New(m.kv.Store(),
			cluster.Options{LeaseTTL: time.Minute, ControllerTick: 50 * time.Millisecond, Logger: quiet})
		o.Cluster = &node.ClusterOptions{
			Store: store, Listener: ln,
			Node: meta.Node{Host: "127.0.0.1", Peer: ln.Addr().String(), Native: m.address},
		}
	}
	for _, f := range m.edit {
		f(&o)
	}
	var err error
	if m.e, err = node.Open(context.Background(), o); err != nil {
		m.t.Error(err)
		return
	}
	ln, err := net.Listen("tcp", m.address)
	for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond) // a connection to elsewhere may have got the port for a moment
		ln, err = net.Listen("tcp", m.address)
	}
	if err != nil {
		m.t.Error(err)
		return
	}
	if m.s, err = native.Listen(m.e, native.Options{Listener: ln, Logger: quiet}); err != nil {
		m.t.Error(err)
		return
	}
	s, served := m.s, make(chan error, 1)
	m.served = served
	go func() { served <- s.Serve() }()
}

// stop ends the node as SIGTERM does: it hands its leaderships over, answers what it has taken, and closes.
func (m *realNode) stop() {
	if m.s == nil || m.e == nil {
		return
	}
	ctx := within(m.t)
	if m.kv != nil {
		if err := m.e.Leave(ctx); err != nil {
			m.t.Errorf("%s leaves: %v", m.name, err)
		}
	}
	if err := m.s.Shutdown(ctx); err != nil {
		m.t.Errorf("%s shuts down: %v", m.name, err)
	}
	if err := <-m.served; err != nil {
		m.t.Errorf("%s serves: %v", m.name, err)
	}
	if err := m.e.Close(); err != nil {
		m.t.Errorf("%s closes: %v", m.name, err)
	}
	m.s, m.e = nil, nil
}

func dialNodes(t testing.TB, nodes []*realNode) *client.Client {
	t.Helper()
	var seeds []string
	for _, m := range nodes {
		seeds = append(seeds, m.address)
	}
	c, err := client.Dial(within(t), seeds, client.Options{Logger: quiet, MinDelay: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// stream produces numbered messages, and checks what becomes of them.
type stream struct {
	t  testing.TB
	p  *client.Producer
	n  int
	mu sync.Mutex
	ok int // messages that are stored
}

func (s *stream) produce(count int) {
	s.t.Helper()
	for range count {
		s.p.Produce(within(s.t), &client.Message{Key: []byte("k"), Body: fmt.Append(nil, s.n)}, s.done)
		s.n++
	}
}

func (s *stream) done(m *client.Message, id client.ID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || uint64(id.MsgID()) != uint64(s.ok) || string(m.Body) != fmt.Sprint(s.ok) {
		s.t.Errorf("message %s, %d stored before: %v, %v", m.Body, s.ok, id, err)
	}
	s.ok++
}

func (s *stream) flush() {
	s.t.Helper()
	if err := s.p.Flush(within(s.t)); err != nil {
		s.t.Fatal(err)
	}
	if s.ok != s.n {
		s.t.Fatalf("%d of %d messages are stored", s.ok, s.n)
	}
}

// expectAll reads messages first to end, and checks that each is there once, in order.
func expectAll(t testing.TB, r *client.Reader, first, end int) {
	t.Helper()
	for i := first; i < end; i++ {
		m, err := r.Next(within(t))
		if err != nil || int(m.ID.MsgID()) != i || !bytes.Equal(m.Body, fmt.Append(nil, i)) || string(m.Key) != "k" {
			t.Fatalf("message %d: %v %q %q, %v", i, m.ID, m.Key, m.Body, err)
		}
	}
}

// A real node stores what is produced once each, in order, through restarts; readers return it; a producer's name
// survives its program, and ends the older one.
func TestRealNode(t *testing.T) {
	for _, compression := range []client.Compression{client.CompressNone, client.CompressS2, client.CompressZstd} {
		nodes := startNodes(t, 1)
		c := dialNodes(t, nodes)
		o := client.ProducerOptions{Name: "import", Compression: compression, MaxBatchBytes: 4096}
		p, err := c.Producer(within(t), "orders", o)
		if err != nil {
			t.Fatal(err)
		}
		s := &stream{t: t, p: p}
		s.produce(5000)
		nodes[0].stop()
		s.produce(100)
		nodes[0].start()
		s.produce(5000)
		s.flush()
		r, err := c.Reader(within(t), "orders", 0, client.FromOldest())
		if err != nil {
			t.Fatal(err)
		}
		expectAll(t, r, 0, s.n)
		at, _ := r.Position()
		if newest, ok := r.Newest(); !ok || at != newest || int(at.MsgID()) != s.n {
			t.Errorf("position %v, newest %v", at, newest)
		}
		r.Close()
		if r, err = c.Reader(within(t), "orders", 0, client.FromID(7000)); err != nil {
			t.Fatal(err)
		}
		expectAll(t, r, 7000, s.n)
		young, err := c.Producer(within(t), "orders", o)
		if err != nil {
			t.Fatal(err)
		}
		if last, ok := young.LastSequence(0); !ok || int(last) != s.n-1 {
			t.Errorf("the last sequence is %d, %v", last, ok)
		}
		if _, err := p.ProduceSync(within(t), &client.Message{Body: []byte("x")}); !errors.Is(err, client.ErrFenced) {
			t.Errorf("the older producer: %v", err)
		}
		if id, err := young.ProduceSync(within(t), &client.Message{Body: []byte("x")}); err != nil || int(id.MsgID()) != s.n {
			t.Errorf("the younger producer: %v, %v", id, err)
		}
		r.Close()
		c.Close()
	}
}

// A client goes on when a single node becomes part of a cluster, and hears what the cluster changes then.
func TestRealNodeJoinsACluster(t *testing.T) {
	nodes := startNodes(t, 1)
	m := nodes[0]
	c := dialNodes(t, nodes)
	p, err := c.Producer(within(t), "orders", client.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &stream{t: t, p: p}
	s.produce(100)
	s.flush()
	m.stop()
	m.kv = memory.New(memory.Options{})
	defer m.kv.Close()
	m.start()
	defer m.stop()
	s.produce(100)
	s.flush()
	topic, _ := m.e.Catalog().LookupTopic("orders")
	settings := topic.Settings()
	settings.Partitions, settings.MinISR = 3, 1
	if _, err := topic.ConfigureAs(within(t), "", settings); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the client hears of the new partitions", func() bool { return p.Partitions() == 3 })
}

// What is asked for with the id of another partition does not exist.
func TestRealReaderIsRefused(t *testing.T) {
	nodes := startNodes(t, 1)
	c := dialNodes(t, nodes)
	publish(t, c, 0, 1)
	r, err := c.Reader(within(t), "orders", 0, client.FromID(batch.MakeID(1, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Next(within(t)); !errors.Is(err, client.ErrRefused) {
		t.Errorf("%v", err)
	}
}

// In a cluster the producer and the reader follow the leader, and nothing is lost, repeated or out of order.
func TestRealCluster(t *testing.T) {
	nodes := startNodes(t, 3)
	c := dialNodes(t, nodes)
	p, err := c.Producer(within(t), "orders", client.ProducerOptions{MaxBatchBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	s := &stream{t: t, p: p}
	s.produce(2000)
	s.flush()
	r, err := c.Reader(within(t), "orders", 0, client.FromOldest())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	read := 0
	for _, m := range nodes {
		s.produce(2000)
		m.stop()
		s.produce(2000)
		s.flush()
		expectAll(t, r, read, s.n)
		read = s.n
		m.start()
	}
	s.produce(2000)
	s.flush()
	expectAll(t, r, read, s.n)
}
