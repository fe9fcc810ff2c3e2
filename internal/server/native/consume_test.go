package native

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/fold"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// came is a delivery that a client has received, and its number.
type came struct {
	wire.Delivery
	number uint64
}

// consuming is a subscription of a client.
type consuming struct {
	*client
	request uint64
	told    wire.Subscribed
	came    []came // received, and not taken by next
	other   []frame
	last    uint64 // number of the last delivery that was received
	permits []wire.Permit
}

// subscribe subscribes to a channel, with room for much, and awaits the answer. edit changes the request.
func (c *client) subscribe(topic *node.Topic, channel string, edit func(*wire.Subscribe)) *consuming {
	c.t.Helper()
	k := &consuming{client: c, request: c.sendSubscribe(topic, channel, edit)}
	f := c.answer()
	if f.Type != wire.TypeSubscribed || f.Status != netproto.StatusOK || f.Request != k.request {
		c.t.Fatalf("%v %v for request %d: %q", f.Type, f.Status, f.Request, f.payload)
	}
	if err := wire.Decode(f.payload, &k.told); err != nil {
		c.t.Fatal(err)
	}
	return k
}

func (c *client) sendSubscribe(topic *node.Topic, channel string, edit func(*wire.Subscribe)) uint64 {
	c.t.Helper()
	m := &wire.Subscribe{
		Channel: channel, From: wire.FromDefault, Partition: wire.NoPartition, Messages: 1000, Bytes: 1 << 30, Create: true,
	}
	if topic != nil {
		m.Topic = topic.ID()
	}
	if edit != nil {
		edit(m)
	}
	return c.send(wire.TypeSubscribe, m)
}

// order sends a frame about the subscription.
func (k *consuming) order(typ netproto.Type, m wire.Payload) {
	k.t.Helper()
	f := &netproto.Frame{Type: typ, Request: k.request, Head: wire.Append(nil, m)}
	if err := k.c.Send(k.t.Context(), f); err != nil {
		k.t.Fatal(err)
	}
}

// take sorts a frame: deliveries go to came, all others to other.
func (k *consuming) take(f frame) {
	k.t.Helper()
	if f.Type == wire.TypeDeliverOrdered {
		var m wire.Permit
		if err := wire.Decode(f.payload, &m); err != nil {
			k.t.Fatal(err)
		}
		k.permits = append(k.permits, m)
		if f.payload = f.payload[wire.PermitBytes:]; len(f.payload) == len(wire.BeginDeliver(nil, 0)) {
			return
		}
	} else if f.Type != wire.TypeDeliver {
		k.other = append(k.other, f)
		return
	}
	var it wire.Deliveries
	if err := it.Reset(f.payload); err != nil || f.Request != k.request || it.First <= k.last || it.Count == 0 {
		k.t.Fatalf("%d deliveries from %d after %d for %d: %v", it.Count, it.First, k.last, f.Request, err)
	}
	for i := range it.Count {
		d := it.Next()
		if d == nil {
			k.t.Fatal(it.Err())
		}
		k.last = it.First + uint64(i)
		own := *d
		own.Headers = slices.Clone(d.Headers)
		k.came = append(k.came, came{own, k.last})
	}
}

// next returns the next delivery.
func (k *consuming) next() came {
	k.t.Helper()
	for len(k.came) == 0 {
		k.take(k.receive())
	}
	d := k.came[0]
	k.came = k.came[1:]
	return d
}

// expect takes deliveries with these bodies.
func (k *consuming) expect(bodies ...string) (all []came) {
	k.t.Helper()
	for i, want := range bodies {
		d := k.next()
		if string(d.Body) != want {
			k.t.Fatalf("delivery %d of %d is %q, want %q", i, len(bodies), d.Body, want)
		}
		all = append(all, d)
	}
	return all
}

// expectNothing checks that nothing more was delivered: what the client sends is answered, and nothing comes before.
func (k *consuming) expectNothing() {
	k.t.Helper()
	k.sync(netproto.StatusOK)
	for drained := false; !drained; {
		select {
		case f := <-k.frames:
			k.take(f)
		default:
			drained = true
		}
	}
	if len(k.came) > 0 {
		k.t.Fatalf("%d deliveries came, the first is %q with %d attempts", len(k.came), k.came[0].Body, k.came[0].Attempts)
	}
}

// sync sends a Sync and awaits its answer.
func (k *consuming) sync(status netproto.Status) {
	k.t.Helper()
	request := k.send(wire.TypeSync, &wire.Sync{Subscription: k.request})
	f := k.await(func(f frame) bool { return f.Request == request })
	if f.Type != wire.TypeSynced || f.Status != status {
		k.t.Fatalf("%v with %v, want %v", f.Type, f.Status, status)
	}
}

// await returns the first frame that is wanted; others are kept.
func (k *consuming) await(wanted func(frame) bool) frame {
	k.t.Helper()
	for i := 0; ; i++ {
		for i == len(k.other) {
			k.take(k.receive())
		}
		if f := k.other[i]; wanted(f) {
			k.other = slices.Delete(k.other, i, i+1)
			return f
		}
	}
}

// refusals awaits a Refused.
func (k *consuming) refusals() []wire.Refusal {
	k.t.Helper()
	var m wire.Refused
	f := k.await(func(f frame) bool { return f.Type == wire.TypeRefused })
	if err := wire.Decode(f.payload, &m); err != nil || f.Request != k.request {
		k.t.Fatal(f.Request, err)
	}
	return m.Messages
}

// ended awaits the SubscribeEnd.
func (k *consuming) ended(status netproto.Status) wire.Outcome {
	k.t.Helper()
	var m wire.Outcome
	f := k.await(func(f frame) bool { return f.Type == wire.TypeSubscribeEnd })
	if err := wire.Decode(f.payload, &m); err != nil || f.Status != status || f.Request != k.request {
		k.t.Fatalf("ended with %v %q, want %v", f.Status, m.Text, status)
	}
	return m
}

func handles(all ...came) *wire.Handles {
	m := new(wire.Handles)
	for _, d := range all {
		m.Deliveries = append(m.Deliveries, d.handle())
	}
	return m
}

func (d *came) handle() wire.Handle { return wire.Handle{Number: d.number, ID: d.ID} }

// through finishes through a delivery.
func (k *consuming) through(d came) {
	k.t.Helper()
	k.order(wire.TypeFinishThrough, &wire.FinishThrough{Number: d.number, ID: d.ID})
}

func channelStats(t testing.TB, w *world, channel string) node.ChannelStats {
	t.Helper()
	for _, ts := range w.e.Stats("orders", channel) {
		for _, c := range ts.Channels {
			return c
		}
	}
	t.Fatalf("no channel %s", channel)
	panic("unreachable")
}

// untilFinished waits until so many messages of channel c are finished. On a busy machine what the test has finished
// may have timed out before: what comes again is finished by again.
func (k *consuming) untilFinished(w *world, count uint64, again func(d came)) {
	k.t.Helper()
	for range 100 {
		k.sync(netproto.StatusOK)
		if channelStats(k.t, w, "c").FinishCount == count {
			return
		}
		again(k.next())
	}
	k.t.Fatalf("%d messages are finished, want %d", channelStats(k.t, w, "c").FinishCount, count)
}

// A client gets the messages of a channel with all that belongs to them, finishes, requeues and touches them.
func TestConsume(t *testing.T) {
	w := open(t, nil)
	topic, _ := stock(t, w, 10)
	c := w.dial()
	k := c.subscribe(topic, "c", func(m *wire.Subscribe) { m.TimeoutMs = 60_000 })
	if k.told.TimeoutMs != 60_000 || k.told.MaxTimeoutMs == 0 {
		t.Errorf("%+v", k.told)
	}
	got := k.expect(numbers(0, 10)...)
	now := time.Now()
	for i, d := range got {
		if d.Attempts != 1 || d.number != uint64(i+1) || now.Sub(time.Unix(0, d.Timestamp)) > patience {
			t.Errorf("%+v", d)
		}
	}
	k.order(wire.TypeFinish, handles(got[0], got[2]))
	k.order(wire.TypeRequeue, &wire.Requeue{Messages: []wire.Delayed{{Handle: got[1].handle()}}})
	if d := k.expect("1")[0]; d.Attempts != 2 || d.number != 11 {
		t.Errorf("requeued: %+v", d)
	}
	k.order(wire.TypeTouch, handles(got[3:]...))
	k.through(got[8])
	k.expectNothing()
	if st := channelStats(t, w, "c"); st.InFlightCount != 2 || st.Depth != 0 || st.FinishCount != 8 {
		t.Errorf("after FinishThrough: %+v", st)
	}
	k.order(wire.TypeSubscribeEnd, new(wire.Outcome))
	k.ended(netproto.StatusOK)
	// What is in flight times out and comes again.
	k = c.subscribe(topic, "c", func(m *wire.Subscribe) { m.TimeoutMs = 200 })
	attempts := map[string]uint16{"1": 2, "9": 1}
	for range 4 { // each of them twice, in any order
		d := k.next()
		if attempts[string(d.Body)]++; d.Attempts != attempts[string(d.Body)] {
			t.Errorf("attempt %d of %q, want %d", d.Attempts, d.Body, attempts[string(d.Body)])
		}
		if d.Attempts > 3 || d.Attempts > 2 && string(d.Body) == "9" { // its second time
			k.order(wire.TypeFinish, handles(d))
		}
	}
	k.untilFinished(w, 10, func(d came) { k.order(wire.TypeFinish, handles(d)) })
	k.order(wire.TypeSubscribeEnd, new(wire.Outcome))
	k.ended(netproto.StatusOK)
	k = c.subscribe(topic, "c", nil)
	k.expectNothing()
	if _, err := topic.PublishMessage(t.Context(), node.Outgoing{
		Body: []byte("headers"), Headers: []node.Header{{Key: []byte("k"), Value: []byte("v")}, {Key: []byte("e")}},
	}); err != nil {
		t.Fatal(err)
	}
	if h := k.expect("headers")[0].Headers; len(h) != 2 || string(h[0].Key) != "k" || string(h[0].Value) != "v" ||
		string(h[1].Key) != "e" || len(h[1].Value) != 0 {
		t.Errorf("headers %q", h)
	}
	k.order(wire.TypeSubscribeEnd, new(wire.Outcome))
	k.ended(netproto.StatusOK)
	if st := channelStats(t, w, "c"); st.InFlightCount != 0 || st.Depth != 1 || len(st.Consumers) != 0 {
		t.Errorf("after the end: %+v", st)
	}
	if n := w.s.Meter().Subscriptions; n != 0 {
		t.Errorf("%d subscriptions are left", n)
	}
}

// FinishThrough does not finish a redelivery that is on its way to the client, although the client has the message.
func TestFinishThroughAndARedelivery(t *testing.T) {
	w := open(t, nil)
	topic, _ := stock(t, w, 5)
	k := w.dial().subscribe(topic, "c", func(m *wire.Subscribe) { m.TimeoutMs = 200 })
	first := k.expect(numbers(0, 5)...)
	again := k.expect(numbers(0, 5)...) // all have timed out
	k.through(first[4])                 // it was sent before the client received them
	if r := k.refusals(); len(r) != 1 || r[0] != (wire.Refusal{
		Handle: first[4].handle(), Kind: uint16(wire.TypeFinishThrough), Status: netproto.StatusRejected,
	}) {
		t.Errorf("%+v", r)
	}
	if st := channelStats(t, w, "c"); st.FinishCount != 0 {
		t.Errorf("%d were finished", st.FinishCount)
	}
	k.through(again[4])
	k.untilFinished(w, 5, k.through)
}

// What a client says of a delivery that has timed out does not concern the redelivery of the message that is on its way
// to the same client.
func TestLateOrdersAndARedelivery(t *testing.T) {
	w := open(t, nil)
	topic, _ := stock(t, w, 1)
	k := w.dial().subscribe(topic, "c", func(m *wire.Subscribe) { m.TimeoutMs = 500 })
	first := k.next()
	again := k.next() // it has timed out; the orders below were sent before the client received this
	orders := map[netproto.Type]wire.Payload{
		wire.TypeFinish:  handles(first),
		wire.TypeTouch:   handles(first),
		wire.TypeRequeue: &wire.Requeue{Messages: []wire.Delayed{{Handle: first.handle(), DelayMs: 3600_000}}},
	}
	for _, typ := range []netproto.Type{wire.TypeFinish, wire.TypeRequeue, wire.TypeTouch} {
		m := orders[typ]
		k.order(typ, m)
		k.sync(netproto.StatusOK)
		if st := channelStats(t, w, "c"); st.FinishCount != 0 || st.RequeueCount != 0 || st.DeferredCount != 0 {
			t.Fatalf("after a late order: %+v", st)
		}
		expectRefused(t, k.refusals(), typ, []wire.Handle{first.handle()})
	}
	k.order(wire.TypeFinish, handles(again, again)) // it may have timed out, too, but is finished at most once
	k.sync(netproto.StatusOK)
	if st := channelStats(t, w, "c"); st.FinishCount > 1 {
		t.Errorf("after a finish: %+v", st)
	}
}

// After a Sync was answered, a crash brings nothing back. What was finished without one may come again.
func TestSyncOutlastsACrash(t *testing.T) {
	w := openOnDisk(t, nil)
	topic, _ := stock(t, w, 100)
	k := w.dial().subscribe(topic, "c", nil)
	got := k.expect(numbers(0, 100)...)
	k.through(got[59])
	k.order(wire.TypeFinish, handles(got[80]))
	k.sync(netproto.StatusOK)
	w = w.crash()
	topic, _ = w.e.Catalog().LookupTopic("orders")
	k = w.dial().subscribe(topic, "c", nil)
	k.expect(append(numbers(60, 80), numbers(81, 100)...)...)
	k.expectNothing()
}

// Wrong ids change nothing, and the client is told.
func TestConsumeRefuses(t *testing.T) {
	w := open(t, nil)
	topic, _ := stock(t, w, 3)
	other, err := w.e.CreateTopic(t.Context(), "others", 4)
	if err != nil {
		t.Fatal(err)
	}
	mine := w.dial().subscribe(topic, "c", func(m *wire.Subscribe) { m.Messages = 2 })
	got := mine.expect("0", "1")
	theirs := w.dial().subscribe(topic, "c", nil)
	stranger := theirs.expect("2")[0]
	var bad []wire.Handle
	for _, id := range []uint64{stranger.ID, got[0].ID + 1000, 3<<48 | 1, 1<<63 + 5, uint64(other.Partitions()) << 48} {
		bad = append(bad, wire.Handle{Number: 1, ID: id})
	}
	bad = append(bad, wire.Handle{Number: got[1].number, ID: got[0].ID}, wire.Handle{Number: 0, ID: got[0].ID})
	for _, typ := range []netproto.Type{wire.TypeFinish, wire.TypeTouch} {
		mine.order(typ, &wire.Handles{Deliveries: bad})
		expectRefused(t, mine.refusals(), typ, bad)
	}
	m := new(wire.Requeue)
	for _, h := range bad {
		m.Messages = append(m.Messages, wire.Delayed{Handle: h})
	}
	mine.order(wire.TypeRequeue, m)
	expectRefused(t, mine.refusals(), wire.TypeRequeue, bad)
	mine.order(wire.TypeFinishThrough, &wire.FinishThrough{Number: 0, ID: 7})
	expectRefused(t, mine.refusals(), wire.TypeFinishThrough, []wire.Handle{{Number: 0, ID: 7}})
	if st := channelStats(t, w, "c"); st.InFlightCount != 3 || st.FinishCount != 0 || st.RequeueCount != 0 {
		t.Errorf("%+v", st)
	}
	theirs.order(wire.TypeFinish, handles(stranger, stranger))
	expectRefused(t, theirs.refusals(), wire.TypeFinish, []wire.Handle{stranger.handle()})
}

func expectRefused(t *testing.T, got []wire.Refusal, kind netproto.Type, hs []wire.Handle) {
	t.Helper()
	var want []wire.Refusal
	for _, h := range hs {
		want = append(want, wire.Refusal{Handle: h, Kind: uint16(kind), Status: netproto.StatusRejected})
	}
	if !slices.Equal(got, want) {
		t.Errorf("refused %+v, want %+v", got, want)
	}
}

// Subscriptions that cannot be had.
func TestSubscribeRefuses(t *testing.T) {
	w := open(t, func(o *Options) { o.MaxConnSubscriptions, o.MaxSubscriptions = 2, 3 })
	topic, _ := stock(t, w, 0)
	c := w.dial()
	for name, x := range map[string]struct {
		channel string
		edit    func(*wire.Subscribe)
		want    netproto.Status
	}{
		"an unknown topic":     {"c", func(m *wire.Subscribe) { m.Topic[0]++ }, netproto.StatusNotLeader},
		"an unknown channel":   {"none", func(m *wire.Subscribe) { m.Create = false }, netproto.StatusRejected},
		"a bad name":           {"a b", nil, netproto.StatusRejected},
		"an unknown partition": {"c", func(m *wire.Subscribe) { m.Partition = 1 }, netproto.StatusNotLeader},
		"a start that an ephemeral channel has not": {
			"e#ephemeral", func(m *wire.Subscribe) { m.From = wire.FromOldest }, netproto.StatusRejected,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			c.refusal(c.sendSubscribe(topic, x.channel, x.edit), wire.TypeSubscribed, x.want)
		})
	}
	c.t = t
	c.subscribe(topic, "c", nil)
	second := c.subscribe(topic, "d", nil)
	c.refusal(c.sendSubscribe(topic, "e", nil), wire.TypeSubscribed, netproto.StatusFull)
	other := w.dialFrom("127.0.0.2")
	other.subscribe(topic, "c", nil)
	other.refusal(other.sendSubscribe(topic, "c", nil), wire.TypeSubscribed, netproto.StatusFull)
	second.order(wire.TypeSubscribeEnd, new(wire.Outcome))
	second.ended(netproto.StatusOK)
	second.order(wire.TypeFinish, &wire.Handles{Deliveries: []wire.Handle{{Number: 1, ID: 1}}}) // ignored
	second.sync(netproto.StatusUnknown)
	c.subscribe(topic, "e", nil)
	// A request that names an open subscription ends the connection.
	f := &netproto.Frame{Type: wire.TypeSubscribe, Request: c.next, Head: wire.Append(nil, &wire.Subscribe{})}
	if err := c.c.Send(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	c.end()
	eventually(t, "the end of its subscriptions", func() bool { return w.s.Meter().Subscriptions == 1 })
}

// Where a channel that is created begins, and that an existing one stays where it is.
func TestSubscribeFrom(t *testing.T) {
	w := open(t, nil)
	topic, ids := stock(t, w, 10)
	for name, x := range map[string]struct {
		from  wire.From
		value int64
		want  []string
	}{
		"oldest": {wire.FromOldest, 0, numbers(0, 10)},
		"newest": {wire.FromNewest, 0, nil},
		"id":     {wire.FromID, int64(ids[7]), numbers(7, 10)},
		"time":   {wire.FromTime, time.Now().Add(time.Hour).UnixNano(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			k := w.dial().subscribe(topic, "from_"+name, func(m *wire.Subscribe) { m.From, m.Value = x.from, x.value })
			k.t = t
			k.expect(x.want...)
			k.expectNothing()
		})
	}
	k := w.dial().subscribe(topic, "from_newest", func(m *wire.Subscribe) { m.From = wire.FromOldest })
	k.expectNothing()
}

// The choices of a subscription: tag, sample, partition; and the orders and filters of a channel.
func TestConsumeAsTheChannelSays(t *testing.T) {
	w := open(t, nil)
	topic, _ := stock(t, w, 0)
	publish := func(body string, headers ...string) {
		t.Helper()
		m := node.Outgoing{Body: []byte(body)}
		for i := 0; i < len(headers); i += 2 {
			m.Headers = append(m.Headers, node.Header{Key: []byte(headers[i]), Value: []byte(headers[i+1])})
		}
		if _, err := topic.PublishMessage(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("tag", func(t *testing.T) {
		c := w.dial()
		eu := c.subscribe(topic, "tags", func(m *wire.Subscribe) { m.Tag = "eu" })
		rest := w.dial().subscribe(topic, "tags", nil)
		publish("one", channel.TagHeader, "eu")
		publish("two")
		publish("three", channel.TagHeader, "us")
		eu.expect("one")
		rest.expect("two", "three")
	})
	t.Run("sample", func(t *testing.T) {
		k := w.dial().subscribe(topic, "samples", func(m *wire.Subscribe) { m.SampleRate = 30 })
		for i := range 200 {
			publish(fmt.Sprint(i))
		}
		eventually(t, "all messages were sampled", func() bool { return channelStats(t, w, "samples").Depth == 0 })
		k.sync(netproto.StatusOK)
		for len(k.frames) > 0 {
			k.take(k.receive())
		}
		if n := len(k.came); n < 20 || n > 120 {
			t.Errorf("%d of 200 messages in a sample of 30 percent", n)
		}
	})
	for _, order := range []fold.Order{fold.OrderPartition, fold.OrderKey} {
		t.Run(fmt.Sprint("order ", order), func(t *testing.T) {
			name := fmt.Sprint("ordered_", order)
			k := w.dial().subscribe(topic, name, nil)
			ch, _ := topic.LookupChannel(name)
			if _, err := ch.Configure(t.Context(), fold.ChannelSettings{Order: order}); err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				publish(fmt.Sprint(i), "key", "k")
			}
			for i := range 5 {
				d := k.expect(fmt.Sprint(i))[0]
				k.expectNothing() // the next one waits for this one
				k.through(d)
			}
		})
	}
	t.Run("filter", func(t *testing.T) {
		k := w.dial().subscribe(topic, "filtered", nil)
		ch, _ := topic.LookupChannel("filtered")
		if _, err := ch.Configure(t.Context(), fold.ChannelSettings{
			Filter: fold.Filter{Rules: []fold.Rule{{Header: "kind", Pattern: "a"}}},
		}); err != nil {
			t.Fatal(err)
		}
		publish("no", "kind", "b")
		publish("yes", "kind", "a")
		k.expect("yes")
	})
	t.Run("ephemeral", func(t *testing.T) {
		k := w.dial().subscribe(topic, "e#ephemeral", nil)
		publish("passing")
		k.through(k.expect("passing")[0])
		k.sync(netproto.StatusOK)
		k.order(wire.TypeSubscribeEnd, new(wire.Outcome))
		k.ended(netproto.StatusOK)
		eventually(t, "the channel is gone", func() bool {
			_, ok := topic.LookupChannel("e#ephemeral")
			return !ok
		})
	})
}
