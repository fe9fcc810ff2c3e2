package engine_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"penstock/engine"
	"penstock/netproto"
)

// handed is the order in which all nodes together handed a lane's messages to clients.
type handed struct {
	mu  sync.Mutex
	all []string
}

// witness is a guest that says when it got what.
type witness struct {
	*guest
	name string
	h    *handed
}

func (w *witness) Deliver(d *engine.Delivery) bool {
	w.h.mu.Lock()
	w.h.all = append(w.h.all, fmt.Sprintf("%s at %s", d.Body, w.name))
	w.h.mu.Unlock()
	return w.guest.Deliver(d)
}

// witness subscribes at a node whose clients tell h.
func (tr *trio) witness(h *handed, m *member, ready int, o engine.ConsumerOptions) *witness {
	tr.t.Helper()
	w := &witness{guest: &guest{seat: &seat{t: tr.t, came: make(chan struct{}, 1)}}, name: m.name, h: h}
	tr.eventually("it is subscribed", func() bool { // again, as servers do, while leaderships move
		c, err := tr.topic(m, "t").Channel(tr.t.Context(), "c")
		if err == nil {
			w.Consumer, err = c.Subscribe(tr.t.Context(), o, w)
		}
		if err != nil && !errors.Is(err, engine.ErrMoved) {
			tr.t.Fatal(err)
		}
		return err == nil
	})
	if err := w.Consumer.Ready(ready); err != nil {
		tr.t.Fatal(err)
	}
	w.Consumer.Pump()
	return w
}

// orderedTrio is four nodes, three of which have a copy of an ordered topic's only partition; between has none, and
// other leads nothing.
func orderedTrio(t *testing.T, order engine.Order) (tr *trio, leader, other, between *member) {
	t.Helper()
	tr = newTrio(t, 4, func(o *engine.Options) { o.Cluster.Replicas = 3 })
	tr.create("t", 1)
	tr.ordered(order)
	leader = tr.leader("t", 0)
	for _, m := range tr.others(leader) {
		if row := m.row("t", 0); !containsNode(row.State.Replicas, m.e.Node().ID) {
			between = m
		} else {
			other = m
		}
	}
	return tr, leader, other, between
}

// ordered makes channel c of topic t, which is ordered, and waits until nodes hold its deliveries (the feature level).
func (tr *trio) ordered(order engine.Order) {
	tr.t.Helper()
	configureChannel(tr.t, tr.channel("t", "c"), func(s *engine.ChannelSettings) {
		s.Order = order
		if order == engine.OrderKey {
			s.KeyHeader = "key"
		}
	})
	tr.eventually("the feature level is in force", func() bool {
		for _, m := range tr.up() {
			if m.e.Level() < engine.NewestLevel {
				return false
			}
		}
		return true
	})
}

// forward holds that no node handed over a message of the lane m0, m1, ... when a later one had been, nor one again
// after the next.
func (h *handed) forward(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	last := -1
	for _, text := range h.all {
		var n int
		if _, err := fmt.Sscanf(text, "m%d", &n); err != nil {
			t.Fatal(err)
		}
		if n < last {
			t.Errorf("m%d was handed over after m%d: %v", n, last, h.all)
			return
		}
		last = n
	}
}

// A node in between stands still with a message of an ordered channel in its sockets: the message times out, or the
// connection ends, somebody else finishes it and gets the next one. What the node finds when it goes on it does not
// hand over.
//
// B57 at a node that leads nothing.
func TestRemoteOrderedLate(t *testing.T) {
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprintf("connection ends %v", cut), func(t *testing.T) {
			t.Parallel()
			tr, leader, other, between := orderedTrio(t, engine.OrderPartition)
			h := &handed{}
			a := tr.witness(h, between, 1, engine.ConsumerOptions{MsgTimeout: time.Second})
			hold := tr.wires.holdAside
			if cut {
				hold = tr.wires.hold
			}
			held, release := hold(leader.name, between.name, deliverKind)
			defer release()
			publish(t, tr.topic(leader, "t"), "m0", "m1", "m2")
			<-held
			b := tr.witness(h, other, 1, engine.ConsumerOptions{})
			if cut {
				tr.wires.part(leader.name, between.name)
			}
			for range 2 { // m0 comes here, and then m1
				m := b.next()
				b.done(m)
			}
			third := b.next()
			release()
			tr.eventually("the node in between has looked at what came", func() bool {
				return cut || between.e.RemoteStats().Expired+between.e.RemoteStats().Stale > 0
			})
			b.done(third)
			publish(t, tr.topic(leader, "t"), "m3") // a and b live on
			go func() {
				for m, ok := a.poll(patience); ok; m, ok = a.poll(patience) {
					a.done(m)
				}
			}()
			go func() {
				for m, ok := b.poll(patience); ok; m, ok = b.poll(patience) {
					b.done(m)
				}
			}()
			tr.eventually("the channel is empty", func() bool {
				s := channelStats(t, tr.at(leader, "t", "c"))
				return s.Depth == 0 && s.InFlightCount == 0
			})
			h.forward(t)
		})
	}
}

// The leader hands over while a message of an ordered channel is on its way through a node that has not heard of it:
// the next leader lets the order go on only when that node will not hand the message over any more.
//
// B57, B68 at a node that leads nothing.
func TestRemoteOrderedLateOfOldLeader(t *testing.T) {
	t.Parallel()
	tr, leader, other, between := orderedTrio(t, engine.OrderKey)
	h := &handed{}
	tr.witness(h, between, 1, engine.ConsumerOptions{})
	held, release := tr.wires.holdAside(leader.name, between.name, deliverKind)
	defer release()
	_, releaseEnd := tr.wires.holdAside(leader.name, between.name, netproto.TypeUnserved) // it stays behind the message
	defer releaseEnd()
	key := []engine.Header{{Key: []byte("key"), Value: []byte("k")}}
	for i := range 3 {
		if _, err := tr.topic(leader, "t").PublishMessages(t.Context(), []engine.Outgoing{
			{Body: fmt.Appendf(nil, "m%d", i), Headers: key},
		}); err != nil {
			t.Fatal(err)
		}
	}
	<-held
	tr.kv.Cut(between.client) // it hears nothing of the store from here on; its lease lives
	tr.drain(leader, "t")
	b := tr.witness(h, other, 1, engine.ConsumerOptions{})
	for range 2 {
		b.done(b.next())
	}
	third := b.next()
	release()
	releaseEnd()
	tr.eventually("the node in between has looked at what came", func() bool { return between.e.RemoteStats().Stale > 0 })
	b.done(third)
	tr.eventually("the channel is empty", func() bool {
		s := channelStats(t, tr.at(tr.leader("t", 0), "t", "c"))
		return s.Depth == 0 && s.InFlightCount == 0
	})
	h.forward(t)
}

// A node leads two partitions and loses one of them while a message of the other is on its way through another node:
// the channel goes on with the partition that stays, and knows that the message may still be handed over there.
//
// B57 at a node that leads nothing.
func TestRemoteOrderedLateWhenAPartitionGoes(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 2)
	tr.ordered(engine.OrderPartition)
	leader := tr.leader("t", 0)
	tr.handPartition("t", 1, leader)
	next, between := tr.others(leader)[0], tr.others(leader)[1]
	h := &handed{}
	a := tr.witness(h, between, 1, engine.ConsumerOptions{MsgTimeout: time.Second})
	held, release := tr.wires.holdAside(leader.name, between.name, deliverKind)
	defer release()
	_, releaseEnd := tr.wires.holdAside(leader.name, between.name, netproto.TypeUnserved) // it stays behind the message
	defer releaseEnd()
	for i := range 3 {
		tr.publishIn("t", 0, fmt.Sprint("m", i))
	}
	<-held
	tr.handPartition("t", 1, next)
	tr.eventually("the leader's consumers are told", func() bool {
		return len(channelStats(t, tr.at(leader, "t", "c")).Consumers) == 0
	})
	b := tr.witness(h, leader, 1, engine.ConsumerOptions{})
	for range 2 {
		b.done(b.next())
	}
	third := b.next()
	release()
	releaseEnd()
	tr.eventually("the node in between has looked at what came", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		s := between.e.RemoteStats()
		return s.Expired+s.Stale > 0 || h.all[len(h.all)-1] == "m0 at "+between.name
	})
	b.done(third)
	h.forward(t)
	a.Close()
}

const deliverKind = netproto.TypeDeliverHeld

func containsNode[T comparable](all []T, one T) bool {
	for _, n := range all {
		if n == one {
			return true
		}
	}
	return false
}
