package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock/internal/cluster"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/replicate"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/kvfaults"
)

// testCluster is a cluster of engines in one process, which share one metadata map. Their connections are real TCP
// through a testNetwork; their disks are simulated and can fail. Leases last so long that they never end unless the
// test wants that: a busy machine must not look like a dead node. newTestCluster makes a cluster whose nodes run; the
// end of the test closes them. Helpers that wait fail the test after patience.
type testCluster struct {
	t       *testing.T
	kv      *kvfaults.Map // the metadata
	network *testNetwork
	nodes   []*testNode
	change  []func(*node.Options) // applied to the options of each node, at each start
	store   cluster.Options
}

// testNode is a node: its disk, and the engine that runs on it, if any.
type testNode struct {
	name   string
	dir    string         // the data directory, if it is on a real disk
	disk   *faultaio.Disk // the simulated disk otherwise
	seed   uint64         // of the last power cut or kill
	life   int            // number of the process, from 1
	client string         // the process's name at the metadata map
	opened node.Options   // of the last process
	store  meta.Store
	e      *node.Engine // nil: the node is down
}

const longLease = time.Minute

// newTestCluster starts n nodes on simulated disks. change applies to each of them, at each start.
func newTestCluster(t *testing.T, n int, change ...func(*node.Options)) *testCluster {
	t.Helper()
	tc := prepareTestCluster(t, n, change...)
	tc.startAll()
	return tc
}

// prepareTestCluster is newTestCluster without starting the nodes.
func prepareTestCluster(t *testing.T, n int, change ...func(*node.Options)) *testCluster {
	tc := &testCluster{t: t, kv: kvfaults.New(memory.Options{}), network: newTestNetwork(t), change: change}
	tc.store = cluster.Options{LeaseTTL: longLease, ControllerTick: 50 * time.Millisecond}
	for i := range n {
		tc.nodes = append(tc.nodes, &testNode{
			name: fmt.Sprintf("n%d", i+1), disk: faultaio.New(faultaio.Options{Seed: uint64(i)}),
		})
	}
	t.Cleanup(tc.end)
	return tc
}

func (tc *testCluster) end() {
	var wg sync.WaitGroup
	for _, m := range tc.nodes {
		if m.e != nil {
			wg.Go(func() { _ = m.e.Close() })
		}
	}
	wg.Wait()
	tc.network.close()
	tc.kv.Close()
}

// startAll starts all nodes that are down, at the same time, and waits until each knows all others.
func (tc *testCluster) startAll() {
	tc.t.Helper()
	var wg sync.WaitGroup
	for _, m := range tc.nodes {
		if m.e == nil {
			wg.Go(func() { tc.start(m) })
		}
	}
	wg.Wait()
	if tc.t.Failed() {
		tc.t.FailNow()
	}
	for _, m := range tc.nodes {
		tc.eventually("all nodes are known", func() bool { return len(m.e.Snapshot().Nodes) >= len(tc.nodes) })
	}
}

func (tc *testCluster) options(m *testNode) node.Options {
	o := smallOptions(nil)
	if m.dir != "" {
		o.DataPath = m.dir
	} else {
		o.Disk = m.disk
	}
	o.NodeID = m.name
	// A busy machine must not look like a hung disk, nor like a cluster that stores nothing.
	o.DiskPatience, o.DiskFailedAfter, o.PublishTimeout = longLease, longLease, longLease
	o.Logger = slog.New(slog.NewTextHandler(testWriter{tc.t, m.name}, nil))
	return o
}

// open opens the node's next engine. The caller closes the engine, or assigns it to m.e.
func (tc *testCluster) open(m *testNode) (*node.Engine, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address, err := tc.network.open(m.name, ln.Addr().String())
	if err != nil {
		return nil, err
	}
	m.life++
	m.client = fmt.Sprintf("%s.%d", m.name, m.life)
	o := tc.options(m)
	store := tc.store
	store.Logger = o.Logger
	m.store = cluster.New(tc.kv.Store(m.client), store)
	o.Cluster = &node.ClusterOptions{
		Store: m.store, Listener: ln,
		Node: meta.Node{Host: "127.0.0.1", Peer: address},
		// A follower leaves the ISR only after half a minute: if it is slow, the machine may be busy.
		Replication:  replicate.Config{HeartbeatNs: 20e6, RetryNs: 100e6, LagMaxNs: 30e9, JoinNs: 200e6},
		LeaveTimeout: 200 * time.Millisecond, JoinTimeout: patience,
	}
	for _, f := range tc.change {
		f(&o)
	}
	m.opened = o
	return node.Open(context.Background(), o)
}

// setPublishTimeout changes Options.PublishTimeout at the nodes that run. A test makes it short only while nothing can
// be stored, because puts then last that long: a busy machine needs seconds for what is stored.
func (tc *testCluster) setPublishTimeout(d time.Duration) {
	tc.t.Helper()
	for _, m := range tc.running() {
		m.opened.PublishTimeout = d
		if err := m.e.Change(m.opened); err != nil {
			tc.t.Fatal(err)
		}
	}
}

func (tc *testCluster) start(m *testNode) {
	tc.t.Helper()
	e, err := tc.open(m)
	if err != nil {
		tc.t.Errorf("%s does not start: %v", m.name, err)
		return
	}
	m.e = e
}

// crash cuts the node's power: its sockets end at once, nothing more reaches the disk, and writes that were not flushed
// may be lost.
func (tc *testCluster) crash(m *testNode) { tc.die(m, (*faultaio.Disk).Crash) }

// kill ends the node as kill -9 does: all completed writes stay, flushed or not.
func (tc *testCluster) kill(m *testNode) { tc.die(m, (*faultaio.Disk).Kill) }

// die ends a node at once. left returns the disk as the next process finds it.
func (tc *testCluster) die(m *testNode, left func(*faultaio.Disk, uint64) *faultaio.Disk) {
	tc.network.kill(m.name)
	tc.kv.Cut(m.client)
	m.disk.CrashAt(m.disk.Ops())
	_ = m.e.Close() // the engine can reach neither disk, network nor metadata any more
	m.e = nil
	m.seed++
	m.disk = left(m.disk, m.seed)
}

// stop ends a node as an operator does: the node hands its leaderships over, stores everything, and gives up its lease.
func (tc *testCluster) stop(m *testNode) {
	tc.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := m.e.Leave(ctx); err != nil {
		tc.t.Errorf("%s leaves: %v", m.name, err)
	}
	tc.network.closePort(m.name)
	if err := m.e.Close(); err != nil {
		tc.t.Errorf("%s closes: %v", m.name, err)
	}
	m.e = nil
	tc.network.kill(m.name)
	if m.disk != nil {
		m.disk = m.disk.Kill(1) // the next process's view of it
	}
}

// wipe gives a node that is down an empty disk.
func (tc *testCluster) wipe(m *testNode) { m.disk = faultaio.New(faultaio.Options{Seed: 99}) }

type testWriter struct {
	t    *testing.T
	name string
}

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(w.name, string(bytes.TrimSpace(p)))
	return len(p), nil
}

func (tc *testCluster) eventually(what string, holds func() bool) {
	tc.t.Helper()
	eventually(tc.t, what, holds)
}

// running returns the nodes that run.
func (tc *testCluster) running() (all []*testNode) {
	for _, m := range tc.nodes {
		if m.e != nil {
			all = append(all, m)
		}
	}
	return all
}

// topic waits until a node knows the topic, and returns the node's Topic. It does not create one.
func (tc *testCluster) topic(m *testNode, name string) *node.Topic {
	tc.t.Helper()
	tc.eventually("the topic is known", func() bool {
		_, ok := m.e.Catalog().LookupTopic(name)
		return ok
	})
	t, _ := m.e.Catalog().LookupTopic(name)
	return t
}

// create creates a topic, and waits until all nodes know it and all replicas are in sync.
func (tc *testCluster) create(name string, partitions int) {
	tc.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m := tc.running()[0]
	if _, err := m.e.CreateTopic(ctx, name, partitions); err != nil {
		tc.t.Fatal(err)
	}
	for _, m := range tc.running() {
		tc.topic(m, name)
	}
	tc.awaitInSync(name)
}

// awaitConnected waits until each node that runs is connected to each other one. A node that dies before can only be
// missed when its lease ends (longLease).
func (tc *testCluster) awaitConnected() {
	tc.t.Helper()
	tc.eventually("all nodes are connected", func() bool {
		for _, m := range tc.running() {
			for _, o := range tc.others(m) {
				if !node.ConnectedTo(m.e, o.e.Node().ID) {
					return false
				}
			}
		}
		return true
	})
}

// row returns the row of a partition as the node knows it; nil if the node does not know the partition.
func (m *testNode) row(name string, n int) *meta.Partition {
	s := m.e.Snapshot()
	if t := s.Names[name]; t != nil {
		return s.Partitions.Get(meta.PartitionID{Topic: t.ID, Partition: uint32(n)})
	}
	return nil
}

// leader waits until a node serves the partition, and returns that node.
func (tc *testCluster) leader(name string, n int) *testNode {
	tc.t.Helper()
	var found *testNode
	tc.eventually(fmt.Sprintf("%s/%d has a leader that serves", name, n), func() bool {
		for _, m := range tc.running() {
			row := m.row(name, n)
			if row != nil && row.State.Leader == m.e.Node().ID && row.State.Boot == m.e.Node().Boot {
				c, err := node.StateOf(m.e, name, n)
				if err == nil && c.Serves {
					found = m
					return true
				}
			}
		}
		return false
	})
	return found
}

// leaders returns the partition that each node leads, in a topic with as many partitions as there are nodes. It fails
// the test unless every node leads one of them.
func (tc *testCluster) leaders(name string) map[*testNode]int {
	tc.t.Helper()
	all := map[*testNode]int{}
	for n := range tc.nodes {
		all[tc.leader(name, n)] = n
	}
	if len(all) != len(tc.nodes) {
		tc.t.Fatalf("%d nodes lead the %d partitions", len(all), len(tc.nodes))
	}
	return all
}

// others returns the running nodes except one.
func (tc *testCluster) others(not *testNode) []*testNode {
	return slices.DeleteFunc(tc.running(), func(m *testNode) bool { return m == not })
}

// awaitInSync waits until all running nodes know that every replica of the topic is in the ISR and none is damaged.
func (tc *testCluster) awaitInSync(name string) {
	tc.t.Helper()
	why := ""
	defer func() {
		if tc.t.Failed() {
			tc.t.Log(why)
		}
	}()
	tc.eventually(name+" is whole", func() bool {
		for _, m := range tc.running() {
			t := m.e.Snapshot().Names[name]
			if t == nil {
				return false
			}
			for n := range t.Partitions {
				row := m.row(name, n)
				if row == nil || len(row.State.ISR) < len(row.State.Replicas) || len(row.Damaged) > 0 {
					why = fmt.Sprintf("%s knows: %+v", m.name, row)
					return false
				}
			}
		}
		return true
	})
}

// ackLog records the answers that producers got: messages that were acknowledged, and under which ids; messages that
// were refused; and messages whose outcome is unknown. Producers on several goroutines share one; mu guards it. check
// compares it with the stored messages. Each body must be published only once.
type ackLog struct {
	mu      sync.Mutex
	tried   map[string]bool    // bodies that may be stored: published and not refused
	acked   map[string]node.ID // by body
	batches [][]string
	unknown int            // batches whose outcome is unknown
	refused map[string]int // batches by the text of the error
}

func newAckLog() *ackLog {
	return &ackLog{tried: map[string]bool{}, acked: map[string]node.ID{}, refused: map[string]int{}}
}

// publish publishes a batch and records the answer.
func (h *ackLog) publish(ctx context.Context, topic *node.Topic, bodies ...string) error {
	var bs [][]byte
	h.mu.Lock()
	for _, b := range bodies {
		h.tried[b] = true
		bs = append(bs, []byte(b))
	}
	h.batches = append(h.batches, bodies)
	h.mu.Unlock()
	id, err := topic.PublishBatch(ctx, bs)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		for i, b := range bodies {
			h.acked[b] = id + node.ID(i)
		}
	case errors.Is(err, errs.ErrUnknown), errors.Is(err, errs.ErrDisk), errors.Is(err, errs.ErrClosed):
		h.unknown++
	default:
		h.refused[err.Error()]++
		for _, b := range bodies {
			delete(h.tried, b)
		}
	}
	return err
}

// publishInVain publishes a message that cannot be stored everywhere. If the leader was too slow to begin, it tries
// again.
func (h *ackLog) publishInVain(t *testing.T, topic *node.Topic, body string) {
	t.Helper()
	err := errs.ErrDeadline
	for end := time.Now().Add(patience); errors.Is(err, errs.ErrDeadline) && time.Now().Before(end); {
		err = h.publish(t.Context(), topic, body)
	}
	if !errors.Is(err, errs.ErrUnknown) {
		t.Fatalf("nobody can store it everywhere: %v", err)
	}
}

// awaitMoreAcks waits until more than n further messages have been acknowledged.
func (tc *testCluster) awaitMoreAcks(h *ackLog, n int) {
	tc.t.Helper()
	from := h.count()
	tc.eventually("writes go on", func() bool { return h.count() > from+n })
}

// startProducers starts a producer through each of the nodes, and returns a function that stops all. round must differ
// from call to call: it keeps their bodies apart.
func (tc *testCluster) startProducers(
	h *ackLog, nodes []*testNode, topic, round string, allowed func(error) bool,
) (stop func()) {
	var stops []func()
	for _, m := range nodes {
		stops = append(stops, tc.startProducer(h, m, topic, m.name+"."+round, allowed))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// startProducer starts a goroutine that publishes through a node until stop is called; stop waits for its end. The
// goroutine also ends when the node is closed or its disk fails. An error that allowed does not accept fails the test.
func (tc *testCluster) startProducer(
	h *ackLog, m *testNode, topic, prefix string, allowed func(error) bool,
) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	t := tc.topic(m, topic)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			var bodies []string
			for j := range 1 + i%3 {
				bodies = append(bodies, fmt.Sprintf("%s/%d.%d/%s", prefix, i, j, bytes.Repeat([]byte{'x'}, i%400)))
			}
			err := h.publish(context.Background(), t, bodies...)
			if err != nil && !allowed(err) {
				tc.t.Errorf("%s, message %d: %v", prefix, i, err)
				return
			}
			if errors.Is(err, errs.ErrClosed) || errors.Is(err, errs.ErrDisk) {
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

func never(error) bool { return false }

func (h *ackLog) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.acked)
}

// check compares the stored messages with the answers that producers got. Every acknowledged message must be stored
// under its id. No message may be stored that was refused or never published, and none twice. A batch must be stored
// whole and in order, or not at all (B14).
func (h *ackLog) check(t *testing.T, stored map[node.ID]string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	lost := 0
	for body, id := range h.acked {
		if got, ok := stored[id]; !ok || got != body {
			if lost++; lost < 5 {
				t.Errorf("%s was answered OK for %.40q; %.40q is there", id, body, got)
			}
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d acknowledged messages lost", lost, len(h.acked))
	}
	for id, body := range stored {
		if !h.tried[body] {
			t.Errorf("%s %.40q is stored and was never published, or refused", id, body)
		}
	}
	ids := map[string]node.ID{}
	for id, body := range stored {
		if old, ok := ids[body]; ok {
			t.Errorf("%.40q is stored twice, as %s and %s", body, old, id)
		}
		ids[body] = id
	}
	for _, b := range h.batches {
		first, ok := ids[b[0]]
		for i, body := range b {
			if id, found := ids[body]; found != ok || ok && id != first+node.ID(i) {
				t.Errorf("of a batch of %d the first message is there: %v (%s), number %d: %v (%s)",
					len(b), ok, first, i, found, id)
			}
		}
	}
	t.Logf("%d acknowledged, %d unknown, refused %v", len(h.acked), h.unknown, h.refused)
}

// checkCopies waits until all copies of the topic's partitions are equal, and checks their messages against h.
func (tc *testCluster) checkCopies(h *ackLog, name string, partitions int) {
	tc.t.Helper()
	stored := map[node.ID]string{}
	for n := range partitions {
		c := tc.awaitEqualCopies(name, n)
		all, err := c.Messages(n)
		if err != nil {
			tc.t.Fatal(err)
		}
		maps.Copy(stored, all)
	}
	h.check(tc.t, stored)
}

// channel returns a channel at the node that serves partition 0. It creates the channel if it does not exist.
func (tc *testCluster) channel(topic, name string) *node.Channel {
	tc.t.Helper()
	m := tc.leader(topic, 0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var c *node.Channel
	tc.eventually("channel "+name, func() bool {
		var err error
		if c, err = tc.topic(m, topic).Channel(ctx, name); err != nil && !errors.Is(err, errs.ErrNoLeader) {
			tc.t.Fatal(err)
		}
		return err == nil
	})
	return c
}
