package node_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/netproto"
)

// deliveryOrder is the order in which all nodes together handed the messages of a lane to clients.
type deliveryOrder struct {
	mu  sync.Mutex
	all []string
}

// recordingClient is a remoteTestClient that records its deliveries in a deliveryOrder.
type recordingClient struct {
	*remoteTestClient
	name string
	h    *deliveryOrder
}

func (w *recordingClient) Deliver(d *node.Delivery) bool {
	w.h.mu.Lock()
	w.h.all = append(w.h.all, fmt.Sprintf("%s at %s", d.Body, w.name))
	w.h.mu.Unlock()
	return w.remoteTestClient.Deliver(d)
}

// record subscribes at a node, with a client that records its deliveries in h.
func (tc *testCluster) record(h *deliveryOrder, m *testNode, ready int, o node.ConsumerOptions) *recordingClient {
	tc.t.Helper()
	client := &testClient{t: tc.t, came: make(chan struct{}, 1)}
	w := &recordingClient{remoteTestClient: &remoteTestClient{testClient: client}, name: m.name, h: h}
	tc.eventually("it is subscribed", func() bool { // again, as servers do, while leaderships move
		c, err := tc.topic(m, "t").Channel(tc.t.Context(), "c")
		if err == nil {
			w.Consumer, err = c.SubscribeClient(tc.t.Context(), o, w)
		}
		if err != nil && !errors.Is(err, errs.ErrMoved) {
			tc.t.Fatal(err)
		}
		return err == nil
	})
	if err := w.Consumer.Ready(ready); err != nil {
		tc.t.Fatal(err)
	}
	w.Consumer.Pump()
	return w
}

// newOrderedCluster starts four nodes, three of which have a copy of the only partition of an ordered topic. between
// has no copy, and other leads no partition.
func newOrderedCluster(t *testing.T, order fold.Order) (tc *testCluster, leader, other, between *testNode) {
	t.Helper()
	tc = newTestCluster(t, 4, func(o *node.Options) { o.Cluster.Replicas = 3 })
	tc.create("t", 1)
	tc.createOrderedChannel(order)
	leader = tc.leader("t", 0)
	for _, m := range tc.others(leader) {
		if row := m.row("t", 0); !containsNode(row.State.Replicas, m.e.Node().ID) {
			between = m
		} else {
			other = m
		}
	}
	return tc, leader, other, between
}

// createOrderedChannel creates the ordered channel c of topic t, and waits until the feature level is in force at which
// nodes hold its deliveries.
func (tc *testCluster) createOrderedChannel(order fold.Order) {
	tc.t.Helper()
	configureChannel(tc.t, tc.channel("t", "c"), func(s *fold.ChannelSettings) {
		s.Order = order
		if order == fold.OrderKey {
			s.KeyHeader = "key"
		}
	})
	tc.eventually("the feature level is in force", func() bool {
		for _, m := range tc.running() {
			if m.e.Level() < node.NewestLevel {
				return false
			}
		}
		return true
	})
}

// forward checks that no node handed over a message of the lane m0, m1, ... after a later one, and none again after the
// next one.
func (h *deliveryOrder) forward(t *testing.T) {
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

// A node between leader and client stands still with a message of an ordered channel in its sockets. The message times
// out, or the connection ends; another client finishes it and gets the next one. When the node goes on, it must not
// hand the message over.
//
// B57 at a node that leads nothing.
func TestRemoteOrderedLate(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprintf("connection ends %v", cut), func(t *testing.T) {
			t.Parallel()
			tc, leader, other, between := newOrderedCluster(t, fold.OrderPartition)
			h := &deliveryOrder{}
			a := tc.record(h, between, 1, node.ConsumerOptions{MsgTimeout: time.Second})
			hold := tc.network.holdAside
			if cut {
				hold = tc.network.hold
			}
			held, release := hold(leader.name, between.name, deliverKind)
			defer release()
			publish(t, tc.topic(leader, "t"), "m0", "m1", "m2")
			<-held
			b := tc.record(h, other, 1, node.ConsumerOptions{})
			if cut {
				tc.network.part(leader.name, between.name)
			}
			for range 2 { // m0 comes here, and then m1
				m := b.next()
				b.done(m)
			}
			third := b.next()
			release()
			tc.eventually("the node in between has looked at what came", func() bool {
				return cut || between.e.Storage().RemoteExpired+between.e.Storage().RemoteStale > 0
			})
			b.done(third)
			publish(t, tc.topic(leader, "t"), "m3") // a and b live on
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
			tc.eventually("the channel is empty", func() bool {
				s := channelStats(t, tc.channelAt(leader, "t", "c"))
				return s.Depth == 0 && s.InFlightCount == 0
			})
			h.forward(t)
		})
	}
}

// The leader hands its leadership over while a message of an ordered channel is on its way through a node that has no
// news of that. The next leader lets the order go on only when that node will not hand the message over any more.
//
// B57, B68 at a node that leads nothing.
func TestRemoteOrderedLateOfOldLeader(t *testing.T) {
	t.Parallel()
	tc, leader, other, between := newOrderedCluster(t, fold.OrderKey)
	h := &deliveryOrder{}
	tc.record(h, between, 1, node.ConsumerOptions{})
	held, release := tc.network.holdAside(leader.name, between.name, deliverKind)
	defer release()
	_, releaseEnd := tc.network.holdAside(leader.name, between.name, netproto.TypeUnserved) // it stays behind the message
	defer releaseEnd()
	key := []node.Header{{Key: []byte("key"), Value: []byte("k")}}
	for i := range 3 {
		if _, err := tc.topic(leader, "t").PublishMessages(t.Context(), []node.Outgoing{
			{Body: fmt.Appendf(nil, "m%d", i), Headers: key},
		}); err != nil {
			t.Fatal(err)
		}
	}
	<-held
	tc.kv.Cut(between.client) // it hears nothing of the store from here on; its lease lives
	tc.drainNode(leader, "t")
	b := tc.record(h, other, 1, node.ConsumerOptions{})
	for range 2 {
		b.done(b.next())
	}
	third := b.next()
	release()
	releaseEnd()
	tc.eventually("the node in between has looked at what came", func() bool {
		return between.e.Storage().RemoteStale > 0
	})
	b.done(third)
	tc.eventually("the channel is empty", func() bool {
		s := channelStats(t, tc.channelAt(tc.leader("t", 0), "t", "c"))
		return s.Depth == 0 && s.InFlightCount == 0
	})
	h.forward(t)
}

// A node leads two partitions and loses one of them while a message of the other is on its way through another node.
// The channel goes on with the partition that stays, and remembers that the message may still be handed over there.
//
// B57 at a node that leads nothing.
func TestRemoteOrderedLateWhenAPartitionGoes(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 2)
	tc.createOrderedChannel(fold.OrderPartition)
	leader := tc.leader("t", 0)
	tc.moveLeadership("t", 1, leader)
	next, between := tc.others(leader)[0], tc.others(leader)[1]
	h := &deliveryOrder{}
	a := tc.record(h, between, 1, node.ConsumerOptions{MsgTimeout: time.Second})
	held, release := tc.network.holdAside(leader.name, between.name, deliverKind)
	defer release()
	_, releaseEnd := tc.network.holdAside(leader.name, between.name, netproto.TypeUnserved) // it stays behind the message
	defer releaseEnd()
	for i := range 3 {
		tc.publishIn("t", 0, fmt.Sprint("m", i))
	}
	<-held
	tc.moveLeadership("t", 1, next)
	tc.eventually("the leader's consumers are told", func() bool {
		return len(channelStats(t, tc.channelAt(leader, "t", "c")).Consumers) == 0
	})
	b := tc.record(h, leader, 1, node.ConsumerOptions{})
	for range 2 {
		b.done(b.next())
	}
	third := b.next()
	release()
	releaseEnd()
	tc.eventually("the node in between has looked at what came", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		s := between.e.Storage()
		return s.RemoteExpired+s.RemoteStale > 0 || h.all[len(h.all)-1] == "m0 at "+between.name
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
