package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
)

// remoteTestClient is a testClient that is connected to a node that may lead no partition. It is also a FailureSink;
// its mu guards failures.
type remoteTestClient struct {
	*testClient
	mu       sync.Mutex
	failures []string
}

func (g *remoteTestClient) Failed(what message.FailedCall, id node.ID, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failures = append(g.failures, fmt.Sprint(what, " ", id, " ", errors.Is(err, errs.ErrNotInFlight)))
}

func (g *remoteTestClient) failed() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.failures)
}

// done finishes a message that may be in flight to another client by now.
func (g *remoteTestClient) done(m delivered) {
	if err := g.Finish(m.id); err != nil && !errors.Is(err, errs.ErrNotInFlight) {
		g.t.Error(err)
	}
	g.Pump()
}

// subscribeAt subscribes at a node, whether or not it leads a partition of the topic.
func (tc *testCluster) subscribeAt(
	m *testNode, topic, channel string, ready int, o ...node.ConsumerOptions,
) *remoteTestClient {
	tc.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := tc.topic(m, topic).Channel(ctx, channel)
	if err != nil {
		tc.t.Fatal(err)
	}
	g := &remoteTestClient{testClient: &testClient{t: tc.t, came: make(chan struct{}, 1)}}
	k, err := c.SubscribeClient(ctx, append(o, node.ConsumerOptions{})[0], g)
	if err != nil {
		tc.t.Fatal(err)
	}
	g.Consumer = k
	if err := k.Ready(ready); err != nil {
		tc.t.Fatal(err)
	}
	k.Pump()
	return g
}

// label is a ConsumerOptions.Label with a text and a JSON form that differ.
type label string

func (l label) String() string { return "in words" }

func (l label) MarshalJSON() ([]byte, error) { return []byte(`"` + string(l) + `"`), nil }

// A consumer at a node that leads no partition gets all messages. FIN confirms at the leader; REQ, TOUCH and timeouts
// take effect there; the client is told what the leader refuses; and the leader's statistics name the client.
//
// B44, B47, B48, B50 on a proxied subscription.
func TestRemoteConsumer(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	l := tc.leader("t", 0)
	p := tc.others(l)[0]
	g := tc.subscribeAt(p, "t", "c", 50, node.ConsumerOptions{Label: label("a client")})
	want := numbered("m", 2000, 100)
	publish(t, tc.topic(p, "t"), want...)
	c := tc.channelAt(l, "t", "c")
	var got []string
	first := g.next()
	for _, cs := range channelStats(t, c).Consumers {
		remote, ok := cs.Label.(node.RemoteLabel)
		if !ok || remote.Node != p.name || string(remote.Client) != `"a client"` ||
			remote.String() != "in words at "+p.name || cs.ReadyCount != 50 || cs.InFlightCount > 50 {
			t.Errorf("the leader shows %+v", cs)
		}
	}
	if s := p.e.Stats("t", "c"); len(s) != 1 || len(s[0].Channels) != 0 {
		t.Errorf("the client's node shows it, too: %+v", s)
	}
	if err := g.Requeue(first.id, 0); err != nil {
		t.Fatal(err)
	}
	g.Pump()
	again := 0
	for len(got) < len(want) {
		m := g.next()
		if m.id == first.id {
			if again++; m.attempts != 2 {
				t.Errorf("requeued: attempt %d", m.attempts)
			}
		}
		if st := channelStats(t, c); st.InFlightCount > 50 {
			t.Fatalf("%d in flight, RDY 50", st.InFlightCount)
		}
		got = append(got, m.body)
		g.finish(m)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || again != 1 {
		t.Errorf("%d messages came, the requeued one %d times", len(got), again)
	}
	tc.eventually("everything is confirmed", func() bool {
		st := channelStats(t, c)
		return st.InFlightCount == 0 && st.Depth == 0
	})
	if err := g.Finish(first.id); err != nil { // a second time: the leader knows it is not in flight
		t.Fatal(err)
	}
	g.Pump()
	tc.eventually("the failure is told", func() bool {
		return slices.Equal(g.failed(), []string{fmt.Sprint(message.FailedFinish, " ", first.id, " true")})
	})
	g.Close()
	tc.eventually("the leader knows that the client left", func() bool { return len(channelStats(t, c).Consumers) == 0 })
	g = tc.subscribeAt(p, "t", "c", 50, node.ConsumerOptions{MsgTimeout: 1500 * time.Millisecond})
	g.timeouts(t, tc.topic(l, "t"))
	g.Close()
	tc.eventually("the leader knows that the client left", func() bool { return len(channelStats(t, c).Consumers) == 0 })
}

// timeouts checks that a message times out, and that TOUCH prevents that for its next delivery.
func (g *remoteTestClient) timeouts(t *testing.T, topic *node.Topic) {
	t.Helper()
	began := time.Now() // the first delivery may be long on its way to here
	publish(t, topic, "slow")
	g.next()
	m := g.next()
	if m.attempts != 2 || m.at.Sub(began) < 1490*time.Millisecond {
		t.Errorf("timed out: attempt %d after %v", m.attempts, m.at.Sub(began))
	}
	for range 5 {
		if again, ok := g.poll(450 * time.Millisecond); ok {
			t.Errorf("attempt %d of a message that was touched", again.attempts)
		}
		if err := g.Touch(m.id); err != nil {
			t.Fatal(err)
		}
		g.Pump()
	}
	g.finish(m)
	if again, ok := g.poll(1600 * time.Millisecond); ok {
		t.Errorf("%s came again after FIN, attempt %d", again.body, again.attempts)
	}
}

// When a client's node or the connection to it ends, the messages that its clients had in flight go to other clients at
// once, and not after their timeout.
//
// B49 on a proxied subscription.
func TestRemoteNodeDies(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name string
		die  func(tc *testCluster, m *testNode)
	}{
		{"killed", (*testCluster).kill},
		{"severed", func(tc *testCluster, m *testNode) { tc.network.dropConnections(m.name) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			tc := newTestCluster(t, 3)
			tc.create("t", 1)
			l := tc.leader("t", 0)
			p := tc.others(l)[0]
			g := tc.subscribeAt(p, "t", "c", 10)
			publish(t, tc.topic(l, "t"), numbered("m", 10, 0)...)
			for range 10 {
				g.next()
			}
			x.die(tc, p)
			began := time.Now()
			seats := []*testClient{subscribe(t, tc.channelAt(l, "t", "c"), 20)}
			if x.name == "severed" {
				seats = append(seats, g.testClient) // its node may be back first
			}
			got := map[node.ID]bool{}
			for len(got) < 10 {
				for _, s := range seats {
					if m, ok := s.poll(2 * time.Millisecond); ok {
						if m.attempts != 2 {
							t.Errorf("attempt %d", m.attempts)
						}
						got[m.id] = true
					}
				}
				if time.Since(began) > patience {
					t.Fatalf("%d of 10 that were in flight came again", len(got))
				}
			}
		})
	}
}

// nodeWithoutLeadership creates the topic t with two partitions, which two nodes lead, and returns the third node p.
func (tc *testCluster) nodeWithoutLeadership() (p *testNode, leaders []*testNode) {
	tc.t.Helper()
	tc.create("t", 2)
	leaders = []*testNode{tc.leader("t", 0), tc.leader("t", 1)}
	if leaders[0] == leaders[1] {
		tc.t.Fatal("one node leads both partitions")
	}
	for _, m := range tc.running() {
		if !slices.Contains(leaders, m) {
			return m, leaders
		}
	}
	panic("BUG: no third node")
}

// RDY bounds the messages in flight of all leaders together. If there are more leaders than credits, each leader gets
// its turn.
func TestRemoteReady(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	p, leaders := tc.nodeWithoutLeadership()
	g := tc.subscribeAt(p, "t", "c", 1)
	publish(t, tc.topic(p, "t"), numbered("m", 40, 0)...)
	inFlight := func() (n int) {
		for _, m := range leaders {
			n += channelStats(t, tc.channelAt(m, "t", "c")).InFlightCount
		}
		return n
	}
	from := map[uint32]int{}
	bodies := map[string]bool{}
	for len(bodies) < 40 {
		m := g.next()
		from[m.id.Partition()]++
		bodies[m.body] = true
		another := func() bool {
			_, more := g.poll(30 * time.Millisecond)
			return more
		}
		if n := inFlight(); n > 1 || len(bodies)%8 == 0 && another() {
			t.Fatalf("more than one in flight (%d)", n)
		}
		g.finish(m)
	}
	if len(from) != 2 || g.testClient.closes != 0 {
		t.Errorf("messages per partition: %v", from)
	}
	// While all is idle, a single message of either partition comes soon, whichever leader has the credit.
	for i := range 10 {
		publish(t, tc.topic(p, "t"), fmt.Sprint("single", i))
		g.finish(g.next())
	}
	if err := g.Ready(5); err != nil {
		t.Fatal(err)
	}
	publish(t, tc.topic(p, "t"), numbered("n", 40, 0)...)
	var held []delivered
	for range 5 {
		held = append(held, g.next())
	}
	g.expectNothing("five are in flight")
	if n := inFlight(); n != 5 {
		t.Errorf("%d in flight, RDY 5", n)
	}
	if err := g.Ready(0); err != nil {
		t.Fatal(err)
	}
	g.finish(held...)
	g.expectNothing("RDY is 0")
	g.StopDelivery()
	if err := g.Ready(10); err != nil {
		t.Fatal(err)
	}
	g.expectNothing("it was stopped")
}

// A client that does not read delays only its own messages. The bytes on their way to it are bounded, and they go on
// when the client reads again.
func TestRemoteSlowClient(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { o.MaxMessageBytes = 32 << 10 })
	tc.create("t", 1)
	l := tc.leader("t", 0)
	p := tc.others(l)[0]
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := tc.topic(p, "t").Channel(ctx, "c")
	if err != nil {
		t.Fatal(err)
	}
	g := &remoteTestClient{testClient: &testClient{t: t, came: make(chan struct{}, 1), limit: 1}}
	k, err := c.SubscribeClient(ctx, node.ConsumerOptions{}, g)
	if err != nil {
		t.Fatal(err)
	}
	g.Consumer = k
	const count, size = 400, 16 << 10
	for _, body := range numbered("m", count, size) {
		publish(t, tc.topic(l, "t"), body)
	}
	if err := k.Ready(1000); err != nil {
		t.Fatal(err)
	}
	k.Pump()
	got := 0
	for wait := patience; ; got++ { // the first may take its time, on a busy machine
		if _, ok := g.poll(wait); !ok {
			break
		}
		wait = 200 * time.Millisecond
	}
	if got == 0 || got > node.RemoteWindowBytes/size+2 {
		t.Fatalf("%d messages of %d bytes came to a client that is full", got, size)
	}
	publish(t, tc.topic(p, "t"), "the connection is free")
	g.testClient.mu.Lock()
	g.limit = 0
	g.testClient.mu.Unlock()
	k.Unblock()
	for ; got < count+1; got++ {
		g.next()
	}
}

// A node that leads some partitions of a topic does not fetch messages of the others: stock clients connect to all
// nodes.
func TestRemoteNotWhereLeading(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	leaders := tc.leaders("t")
	m := tc.nodes[0]
	g := tc.subscribeAt(m, "t", "c", 100)
	publish(t, tc.topic(m, "t"), numbered("m", 30, 0)...)
	for range 10 {
		if d := g.next(); int(d.id.Partition()) != leaders[m] {
			t.Errorf("%s came from a partition that another node leads", d.id)
		}
	}
	g.expectNothing("the rest is other nodes'")
}

// Deleting a channel ends its clients at every node. An ephemeral channel is deleted with its last client, at whatever
// node that is. Subscribing to a deleted channel creates it again.
//
// B45, B46 on a proxied subscription.
func TestRemoteChannelEnds(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	p, leaders := tc.nodeWithoutLeadership()
	g := tc.subscribeAt(p, "t", "c", 10)
	if err := tc.topic(leaders[0], "t").DeleteChannel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	tc.eventually("the client is told", func() bool {
		g.testClient.mu.Lock()
		defer g.testClient.mu.Unlock()
		return errors.Is(g.ended, errs.ErrDeleted) && g.closes == 1
	})
	g.Close()
	g = tc.subscribeAt(p, "t", "c", 10)
	publish(t, tc.topic(p, "t"), "new")
	g.finish(g.next())
	e := tc.subscribeAt(p, "t", "e#ephemeral", 10)
	publish(t, tc.topic(p, "t"), numbered("m", 4, 0)...)
	for range 4 {
		e.finish(e.next())
	}
	e.Close()
	for _, m := range tc.running() {
		tc.eventually("the ephemeral channel is gone", func() bool {
			_, ok := tc.topic(m, "t").LookupChannel("e#ephemeral")
			return !ok
		})
	}
	if err := p.e.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	tc.eventually("the client is told of the topic's end", func() bool {
		g.testClient.mu.Lock()
		defer g.testClient.mu.Unlock()
		return errors.Is(g.ended, errs.ErrDeleted)
	})
}

// If a leader refuses a subscription because the channel was deleted, Subscribe fails. A client that learned it neither
// from an error nor from Closed would wait for messages for ever.
func TestRemoteSubscribeIsRefused(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	p, leaders := tc.nodeWithoutLeadership()
	for range 20 {
		c, err := tc.topic(p, "t").Channel(t.Context(), "c")
		if err != nil {
			t.Fatal(err)
		}
		if err := tc.topic(leaders[0], "t").DeleteChannel(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
		g := &remoteTestClient{testClient: &testClient{t: t, came: make(chan struct{}, 1)}}
		if k, err := c.SubscribeClient(t.Context(), node.ConsumerOptions{}, g); !errors.Is(err, errs.ErrDeleted) {
			t.Fatalf("Subscribe says %v, and gives %v", err, k)
		}
		g.testClient.mu.Lock()
		if g.closes != 0 {
			t.Error("a client that was not accepted is told of its end as well")
		}
		g.testClient.mu.Unlock()
	}
}

// When nodes close, nothing is left of remote clients at either end.
func TestRemoteLeavesNothing(t *testing.T) {
	before := len(engineGoroutines())
	tc := newTestCluster(t, 3)
	p, leaders := tc.nodeWithoutLeadership()
	var guests []*remoteTestClient
	for i := range 8 {
		guests = append(guests, tc.subscribeAt(p, "t", fmt.Sprint("c", i%3), 1+i%3))
	}
	publish(t, tc.topic(p, "t"), numbered("m", 50, 0)...)
	guests[0].next()
	for _, m := range []*testNode{p, leaders[0], leaders[1]} {
		if err := m.e.Close(); err != nil && !strings.Contains(err.Error(), "closed") {
			t.Error(err)
		}
		m.e = nil
	}
	for _, g := range guests {
		if g.testClient.closes != 1 || !errors.Is(g.ended, errs.ErrClosed) {
			t.Errorf("told %d times: %v", g.testClient.closes, g.ended)
		}
		g.Close()
	}
	tc.end()
	awaitNoGoroutines(t, before)
}
