package native

import (
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// orderedBy makes the channel that k consumes ordered, and publishes messages of one key.
func orderedBy(t *testing.T, topic *node.Topic, name string, order fold.Order, bodies ...string) {
	t.Helper()
	ch, ok := topic.LookupChannel(name)
	if !ok {
		t.Fatal("there is no channel", name)
	}
	if _, err := ch.Configure(t.Context(), fold.ChannelSettings{Order: order}); err != nil {
		t.Fatal(err)
	}
	for _, body := range bodies {
		m := node.Outgoing{Body: []byte(body), Key: []byte("k")}
		if _, err := topic.PublishMessage(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
}

func stamped(stamp uint64) func(*wire.Subscribe) { return func(m *wire.Subscribe) { m.Stamp = stamp } }

// The messages of an ordered channel come behind a permit if the client knows permits, and without one if it does not.
// A stamp is answered with a permit.
func TestPermits(t *testing.T) {
	w := open(t, nil)
	topic, _ := stock(t, w, 0)
	old := w.dial().subscribe(topic, "old", nil)
	orderedBy(t, topic, "old", fold.OrderKey)
	began := time.Now()
	k := w.dial().subscribe(topic, "new", stamped(1000))
	orderedBy(t, topic, "new", fold.OrderPartition, "one", "two")
	old.expect("one")
	d := k.expect("one")[0]
	age := uint32(time.Since(began).Milliseconds()) + 1
	if p := k.permits; len(p) != 1 || p[0].Stamp != 1000 || p[0].AgeMs > age || p[0].WithinMs != 2000 {
		t.Errorf("permits %+v, %d ms after the stamp", p, age)
	}
	if len(old.permits) != 0 {
		t.Errorf("permits for a client without a stamp: %+v", old.permits)
	}
	k.order(wire.TypeCredit, &wire.Credit{Messages: 5, Stamp: 2000})
	for len(k.permits) < 2 {
		k.take(k.receive())
	}
	if p := k.permits[1]; p.Stamp != 2000 || p.WithinMs != 2000 || len(k.came) != 0 {
		t.Errorf("a stamp is answered with %+v and %d deliveries", p, len(k.came))
	}
	k.through(d)
	k.expect("two")
	plain := w.dial().subscribe(topic, "plain", stamped(1000))
	_, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("three")})
	mustBe(t, err, nil)
	if plain.expect("three"); len(plain.permits) != 0 {
		t.Errorf("permits in a channel without order: %+v", plain.permits)
	}
}

// What a client had in flight in an ordered channel comes to another one at once if the client has ended its
// subscription, and when its permits are over if its connection was lost.
func TestPermitsOfTheGone(t *testing.T) {
	for name, x := range map[string]struct {
		stamp       uint64
		end         func(k *consuming)
		least, most time.Duration
	}{
		"an end":                       {1, endSubscription, 0, time.Second},
		"a lost connection":            {1, func(k *consuming) { k.c.Abort(nil) }, message.HoldTime, 10 * time.Second},
		"a lost one, without permits":  {0, func(k *consuming) { k.c.Abort(nil) }, 0, time.Second},
		"a lost one, nothing was sent": {1, func(k *consuming) { k.c.Abort(nil) }, 0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := open(t, nil)
			topic, _ := stock(t, w, 0)
			first := w.dial().subscribe(topic, "c", stamped(x.stamp))
			if name == "a lost one, nothing was sent" {
				first.order(wire.TypeCredit, &wire.Credit{})
				first.sync(netproto.StatusOK)
			}
			orderedBy(t, topic, "c", fold.OrderKey, "one", "two")
			if name != "a lost one, nothing was sent" {
				first.expect("one")
			}
			second := w.dial().subscribe(topic, "c", stamped(5))
			began := time.Now()
			x.end(first)
			second.through(second.expect("one")[0])
			second.expect("two")
			if took := time.Since(began); took < x.least || took > x.most {
				t.Errorf("the message came after %v", took)
			}
		})
	}
}

// A recall waits until the client says that it begins nothing more of the partition.
func TestRecall(t *testing.T) {
	w := open(t, nil)
	topic, _ := stock(t, w, 0)
	recall := func() bool { return topic.View().Recall(0) }
	k := w.dial().subscribe(topic, "c", stamped(1))
	if !recall() {
		t.Error("a client without deliveries is waited for")
	}
	orderedBy(t, topic, "c", fold.OrderKey, "one", "two")
	d := k.expect("one")[0]
	asked := func() (m wire.Recall) {
		t.Helper()
		f := k.await(func(f frame) bool { return f.Type == wire.TypeRecall })
		mustBe(t, wire.Decode(f.payload, &m), nil)
		return m
	}
	for range 2 {
		if recall() {
			t.Error("a recall does not wait")
		}
	}
	m := asked()
	if m != (wire.Recall{Partition: 0, Number: d.number}) {
		t.Errorf("asked for %+v, delivered %d", m, d.number)
	}
	k.order(wire.TypeRecall, &wire.Recall{Partition: 0, Number: m.Number - 1})
	k.order(wire.TypeRecall, &wire.Recall{Partition: 7, Number: 1 << 60})
	k.sync(netproto.StatusOK)
	if recall() {
		t.Error("an answer about earlier deliveries, or of another partition, counts")
	}
	k.order(wire.TypeRecall, &m)
	eventually(t, "the recall is over", recall)
	k.through(d)
	d = k.expect("two")[0]
	if recall() {
		t.Error("a later delivery is not waited for")
	}
	if m := asked(); m.Number != d.number {
		t.Errorf("asked for %+v, delivered %d", m, d.number)
	}
}

// endAll ends all subscriptions, as their channels do.
func endAll(s *Server, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.sessions {
		c.mu.Lock()
		for _, u := range c.subscriptions.byRequest {
			u.packer.Closed(why)
		}
		c.mu.Unlock()
	}
}

// A client that is gone without a word is waited for until its permits are over; one that answers the end is not.
func TestRecallOfTheGone(t *testing.T) {
	for _, answers := range []bool{false, true} {
		t.Run(map[bool]string{false: "silent", true: "answers"}[answers], func(t *testing.T) {
			t.Parallel()
			w := open(t, nil)
			topic, _ := stock(t, w, 0)
			k := w.dial().subscribe(topic, "c", stamped(1))
			orderedBy(t, topic, "c", fold.OrderKey, "one")
			k.expect("one")
			endAll(w.s, errs.ErrMoved)
			k.ended(netproto.StatusNotLeader)
			began := time.Now()
			if answers {
				k.order(wire.TypeSubscribeEnd, new(wire.Outcome))
			}
			recall := func() bool { return topic.View().Recall(0) }
			eventually(t, "the recall is over", recall)
			if took := time.Since(began); answers != (took < message.HoldTime/2) {
				t.Errorf("answers %v: it took %v", answers, took)
			}
		})
	}
}

// The pure part: what is asked, and what is done.
func TestRecallTable(t *testing.T) {
	var p permits
	deliver := func(part uint32, number uint64) bool {
		return p.covers(&node.Delivery{ID: node.ID(uint64(part) << 48), Ordered: true, Number: number})
	}
	if deliver(0, 1) || len(p.parts) != 0 {
		t.Error("without a stamp a delivery is covered")
	}
	p.stamp(9, time.Unix(5, 0))
	p.stamp(0, time.Unix(6, 0))
	if p.newest != 9 || !p.at.Equal(time.Unix(5, 0)) {
		t.Errorf("a frame without a stamp changes it: %+v", p)
	}
	deliver(3, 1)
	deliver(1, 2)
	var got []any
	for _, step := range []func(){
		func() { deliver(3, 5) },
		func() { p.recalled(&wire.Recall{Partition: 3, Number: 9}) }, // nothing was asked: the client says more than it knows
	} {
		step()
	}
	for _, part := range []uint32{0, 1, 3, 3, 9} {
		ask, done := p.recall(part)
		got = append(got, ask, done)
	}
	want := []any{uint64(0), true, uint64(2), false, uint64(5), false, uint64(0), false, uint64(0), true}
	if !slices.Equal(got, want) {
		t.Errorf("recalls %v, want %v", got, want)
	}
	p.recalled(&wire.Recall{Partition: 3, Number: 5})
	if _, done := p.recall(3); !done {
		t.Error("an answer is not taken")
	}
}

func endSubscription(k *consuming) { k.order(wire.TypeSubscribeEnd, new(wire.Outcome)) }
