package forward

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node/clock"
	"penstock/internal/node/errs"
	"penstock/internal/node/inbox"
	"penstock/internal/node/message"
	"penstock/internal/node/platform"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/peer"
	"penstock/segment"
)

// wires is the connection between node 1, where producers are, and node 2, which leads. A frame lies in queue until
// carry hands it over, so that a test can lose it.
type wires struct {
	up    bool
	queue []*netproto.Received
	nodes map[replicate.NodeID]*Forwarder
	box   *inbox.Inbox // of node 2
	puts  int          // that arrived at node 2, without those that only ask
}

// port is one node's end.
type port struct {
	*wires
	self replicate.NodeID
}

func (p port) SetNodes(map[replicate.NodeID]*peer.Node)          {}
func (p port) AwaitRoom(context.Context, replicate.NodeID) error { return nil }
func (p port) Connected(replicate.NodeID) bool                   { return p.up }
func (p port) Disconnect(replicate.NodeID, error)                {}
func (p port) Close()                                            {}

func (p port) TrySend(_ replicate.NodeID, f *netproto.Frame) error {
	if !p.up {
		return peer.ErrNotConnected
	}
	r := new(netproto.Received)
	r.Header = netproto.Header{Type: f.Type, Status: f.Status, Request: f.Request}
	r.Payload = append(r.Payload, f.Head...)
	for _, b := range f.Body {
		r.Payload = append(r.Payload, b...)
	}
	if f.Owner != nil {
		f.Owner.Release()
	}
	p.queue = append(p.queue, r)
	return nil
}

// carry hands over what is on its way.
func (w *wires) carry() {
	for len(w.queue) > 0 {
		r := w.queue[0]
		w.queue = w.queue[1:]
		if r.Type == netproto.TypeForwardAck {
			w.nodes[1].HandleAck(2, r)
		} else if w.nodes[2].HandlePut(1, r) != nil {
			w.puts++
		}
	}
}

// cut ends the connection and what is on its way.
func (w *wires) cut(ended bool) {
	w.up, w.queue = false, nil
	w.nodes[1].PeerLost(2, ended)
	w.nodes[2].PeerLost(1, false)
}

// join connects the nodes again.
func (w *wires) join() {
	w.up = true
	w.nodes[1].Wake()
	w.carry()
}

// store stores what is in node 2's inbox. The first message gets this id.
func (w *wires) store(first message.ID) {
	stored := w.box.Drain()
	for p := stored.Pop(); p != nil; p = stored.Pop() {
		p.First = first
		inbox.Answer(p, nil)
	}
}

// lead is a partition, as node 1 sees it.
type lead struct {
	box  *inbox.Inbox
	node replicate.NodeID
}

func (l *lead) Identity() segment.Identity { return segment.Identity{} }
func (l *lead) Box() *inbox.Inbox          { return l.box }
func (l *lead) Target() replicate.NodeID   { return l.node }
func (l *lead) Announce(bool)              {}

func newBox(leads bool) *inbox.Inbox {
	n := new(inbox.Shared)
	n.Limit(inbox.Bounds{MaxInboxBytes: 1 << 20, MaxNodeInboxBytes: 1 << 20, AdmitTimeout: -1})
	n.Tell(new(atomic.Uint64), func() {})
	b := new(inbox.Inbox)
	b.Use(n)
	b.SetLeads(leads)
	return b
}

// newWires returns two nodes that are connected, and what node 1 knows of the partition that node 2 leads.
func newWires() (*wires, *lead) {
	start := time.Now()
	now := clock.New(func() time.Time { return start }, func() time.Duration { return 0 })
	limits := inbox.NewLimits(inbox.Sizes{MaxBatchBytes: 1 << 20, MaxMessageBytes: 1 << 10, MaxHeaderBytes: 1 << 10})
	w := &wires{up: true, box: newBox(true), nodes: map[replicate.NodeID]*Forwarder{}}
	far := &lead{box: newBox(false), node: 2}
	for id, pt := range map[replicate.NodeID]Partition{1: far, 2: &lead{box: w.box}} {
		w.nodes[id] = New(Env{
			Peers: &platform.Peers{Network: platform.Simulated(port{w, id}), Self: id}, Clock: now, Limits: &limits,
			Now: func() int64 { return 0 }, MaxBytes: func() int64 { return 1 << 20 },
			Timeout:    func() time.Duration { return time.Second },
			Overloaded: new(atomic.Uint64), First: 100, Find: func(segment.Identity) Partition { return pt },
		})
	}
	return w, far
}

// put gives node 1 a put, and collects its answers.
func (w *wires) put(t *testing.T, far *lead, body string) *[]error {
	answers := new([]error)
	p := &inbox.Put{Messages: [][]byte{[]byte(body)}}
	p.Done = func(p *inbox.Put) { *answers = append(*answers, p.Err) }
	p.Bytes, p.Box = len(body), far.box
	if err := w.nodes[1].Enqueue(far, p); err != nil {
		t.Fatal(err)
	}
	return answers
}

// When a connection ends, the fate of the puts on it is asked for, and not unknown as long as somebody knows it.
func TestForwardedPutIsAskedFor(t *testing.T) {
	for _, c := range []struct {
		what string
		lose func(w *wires, far *lead) // the put was sent; afterwards the nodes are connected again
		err  error
		puts int // that arrive at the leader
	}{
		{"the put is lost", func(w *wires, _ *lead) { w.cut(false) }, nil, 1},
		{"the answer is lost", func(w *wires, _ *lead) { w.carry(); w.store(7); w.cut(false) }, nil, 1},
		{"it is stored later", func(w *wires, _ *lead) { w.carry(); w.cut(false); w.store(7) }, nil, 1},
		{"it is stored after the nodes are connected again", func(w *wires, _ *lead) { w.carry(); w.cut(false) }, nil, 1},
		{
			"the leader's process ends",
			func(w *wires, _ *lead) { w.carry(); w.store(7); w.cut(true) }, errs.ErrUnknown, 1,
		},
		{
			"another node leads before they are connected", func(w *wires, far *lead) {
				w.carry()
				w.cut(false)
				far.node = 3
				w.nodes[1].Wake()
			}, errs.ErrUnknown, 1,
		},
		{
			"the leader's process is another one", func(w *wires, _ *lead) {
				w.carry()
				w.store(7)
				w.cut(false)
				w.nodes[2].arrivals = arrivals{}
			}, errs.ErrUnknown, 1,
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			w, far := newWires()
			earlier := w.put(t, far, "earlier") // the leader knows node 1 from then on
			w.carry()
			w.store(1)
			w.carry()
			if len(*earlier) != 1 || (*earlier)[0] != nil {
				t.Fatalf("without a fault it is answered %v", *earlier)
			}
			w.puts = 0
			answers := w.put(t, far, "one")
			c.lose(w, far)
			w.join() // it is asked for
			w.join() // and sent again if it did not arrive
			w.store(7)
			w.carry()
			if len(*answers) != 1 || !errors.Is((*answers)[0], c.err) || w.puts != c.puts {
				t.Errorf("it is answered %v, want %v; the leader got %d puts, want %d", *answers, c.err, w.puts, c.puts)
			}
			n, f := uint64(0), w.nodes[1]
			if c.err != nil {
				n = 1
			}
			if f.Unknown() != n || f.bytes != 0 || len(f.inFlight) != 0 || len(f.lanes) != 0 {
				t.Errorf("%d puts count as unknown, %d bytes are left", f.Unknown(), f.bytes)
			}
		})
	}
}

// A put of which the leader has said that it did not arrive is refused when it arrives after all: it was sent again.
func TestForwardedPutThatComesLateIsRefused(t *testing.T) {
	w, far := newWires()
	w.put(t, far, "earlier")
	w.carry()
	answers := w.put(t, far, "one")
	late := w.queue[0]
	w.cut(false)
	w.join()
	if w.nodes[2].HandlePut(1, late) != nil {
		t.Error("it is taken")
	}
	w.store(1)
	w.join()
	w.store(2)
	w.join()
	if left := w.box.Drain(); len(*answers) != 1 || (*answers)[0] != nil || left.Count() != 0 {
		t.Errorf("it is answered %v", *answers)
	}
}

// A leader that does not know the partition yet refuses what it cannot store, and then the rest of the run, too, once
// it knows the partition: what comes behind must not be stored before what is sent again.
func TestForwardedPutsKeepTheirOrderAtANewPartition(t *testing.T) {
	w, far := newWires()
	known := w.nodes[2].n.Find
	w.nodes[2].n.Find = func(segment.Identity) Partition { return nil }
	w.put(t, far, "first")
	r := w.queue[0]
	w.queue = nil
	if w.nodes[2].HandlePut(1, r) != nil {
		t.Fatal("a partition that the node does not know takes a put")
	}
	refusal := w.queue
	w.queue = nil
	w.nodes[2].n.Find = known
	w.put(t, far, "second") // before the refusal arrives
	if w.carry(); w.puts != 0 {
		t.Fatal("the second put is taken before the first one")
	}
	w.queue = refusal
	w.carry()
	w.join()
	if left := w.box.Drain(); left.Count() != 2 || string(left.First().Messages[0]) != "first" {
		t.Errorf("the leader has %d puts, the first of them %q", left.Count(), left.First().Messages[0])
	}
}
