package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// testCluster is nodes that speak the real protocol on real TCP, and share the logs of their partitions. It keeps the
// rules of producers: a leader stores what follows, answers exact repeats with their first id, and refuses the rest.
type testCluster struct {
	t     testing.TB
	token string // "": any
	tls   *tls.Config
	nodes []*testNode
	// creates, if not nil, gets the names of topics to create; nodes do not create them, and do not answer.
	creates chan string
	// window is how many bytes of batches a node takes without having answered; 0: netproto.DefaultWindowBytes.
	window uint32

	mu       sync.Mutex // guards the rest, and everything in nodes and topics
	revision uint64
	topics   map[string]*testTopic
	// fault, if set, says what becomes of a batch: the status of the answer, whether it is stored, and whether the
	// connection is cut before the answer.
	fault   func(n *testNode, h *batch.Header) (status netproto.Status, store, cut bool)
	opens   int
	maxBody int // a batch with a longer body is refused; 0: none is
	// While hold is set, answers about batches of partitions 0 wait in held.
	hold bool
	held []func()

	channels        map[string]*testChannel
	refuseSubscribe netproto.Status // what every Subscribe is answered
	deafToSync      bool            // a Sync is answered with StatusUnknown
	holdSyncs       bool            // a Sync is not answered
	heldSyncs       int
	noRoom          bool // a Requeue is refused for lack of room
	mute            bool // questions for metadata are not answered
	holdEnds        bool // a SubscribeEnd is answered later, by ends
	ends            []func()
	permits         []uint32 // ms of those that each node gives; nil: their channels are not ordered
	recalled        []wire.Recall
}

type testTopic struct {
	hidden bool // tokens do not allow to see it
	id     uuid.UUID
	parts  []*testPart
}

type testPart struct {
	leader    int // index of the node; -1: none
	producers map[uint64]*testProducer
	batches   [][]byte
	oldest    batch.MsgID // messages below were removed
	next      batch.MsgID
	decoded   []Message // of the first read batches
	read      int
}

type testProducer struct {
	name  string
	id    uint64
	epoch uint32
	next  uint32
	last  []batch.Header
}

type testNode struct {
	cluster *testCluster
	index   int
	address string

	announces string // another address than its own; "": it announces its own
	stop      context.CancelFunc
	done      chan struct{}
	conns     map[*netproto.Conn]*testSession
}

type testSession struct {
	known   bool
	topics  []string
	readers map[uint64]*testReader
	subs    map[uint64]*testSub
}

type testReader struct {
	part   *testPart
	next   batch.MsgID
	credit int
	told   bool // the first answer was sent
}

// newTestCluster starts nodes.
func newTestCluster(t testing.TB, nodes int, change ...func(*testCluster)) *testCluster {
	t.Helper()
	c := &testCluster{t: t, topics: map[string]*testTopic{}, revision: 1, channels: map[string]*testChannel{}}
	for _, f := range change {
		f(c)
	}
	for i := range nodes {
		c.nodes = append(c.nodes, &testNode{cluster: c, index: i})
		c.start(i)
	}
	t.Cleanup(func() {
		for i := range c.nodes {
			c.halt(i)
		}
	})
	return c
}

// start lets a node listen, at the address that it had before if it had one.
func (c *testCluster) start(i int) {
	c.t.Helper()
	n := c.nodes[i]
	at := n.address
	if at == "" {
		at = "127.0.0.1:0"
	}
	ln, err := net.Listen("tcp", at)
	if err != nil {
		c.t.Fatal(err)
	}
	n.address = ln.Addr().String()
	c.mu.Lock()
	n.conns = map[*netproto.Conn]*testSession{}
	c.mu.Unlock()
	if c.tls != nil {
		ln = tls.NewListener(ln, c.tls)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.stop, n.done = cancel, make(chan struct{})
	hello := netproto.Hello{
		Role: netproto.RoleNode, NodeID: "n", Cluster: netproto.ID{1}, Store: netproto.ID{2}, Boot: netproto.ID{3},
		MinVersion: 1, MaxVersion: 1, WindowBytes: c.window,
	}
	o := netproto.Options{Hello: hello, Handler: n, CloseTimeout: 100 * time.Millisecond}
	go func() {
		defer close(n.done)
		_ = netproto.Serve(ctx, ln, o, func() int { return 100 }, nil)
	}()
}

// halt cuts a node's connections and ends it.
func (c *testCluster) halt(i int) {
	c.cut(i)
	c.nodes[i].stop()
	<-c.nodes[i].done
}

// cut ends the node's connections.
func (c *testCluster) cut(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.nodes[i].conns {
		conn.Abort(nil)
	}
}

// create makes a topic whose partitions are led by the nodes in turn.
func (c *testCluster) create(name string, partitions int) *testTopic {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.createLocked(name, partitions)
}

func (c *testCluster) createLocked(name string, partitions int) *testTopic {
	t := &testTopic{id: uuid.New()}
	for i := range partitions {
		t.parts = append(t.parts, &testPart{leader: i % len(c.nodes), producers: map[uint64]*testProducer{}})
	}
	c.topics[name] = t
	c.pushLocked()
	return t
}

// change changes something of the cluster, and tells the clients.
func (c *testCluster) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	c.pushLocked()
}

func (c *testCluster) pushLocked() {
	c.revision++
	for _, n := range c.nodes {
		for conn, s := range n.conns {
			if len(s.topics) > 0 {
				n.send(conn, wire.TypeMetadataReply, 0, netproto.StatusOK, wire.Append(nil, c.metadataLocked(s.topics)))
			}
		}
	}
}

func (c *testCluster) metadataLocked(names []string) *wire.Metadata {
	m := &wire.Metadata{Revision: c.revision}
	for _, n := range c.nodes {
		m.Nodes = append(m.Nodes, wire.Node{Name: "n", Address: cmp.Or(n.announces, n.address)})
	}
	for _, name := range names {
		t := wire.Topic{Name: name, Status: netproto.StatusRejected}
		if at := c.topics[name]; at != nil {
			if t.Status = netproto.StatusUnproven; at.hidden {
				m.Topics = append(m.Topics, t)
				continue
			}
			t.Status, t.ID = netproto.StatusOK, at.id
			for _, p := range at.parts {
				leader := uint16(wire.NoLeader)
				if p.leader >= 0 {
					leader = uint16(p.leader)
				}
				t.Partitions = append(t.Partitions, wire.Partition{Leader: leader, Epoch: 1})
			}
		}
		m.Topics = append(m.Topics, t)
	}
	return m
}

func (n *testNode) send(c *netproto.Conn, typ netproto.Type, request uint64, status netproto.Status, head []byte) {
	_ = c.TrySend(&netproto.Frame{Type: typ, Request: request, Status: status, Head: head})
}

func (n *testNode) refuse(c *netproto.Conn, typ netproto.Type, request uint64, status netproto.Status) {
	n.send(c, typ, request, status, wire.Append(nil, &wire.Outcome{Text: "refused by the test"}))
}

func (n *testNode) Closed(c *netproto.Conn, _ error) {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	if s := n.conns[c]; s != nil {
		for _, sub := range s.subs {
			n.unsubscribe(s, sub)
		}
	}
	delete(n.conns, c)
	n.cluster.deliverAll()
}

func (n *testNode) Frames(c *netproto.Conn, frames []netproto.Received) error {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	s := n.conns[c]
	if s == nil {
		s = &testSession{readers: map[uint64]*testReader{}, subs: map[uint64]*testSub{}}
		n.conns[c] = s
	}
	for i := range frames {
		if err := n.frame(c, s, &frames[i]); err != nil {
			return err
		}
	}
	return nil
}

func (n *testNode) frame(c *netproto.Conn, s *testSession, f *netproto.Received) error {
	if f.Type != wire.TypeAuth && !s.known {
		n.refuse(c, f.Type+1, f.Request, netproto.StatusUnproven)
		return nil
	}
	switch f.Type {
	case wire.TypeAuth:
		var m wire.Auth
		if err := wire.Decode(f.Payload, &m); err != nil {
			return err
		}
		if n.cluster.token != "" && m.Token != n.cluster.token {
			n.refuse(c, wire.TypeAuthAck, f.Request, netproto.StatusUnproven)
			return nil
		}
		s.known = true
		n.send(c, wire.TypeAuthAck, f.Request, netproto.StatusOK, wire.Append(nil, new(wire.Outcome)))
	case wire.TypeMetadata:
		var m wire.MetadataRequest
		if err := wire.Decode(f.Payload, &m); err != nil {
			return err
		}
		if m.Create && n.cluster.creates != nil {
			for _, name := range m.Topics {
				n.cluster.creates <- name
			}
			return nil
		}
		s.topics = m.Topics
		for _, name := range m.Topics {
			if m.Create && n.cluster.topics[name] == nil {
				n.cluster.createLocked(name, 1)
			}
		}
		if n.cluster.mute {
			return nil
		}
		n.send(c, wire.TypeMetadataReply, f.Request, netproto.StatusOK, wire.Append(nil, n.cluster.metadataLocked(m.Topics)))
	case wire.TypeOpenProducer:
		return n.openProducer(c, f)
	case wire.TypeProduce:
		return n.produce(c, f)
	case wire.TypeRead:
		return n.read(c, s, f)
	case wire.TypeReadCredit:
		var m wire.ReadCredit
		if err := wire.Decode(f.Payload, &m); err != nil {
			return err
		}
		if r := s.readers[f.Request]; r != nil {
			r.credit += int(m.Bytes)
			n.deliver(c, f.Request, r)
		}
	case wire.TypeReadEnd:
		delete(s.readers, f.Request)
	default:
		return n.consume(c, s, f)
	}
	return nil
}

// part returns a partition that the node leads, or nil.
func (n *testNode) part(topic uuid.UUID, partition uint32) *testPart {
	for _, t := range n.cluster.topics {
		if t.id == topic && int(partition) < len(t.parts) && t.parts[partition].leader == n.index {
			return t.parts[partition]
		}
	}
	return nil
}

func (n *testNode) openProducer(c *netproto.Conn, f *netproto.Received) error {
	var m wire.OpenProducer
	if err := wire.Decode(f.Payload, &m); err != nil {
		return err
	}
	p := n.part(m.Topic, m.Partition)
	if p == nil {
		n.refuse(c, wire.TypeProducer, f.Request, netproto.StatusNotLeader)
		return nil
	}
	n.cluster.opens++
	var with *testProducer
	for _, q := range p.producers {
		if m.Name != "" && q.name == m.Name {
			with = q
		}
	}
	if with == nil {
		with = &testProducer{name: m.Name, id: uint64(1000 + n.cluster.opens)}
		p.producers[with.id] = with
	}
	with.epoch++
	with.last = nil
	answer := wire.Producer{ID: with.id, Epoch: with.epoch, Sequence: with.next}
	n.send(c, wire.TypeProducer, f.Request, netproto.StatusOK, wire.Append(nil, &answer))
	return nil
}

func (n *testNode) produce(c *netproto.Conn, f *netproto.Received) error {
	var m wire.Produce
	if err := wire.Decode(f.Payload, &m); err != nil {
		return err
	}
	sealed := append([]byte(nil), f.Payload[wire.ProduceBytes:]...)
	var h batch.Header
	if err := h.Decode(sealed); err != nil {
		return err
	}
	if err := batch.VerifyBody(&h, sealed[batch.HeaderBytes:]); err != nil {
		return err
	}
	p := n.part(m.Topic, m.Partition)
	if p == nil {
		n.refuse(c, wire.TypeProduced, f.Request, netproto.StatusNotLeader)
		return nil
	}
	status, store, cut := netproto.StatusOK, true, false
	if n.cluster.fault != nil {
		status, store, cut = n.cluster.fault(n, &h)
	}
	var answer wire.Produced
	if most := n.cluster.maxBody; most > 0 && longestBody(&h, sealed) > most {
		status, store = netproto.StatusTooBig, false
	}
	if store {
		var judged netproto.Status
		if judged, answer = p.store(&h, sealed); status == netproto.StatusOK {
			status = judged
		}
	}
	switch {
	case cut:
		c.Abort(nil)
	case status != netproto.StatusOK:
		n.refuse(c, wire.TypeProduced, f.Request, status)
	case n.cluster.hold && m.Partition == 0:
		request := f.Request
		n.cluster.held = append(n.cluster.held, func() {
			n.send(c, wire.TypeProduced, request, netproto.StatusOK, wire.Append(nil, &answer))
		})
	default:
		n.send(c, wire.TypeProduced, f.Request, netproto.StatusOK, wire.Append(nil, &answer))
	}
	for conn, s := range n.conns {
		for request, r := range s.readers {
			n.deliver(conn, request, r)
		}
	}
	n.cluster.deliverAll()
	return nil
}

func longestBody(h *batch.Header, sealed []byte) (most int) {
	records, err := batch.DecompressBody(h, sealed[batch.HeaderBytes:], nil)
	if err != nil {
		panic(err)
	}
	var it batch.RecordIter
	it.Reset(h, records)
	for r, ok := it.Next(); ok; r, ok = it.Next() {
		most = max(most, len(r.Body))
	}
	return most
}

// store stores a batch by the rules of producers.
func (p *testPart) store(h *batch.Header, sealed []byte) (netproto.Status, wire.Produced) {
	with := p.producers[h.ProducerID]
	switch {
	case with == nil || h.ProducerEpoch > with.epoch:
		return netproto.StatusDiverged, wire.Produced{}
	case h.ProducerEpoch < with.epoch:
		return netproto.StatusOldEpoch, wire.Produced{}
	case h.BaseSequence != with.next:
		for _, b := range with.last {
			if b.BaseSequence == h.BaseSequence && b.Count == h.Count {
				return netproto.StatusOK, wire.Produced{First: uint64(b.FirstID), Duplicate: true}
			}
		}
		return netproto.StatusGap, wire.Produced{}
	}
	batch.Stamp(sealed, batch.Position(len(p.batches)), p.next, 1, time.Now().UnixNano(), 0)
	h.FirstID = p.next
	with.last = append(with.last, *h)
	with.last = with.last[max(len(with.last)-MaxInFlight, 0):]
	with.next += h.Count
	p.batches = append(p.batches, sealed)
	p.next += batch.MsgID(h.Count)
	return netproto.StatusOK, wire.Produced{First: uint64(h.FirstID)}
}

func (n *testNode) read(c *netproto.Conn, s *testSession, f *netproto.Received) error {
	var m wire.Read
	if err := wire.Decode(f.Payload, &m); err != nil {
		return err
	}
	p := n.part(m.Topic, m.Partition)
	if p == nil {
		n.refuse(c, wire.TypeReadEnd, f.Request, netproto.StatusNotLeader)
		return nil
	}
	r := &testReader{part: p, credit: int(m.Credit)}
	switch m.From {
	case wire.FromID:
		r.next = ID(m.Value).MsgID()
	case wire.FromOldest:
		r.next = p.oldest
	case wire.FromNewest:
		r.next = p.next
	case wire.FromTime:
		r.next = p.next
		for i := len(p.batches) - 1; i >= 0; i-- {
			var h batch.Header
			if err := h.Decode(p.batches[i]); err != nil {
				return err
			}
			if h.Appended >= m.Value {
				r.next = h.FirstID
			}
		}
	}
	if r.next < p.oldest {
		end := wire.Outcome{First: uint64(p.oldest), Text: "gone"}
		n.send(c, wire.TypeReadEnd, f.Request, netproto.StatusRejected, wire.Append(nil, &end))
		return nil
	}
	s.readers[f.Request] = r
	n.deliver(c, f.Request, r)
	return nil
}

// deliver sends a reader what its credit allows. The first answer comes at once, even if there is nothing.
func (n *testNode) deliver(c *netproto.Conn, request uint64, r *testReader) {
	var out []byte
	next := r.next
	for _, b := range r.part.batches {
		var h batch.Header
		if h.Decode(b) != nil || h.NextID() <= r.next || r.credit <= 0 {
			continue
		}
		out = append(out, b...)
		r.credit -= len(b)
		r.next = h.NextID()
	}
	if len(out) == 0 && r.told {
		return
	}
	r.told = true
	head := wire.Records{Next: uint64(next), Newest: uint64(r.part.next)}
	_ = c.TrySend(&netproto.Frame{
		Type: wire.TypeRecords, Flags: netproto.FlagSelfChecked, Request: request, Head: wire.Append(nil, &head),
		Body: [][]byte{out},
	})
}

// bodies returns the bodies that a partition stores.
func (c *testCluster) bodies(p *testPart) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.t
	t.Helper()
	var out []string
	for _, b := range p.batches {
		var h batch.Header
		if err := h.Decode(b); err != nil {
			t.Fatal(err)
		}
		records, err := batch.DecompressBody(&h, b[batch.HeaderBytes:], nil)
		if err != nil {
			t.Fatal(err)
		}
		var it batch.RecordIter
		it.Reset(&h, records)
		for {
			r, ok := it.Next()
			if !ok {
				break
			}
			out = append(out, string(r.Body))
		}
		if it.Err() != nil {
			t.Fatal(it.Err())
		}
	}
	return out
}
