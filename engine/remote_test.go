package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/engine"
	"penstock/netproto"
)

// guest is a seat whose client is connected to a node that may lead nothing.
type guest struct {
	*seat
	mu       sync.Mutex
	failures []string
}

func (g *guest) Failed(what engine.FailedCall, id engine.ID, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failures = append(g.failures, fmt.Sprint(what, " ", id, " ", errors.Is(err, engine.ErrNotInFlight)))
}

func (g *guest) failed() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.failures)
}

// done finishes a message that may be in flight elsewhere by now.
func (g *guest) done(m delivered) {
	if err := g.Finish(m.id); err != nil && !errors.Is(err, engine.ErrNotInFlight) {
		g.t.Error(err)
	}
	g.Pump()
}

// visit subscribes at a node, whatever it leads.
func (tr *trio) visit(m *member, topic, channel string, ready int, o ...engine.ConsumerOptions) *guest {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := tr.topic(m, topic).Channel(ctx, channel)
	if err != nil {
		tr.t.Fatal(err)
	}
	g := &guest{seat: &seat{t: tr.t, came: make(chan struct{}, 1)}}
	k, err := c.Subscribe(ctx, append(o, engine.ConsumerOptions{})[0], g)
	if err != nil {
		tr.t.Fatal(err)
	}
	g.Consumer = k
	if err := k.Ready(ready); err != nil {
		tr.t.Fatal(err)
	}
	k.Pump()
	return g
}

// label is a client's description.
type label string

func (l label) String() string { return "in words" }

func (l label) MarshalJSON() ([]byte, error) { return []byte(`"` + string(l) + `"`), nil }

// A consumer at a node that leads nothing gets everything: FIN confirms at the leader, REQ, TOUCH and timeouts are the
// leader's, what the leader refuses is told, and the leader's statistics name the client.
//
// B44, B47, B48, B50 on a proxied subscription.
func TestRemoteConsumer(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 1)
	l := tr.leader("t", 0)
	p := tr.others(l)[0]
	g := tr.visit(p, "t", "c", 50, engine.ConsumerOptions{Label: label("a client")})
	want := numbered("m", 2000, 100)
	publish(t, tr.topic(p, "t"), want...)
	c := tr.at(l, "t", "c")
	var got []string
	first := g.next()
	for _, cs := range channelStats(t, c).Consumers {
		remote, ok := cs.Label.(engine.RemoteLabel)
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
	tr.eventually("everything is confirmed", func() bool {
		st := channelStats(t, c)
		return st.InFlightCount == 0 && st.Depth == 0
	})
	if err := g.Finish(first.id); err != nil { // a second time: the leader knows it is not in flight
		t.Fatal(err)
	}
	g.Pump()
	tr.eventually("the failure is told", func() bool {
		return slices.Equal(g.failed(), []string{fmt.Sprint(engine.FailedFinish, " ", first.id, " true")})
	})
	g.Close()
	tr.eventually("the leader knows that the client left", func() bool { return len(channelStats(t, c).Consumers) == 0 })
	g = tr.visit(p, "t", "c", 50, engine.ConsumerOptions{MsgTimeout: 700 * time.Millisecond})
	g.timeouts(t, tr.topic(l, "t"))
	g.Close()
	tr.eventually("the leader knows that the client left", func() bool { return len(channelStats(t, c).Consumers) == 0 })
}

// timeouts lets a message time out, and holds another by touching it.
func (g *guest) timeouts(t *testing.T, topic *engine.Topic) {
	t.Helper()
	publish(t, topic, "slow")
	m := g.next()
	began := m.at
	if m = g.next(); m.attempts != 2 || m.at.Sub(began) < 690*time.Millisecond {
		t.Errorf("timed out: attempt %d after %v", m.attempts, m.at.Sub(began))
	}
	for range 5 {
		if again, ok := g.poll(250 * time.Millisecond); ok {
			t.Errorf("attempt %d of a message that was touched", again.attempts)
		}
		if err := g.Touch(m.id); err != nil {
			t.Fatal(err)
		}
		g.Pump()
	}
	g.finish(m)
	if again, ok := g.poll(800 * time.Millisecond); ok {
		t.Errorf("%s came again after FIN, attempt %d", again.body, again.attempts)
	}
}

// The client of a node keeps its connection while leadership moves by hand-over and by a leader's death, to a third
// node and to the client's own; every message that was answered OK comes.
//
// B57 (no loss over a change of leader), B68, B80.
func TestRemoteFollowsLeaders(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 1)
	p := tr.others(tr.leader("t", 0))[0]
	g := tr.visit(p, "t", "c", 64)
	h := newTold()
	stop := tr.load(h, p, "t", "p", func(err error) bool {
		return errors.Is(err, engine.ErrUnknown) || errors.Is(err, engine.ErrNoLeader)
	})
	defer stop()
	seen := map[string]bool{}
	read := func(n int) {
		t.Helper()
		for fresh := 0; fresh < n; {
			m := g.next()
			if !seen[m.body] {
				fresh++
			}
			seen[m.body] = true
			g.done(m)
		}
	}
	read(100)
	for round := range 4 {
		l := tr.leader("t", 0)
		if round%2 == 0 || l == p {
			tr.drain(l, "t")
		} else {
			tr.kill(l)
			tr.leader("t", 0)
			tr.start(l)
		}
		read(100)
		tr.whole("t")
	}
	stop()
	h.mu.Lock()
	var missing []string
	for body := range h.acked {
		if !seen[body] {
			missing = append(missing, body)
		}
	}
	h.mu.Unlock()
	for end := time.Now().Add(patience); len(missing) > 0 && time.Now().Before(end); {
		if m, ok := g.poll(10 * time.Millisecond); ok {
			seen[m.body] = true
			g.done(m)
		}
		missing = slices.DeleteFunc(missing, func(body string) bool { return seen[body] })
	}
	if len(missing) > 0 {
		t.Errorf("%d acknowledged messages never came, %.40q", len(missing), missing[0])
	}
	if g.seat.closes != 0 {
		t.Errorf("the client was told: %v", g.ended)
	}
}

// When the client's node dies, or the connection to it, what its clients had in flight goes to others at once, not
// after the timeout.
//
// B49 on a proxied subscription.
func TestRemoteNodeDies(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name string
		die  func(tr *trio, m *member)
	}{
		{"killed", (*trio).kill},
		{"severed", func(tr *trio, m *member) { tr.wires.sever(m.name) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			tr := newTrio(t, 3)
			tr.create("t", 1)
			l := tr.leader("t", 0)
			p := tr.others(l)[0]
			g := tr.visit(p, "t", "c", 10)
			publish(t, tr.topic(l, "t"), numbered("m", 10, 0)...)
			for range 10 {
				g.next()
			}
			x.die(tr, p)
			began := time.Now()
			seats := []*seat{sit(t, tr.at(l, "t", "c"), 20)}
			if x.name == "severed" {
				seats = append(seats, g.seat) // its node may be back first
			}
			got := map[engine.ID]bool{}
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

// lonely is a node that leads nothing of a topic with two partitions that two nodes lead.
func (tr *trio) lonely() (p *member, leaders []*member) {
	tr.t.Helper()
	tr.create("t", 2)
	leaders = []*member{tr.leader("t", 0), tr.leader("t", 1)}
	if leaders[0] == leaders[1] {
		tr.t.Fatal("one node leads both partitions")
	}
	for _, m := range tr.up() {
		if !slices.Contains(leaders, m) {
			return m, leaders
		}
	}
	panic("BUG: no third node")
}

// RDY holds over all leaders together, and with fewer credits than leaders each has its turn.
func TestRemoteReady(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	p, leaders := tr.lonely()
	g := tr.visit(p, "t", "c", 1)
	publish(t, tr.topic(p, "t"), numbered("m", 40, 0)...)
	inFlight := func() (n int) {
		for _, m := range leaders {
			n += channelStats(t, tr.at(m, "t", "c")).InFlightCount
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
	if len(from) != 2 || g.seat.closes != 0 {
		t.Errorf("messages per partition: %v", from)
	}
	// Idle: a single message of either partition comes soon, whoever has the credit.
	for i := range 10 {
		publish(t, tr.topic(p, "t"), fmt.Sprint("single", i))
		g.finish(g.next())
	}
	if err := g.Ready(5); err != nil {
		t.Fatal(err)
	}
	publish(t, tr.topic(p, "t"), numbered("n", 40, 0)...)
	var held []delivered
	for range 5 {
		held = append(held, g.next())
	}
	g.none("five are in flight")
	if n := inFlight(); n != 5 {
		t.Errorf("%d in flight, RDY 5", n)
	}
	if err := g.Ready(0); err != nil {
		t.Fatal(err)
	}
	g.finish(held...)
	g.none("RDY is 0")
	g.StopDelivery()
	if err := g.Ready(10); err != nil {
		t.Fatal(err)
	}
	g.none("it was stopped")
}

// A client that does not read holds up its own messages and nothing else: what is on the way is bounded, and goes on
// when it reads.
func TestRemoteSlowClient(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3, func(o *engine.Options) { o.MaxMessageBytes = 32 << 10 })
	tr.create("t", 1)
	l := tr.leader("t", 0)
	p := tr.others(l)[0]
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := tr.topic(p, "t").Channel(ctx, "c")
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{seat: &seat{t: t, came: make(chan struct{}, 1), limit: 1}}
	k, err := c.Subscribe(ctx, engine.ConsumerOptions{}, g)
	if err != nil {
		t.Fatal(err)
	}
	g.Consumer = k
	const count, size = 400, 16 << 10
	for _, body := range numbered("m", count, size) {
		publish(t, tr.topic(l, "t"), body)
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
	if got == 0 || got > engine.RemoteWindowBytes/size+2 {
		t.Fatalf("%d messages of %d bytes came to a client that is full", got, size)
	}
	publish(t, tr.topic(p, "t"), "the connection is free")
	g.seat.mu.Lock()
	g.limit = 0
	g.seat.mu.Unlock()
	k.Unblock()
	for ; got < count+1; got++ {
		g.next()
	}
}

// A node that leads some of a topic does not fetch the rest: stock clients connect to all nodes.
func TestRemoteNotWhereLeading(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 3)
	leaders := tr.leaders("t")
	m := tr.nodes[0]
	g := tr.visit(m, "t", "c", 100)
	publish(t, tr.topic(m, "t"), numbered("m", 30, 0)...)
	for range 10 {
		if d := g.next(); int(d.id.Partition()) != leaders[m] {
			t.Errorf("%s came from a partition that another node leads", d.id)
		}
	}
	g.none("the rest is other nodes'")
}

// Deleting a channel ends clients at every node; an ephemeral channel goes with its last client, wherever that is;
// subscribing to what was deleted makes it anew.
//
// B45, B46 on a proxied subscription.
func TestRemoteChannelEnds(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	p, leaders := tr.lonely()
	g := tr.visit(p, "t", "c", 10)
	if err := tr.topic(leaders[0], "t").DeleteChannel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	tr.eventually("the client is told", func() bool {
		g.seat.mu.Lock()
		defer g.seat.mu.Unlock()
		return errors.Is(g.ended, engine.ErrDeleted) && g.closes == 1
	})
	g.Close()
	g = tr.visit(p, "t", "c", 10)
	publish(t, tr.topic(p, "t"), "new")
	g.finish(g.next())
	e := tr.visit(p, "t", "e#ephemeral", 10)
	publish(t, tr.topic(p, "t"), numbered("m", 4, 0)...)
	for range 4 {
		e.finish(e.next())
	}
	e.Close()
	for _, m := range tr.up() {
		tr.eventually("the ephemeral channel is gone", func() bool {
			_, ok := tr.topic(m, "t").LookupChannel("e#ephemeral")
			return !ok
		})
	}
	if err := p.e.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	tr.eventually("the client is told of the topic's end", func() bool {
		g.seat.mu.Lock()
		defer g.seat.mu.Unlock()
		return errors.Is(g.ended, engine.ErrDeleted)
	})
}

// A leader that refuses a subscription, because the channel was deleted, makes Subscribe fail: a client that was told
// neither by an error nor by Closed would wait for messages for ever.
func TestRemoteSubscribeIsRefused(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	p, leaders := tr.lonely()
	for range 20 {
		c, err := tr.topic(p, "t").Channel(t.Context(), "c")
		if err != nil {
			t.Fatal(err)
		}
		if err := tr.topic(leaders[0], "t").DeleteChannel(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
		g := &guest{seat: &seat{t: t, came: make(chan struct{}, 1)}}
		if k, err := c.Subscribe(t.Context(), engine.ConsumerOptions{}, g); !errors.Is(err, engine.ErrDeleted) {
			t.Fatalf("Subscribe says %v, and gives %v", err, k)
		}
		g.seat.mu.Lock()
		if g.closes != 0 {
			t.Error("a client that was not accepted is told of its end as well")
		}
		g.seat.mu.Unlock()
	}
}

// Frames between nodes may be lost with their connection at any time: nothing is lost, and nobody stays without
// messages.
func TestRemoteConnectionLosses(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 1)
	l := tr.leader("t", 0)
	p := tr.others(l)[0]
	g := tr.visit(p, "t", "c", 20)
	all := map[string]bool{}
	for round := range 5 {
		bodies := numbered(fmt.Sprint("r", round, "m"), 50, 10)
		publish(t, tr.topic(l, "t"), bodies...)
		for n := 0; len(all) < 50*(round+1); n++ {
			m := g.next()
			all[m.body] = true
			g.done(m)
			if n == 10+round {
				tr.wires.sever(p.name)
			}
		}
	}
	tr.eventually("all is confirmed", func() bool {
		if m, ok := g.poll(time.Millisecond); ok {
			g.done(m)
		}
		st := channelStats(t, tr.at(l, "t", "c"))
		return st.Depth == 0 && st.InFlightCount == 0 && len(st.Consumers) == 1
	})
	tr.wires.mu.Lock()
	defer tr.wires.mu.Unlock()
	if tr.wires.seen[netproto.TypeDeliver] == 0 {
		t.Error("no messages went between the nodes")
	}
}

// Nothing is left of clients, at either end, when nodes close.
func TestRemoteLeavesNothing(t *testing.T) {
	before := len(engineGoroutines())
	tr := newTrio(t, 3)
	p, leaders := tr.lonely()
	var guests []*guest
	for i := range 8 {
		guests = append(guests, tr.visit(p, "t", fmt.Sprint("c", i%3), 1+i%3))
	}
	publish(t, tr.topic(p, "t"), numbered("m", 50, 0)...)
	guests[0].next()
	for _, m := range []*member{p, leaders[0], leaders[1]} {
		if err := m.e.Close(); err != nil && !strings.Contains(err.Error(), "closed") {
			t.Error(err)
		}
		m.e = nil
	}
	for _, g := range guests {
		if g.seat.closes != 1 || !errors.Is(g.ended, engine.ErrClosed) {
			t.Errorf("told %d times: %v", g.seat.closes, g.ended)
		}
		g.Close()
	}
	tr.end()
	noneLeft(t, before)
}

// A topic gets partitions while a client of another node consumes: it gets the new ones' messages without being told
// anything.
func TestRemoteNewPartitions(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 1)
	l := tr.leader("t", 0)
	p := tr.others(l)[0]
	g := tr.visit(p, "t", "c", 10)
	if err := l.store.ExpandTopic(t.Context(), l.e.Snapshot().Names["t"].ID, 3); err != nil {
		t.Fatal(err)
	}
	for _, m := range tr.up() {
		tr.eventually("all know the new partitions", func() bool { return tr.topic(m, "t").Partitions() == 3 })
	}
	for n := range 3 {
		tr.leader("t", n)
	}
	from := map[uint32]bool{}
	for i := 0; len(from) < 3; i++ {
		publish(t, tr.topic(p, "t"), fmt.Sprint("m", i))
		if m, ok := g.poll(20 * time.Millisecond); ok {
			from[m.id.Partition()] = true
			g.done(m)
		}
		if i > 500 {
			t.Fatalf("messages came of the partitions %v", from)
		}
	}
	if g.seat.closes != 0 {
		t.Errorf("the client was told: %v", g.ended)
	}
}
